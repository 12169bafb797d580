"""fallback=local&nodes=N: processes that know their number and no rank share a limit."""

import pytest

from headgate.algorithms.slots import Slots
from headgate.clock import ManualClock
from headgate.engines.layers.fallback import AsyncFallbackEngine, FallbackEngine
from headgate.engines.layers.fallback.membership import AsyncMembership, Membership
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.url import open_async_engine, open_engine
from headgate.limit_syntax import parse
from tests.engines.layers.faulty_engine import FaultyEngine, ImmediateFallback

NOBODY = "redis://127.0.0.1:1/0?fallback=local"


class StatedCountFleet:
    """Three processes over one engine, told that they are three."""

    def __init__(self, limit: str) -> None:
        self.clock = ManualClock(1_700_000_000_000_000)
        shared = MemoryEngine(self.clock)
        self.wires = [FaultyEngine(shared) for _ in range(3)]
        engines = [
            ImmediateFallback(wire, fallback="local", members=Membership(count=3), clock=self.clock)
            for wire in self.wires
        ]
        self.meters = [engine.meter(parse(limit), "limit") for engine in engines]

    def cut(self) -> None:
        for wire in self.wires:
            wire.down = True

    def at_once(self) -> list[int]:
        """Returns what each process admits of many calls at one instant."""
        return [sum(meter.decide("key", 1)[0] for _ in range(50)) for meter in self.meters]

    def over(self, seconds: float, step: float = 0.01) -> list[int]:
        passed = [0, 0, 0]
        for _ in range(round(seconds / step)):
            for place, meter in enumerate(self.meters):
                passed[place] += meter.decide("key", 1)[0]
            self.clock.advance(step)
        return passed


@pytest.mark.parametrize(
    "limit", ["5/s burst 2", "5/s queue 0", "5/s burst 1", "2/s fixed", "2/s sliding", "2/s log"]
)
def test_they_share_the_rate_and_hold_a_unit_each(limit: str) -> None:
    fleet = StatedCountFleet(limit)
    fleet.cut()
    assert fleet.at_once() == [1, 1, 1]
    fleet.clock.advance(30)
    passed = fleet.over(30)
    whole = 30 * int(limit[0])
    assert whole * 0.9 <= sum(passed) <= whole + 3
    assert max(passed) == min(passed)


@pytest.mark.parametrize(("limit", "each"), [("5/s burst 10", 3), ("2/month fixed in Asia/Tokyo", 1)])
def test_they_hold_equal_parts_and_at_least_one_unit(limit: str, each: int) -> None:
    fleet = StatedCountFleet(limit)
    fleet.cut()
    assert fleet.at_once() == [each] * 3


def test_a_cost_above_the_share_may_pass_after_the_outage() -> None:
    fleet = StatedCountFleet("9/s fixed")
    fleet.cut()
    assert sum(meter.decide("key", 1)[0] for meter in fleet.meters for _ in range(3)) == 9
    for cost, waits in ((4, True), (9, True), (10, False)):
        allowed, _, retry_us, *_ = fleet.meters[0].decide("key", cost)
        assert not allowed
        assert (retry_us is not None and 0 < retry_us <= 500_000) is waits


def test_they_hold_at_least_one_slot() -> None:
    clock = ManualClock()
    wire = FaultyEngine(MemoryEngine(clock))
    wire.down = True
    engine = ImmediateFallback(wire, fallback="local", members=Membership(count=3), clock=clock)
    slots = engine.slots(Slots(2), "held")
    assert [slots.acquire("key").outcome[0] for _ in range(2)] == [True, False]


def test_a_share_starts_used_where_the_limit_was() -> None:
    fleet = StatedCountFleet("5/s burst 2")
    assert fleet.meters[0].decide("key", 1)[:2] == (True, 1)
    fleet.cut()
    assert fleet.meters[0].decide("key", 1)[0] is False
    assert fleet.meters[1].decide("key", 1)[0] is True  # it has not asked about this key, and knows nothing
    fleet.clock.advance(0.6)
    assert fleet.meters[0].decide("key", 1)[0] is True


def test_they_know_no_rank_and_a_fork_does_not_change_their_number() -> None:
    for members in (Membership(count=4), AsyncMembership(count=4)):
        assert members.position == (4, None)
        members.reset_after_fork()
        assert members.position == (4, None)
    for engine in (open_engine(f"{NOBODY}&nodes=3"), open_async_engine(f"{NOBODY}&nodes=3")):
        assert isinstance(engine, FallbackEngine | AsyncFallbackEngine)
        assert engine.members.position == (3, None)


def test_children_without_a_reply_still_admit() -> None:
    """A server that forks its workers while Redis is gone: each of them holds a unit."""
    clock = ManualClock(1_700_000_000_000_000)
    wire = FaultyEngine(MemoryEngine(clock))
    wire.down = True
    members = Membership()
    engine = ImmediateFallback(wire, fallback="local", members=members, clock=clock)
    engine.reset_after_fork()
    members.reset_after_fork()
    assert members.position == (2, None)
    meter = engine.meter(parse("10/s burst 1"), "limit")
    assert [meter.decide("key", 1)[0] for _ in range(2)] == [True, False]
