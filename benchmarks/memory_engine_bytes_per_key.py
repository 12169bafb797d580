"""Measures the memory that a key takes in one process, and whether ten million different keys make it grow.

Bytes per key: what the process grows by when 100,000 keys are seen once, the key's own text not counted. Ten
million keys: one key every 10 microseconds of a clock that is turned by hand, under a limit whose keys live one
second, so 100,000 are alive at any instant.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headgate
from benchmarks import headgate_subjects, minimal_limiters, other_limiters
from benchmarks.interleaved_runs import Subject, run_interleaved
from benchmarks.memory_engine_speed import ALGORITHMS
from benchmarks.report import BenchmarkReport, figure

KEYS = 100_000
STEP_US = 10
ALIVE = 1_000_000 // STEP_US


def answer(report: BenchmarkReport) -> None:
    _bytes_per_key(report)
    _ten_million(report)


def _bytes_per_key(report: BenchmarkReport) -> None:
    made: dict[str, tuple[Any, ...]] = {
        name: (headgate_subjects.take, texts[1]) for name, texts in ALGORITHMS.items()
    }
    made |= {
        f"limits {strategy}": (other_limiters.limits, strategy, 100, 60) for strategy in other_limiters.LIMITS
    }
    made |= {
        f"throttled-py {name}": (other_limiters.throttled, name, 100, 60) for name in other_limiters.THROTTLED
    }
    made |= {f"pyrate-limiter {name}": (other_limiters.pyrate, name, 100, 60) for name in other_limiters.PYRATE}
    made["floor: GCRA, lock, four numbers (rich)"] = (minimal_limiters.locked_with_details, 100, 60)
    rows = []
    for name, how in made.items():
        # A process anew for each sample: memory that was used once is not given back.
        taken = [
            run_interleaved(
                report, "bytes", [Subject(name, memory_growth, how)], rounds=1, seconds=0.0, core=None
            )[name][0]
            for _ in range(report.rounds(3))
        ]
        rows.append([name, figure(statistics.median(sample["bytes_per_key"] for sample in taken))])
    report.table(["", "bytes per key"], rows)


def memory_growth(how: Callable[..., Callable[[str], Any]], *args: Any) -> Callable[[int], dict[str, float]]:
    take = how(*args)
    keys = [f"user:{number}" for number in range(KEYS)]
    take("somebody")
    before = _resident()
    for key in keys:
        take(key)
    size = (_resident() - before) / KEYS
    return lambda _: {"bytes_per_key": size}


def _ten_million(report: BenchmarkReport) -> None:
    million = 100_000 if report.quick else 1_000_000
    clock = headgate.ManualClock()
    limiter = headgate.Limiter("1/s", clock=clock)
    held: Any = limiter.engine
    most, rows, now_us = 0, [], clock.now_us()
    for number in range(10 * million):
        now_us += STEP_US
        clock.set_us(now_us)
        limiter.take(f"user:{number}")
        if number % 1000 == 999:
            most = max(most, len(held))
        if number in (million - 1, 10 * million - 1):
            rows.append([f"{number + 1:,}", f"{most:,}", f"{_resident() / 1e6:,.0f}"])
            report.keep(keys=number + 1, most=most, resident=_resident())
    report.table(["different keys so far", "most held at once", "process, MB"], rows)
    report.target(f"most keys held, of the {ALIVE:,} alive at any instant", most / ALIVE, at_most=2.5)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
