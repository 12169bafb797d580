"""Deadlines under many requests: no caller waits for the requests of others."""

import time

import pytest

from headgate.algorithms.decision import DegradedOutcome
from headgate.algorithms.fixed_window import FixedWindow
from headgate.clock import ManualClock
from headgate.engines.layers.fallback import FallbackEngine
from headgate.engines.layers.fallback.shard import Shard
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import EngineUnavailable
from headgate.limiter import AsyncLimiter, Limiter
from tests.engines.layers.faulty_engine import FaultyEngine
from tests.servers import Proxy, RedisServer

DEADLINE = 0.05


class DistantEngine(FaultyEngine):
    """Every question takes its time."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        super().__init__(MemoryEngine(clock))
        self._clock, self._seconds = clock, seconds

    def call(self, *words: object) -> object:
        self._clock.advance(self._seconds)
        return super().call(*words)  # type: ignore[arg-type]


class DeferredFallback(FallbackEngine):
    """A fallback whose background waits to be driven."""

    owing: Shard | None = None

    def settle_in_background(self, shard: Shard) -> None:
        self.owing = shard


@pytest.mark.parametrize(("seconds", "engine_calls"), [(0.018, 1), (0.010, 3)])
def test_a_caller_tells_only_if_there_is_time_for_it(seconds: float, engine_calls: int) -> None:
    clock = ManualClock()
    wire = DistantEngine(clock, seconds)
    engine = DeferredFallback(wire, clock=clock, deadline=DEADLINE)
    meter = engine.meter(FixedWindow(10, 3600), "limit")
    wire.down = True
    for _ in range(4):
        assert meter.decide("key", 1)[0]  # by the share
    wire.down = False
    clock.advance(1)
    before, began_us = wire.calls, clock.now_us()
    outcome = meter.decide("key", 1)
    assert outcome[0]
    assert wire.calls - before == engine_calls
    assert clock.now_us() - began_us <= DEADLINE * 1_000_000
    assert isinstance(outcome, DegradedOutcome) is (engine_calls == 1)

    assert engine.owing is not None or engine_calls > 1
    if engine.owing is not None:
        engine.settle_shard(engine.owing)
    clock.advance(2)
    before = wire.calls
    assert meter.decide("key", 1)[:2] == (True, 4)  # four, one and one
    assert wire.calls - before == 1


@pytest.mark.servers
def test_a_script_is_loaded_even_if_only_one_reply_comes_in_time() -> None:
    with (
        RedisServer() as server,
        Proxy(server) as link,
        Limiter("100/day", f"{link.url}?deadline=400ms") as limiter,
    ):
        link.delay(120)  # a quarter of a second for a reply
        with pytest.raises(EngineUnavailable):
            limiter.take("key")
        time.sleep(0.5)
        assert limiter.take("key")


@pytest.mark.servers
async def test_calls_after_a_timeout_wait_no_longer() -> None:
    with RedisServer() as server:
        limiter = AsyncLimiter("100/day", f"{server.url}?deadline=50ms")
        await limiter.take("key")
        server.pause()
        took = []
        for _ in range(4):
            began = time.monotonic()
            with pytest.raises(EngineUnavailable):
                await limiter.take("key")
            took.append(time.monotonic() - began)
        assert min(took[1:]) < 0.15
        server.resume()
        await limiter.close()
