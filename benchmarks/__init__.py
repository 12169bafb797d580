"""Benchmarks: speed and size, one file for each question, with peers and hand-written baselines in the same run.

    python -m benchmarks            all questions
    python -m benchmarks memory_engine_speed     one of them
    python -m benchmarks --quick    fewer rounds: to see that everything runs, not to quote
    python -m benchmarks comparison --write     puts its table into docs/explanation/comparison.md
    python -m benchmarks.before_after           compares two checkouts
    python -m benchmarks.functions_per_decision                   counts the functions that one decision enters

A peer is another rate limiter. A floor is the least that the job can cost: written here by hand, with nothing
around it that a program would want. Machines drift, so subjects take turns in short rounds, a ratio is formed
within each round, and the median over the rounds is what counts. Absolute numbers are for the curious. Every
sample is kept under .cache/bench.
"""
