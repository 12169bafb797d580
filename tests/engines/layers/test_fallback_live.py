"""The fallback engine on an event loop, among threads, and over a real server that is killed."""

import asyncio
import gc
import threading
import time

import pytest

from headgate.clock import ManualClock
from headgate.engines.layers.fallback import AsyncFallbackEngine, FallbackEngine
from headgate.engines.layers.fallback.breaker import CLOSED, OPEN
from headgate.engines.layers.fallback.membership import AsyncMembership, Membership
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.engines.url_options import FallbackMode
from headgate.errors import EngineUnavailable
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter, Limiter
from tests.engines.layers.faulty_engine import FaultyEngine, ImmediateFallback, faulty_memory_engine
from tests.servers import RedisServer

DAY = "100/day fixed"


def members(count: int, rank: int) -> Membership:
    membership = Membership()
    membership.note_reply(count, rank)
    return membership


def stands(
    instead: FallbackMode, clock: ManualClock, count: int = 1, rank: int = 0, parts: bool = False
) -> tuple[ImmediateFallback, FaultyEngine]:
    wire = faulty_memory_engine(clock, parts)
    return ImmediateFallback(wire, fallback=instead, members=members(count, rank), clock=clock), wire


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_awaited_it_is_the_same(clock: ManualClock) -> None:
    wire = faulty_memory_engine(clock)
    engine = AsyncFallbackEngine(
        AsyncMemoryEngine(wire), fallback="local", members=AsyncMembership(count=2), clock=clock
    )
    limiter = AsyncLimiter(DAY, engine, clock=clock)
    assert (await limiter.take("key")).remaining == 99
    wire.down = True
    passed = [await limiter.take("key") for _ in range(60)]
    assert sum(map(bool, passed)) == 49  # half of 99, of the last in rank
    assert all(decision.degraded for decision in passed)
    await limiter.refund(passed[0])
    assert (await limiter.take("idle")).degraded
    wire.down = False
    clock.advance(0.1)
    assert await limiter.take("key")
    await asyncio.sleep(0.01)  # the background
    inner = wire.engine.meter(parse(DAY), DAY)
    assert (inner.decide("key", 0)[1], inner.decide("idle", 0)[1]) == (50, 99)
    together = await limiter.take_all([("key", DAY), ("idle", DAY)])
    assert not together.degraded or not together.allowed
    await limiter.set_limit("90/day fixed", "key")
    await limiter.reset("key")
    await limiter.close()


async def test_a_cancelled_probe_leaves_nobody_stuck(clock: ManualClock) -> None:
    wire = faulty_memory_engine(clock)
    engine = AsyncFallbackEngine(AsyncMemoryEngine(wire), fallback="deny", clock=clock)
    meter = engine.meter(parse(DAY), "limit")
    wire.down = True
    for _ in range(3):
        await meter.decide("key", 1)
    wire.down = False
    clock.advance(0.1)
    never = asyncio.Event()

    async def slow(key: str, cost: int, patience_us: int | None = None) -> None:
        await never.wait()

    decide, meter.meter.decide = meter.meter.decide, slow
    probe = asyncio.create_task(meter.decide("key", 1))
    await asyncio.sleep(0)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    meter.meter.decide = decide
    assert engine.state() is OPEN
    clock.advance(0.2)
    assert (await meter.decide("key", 1))[0]


def test_many_threads_and_one_probe(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.meter(parse("1000000/day fixed"), "limit")
    wire.down = True
    threads = [threading.Thread(target=lambda: [meter.decide("key", 1) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.degraded_count == 800
    assert wire.calls <= 6  # three in a row, and what was under way with them
    count = engine.shard_of("key").counts[meter.tag("key")]
    assert count.unsettled_units == 800


def test_a_server_that_is_killed_and_comes_back() -> None:
    with RedisServer("redis") as server:
        inner = RedisEngine(server.unix_url)
        engine = FallbackEngine(inner, fallback="local", members=members(2, 0))
        limiter = Limiter("100/day fixed", engine)
        assert limiter.take("key", 40).remaining == 60
        server.kill()
        passed = [limiter.take("key") for _ in range(100)]
        assert sum(map(bool, passed)) == 30  # half of what was left
        assert all(decision.degraded for decision in passed)
        idle = limiter.take("idle")
        assert idle.degraded
        server.start()
        deadline = time.monotonic() + 10
        while engine.state() is not CLOSED and time.monotonic() < deadline:
            limiter.peek("key")
            time.sleep(0.02)
        key, other = limiter.peek("key"), limiter.peek("idle")
        assert not key.degraded
        assert (key.remaining, other.remaining) == (70, 99)  # the server came back empty, and was told
        limiter.close()


def test_a_server_that_is_gone_from_the_start() -> None:
    with RedisServer("redis") as server:
        url = server.unix_url
    for instead, allowed in (("allow", True), ("deny", False)):
        with Limiter("1/day fixed", FallbackEngine(RedisEngine(url), fallback=instead)) as limiter:  # type: ignore[arg-type]
            assert [limiter.take("key").allowed for _ in range(5)] == [allowed] * 5
    with Limiter("1/s", RedisEngine(url)) as bare, pytest.raises(EngineUnavailable):
        bare.take("key")
    gc.collect()
