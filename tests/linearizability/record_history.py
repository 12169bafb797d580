"""Records histories: processes with threads and event loops that call a few keys.

Every caller is a flow of its own random steps: it takes, peeks, refunds what it was given, and now and then resets
a key. The same flow is driven by a thread through a Limiter, or by a task through an AsyncLimiter. The processes
are started once and let go together for each history.

A call that fails ends the recording: nobody knows whether it was decided, and a healthy server gives no reason.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier
from threading import Barrier as ThreadBarrier
from time import monotonic_ns, time_ns
from typing import Any, NamedTuple

from headgate import limiter_flows
from headgate.algorithms.decision import Charge, Decision
from headgate.flow import Flow, arun, run
from headgate.limiter import AsyncLimiter, Limiter
from tests.linearizability.engine_descriptions import async_engine, engine
from tests.linearizability.history import CallHistory, Operation, Verb

PROCESSES = 3
VERBS: dict[Verb, int] = {"take": 70, "refund": 17, "peek": 10, "reset": 3}  # how often, of a hundred
COSTS = (1, 1, 1, 1, 2, 3)
SECOND = "second "  # begins the keys of counts under the second limit


class CallScenario(NamedTuple):
    """The callers of a history, and the keys that they call."""

    engine: str  # in words: see engines.py
    limit: str
    keys: tuple[str, ...]
    threads: int = 4  # of each process
    tasks: int = 0  # of each thread; 0: the thread itself calls, and blocks
    calls: int = 30  # of each caller
    seed: int = 0
    epoch_ns: int = 0  # from the monotonic clock to the epoch's
    second_limit: str | None = None  # each take charges the key under this one, too: all or none


class Recorder:
    """Processes that wait for a scenario."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def record(self, scenario: CallScenario) -> CallHistory:
        """The calls and answers of all callers."""
        scenario = scenario._replace(epoch_ns=time_ns() - monotonic_ns())
        seen = self._pool.map(_play, [(process, scenario) for process in range(PROCESSES)], chunksize=1)
        return CallHistory(scenario.limit, [operation for operations in seen for operation in operations])


@contextmanager
def start_recorder() -> Iterator[Recorder]:
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(PROCESSES, initializer=_remember, initargs=(spawn.Barrier(PROCESSES),)) as pool:
        yield Recorder(pool)


def play_process(process: int, scenario: CallScenario, start: Barrier | None = None) -> list[Operation]:
    """The part of one process."""
    names = [f"{process}.{thread}" for thread in range(scenario.threads)]
    with ThreadPoolExecutor(scenario.threads) as pool:
        if scenario.tasks:
            shared, end = (
                AsyncLimiter(scenario.limit, async_engine(scenario.engine)),
                ThreadBarrier(scenario.threads),
            )
            _await(start)
            parts = list(pool.map(lambda who: asyncio.run(_tasks(shared, scenario, who, end)), names))
        else:
            with Limiter(scenario.limit, engine(scenario.engine)) as limiter:
                _await(start)
                parts = list(pool.map(lambda who: run(call_repeatedly(limiter, scenario, who)), names))
    return [operation for part in parts for operation in part]


async def _tasks(limiter: AsyncLimiter, scenario: CallScenario, who: str, end: ThreadBarrier) -> list[Operation]:
    flows = [call_repeatedly(limiter, scenario, f"{who}.{task}") for task in range(scenario.tasks)]
    try:
        parts = await asyncio.gather(*map(arun, flows))
    finally:
        await asyncio.to_thread(end.wait, 60)  # nobody closes what another event loop still uses
        await limiter.close()
    return [operation for part in parts for operation in part]


def call_repeatedly(limiter: Limiter | AsyncLimiter, scenario: CallScenario, who: str) -> Flow[list[Operation]]:
    """A caller: calls, waits for the answer, and calls again."""
    rng = random.Random(f"{scenario.seed} {who}")
    seen: list[Operation] = []
    holds: list[tuple[Decision, int]] = []
    for verb in rng.choices(list(VERBS), list(VERBS.values()), k=scenario.calls):
        key, cost = rng.choice(scenario.keys), rng.choice(COSTS)
        called_ns = monotonic_ns() + scenario.epoch_ns
        if verb == "reset":
            yield partial(limiter.reset, key)
            done = Operation(who, "reset", key, 0, None, None, called_ns, 0)
        elif verb == "peek":
            decision: Decision = yield partial(limiter.peek, key)
            done = Operation(who, "peek", key, 0, None, decision.outcome, called_ns, 0)
        elif verb == "refund" and holds:
            charge, charge_ns = holds.pop(rng.randrange(len(holds)))
            done = yield from _refund(charge, rng.choice((None, 1)), who, called_ns, charge_ns)
            holds += [(charge, charge_ns)] if charge.refunded_units < charge.cost else []
        elif scenario.second_limit is not None:
            charges = [Charge(key, cost=cost), Charge(key, scenario.second_limit, cost)]
            joint: Decision = yield partial(limiter.take_all, charges)
            first, second = joint.counter_decisions
            done = Operation(who, "take", key, cost, None, first.outcome, called_ns, 0)
            # Where the first refuses, the second says how things stand, and is not charged.
            verb, charged = ("take", cost) if joint.allowed else ("peek", 0)
            beside = Operation(who, verb, f"{SECOND}{key}", charged, None, second.outcome, called_ns, 0)
            seen.append(beside._replace(answered_ns=monotonic_ns() + scenario.epoch_ns))
            holds += [(first, called_ns)] if joint.allowed else []
        else:
            decision = yield partial(limiter.take, key, cost)
            done = Operation(who, "take", key, cost, None, decision.outcome, called_ns, 0)
            holds += [(decision, called_ns)] if decision.allowed else []
        seen.append(done._replace(answered_ns=monotonic_ns() + scenario.epoch_ns))
    return seen


def _refund(charge: Decision, cost: int | None, who: str, called_ns: int, charge_ns: int) -> Flow[Operation]:
    """Does step by step what both limiters' refund does, because they do not return the meter's answer."""
    step: Any = next(limiter_flows.refund(charge, cost))
    key, units, receipt, _ = step.args
    outcome = yield step
    return Operation(who, "refund", key, units, receipt, outcome, called_ns, 0, charge_ns)


_start: list[Barrier] = []


def _remember(start: Barrier) -> None:
    _start.append(start)


def _play(part: tuple[int, CallScenario]) -> list[Operation]:
    # Everybody has one part each: whoever waits at the barrier keeps its process from taking a second one.
    return play_process(*part, _start[0])


def _await(start: Barrier | None) -> None:
    if start is not None:
        start.wait(60)
