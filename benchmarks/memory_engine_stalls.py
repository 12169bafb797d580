"""Measures the longest single call when 100,000 keys are there, or are all dying at once.

Every key lives one second. 100,000 come, are left to die, and 100,000 others come one by one, each call timed:
whoever sweeps all keys at once shows it here. Times are the process's CPU time, so that a busy machine shows
nowhere, but a library's own threads do. Python's garbage collector is off meanwhile: its pauses belong to the
process. What remains for everybody is a dict that grows, which takes some milliseconds at this size.
"""

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import headgate_subjects as benchmarks_subjects
from benchmarks import minimal_limiters, other_limiters
from benchmarks.interleaved_runs import Subject, last_core, run_interleaved
from benchmarks.report import BenchmarkReport, figure

KEYS = 100_000
COLUMNS = ("p50_us", "p999_us", "longest_us")


def answer(report: BenchmarkReport) -> None:
    report.say(f"CPU microseconds of one call, {KEYS:,} old keys dead and {KEYS:,} new ones coming.")
    subjects = {
        "headgate token bucket": (benchmarks_subjects.take, "1/s"),
        "headgate leaky bucket": (benchmarks_subjects.take, "1/s queue 1 nodelay"),
        "headgate fixed window": (benchmarks_subjects.take, "1/s fixed"),
        "headgate sliding window": (benchmarks_subjects.take, "1/s sliding"),
        "headgate sliding log": (benchmarks_subjects.take, "1/s log"),
        "limits fixed": (other_limiters.limits, "fixed", 1, 1),
        "limits moving": (other_limiters.limits, "moving", 1, 1),
        "throttled-py gcra": (other_limiters.throttled, "gcra", 1, 1),
        "pyrate-limiter gcra": (other_limiters.pyrate, "gcra", 1, 1),
        "floor: GCRA, lock, four numbers (rich)": (minimal_limiters.locked_with_details, 1, 1),
    }
    samples = run_interleaved(
        report,
        "stalls",
        [Subject(name, run_generation, how) for name, how in subjects.items()],
        rounds=3,
        seconds=0.0,
        core=last_core(),
    )
    medians = {
        name: {column: statistics.median(sample[column] for sample in taken) for column in COLUMNS}
        for name, taken in samples.items()
    }
    rows = [[name, *(figure(values[column]) for column in COLUMNS)] for name, values in medians.items()]
    report.table(["", "median", "99.9 %", "longest"], rows)
    longest = {name: values["longest_us"] for name, values in medians.items()}
    value = longest["headgate token bucket"] / longest["limits fixed"]
    report.target("the token bucket's longest call, of limits' longest", value, at_most=1)


def run_generation(how: Callable[..., Callable[[str], Any]], *args: Any) -> Callable[[int], dict[str, float]]:
    take = how(*args)
    generation = 0

    def stretch(_: int) -> dict[str, float]:
        nonlocal generation
        for number in range(KEYS):
            take(f"user:{generation}:{number}")
        generation += 1
        time.sleep(1.1)
        clock, spent = time.process_time_ns, []
        gc.disable()
        for number in range(KEYS):
            key = f"user:{generation}:{number}"
            started = clock()
            take(key)
            spent.append(clock() - started)
        gc.enable()
        generation += 1
        spent.sort()
        return {
            "p50_us": spent[KEYS // 2] / 1000,
            "p999_us": spent[KEYS * 999 // 1000] / 1000,
            "longest_us": spent[-1] / 1000,
        }

    return stretch
