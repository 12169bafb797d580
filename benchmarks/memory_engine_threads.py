"""Is a limit exact when four threads take from one key, however often Python switches between them?

Each trial starts anew with a limit of 10,000 in a year and lets four threads ask 20,000 times. Exactly 10,000
must pass: one more is an overrun, one less a caller refused who had a right to pass. Switch intervals are 5 ms
(Python's own), 100 us and 1 us. The floor without a lock is there to show that the trial can fail.
"""

import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks import headgate_subjects, minimal_limiters, other_limiters
from benchmarks.report import BenchmarkReport, thousands

LIMIT, THREADS, CALLS = 10_000, 4, 5_000
YEAR = 365 * 86400
INTERVALS = {"5 ms": 0.005, "100 us": 1e-4, "1 us": 1e-6}

Take = Callable[[str], Any]


def answer(report: BenchmarkReport) -> None:
    report.say(
        "Admitted, least to most over the trials; raised: errors in calls, or in the library's own threads."
    )
    rows = []
    exact = True
    for name, (how, *args) in _subjects().items():
        cells, speed = [], 0.0
        for label, interval in INTERVALS.items():
            trials = [_trial(report, name, label, interval, how, args) for _ in range(report.rounds(5))]
            admitted = [trial["admitted"] for trial in trials]
            raised = max(trial["raised"] for trial in trials)
            cells.append(_span(admitted) + (f", {raised} raised" if raised else ""))
            if name.startswith("headgate"):
                exact = exact and set(admitted) == {LIMIT} and not raised
            if label == "5 ms":
                speed = statistics.median(trial["per_second"] for trial in trials)
        rows.append([name, *cells, thousands(speed)])
    report.table(["", *INTERVALS, "calls/s at 5 ms"], rows)
    report.target("headgate admits exactly the limit in every trial (1 is yes)", float(exact), at_least=1)


def _subjects() -> dict[str, tuple[Any, ...]]:
    return {
        "headgate token bucket": (headgate_subjects.take, f"{LIMIT}/365d"),
        "headgate leaky bucket": (headgate_subjects.take, f"1/minute queue {LIMIT - 1} nodelay"),
        "headgate fixed window": (headgate_subjects.take, f"{LIMIT}/365d fixed"),
        "headgate sliding window": (headgate_subjects.take, f"{LIMIT}/365d sliding"),
        "headgate sliding log": (headgate_subjects.take, f"{LIMIT}/365d log"),
        "limits fixed": (other_limiters.limits, "fixed", LIMIT, YEAR),
        "limits moving": (other_limiters.limits, "moving", LIMIT, YEAR),
        "limits sliding": (other_limiters.limits, "sliding", LIMIT, YEAR),
        "throttled-py fixed_window": (other_limiters.throttled, "fixed_window", LIMIT, YEAR),
        "throttled-py token_bucket": (other_limiters.throttled, "token_bucket", LIMIT, YEAR),
        "throttled-py gcra": (other_limiters.throttled, "gcra", LIMIT, YEAR),
        "pyrate-limiter log": (other_limiters.pyrate, "log", LIMIT, YEAR),
        "pyrate-limiter gcra": (other_limiters.pyrate, "gcra", LIMIT, YEAR),
        "floor: GCRA, lock, four numbers (rich)": (_rich, LIMIT, YEAR),
        "floor: GCRA, no lock (wrong under threads)": (minimal_limiters.unlocked, LIMIT, YEAR),
    }


def _rich(amount: int, period: float) -> Take:
    take = minimal_limiters.locked_with_details(amount, period)
    return lambda key: take(key)[0]


def _trial(
    report: BenchmarkReport, name: str, label: str, interval: float, how: Callable[..., Take], args: list[Any]
) -> dict[str, Any]:
    """In a process of its own: a peer's broken thread must not spoil the next trial."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_hammer, args=(there, interval, how, args), daemon=True)
    process.start()
    trial: dict[str, Any] = here.recv() if here.poll(60) else {"admitted": -1, "raised": -1, "per_second": 0}
    process.kill()
    process.join()
    report.keep(subject=name, interval=label, **trial)
    return trial


def _hammer(pipe: Any, interval: float, how: Callable[..., Take], args: list[Any]) -> None:
    admitted, raised = [0] * THREADS, [0] * THREADS
    broken: list[object] = []  # a library's own threads that ended in an error
    threading.excepthook = sys.unraisablehook = broken.append
    take = how(*args)
    sys.setswitchinterval(interval)
    together = threading.Barrier(THREADS + 1)

    def take_in_thread(number: int) -> None:
        together.wait()
        for _ in range(CALLS):
            try:
                if take("user:1"):
                    admitted[number] += 1
            except Exception:
                raised[number] += 1
        together.wait()

    for number in range(THREADS):
        threading.Thread(target=take_in_thread, args=(number,), daemon=True).start()
    together.wait()
    started = time.perf_counter()
    together.wait()
    took = time.perf_counter() - started
    errors = sum(raised) + len(broken)
    pipe.send({"admitted": sum(admitted), "raised": errors, "per_second": THREADS * CALLS / took})


def _span(counts: list[int]) -> str:
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
