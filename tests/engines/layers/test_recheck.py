"""Many callers of one key when its refusal ends: one asks, the others wait for what it learns."""

import asyncio
import threading
import time
from typing import Any

import pytest

from headgate.algorithms.decision import ALLOWED, Decision, Outcome
from headgate.algorithms.limit import Limit
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.denial_cache import (
    AsyncDenialCacheEngine,
    DenialCacheEngine,
    async_engine,
    sync_engine,
)
from headgate.engines.layers.prefetch import AsyncPrefetchEngine
from headgate.engines.memory.async_engine import AsyncMemoryEngine, AsyncMemoryMeter
from headgate.engines.memory.engine import MemoryEngine, MemoryMeter
from headgate.errors import EngineUnavailable
from headgate.limiter import AsyncLimiter, Limiter
from tests.engines.layers.prefetch_harness import RecordingEngine

TASKS = 64
TURN_US = 500  # the clock moves by so much in each turn of the loop


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for a while ends no wait."""
    for module in (async_engine, sync_engine):
        monkeypatch.setattr(module, "MAX_WAIT_S", 60)


class YieldingEngine(AsyncMemoryEngine):
    """Answers a few turns of the loop later, as a server does; or fails, or waits until the test goes on."""

    def __init__(self, clock: ManualClock) -> None:
        self.questions = self.in_flight = self.most_in_flight = 0
        self.open = asyncio.Event()
        self.open.set()
        self.crowded = asyncio.Event()
        self.clock, self.late_by = clock, 0.0  # a refusal arrives so much later
        self.fails = False
        super().__init__(MemoryEngine(clock))

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> AsyncMemoryMeter:
        meter = super().meter(limit, name, options)
        decide = meter.decide

        async def decide_later(key: str, cost: int, patience_us: int | None = None) -> Outcome:
            self.questions += 1
            if self.questions == 10:
                self.crowded.set()
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            for _ in range(3):
                await asyncio.sleep(0)
            await self.open.wait()
            self.in_flight -= 1
            if self.fails:
                raise EngineUnavailable("nobody is there")
            outcome = await decide(key, cost, patience_us)
            if not outcome[ALLOWED]:
                self.clock.advance(self.late_by)
            return outcome

        meter.decide = decide_later  # type: ignore[method-assign]
        return meter

    async def decide_all(self, charges: Any, patience_us: int | None = None, commit: bool = True) -> list[Outcome]:
        self.questions += 1
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().decide_all(charges, patience_us, commit)


class Callers:
    """Tasks that call one key for as long as a clock runs."""

    def __init__(self, text: str, prefetch: bool) -> None:
        self.clock = ManualClock()
        self.engine = YieldingEngine(self.clock)
        inner = AsyncPrefetchEngine(self.engine, clock=self.clock) if prefetch else self.engine
        self.limiter = AsyncLimiter(text, AsyncDenialCacheEngine(inner, clock=self.clock), clock=self.clock)
        self.admitted = 0

    async def call(self, seconds: float) -> None:
        until_us = self.clock.now_us() + round(seconds * 1_000_000)

        async def call_on() -> None:
            while self.clock.now_us() < until_us:
                decision = await self.limiter.take("hot")
                self.admitted += decision.allowed
                await asyncio.sleep(0)

        async def tick() -> None:
            while self.clock.now_us() < until_us:
                self.clock.set_us(self.clock.now_us() + TURN_US)
                await asyncio.sleep(0)

        await asyncio.gather(tick(), *[call_on() for _ in range(TASKS)])
        await self.limiter.close()


@pytest.mark.parametrize("prefetch", [False, True], ids=["alone", "with prefetch"])
@pytest.mark.parametrize(
    "text", ["100/s", "1000/s", "500/s fixed", "500/s log", "500/s sliding", "50/s; 1000/minute"]
)
async def test_the_engine_gets_at_most_two_requests_for_each_unit(text: str, prefetch: bool) -> None:
    callers = Callers(text, prefetch)
    await callers.call(1)
    assert callers.admitted >= 50
    assert callers.engine.questions <= 2 * callers.admitted + TASKS  # who all came before the first refusal


async def refused_limiter() -> tuple[AsyncLimiter, YieldingEngine, ManualClock]:
    """A limiter whose key is refused, and asked about again by 10 tasks; the engine does not answer yet."""
    clock = ManualClock()
    engine = YieldingEngine(clock)
    limiter = AsyncLimiter("1/s", AsyncDenialCacheEngine(engine, clock=clock), clock=clock)
    assert (await limiter.take("k")).allowed
    assert not (await limiter.take("k")).allowed
    clock.advance(1)
    engine.open.clear()
    engine.questions = 0
    return limiter, engine, clock


async def start(limiter: AsyncLimiter, count: int) -> list[asyncio.Task[Decision]]:
    tasks = [asyncio.create_task(limiter.take("k")) for _ in range(count)]
    for _ in range(10):
        await asyncio.sleep(0)
    return tasks


async def test_one_asks_and_the_next_learns_for_all() -> None:
    limiter, engine, _ = await refused_limiter()
    tasks = await start(limiter, 10)
    assert engine.questions == 1
    engine.open.set()
    decisions = await asyncio.gather(*tasks)
    assert [decision.allowed for decision in decisions] == [True] + [False] * 9
    assert {decision.retry_after for decision in decisions[1:]} == {1.0}
    assert engine.questions == 2


async def test_a_refusal_that_has_run_out_on_its_way_answers_those_who_wait_all_the_same() -> None:
    limiter, engine, _ = await refused_limiter()
    tasks = await start(limiter, 10)
    engine.late_by = 2.0
    engine.open.set()
    decisions = await asyncio.gather(*tasks)
    assert [decision.allowed for decision in decisions] == [True] + [False] * 9
    assert engine.questions == 2


async def test_a_failure_leaves_everybody_to_himself() -> None:
    limiter, engine, _ = await refused_limiter()
    tasks = await start(limiter, 10)
    engine.fails = True
    engine.open.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(answer, EngineUnavailable) for answer in answers)
    assert engine.questions == 10


async def test_the_turn_of_a_cancelled_caller_is_the_next_ones() -> None:
    limiter, engine, _ = await refused_limiter()
    tasks = await start(limiter, 10)
    tasks[0].cancel()  # it asks
    tasks[1].cancel()  # it waits
    engine.open.set()
    decisions = await asyncio.gather(*tasks[2:])
    assert sum(decision.allowed for decision in decisions) == 1
    assert tasks[0].cancelled()
    assert tasks[1].cancelled()


async def test_nobody_waits_long_for_a_slow_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_engine, "MAX_WAIT_S", 0.01)
    limiter, engine, _ = await refused_limiter()
    tasks = await start(limiter, 10)
    await engine.crowded.wait()
    engine.open.set()
    assert sum(decision.allowed for decision in await asyncio.gather(*tasks)) == 1


async def test_a_larger_room_lets_as_many_request_at_once() -> None:
    limiter, engine, clock = await refused_limiter()
    limiter = AsyncLimiter("10/s burst 5", AsyncDenialCacheEngine(engine, clock=clock), clock=clock)
    engine.open.set()
    while (await limiter.take("k")).allowed:
        pass
    clock.advance(0.4)
    engine.questions = engine.most_in_flight = 0
    decisions = await asyncio.gather(*await start(limiter, 10))
    assert sum(decision.allowed for decision in decisions) == 4
    assert (engine.questions, engine.most_in_flight) == (5, 3)


async def test_joint_charges_wait_for_one_another_too() -> None:
    limiter, engine, clock = await refused_limiter()
    engine.open.set()
    charges = [("a", "1/s"), ("b", "5/s")]
    assert (await limiter.take_all(charges)).allowed
    assert not (await limiter.take_all(charges)).allowed
    clock.advance(1)
    engine.questions = 0
    decisions = await asyncio.gather(*[limiter.take_all(charges) for _ in range(10)])
    assert sum(decision.allowed for decision in decisions) == 1
    assert engine.questions == 2


def test_threads_wait_for_one_another() -> None:
    clock, answered, requests = ManualClock(), threading.Event(), threading.Semaphore(0)

    class HeldEngine(RecordingEngine):
        def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> MemoryMeter:
            meter = super().meter(limit, name, options)
            decide = meter.decide

            def decide_later(key: str, cost: int, patience_us: int | None = None) -> Outcome:
                requests.release()
                answered.wait(60)
                return decide(key, cost, patience_us)

            meter.decide = decide_later
            return meter

    engine = HeldEngine(clock)
    limiter = Limiter("1/s", DenialCacheEngine(engine, clock=clock), clock=clock)
    answered.set()
    assert limiter.take("k").allowed
    assert not limiter.take("k").allowed
    clock.advance(1)
    answered.clear()
    engine.costs.clear()
    decisions: list[Decision] = []
    threads = [threading.Thread(target=lambda: decisions.append(limiter.take("k"))) for _ in range(8)]
    for _ in range(2):
        requests.acquire()
    for thread in threads:
        thread.start()
    requests.acquire()
    time.sleep(0.2)  # the others are not waited for: if one comes late, it asks no question either
    assert not requests.acquire(blocking=False)
    answered.set()
    for thread in threads:
        thread.join()
    assert sum(decision.allowed for decision in decisions) == 1
    assert len(engine.costs) == 2
