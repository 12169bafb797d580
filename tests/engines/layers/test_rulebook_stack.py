"""The engine of a rulebook has every layer that a rule may choose, idle until a rule does."""

from typing import Any

import pytest

from headgate.algorithms.decision import REMAINING, DegradedOutcome
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.denial_cache import AsyncDenialCacheEngine, DenialCacheEngine
from headgate.engines.layers.fallback import AsyncFallbackEngine, FallbackEngine
from headgate.engines.layers.prefetch import AsyncPrefetchEngine, PrefetchEngine
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.engines.url import open_async_engine, open_engine
from headgate.errors import EngineUnavailable
from headgate.limit_syntax import parse
from tests.servers import Proxy, RedisServer

DAY = parse("1000/day fixed")
NOBODY = "redis://127.0.0.1:1/0"


def stack(engine: Any) -> list[type]:
    types = [type(engine)]
    while (engine := getattr(engine, "inner", None)) is not None:
        types.append(type(engine))
    return types


def test_the_stack_has_every_layer_that_a_rule_may_choose() -> None:
    assert stack(open_engine(NOBODY)) == [RedisEngine]
    engine = open_engine(NOBODY, ruled=True)
    assert stack(engine) == [FallbackEngine, PrefetchEngine, RedisEngine]
    assert isinstance(engine, FallbackEngine)
    assert engine.fallback is None
    assert not engine.members.engines
    whole = open_engine(f"{NOBODY}?fallback=deny&denial_cache=on&deadline=2s", ruled=True)
    assert stack(whole) == [FallbackEngine, DenialCacheEngine, PrefetchEngine, RedisEngine]
    assert isinstance(whole, FallbackEngine)
    assert whole.fallback == "deny"
    assert stack(open_async_engine(NOBODY, ruled=True)) == [
        AsyncFallbackEngine,
        AsyncPrefetchEngine,
        AsyncRedisEngine,
    ]
    assert stack(open_async_engine(f"{NOBODY}?denial_cache=on", ruled=True))[1] is AsyncDenialCacheEngine


def test_a_process_is_one_member_whoever_of_its_rules_shares() -> None:
    one, two = open_engine(NOBODY, ruled=True), open_engine(f"{NOBODY}?fallback=deny", ruled=True)
    assert isinstance(one, FallbackEngine)
    assert isinstance(two, FallbackEngine)
    assert one.members is two.members
    engine = open_engine(f"{NOBODY}?nodes=7", ruled=True)
    assert isinstance(engine, FallbackEngine)
    assert engine.members.count == 7
    first, second = open_async_engine(NOBODY, ruled=True), open_async_engine(NOBODY, ruled=True)
    assert isinstance(first, AsyncFallbackEngine)
    assert isinstance(second, AsyncFallbackEngine)
    assert first.members is second.members


def test_memory_stays_bare() -> None:
    assert stack(open_engine("memory://", ruled=True)) == [MemoryEngine]
    assert stack(open_async_engine("memory://", ruled=True)) == [AsyncMemoryEngine]


def test_rules_choose(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        engine = open_engine(link.url, ruled=True)
        bare = engine.meter(DAY, "bare")
        exact = engine.meter(DAY, "exact", ChargeOptions("exact"))
        hot = engine.meter(DAY, "hot", ChargeOptions("hot", prefetch=(100_000, 10)))
        local = engine.meter(DAY, "local", ChargeOptions("local", fallback="local", deadline=0.1))
        assert isinstance(engine, FallbackEngine)
        assert engine.members.engines
        for _ in range(30):
            assert all(meter.decide("k", 1) for meter in (bare, exact, hot, local))
        assert engine.inner.prefetched > 0
        link.refuse()
        link.cut()
        for meter in (bare, exact):
            with pytest.raises(EngineUnavailable):
                meter.decide("k", 1)
        assert isinstance(local.decide("k", 1), DegradedOutcome)
        link.heal()
        engine.close()
        with pytest.raises(EngineUnavailable):
            open_engine(NOBODY, ruled=True).meter(DAY, "n", ChargeOptions("n")).decide("k", 1)


async def test_rules_choose_awaited(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        engine = open_async_engine(link.url, ruled=True)
        bare = engine.meter(DAY, "bare")
        hot = engine.meter(DAY, "hot", ChargeOptions("hot", prefetch=(100_000, 10)))
        local = engine.meter(DAY, "local", ChargeOptions("local", fallback="local", deadline=0.1))
        for _ in range(30):
            for meter in (bare, hot, local):
                await meter.decide("k", 1)
        assert isinstance(engine, AsyncFallbackEngine)
        assert engine.members.engines
        assert engine.inner.prefetched > 0
        assert (await bare.decide("k", 0))[REMAINING] == 970
        link.refuse()
        link.cut()
        with pytest.raises(EngineUnavailable):
            await bare.decide("k", 1)
        assert isinstance(await local.decide("k", 1), DegradedOutcome)
        link.heal()
        await engine.close()
