"""Settling through the layers: denial cache, prefetched units, fallback."""

from __future__ import annotations

import asyncio

import pytest

from headgate.algorithms.decision import REMAINING, DegradedOutcome, Receipt
from headgate.clock import ManualClock
from headgate.engines.layers.denial_cache import AsyncDenialCacheEngine, DenialCacheEngine
from headgate.engines.layers.fallback.membership import Membership
from headgate.engines.layers.prefetch import PrefetchEngine
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.url_options import FallbackMode
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter, Limiter
from tests.engines.layers.faulty_engine import FaultyEngine, ImmediateFallback, faulty_memory_engine

DAY = "100/day fixed"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def fallback_engine(mode: FallbackMode, clock: ManualClock) -> tuple[ImmediateFallback, FaultyEngine]:
    members = Membership()
    members.note_reply(1, 0)
    wire = faulty_memory_engine(clock)
    return ImmediateFallback(wire, fallback=mode, members=members, clock=clock), wire


def test_the_denial_cache_refuses_for_as_long_as_the_debt(clock: ManualClock) -> None:
    limiter = Limiter("10/s", DenialCacheEngine(MemoryEngine(clock), clock=clock), clock=clock)
    taken = limiter.take("key", 10)
    assert limiter.take("key").retry_after == 0.1  # cached
    limiter.settle(taken, 40)
    clock.advance(0.1)
    refused = limiter.take("key")
    assert (refused.allowed, refused.retry_after) == (False, 3.0)
    clock.advance(3)
    assert limiter.take("key")


def test_the_awaited_denial_cache_passes_it_on(clock: ManualClock) -> None:
    async def story() -> int | None:
        engine = AsyncDenialCacheEngine(AsyncMemoryEngine(MemoryEngine(clock)), clock=clock)
        limiter = AsyncLimiter(DAY, engine, clock=clock)
        await limiter.settle(await limiter.take("key", 10), 40)
        await limiter.settle(await limiter.reserve("key", 10), 5)
        return (await limiter.peek("key")).remaining

    assert asyncio.run(story()) == 55


def test_prefetched_units_stay_and_the_count_is_charged(clock: ManualClock) -> None:
    inner = MemoryEngine(clock)
    engine = PrefetchEngine(inner, clock=clock)
    limiter, counted = (
        Limiter("1000/day fixed", engine, clock=clock),
        Limiter("1000/day fixed", inner, clock=clock),
    )
    decisions = [limiter.take("key") for _ in range(12)]  # the last ones from units that were fetched ahead
    before, remaining = counted.peek("key").remaining, limiter.peek("key").remaining
    assert before < 988
    limiter.settle(decisions[-1], 31)
    limiter.settle(decisions[-1], 31)
    assert counted.peek("key").remaining == before - 30
    assert limiter.peek("key").remaining == remaining - 30
    limiter.settle(decisions[-2], 0)
    assert limiter.peek("key").remaining == remaining - 29
    engine.close()
    assert counted.peek("key").remaining == 1000 - 11 - 30


def test_while_the_engine_is_gone_the_share_is_charged_and_settled_later(clock: ManualClock) -> None:
    engine, wire = fallback_engine("local", clock)
    meter, inner = engine.meter(parse(DAY), "limit"), wire.engine.meter(parse(DAY), "limit")
    by_engine = meter.decide("key", 10)
    wire.down = True
    by_share = meter.decide("key", 10)
    assert isinstance(by_share, DegradedOutcome)
    for taken in (by_engine, by_share):
        outcome = meter.surcharge("key", 5, Receipt.from_outcome(taken, 10))
        assert isinstance(outcome, DegradedOutcome)
    assert meter.decide("key", 0)[REMAINING] == 70
    wire.down = False
    clock.advance(0.1)
    meter.decide("key", 1)
    assert inner.decide("key", 0)[REMAINING] == 69
    clock.advance(1)
    # The share is gone by now: whoever admitted the call, the engine is charged.
    assert meter.surcharge("key", 9, Receipt.from_outcome(by_share, 10))[REMAINING] == 60
    assert inner.decide("key", 0)[REMAINING] == 60
    assert engine.lost_surcharges == 0


@pytest.mark.parametrize("mode", ["allow", "deny"])
def test_without_a_share_it_is_lost_and_counted(mode: FallbackMode, clock: ManualClock) -> None:
    engine, wire = fallback_engine(mode, clock)
    limiter = Limiter(DAY, engine, clock=clock)
    taken = limiter.take("key", 10)
    wire.down = True
    limiter.settle(taken, 30)
    assert engine.lost_surcharges == 1
    wire.down = False
    clock.advance(1)
    limiter.settle(taken, 30)  # once is all: it may have been charged
    assert limiter.peek("key").remaining == 90


def test_a_degraded_call_is_settled_for_less_by_its_share(clock: ManualClock) -> None:
    engine, wire = fallback_engine("local", clock)
    limiter = Limiter(DAY, engine, clock=clock)
    wire.down = True
    limiter.settle(limiter.take("key", 40), 10)
    assert limiter.peek("key").remaining == 90
    wire.down = False
    clock.advance(0.1)
    limiter.take("key")
    assert Limiter(DAY, wire.engine, clock=clock).peek("key").remaining == 89
