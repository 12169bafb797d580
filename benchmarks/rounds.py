"""Subjects take turns: each lives in a process of its own and runs one short stretch per round.

A process of its own, because a subject should not pay for another one's garbage, threads or memory. Short
stretches in turn, because the machine drifts: what is compared ran within the same second. Where a stretch is
pure computing its CPU time is what counts, so that a busy machine costs nobody anything.
"""

import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.report import Report

Stretch = Callable[[int], dict[str, float]]  # runs so many calls, and says what was measured
Samples = dict[str, list[dict[str, float]]]

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Subject:
    """A name, and how to make what is measured: `make(*args)` is called in the subject's own process."""

    name: str
    make: Callable[..., Stretch]
    args: tuple[Any, ...] = field(default=())


def in_turn(
    report: Report, case: str, subjects: Sequence[Subject], *, rounds: int, seconds: float, core: int | None
) -> Samples:
    """Every subject's samples, one for each round; each stretch takes about so many seconds."""
    workers: dict[str, _Worker] = {}
    samples: Samples = {subject.name: [] for subject in subjects}
    try:
        for subject in subjects:
            workers[subject.name] = _Worker(subject, core)
            workers[subject.name].calibrate(seconds)
        names = list(workers)
        for number in range(report.rounds(rounds)):
            # Who comes first changes, so that nobody always follows the same neighbour.
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                sample = workers[name].run()
                samples[name].append(sample)
                report.keep(case=case, subject=name, round=number, **sample)
    finally:
        for worker in workers.values():
            worker.close()
    return samples


def median(samples: Samples, name: str, what: str) -> float:
    return statistics.median(sample[what] for sample in samples[name])


def ratio(samples: Samples, ours: str, other: str, what: str) -> float:
    """Ours over the other, within each round; the median of that."""
    pairs = zip(samples[ours], samples[other], strict=True)
    return statistics.median(a[what] / b[what] for a, b in pairs)


def timed(call: Callable[[str], Any], keys: Sequence[str]) -> dict[str, float]:
    """Decisions per second of CPU and of the wall clock."""
    wall, cpu = time.perf_counter(), time.process_time()
    for key in keys:
        call(key)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"count": len(keys), "per_cpu_second": len(keys) / cpu, "per_second": len(keys) / wall}


def last_core() -> int:
    return max(os.sched_getaffinity(0))


class _Worker:
    def __init__(self, subject: Subject, core: int | None) -> None:
        self.name = subject.name
        self._here, there = _spawn.Pipe()
        self._process = _spawn.Process(target=_serve, args=(there, subject, core), daemon=True)
        self._process.start()
        there.close()
        self._count = 0
        self._answer()  # it is made

    def calibrate(self, seconds: float) -> None:
        """Find how many calls take so long; with no length given, the subject knows by itself what to do."""
        count, took = 50, 0.0
        while took < seconds / 4:
            count *= 4
            took = self._ask(count)["took"]
        self._count = max(20, round(count * seconds / took)) if seconds else 0

    def run(self) -> dict[str, float]:
        return self._ask(self._count)

    def close(self) -> None:
        self._here.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()

    def _ask(self, count: int) -> dict[str, float]:
        self._here.send(count)
        return self._answer()

    def _answer(self) -> dict[str, float]:
        try:
            answer: dict[str, float] | str = self._here.recv()
        except EOFError:
            answer = "its process ended"
        if isinstance(answer, str):
            raise RuntimeError(f"{self.name}: {answer}")
        return answer


def _serve(pipe: Connection, subject: Subject, core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        stretch = subject.make(*subject.args)
        gc.collect()
        gc.freeze()
        pipe.send({})
        while True:
            count = pipe.recv()
            started = time.perf_counter()
            sample = stretch(count)
            pipe.send({**sample, "took": time.perf_counter() - started})
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        pass
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)  # a peer's threads must not keep it alive
