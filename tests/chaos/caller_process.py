"""One load process: tasks on an event loop, or threads, that call at fixed times whatever happens.

Nobody catches up: a caller who was kept waiting skips the calls it has missed. Beside the callers runs the control
timer, on the same loop (or as one more thread): how late it is, is how late anything would have been.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

from headgate.algorithms.decision import AT_US, Decision
from headgate.engines.redis import keys
from headgate.engines.url import open_async_engine, open_engine
from headgate.errors import EngineUnavailable
from headgate.limiter import AsyncLimiter, Limiter
from tests.chaos.call_record import (
    AMOUNT,
    BUCKET,
    FIXED,
    KEYS,
    LEDGER,
    LEDGER_KEYS,
    LIMITS,
    CallRecord,
    ProcessRecord,
    TimerTick,
    key_of,
)

TICK = 0.005
LEDGER_EVERY = 0.01


class CallerPlan(NamedTuple):
    """The calls that one process makes."""

    url: str
    fallback: str | None
    threads: bool  # or tasks
    callers: int
    every: float  # seconds between two calls of one caller
    ledger: bool = False
    layout: int = keys.LAYOUT
    seed: int = 0

    @property
    def engine(self) -> str:
        return self.url_with(self.fallback)

    def url_with(self, fallback: str | None) -> str:
        joint = "&" if "?" in self.url else "?"
        return f"{self.url}{joint}deadline=50ms" + (f"&fallback={fallback}" if fallback else "")


def run_caller_process(wire: Connection, part: CallerPlan) -> None:
    """In the process: say when ready, call until told to stop, hand over what was seen."""
    logging.getLogger("headgate").addHandler(logging.NullHandler())
    keys.LAYOUT = part.layout
    seen = ProcessRecord(part.layout, [], [])
    gc.freeze()
    if part.threads:
        _threads(wire, part, seen)
    else:
        asyncio.run(_tasks(wire, part, seen))
    wire.send(seen)


def call_schedule(part: CallerPlan, caller: int) -> Iterator[tuple[str, int, float]]:
    """Limit, key and time of each call, without end."""
    rng = random.Random(f"{part.seed} {caller}")
    due = time.monotonic() + rng.random() * part.every
    while True:
        limit = rng.choices((FIXED, BUCKET), (AMOUNT[FIXED], AMOUNT[BUCKET]))[0]
        yield limit, rng.randrange(KEYS), due
        due = max(due + part.every, time.monotonic())


def _ledger(part: CallerPlan) -> Iterator[tuple[str, int, float]]:
    rng = random.Random(part.seed)
    while True:
        yield LEDGER, rng.randrange(LEDGER_KEYS), time.monotonic() + LEDGER_EVERY


def _call(limit: str, key: int, start: float, end: float, outcome: Decision | Exception) -> CallRecord:
    if isinstance(outcome, Decision):
        return CallRecord(limit, key, start, end, outcome.allowed, outcome.degraded, "", outcome.outcome[AT_US])
    kind = "unavailable" if isinstance(outcome, EngineUnavailable) else f"{type(outcome).__name__}: {outcome}"
    return CallRecord(limit, key, start, end, False, False, kind, 0)


async def _tasks(wire: Connection, part: CallerPlan, seen: ProcessRecord) -> None:
    engine = open_async_engine(part.engine)
    limiters = {limit: AsyncLimiter(LIMITS[limit], engine) for limit in AMOUNT}
    if part.ledger:
        limiters[LEDGER] = AsyncLimiter(LIMITS[LEDGER], part.url_with("deny"))
    stop = asyncio.Event()

    async def caller(schedule: Iterator[tuple[str, int, float]]) -> None:
        for limit, key, due in schedule:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if stop.is_set():
                return
            start = time.monotonic()
            outcome: Decision | Exception
            try:
                outcome = await limiters[limit].take(key_of(limit, key))
            except Exception as error:
                outcome = error
            seen.calls.append(_call(limit, key, start, time.monotonic(), outcome))

    async def control() -> None:
        while not stop.is_set():
            due = time.monotonic() + TICK
            await asyncio.sleep(TICK)
            seen.ticks.append(TimerTick(due, time.monotonic()))

    with contextlib.suppress(EngineUnavailable):  # connected before the story begins
        await limiters[FIXED].peek(key_of(FIXED, 0))
    schedules = [call_schedule(part, number) for number in range(part.callers)] + [_ledger(part)] * part.ledger
    running = [asyncio.create_task(control()), *(asyncio.create_task(caller(each)) for each in schedules)]
    wire.send("ready")
    await asyncio.to_thread(wire.recv)
    stop.set()
    await asyncio.gather(*running)
    for limiter in limiters.values():
        await limiter.close()


def _threads(wire: Connection, part: CallerPlan, seen: ProcessRecord) -> None:
    engine = open_engine(part.engine)
    limiters = {limit: Limiter(LIMITS[limit], engine) for limit in AMOUNT}
    stop = threading.Event()

    def caller(schedule: Iterator[tuple[str, int, float]]) -> None:
        for limit, key, due in schedule:
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            start = time.monotonic()
            outcome: Decision | Exception
            try:
                outcome = limiters[limit].take(key_of(limit, key))
            except Exception as error:
                outcome = error
            seen.calls.append(_call(limit, key, start, time.monotonic(), outcome))

    def control() -> None:
        while not stop.is_set():
            due = time.monotonic() + TICK
            time.sleep(TICK)
            seen.ticks.append(TimerTick(due, time.monotonic()))

    with contextlib.suppress(EngineUnavailable):
        limiters[FIXED].peek(key_of(FIXED, 0))
    running = [threading.Thread(target=control)]
    running += [
        threading.Thread(target=caller, args=[call_schedule(part, number)]) for number in range(part.callers)
    ]
    for thread in running:
        thread.start()
    wire.send("ready")
    wire.recv()
    stop.set()
    for thread in running:
        thread.join()
    engine.close()
