"""A key moves to another shard during an outage: its share moves along, and does not double."""

from typing import Any

import pytest

from headgate.algorithms.fixed_window import FixedWindow
from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from tests.engines.layers.faulty_engine import FaultyEngine, ImmediateFallback


class FailoverEngine(FaultyEngine):
    """All keys belong to one part, until another takes its place."""

    part = "old"
    at_the_next_question: str | None = None

    def shard(self, key: str) -> object:
        return self.part

    def call(self, key: str, verb: Any, *words: Any) -> Any:
        self.part, self.at_the_next_question = self.at_the_next_question or self.part, None
        return super().call(key, verb, *words)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_key_that_moves_while_all_are_gone_has_one_share(clock: ManualClock) -> None:
    wire = FailoverEngine(MemoryEngine(clock))
    meter = ImmediateFallback(wire, clock=clock).meter(FixedWindow(10, 3600), "limit")
    wire.down_parts = {"old", "new"}
    assert sum(meter.decide("key", 1)[0] for _ in range(6)) == 6
    wire.part = "new"
    assert sum(meter.decide("key", 1)[0] for _ in range(20)) == 4


def test_the_new_master_gets_the_settlement(clock: ManualClock) -> None:
    wire = FailoverEngine(MemoryEngine(clock))
    engine = ImmediateFallback(wire, clock=clock)
    meter = engine.meter(FixedWindow(10, 3600), "limit")
    wire.down_parts = {"old"}
    assert sum(meter.decide("key", 1)[0] for _ in range(6)) == 6
    wire.part = "new"
    engine.on_heartbeat()  # with the next beat
    assert sum(meter.decide("key", 1)[0] for _ in range(20)) == 4


def test_a_key_that_moves_during_a_call_raises_no_error(clock: ManualClock) -> None:
    wire = FailoverEngine(MemoryEngine(clock))
    meter = ImmediateFallback(wire, clock=clock).meter(FixedWindow(3, 3600), "limit")
    wire.down = True
    assert [meter.decide("key", 1)[0] for _ in range(5)] == [True, True, True, False, False]
    wire.down = False
    clock.advance(1)
    wire.at_the_next_question = "new"
    assert not meter.decide("key", 1)[0]
