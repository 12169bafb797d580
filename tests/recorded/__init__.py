"""Recorded decisions of other limiters, replayed on ours: `make conform VECTORS=DIR`.

    vectors   the files: cases, steps, and a sentence where one cannot be read
    places    where they are replayed: in memory, on Redis, on Valkey, each on a clock that we turn
    outcome   what became of a step: it matched, it did not, or it was counted apart, and why
    replay    every case of a file on every place
    report    the table

One file for each limiter that was recorded says how its words are said in ours and replays one case:
guava, xtimerate, nginx, gcra, spring, sentinel. Everything goes through the public verbs.
"""
