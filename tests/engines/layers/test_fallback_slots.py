"""Slots while the engine is gone: no caller gets a slot that may have expired."""

import pytest

from headgate.algorithms.slots import Slots
from headgate.clock import ManualClock
from headgate.engines.layers.fallback import AsyncFallbackEngine
from headgate.engines.layers.fallback.breaker import CLOSED
from headgate.engines.layers.fallback.membership import Membership
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.url_options import FallbackMode
from headgate.errors import LeaseLost, RateLimited
from headgate.limiter import AsyncLimiter, Limiter
from tests.engines.layers.faulty_engine import FaultyEngine, ImmediateFallback, faulty_memory_engine

TTL = 30


def stands(
    instead: FallbackMode, clock: ManualClock, count: int = 1, rank: int = 0
) -> tuple[ImmediateFallback, FaultyEngine]:
    wire, membership = faulty_memory_engine(clock), Membership()
    membership.note_reply(count, rank)
    return ImmediateFallback(wire, fallback=instead, members=membership, clock=clock), wire


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def back(engine: ImmediateFallback, wire: FaultyEngine, clock: ManualClock) -> None:
    wire.down = False
    meter = engine.slots(Slots(9), "other")
    for _ in range(3):
        clock.advance(0.6)
        meter.free("key")
    assert engine.state() is CLOSED


@pytest.mark.parametrize("instead", ["allow", "deny", "local"])
def test_a_lease_of_the_engine_lasts_as_long_as_it_was_given(instead: FallbackMode, clock: ManualClock) -> None:
    engine, wire = stands(instead, clock)
    meter = engine.slots(Slots(3, TTL), "slots")
    fence = meter.acquire("key").outcome[6]
    clock.advance(10)
    expires_us = meter.renew("key", fence)
    wire.down = True
    clock.advance(TTL - 0.001)
    assert meter.renew("key", fence) == expires_us
    clock.advance(0.001)
    assert meter.renew("key", fence) is None
    assert meter.renew("key", 12345) is None  # never heard of
    assert meter.release("key", fence) is False


@pytest.mark.parametrize("instead", ["allow", "deny", "local"])
def test_a_block_whose_engine_went_away_has_not_lost_its_slot_while_it_lasts(
    instead: FallbackMode, clock: ManualClock
) -> None:
    engine, wire = stands(instead, clock)
    limiter = Limiter(Slots(3, TTL), engine, clock=clock)
    with limiter.acquire("key") as lease:
        wire.down = True
        clock.advance(TTL - 0.001)
        assert lease.renew()
    back(engine, wire, clock)
    lease = limiter.acquire("key").__enter__()
    wire.down = True
    clock.advance(TTL)
    assert not lease.renew()
    with pytest.raises(LeaseLost):
        lease.__exit__(None, None, None)


def test_allow_gives_leases_that_never_repeat(clock: ManualClock) -> None:
    engine, wire = stands("allow", clock)
    meter = engine.slots(Slots(1, TTL), "slots")
    wire.down = True
    fences = [meter.acquire("key").outcome[6] for _ in range(100)]
    assert fences == sorted(set(fences))
    assert fences[0] == clock.now_us()
    assert meter.free("key")[0]
    back(engine, wire, clock)
    assert meter.renew("key", fences[0]) == clock.now_us() + TTL * 1_000_000
    assert meter.release("key", fences[0])
    assert not meter.release("key", fences[0])


def test_deny_gives_none_but_lets_wait(clock: ManualClock) -> None:
    engine, wire = stands("deny", clock)
    limiter = Limiter(Slots(1, TTL), engine, clock=clock)
    wire.down = True
    with pytest.raises(RateLimited) as refused:
        limiter.acquire("key")
    assert refused.value.decision.degraded
    assert not limiter.peek("key")
    before_us = clock.now_us()
    with pytest.raises(RateLimited):
        limiter.acquire("key", timeout=2)
    assert clock.now_us() - before_us == 2_000_000
    wire.down = False
    assert limiter.acquire("key", timeout=2)


def test_local_gives_a_share(clock: ManualClock) -> None:
    held = []
    for rank in range(3):
        engine, wire = stands("local", clock, 3, rank)
        meter = engine.slots(Slots(4, TTL), "slots")
        wire.down = True
        held.append(sum(meter.acquire("key").outcome[0] for _ in range(5)))
    assert held == [2, 1, 1]
    engine, wire = stands("local", clock, 3, 2)
    wire.down = True
    assert not engine.slots(Slots(2, TTL), "slots").acquire("key").outcome[0]  # none for the third


def test_a_lease_of_a_share_moves_to_the_engine_when_that_is_back(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.slots(Slots(2, TTL), "slots")
    wire.down = True
    first, second = (meter.acquire("key").outcome[6] for _ in range(2))
    clock.advance(20)
    assert meter.renew("key", first) == clock.now_us() + TTL * 1_000_000
    assert meter.renew("key", second) == clock.now_us() + TTL * 1_000_000
    ends_us = clock.now_us() + TTL * 1_000_000
    back(engine, wire, clock)
    inner = wire.engine.slots(Slots(2, TTL), "slots")
    assert meter.renew("key", first) == clock.now_us() + TTL * 1_000_000
    assert inner.free("key")[1] == 1
    assert engine.local_engine.slots(Slots(2, TTL), "slots").free("key")[1] == 1  # here it is free again
    inner.acquire("key")  # by somebody else: there is none left for the second
    assert meter.renew("key", second) == ends_us
    clock.advance(20)
    assert meter.renew("key", first) == clock.now_us() + TTL * 1_000_000
    clock.advance(8.2)
    assert meter.renew("key", second) is None
    assert meter.release("key", second) is False
    assert meter.release("key", first) is True
    assert meter.release("key", first) is False


def test_while_settling_a_slot_must_be_free_in_the_share_too(clock: ManualClock) -> None:
    engine, wire = stands("local", clock, 2)
    meter = engine.slots(Slots(4, TTL), "slots")
    wire.down = True
    for _ in range(3):
        meter.acquire("key")
    wire.down = False
    clock.advance(0.1)
    meter.free("key")
    assert not meter.acquire("key").outcome[0]
    clock.advance(1)
    assert meter.acquire("key").outcome[0]


def test_the_line_goes_on_here(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.slots(Slots(1, TTL), "slots")
    wire.down = True
    fence = meter.acquire("key").outcome[6]
    outcome, ticket = meter.acquire("key", None, True)
    assert not outcome[0]
    assert ticket is not None
    assert meter.release("key", fence)
    assert not meter.acquire("key").outcome[0]  # nobody before a waiter
    assert meter.acquire("key", ticket, True).outcome[0]
    _, other = meter.acquire("key", None, True)
    assert other is not None
    meter.leave("key", other)
    meter.reset("key")
    assert meter.acquire("key").outcome[0]
    assert engine.lost_resets == 1


async def test_awaited_it_is_the_same(clock: ManualClock) -> None:
    wire = faulty_memory_engine(clock)
    engine = AsyncFallbackEngine(AsyncMemoryEngine(wire), fallback="local", clock=clock)
    limiter = AsyncLimiter(Slots(2, TTL), engine, clock=clock)
    wire.down = True
    async with await limiter.acquire("key") as lease:
        assert await lease.renew()
        assert (await limiter.peek("key")).remaining == 1
        async with await limiter.acquire("key"):
            with pytest.raises(RateLimited):
                await limiter.acquire("key", timeout=0.05)
    await limiter.reset("key")
    await limiter.close()
