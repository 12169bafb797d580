"""Demand far above the limit, on the denial cache and prefetching together.

The engine is asked at most twice for each unit that passes: for the unit, and to learn that there is no other.
"""

import pytest

from headgate.clock import ManualClock
from headgate.engines.layers.denial_cache import DenialCacheEngine
from headgate.engines.layers.prefetch import PrefetchEngine
from headgate.limiter import Limiter
from tests.engines.layers.prefetch_harness import RecordingEngine

CALL_US = 100  # one call in so many


@pytest.mark.parametrize("text", ["100/s", "2000/s", "2000/s fixed", "2000/s log", "2000/s sliding"])
def test_the_engine_gets_at_most_twice_the_limit(text: str) -> None:
    clock = ManualClock()
    engine = RecordingEngine(clock)
    layers = DenialCacheEngine(PrefetchEngine(engine, clock=clock), clock=clock)
    with Limiter(text, layers, clock=clock) as limiter:
        admitted = 0
        for _ in range(20_000):
            clock.set_us(clock.now_us() + CALL_US)
            admitted += limiter.take("hot").allowed
    assert 200 <= admitted <= 6_100
    assert len(engine.costs) <= 2 * admitted
