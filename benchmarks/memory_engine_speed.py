"""Measures the decisions a second, each with a full Decision, that one process makes.

One key that is always allowed; 100,000 keys that are all known, in random order; and keys that are all new, while
those of a second ago die. Ours is `Limiter.take`, through the public door. The target is the token bucket's; the
other algorithms stand beside it. `limits` and `pyrate-limiter` answer yes or no only, `throttled-py` answers with
a result; the floors and `pyrate-limiter` never forget a key.
"""

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks import headgate_subjects, minimal_limiters, other_limiters
from benchmarks.interleaved_runs import (
    Samples,
    Stretch,
    Subject,
    decisions_per_second,
    last_core,
    median,
    ratio,
    run_interleaved,
)
from benchmarks.report import BenchmarkReport, figure, thousands

ONE, MANY, NEW = "1 key", "100,000 keys", "new keys"
CASES = (ONE, MANY, NEW)
SPEED = "per_cpu_second"

OURS = "headgate token bucket"
READ = "the same, and four numbers read"
FIXED = "limits fixed"
RICH = "floor: GCRA, lock, four numbers (rich)"

# Never refused: one key that is asked a million times a second; many keys that live long; keys that live a second.
ALGORITHMS = {
    OURS: ("1000000/s", "100/day", "1/s"),
    "headgate leaky bucket": (
        "1000000/s queue 1000000 nodelay",
        "1/minute queue 100 nodelay",
        "1/s queue 1 nodelay",
    ),
    "headgate fixed window": ("1000000000/hour fixed", "100/day fixed", "1/s fixed"),
    "headgate sliding window": ("1000000000/hour sliding", "100/day sliding", "1/s sliding"),
    "headgate sliding log": ("1000000/s log", "100/day log", "1/s log"),
    "headgate smooth": ("1000000/s smooth", "1000/s smooth", "1/s smooth"),
}
# The same for those who give an amount and seconds.
AMOUNTS = {ONE: (1_000_000_000, 3600), MANY: (100, 86400), NEW: (1, 1)}


def answer(report: BenchmarkReport) -> None:
    report.say("Decisions per second of CPU time; medians. Ratios are formed within each round.")
    measured = {
        # Long enough for a library's own threads to come to work within it.
        case: run_interleaved(report, case, _subjects(case), rounds=12, seconds=0.2, core=last_core())
        for case in CASES
    }
    names = list(dict.fromkeys(name for samples in measured.values() for name in samples))
    head = ["", *itertools.chain.from_iterable((case, "of ours") for case in CASES)]
    report.table(head, [[name, *_cells(measured, name)] for name in names])
    for case in (ONE, MANY):
        samples = measured[case]
        value = ratio(samples, OURS, FIXED, SPEED)
        report.target(f"token bucket over limits' fixed window, {case}", value, at_least=2.5)
        value = ratio(samples, OURS, RICH, SPEED)
        report.target(f"token bucket over the rich floor, {case}", value, at_least=0.5)


def _cells(measured: dict[str, Samples], name: str) -> list[str]:
    cells = []
    for samples in measured.values():
        if name in samples:
            cells += [thousands(median(samples, name, SPEED)), figure(ratio(samples, name, OURS, SPEED))]
        else:
            cells += ["", ""]
    return cells


def _subjects(case: str) -> list[Subject]:
    numbers = AMOUNTS[case]
    texts = {name: limits[CASES.index(case)] for name, limits in ALGORITHMS.items()}
    made: dict[str, tuple[Any, ...]] = {name: (headgate_subjects.take, text) for name, text in texts.items()}
    made[READ] = (headgate_subjects.take_and_read, texts[OURS])
    # A log of a key that is never refused only grows, and theirs are searched from the end: not for one key.
    for strategy in ("fixed", "sliding") if case == ONE else other_limiters.LIMITS:
        made[f"limits {strategy}"] = (other_limiters.limits, strategy, *numbers)
    for algorithm in other_limiters.THROTTLED:
        made[f"throttled-py {algorithm}"] = (other_limiters.throttled, algorithm, *numbers)
    for algorithm in ("token", "gcra") if case == ONE else other_limiters.PYRATE:
        made[f"pyrate-limiter {algorithm}"] = (other_limiters.pyrate, algorithm, *numbers)
    made[RICH] = (minimal_limiters.locked_with_details, *numbers)
    made["floor: GCRA, lock, yes or no"] = (minimal_limiters.locked, *numbers)
    made["floor: GCRA, no lock (wrong under threads)"] = (minimal_limiters.unlocked, *numbers)
    over = over_new if case == NEW else over_existing
    return [Subject(name, over, (1 if case == ONE else 100_000, *how)) for name, how in made.items()]


def over_existing(count: int, make: Callable[..., Callable[[str], Any]], *args: Any) -> Stretch:
    """Calls over so many keys, all seen before, in random order."""
    keys = [f"user:{number}" for number in range(count)]
    take = make(*args)
    for key in keys:
        take(key)
    random.Random(1).shuffle(keys)
    turn = itertools.cycle(keys)
    time.sleep(0.01)
    if not take(keys[0]):
        raise RuntimeError("it refuses, and refusing is not what is measured here")
    return lambda calls: decisions_per_second(take, list(itertools.islice(turn, calls)))


def over_new(count: int, make: Callable[..., Callable[[str], Any]], *args: Any) -> Stretch:
    """Calls on keys never seen before, after so many that were seen once."""
    take = make(*args)
    numbers = itertools.count()
    for number in itertools.islice(numbers, count):
        take(f"user:{number}")
    return lambda calls: decisions_per_second(
        take, [f"user:{number}" for number in itertools.islice(numbers, calls)]
    )
