"""Runs subjects in turns: each in a process of its own, one short stretch per round.

A process of its own, because a subject should not pay for another one's garbage, threads or memory. Short
stretches in turn, because the machine drifts: what is compared ran within the same second. Where a stretch is
pure computing its CPU time is what counts, so that a busy machine costs nobody anything.
"""

import asyncio
import gc
import itertools
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.redis_process import server_cpu_us
from benchmarks.report import BenchmarkReport, figure

Stretch = Callable[[int], dict[str, float]]  # runs so many calls, and says what was measured
Samples = dict[str, list[dict[str, float]]]
AsyncTake = Callable[[str], Awaitable[Any]]  # true if the call may pass

SPEED = "per_second"
COSTS = {
    "p50 us": "p50_us",
    "p99 us": "p99_us",
    "client CPU us": "client_cpu_us",
    "server CPU us": "server_cpu_us",
}
PEERS = ("limits", "throttled", "pyrate")

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Subject:
    """A name, and how to make what is measured: `make(*args)` is called in the subject's own process."""

    name: str
    make: Callable[..., Stretch]
    args: tuple[Any, ...] = field(default=())


def run_interleaved(
    report: BenchmarkReport,
    case: str,
    subjects: Sequence[Subject],
    *,
    rounds: int,
    seconds: float,
    core: int | None,
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


def decisions_per_second(call: Callable[[str], Any], keys: Sequence[str]) -> dict[str, float]:
    """Decisions per second of CPU and of the wall clock."""
    wall, cpu = time.perf_counter(), time.process_time()
    for key in keys:
        call(key)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"count": len(keys), "per_cpu_second": len(keys) / cpu, "per_second": len(keys) / wall}


def keys_of_subject(owner: str, count: int) -> list[str]:
    """Keys in no order. Each subject has its own: they share a server, not their counts."""
    keys = [f"{owner.replace(' ', '-')}:{number}" for number in range(count)]
    random.Random(1).shuffle(keys)
    return keys


def measure_calls(server_pid: int, calls: int, work: Callable[[list[int]], int]) -> dict[str, float]:
    """Measures what calls cost both sides. `work` notes how long some took, and returns how many passed."""
    spent: list[int] = []
    server_us, cpu, started = server_cpu_us(server_pid), time.process_time(), time.perf_counter_ns()
    passed = work(spent)
    took_ns, cpu = time.perf_counter_ns() - started, time.process_time() - cpu
    server_us = server_cpu_us(server_pid) - server_us
    spent.sort()
    return {
        "count": calls,
        "passed": passed / calls,
        "per_second": calls / took_ns * 1e9,
        "p50_us": spent[len(spent) // 2] / 1000,
        "p99_us": spent[len(spent) * 99 // 100] / 1000,
        "client_cpu_us": cpu / calls * 1e6,
        "server_cpu_us": server_us / calls,
    }


class ThreadCaller:
    """The caller's own thread. Every so manieth call is timed: where a call takes a microsecond, a watch takes
    part of it."""

    def __init__(self, make: Callable[..., Callable[[str], Any]], *args: Any, every: int = 1) -> None:
        self._take, self._untimed = make(*args), every - 1

    def run_calls(self, wanted: Iterable[str], spent: list[int]) -> int:
        """Every key once; how many passed."""
        take, untimed, keys, passed = self._take, self._untimed, iter(wanted), 0
        clock, note = time.perf_counter_ns, spent.append
        for key in keys:
            before = clock()
            if take(key):
                passed += 1
            note(clock() - before)
            if untimed:
                for key in itertools.islice(keys, untimed):
                    if take(key):
                        passed += 1
        return passed


class TaskCallers:
    """So many tasks on one event loop, each of which asks again as soon as it was answered."""

    def __init__(
        self,
        number: int,
        make: Callable[..., Awaitable[AsyncTake]],
        *args: Any,
        every: int = 1,
        fast: bool = True,
    ) -> None:
        import uvloop

        self._number, self._untimed = number, every - 1
        self._loop = uvloop.new_event_loop() if fast else asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._take = self._loop.run_until_complete(make(*args))

    def run_calls(self, keys: Iterable[str], spent: list[int]) -> int:
        """Every key once, by whoever is free; how many passed."""
        return self._loop.run_until_complete(self._run_calls(iter(keys), spent))

    async def _run_calls(self, keys: Iterator[str], spent: list[int]) -> int:
        return sum(await asyncio.gather(*(self._one(keys, spent) for _ in range(self._number))))

    async def _one(self, keys: Iterator[str], spent: list[int]) -> int:
        take, untimed, passed = self._take, self._untimed, 0
        clock, note = time.perf_counter_ns, spent.append
        for key in keys:
            before = clock()
            if await take(key):
                passed += 1
            note(clock() - before)
            if untimed:
                for key in itertools.islice(keys, untimed):
                    if await take(key):
                        passed += 1
        return passed


def over_keys(subject: ThreadCaller | TaskCallers, keys: Sequence[str], server_pid: int) -> Stretch:
    """The keys in turn."""
    turn = itertools.cycle(keys)
    # Connections are opened, scripts are loaded, keys are there.
    subject.run_calls(itertools.islice(turn, max(2_000, min(len(keys), 10_000))), [])

    def stretch(calls: int) -> dict[str, float]:
        wanted = list(itertools.islice(turn, calls))
        return measure_calls(server_pid, calls, lambda spent: subject.run_calls(wanted, spent))

    return stretch


def print_table(report: BenchmarkReport, case: str, samples: Samples, ours: str, **more: str) -> None:
    """A table: decisions a second, and what one costs."""
    columns = COSTS | {name.replace("_", " "): what for name, what in more.items()}
    rows = []
    for name in samples:
        rate, of_ours = figure(median(samples, name, SPEED)), figure(ratio(samples, name, ours, SPEED))
        rows.append([name, rate, of_ours, *(figure(median(samples, name, what)) for what in columns.values())])
    report.say(case)
    report.table(["", "decisions/s", "of ours", *columns], rows)


def best_peer(samples: Samples, what: str = SPEED, least: bool = False) -> str:
    """The peer that makes most decisions a second, or has the least of something else."""
    theirs = [name for name in samples if name.startswith(PEERS)]
    return (min if least else max)(theirs, key=lambda name: median(samples, name, what))


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
            took = self._request_samples(count)["took"]
        self._count = max(20, round(count * seconds / took)) if seconds else 0

    def run(self) -> dict[str, float]:
        return self._request_samples(self._count)

    def close(self) -> None:
        self._here.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()

    def _request_samples(self, count: int) -> dict[str, float]:
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
