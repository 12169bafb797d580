"""Counts what a hundred outages leak: file descriptors, threads, tasks, memory.

One process calls from tasks and another from threads, through a link that is cut a hundred times, and now and then
swallows everything for a moment or refuses connections. Before and after, in peace, each process counts what it
has. Both have been through some cycles before the first counting: what is made once and kept is no leak.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import Proxy, RedisServer

CYCLES = 100
BEFORE = 30  # cycles before the first counting
PEACE = 4.0  # seconds before each counting
CALLERS = 8
EVERY = 0.02
LOOKS = 5
MOST_KB = 2048  # that memory may grow by: the allocator's own coming and going


class Footprint(NamedTuple):
    fds: int
    threads: int
    tasks: int
    kb: int


class LeakResult(NamedTuple):
    cycles: int
    before: dict[str, Footprint]
    after: dict[str, Footprint]

    @property
    def failures(self) -> list[str]:
        failures = []
        for who, before in self.before.items():
            after = self.after[who]
            counted = zip(("fds", "threads", "tasks"), before, after, strict=False)
            failures += [f"{who}: {old} {what} became {new}" for what, old, new in counted if new > old]
            if after.kb > before.kb + MOST_KB:
                failures.append(f"{who}: memory grew from {before.kb:,} to {after.kb:,} kB")
        return failures

    def lines(self) -> list[str]:
        verdict = "FAIL" if self.failures else "pass"
        rows = [f"{self.cycles} outages, one after another: what is left behind  {verdict}"]
        for who, before in self.before.items():
            after = self.after[who]
            each = (
                f"{name} {old:,} -> {new:,}" for name, old, new in zip(after._fields, before, after, strict=True)
            )
            rows.append(f"    {who}: {', '.join(each)}")
        return [*rows, *(f"  ! {failure}" for failure in self.failures)]


def run_outage_cycles(cycles: int = CYCLES, before: int = BEFORE, peace: float = PEACE) -> LeakResult:
    spawn = multiprocessing.get_context("spawn")
    with RedisServer() as server, Proxy(server) as link:
        crew = {}
        for who, work in (("tasks", _tasks), ("threads", _threads)):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=work, args=(theirs, f"{link.url}?fallback=local"), daemon=True)
            process.start()
            crew[who] = (process, ours)

        def count() -> dict[str, Footprint]:
            time.sleep(peace)
            return {who: _lowest_footprint(wire) for who, (_, wire) in crew.items()}

        try:
            count()
            _run_outage(link, before)
            first = count()
            _run_outage(link, cycles)
            return LeakResult(cycles, first, count())
        finally:
            for process, _ in crew.values():
                process.kill()
                process.join()


def _lowest_footprint(wire: Connection) -> Footprint:
    """Returns the lowest of several samples: a probe that comes and goes is no leak."""
    looks = []
    for _ in range(LOOKS):
        wire.send("count")
        looks.append(wire.recv())
        time.sleep(0.1)
    return Footprint(*map(min, zip(*looks, strict=True)))


def _run_outage(link: Proxy, cycles: int) -> None:
    for cycle in range(cycles):
        if cycle % 3 == 1:
            link.swallow()
            time.sleep(0.08)
        elif cycle % 3 == 2:
            link.refuse()
            link.cut()
            time.sleep(0.02)
        link.heal()
        link.cut()
        time.sleep(0.08)


def _footprint(tasks: int) -> Footprint:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Footprint(len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), tasks, pages * 4)


def _tasks(wire: Connection, url: str) -> None:
    logging.getLogger("headgate").addHandler(logging.NullHandler())

    async def caller(limiter: AsyncLimiter, number: int) -> None:
        while True:
            await limiter.take(f"key-{number}")
            await asyncio.sleep(EVERY)

    async def serve() -> None:
        limiter = AsyncLimiter("100/s", url)
        running = [asyncio.create_task(caller(limiter, number)) for number in range(CALLERS)]
        while all(not task.done() for task in running):
            if wire.poll():
                wire.recv()
                wire.send(_footprint(len(asyncio.all_tasks())))
            await asyncio.sleep(0.02)

    asyncio.run(serve())


def _threads(wire: Connection, url: str) -> None:
    logging.getLogger("headgate").addHandler(logging.NullHandler())
    limiter = Limiter("100/s", url)

    def caller(number: int) -> None:
        while True:
            limiter.take(f"key-{number}")
            time.sleep(EVERY)

    _start(caller)
    while True:
        wire.recv()
        wire.send(_footprint(0))


def _start(caller: Callable[[int], None]) -> None:
    for number in range(CALLERS):
        threading.Thread(target=caller, args=[number], daemon=True).start()
