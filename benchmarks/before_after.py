"""Compares the speed of two checkouts: is headgate in the second one slower than in the first?

    git worktree add ../before REVISION
    scripts/bootstrap bench
    .venv-bench/bin/python -m benchmarks.before_after ../before . memory_engine_speed redis_sync
    .venv-bench/bin/python -m benchmarks.before_after ../before . --full memory_engine_speed   not --quick
    .venv-bench/bin/python -m benchmarks.before_after ../before . memory=memory_engine_speed   renamed since then

Each checkout runs its own benchmarks on its own sources, by this Python. They take turns, five rounds each unless
--rounds says otherwise; who comes first changes. A sample is the median of a run, a ratio is formed within each
round, and the median of the ratios is printed: above 1 the second checkout is faster. Floors and peers run the
same code in both: their ratios show how far the machine drifts. Exits with 1 if another ratio is below
LEAST_RATIO.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.interleaved_runs import PEERS
from benchmarks.report import FOLDER

LEAST_RATIO = 0.90
LABELS = ("case", "workers", "subject")
SPEEDS = ("per_cpu_second", "per_second")  # the first that a sample has
CPU_COSTS = ("client_cpu_us", "server_cpu_us", "cpu_us")  # their sum, with --cpu
DRIFT = ("floor", *PEERS)  # in the names of subjects that do not run headgate

Samples = dict[str, float]  # the median speeds of one run, by case and subject


def run_benchmark(checkout: Path, name: str, full: bool, by_cpu: bool) -> Samples:
    """Runs one benchmark in a checkout, and returns the median speed of each of its subjects."""
    folder = checkout / FOLDER
    existing = set(folder.glob(f"{name}-*.jsonl"))
    command = [sys.executable, "-m", "benchmarks", name, *([] if full else ["--quick"])]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    ran = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"before_after: {name} failed in {checkout}:\n{ran.stderr}")
    (written,) = set(folder.glob(f"{name}-*.jsonl")) - existing
    return read_medians(written, by_cpu)


def read_medians(path: Path, by_cpu: bool) -> Samples:
    """Reads the samples of a run: the median speed of each subject in each case."""
    speeds: dict[str, list[float]] = defaultdict(list)
    for line in path.read_text().splitlines():
        sample = json.loads(line)
        label = ", ".join(f"{each} {sample[each]}" for each in LABELS if each in sample)
        cpu_us = sum(sample.get(each, 0) for each in CPU_COSTS)
        measure = next((each for each in SPEEDS if each in sample), None)
        if by_cpu and cpu_us:
            speeds[label].append(1e6 / cpu_us)
        elif measure is not None:
            speeds[label].append(sample[measure])
    return {label: statistics.median(values) for label, values in speeds.items()}


def compare(before: Path, after: Path, name: str, rounds: int, full: bool, by_cpu: bool) -> dict[str, float]:
    """Returns the speed in `after` over that in `before`, for each subject that both have."""
    ratios: dict[str, list[float]] = defaultdict(list)
    old_name, _, new_name = name.partition("=")
    names = {before: old_name, after: new_name or old_name}
    for number in range(rounds):
        order = (before, after) if number % 2 == 0 else (after, before)
        samples = {checkout: run_benchmark(checkout, names[checkout], full, by_cpu) for checkout in order}
        for label in samples[before].keys() & samples[after].keys():
            ratios[label].append(samples[after][label] / samples[before][label])
    return {label: statistics.median(values) for label, values in sorted(ratios.items())}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before_after", description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument("names", nargs="+", metavar="NAME", help="a benchmark that both have, or OLD=NEW")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each checkout")
    parser.add_argument("--full", action="store_true", help="run whole benchmarks, not --quick")
    parser.add_argument(
        "--cpu", action="store_true", help="compare CPU time where it is measured: for a busy machine"
    )
    args = parser.parse_args(arguments)
    slower = []
    print("| benchmark | subject | after / before |\n|---|---|---:|", flush=True)
    before, after = args.before.resolve(), args.after.resolve()
    for name in args.names:
        ratios = compare(before, after, name, args.rounds, args.full, args.cpu)
        for label, ratio in ratios.items():
            print(f"| {name} | {label} | {ratio:.2f} |", flush=True)
            if ratio < LEAST_RATIO and not any(word in label for word in DRIFT):
                slower.append(f"{name}, {label}: {ratio:.2f}")
    for line in slower:
        print(f"below {LEAST_RATIO:.2f}: {line}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
