"""Prefetching by rule: by the rule's own options, never where refusals are counted or limits overridden."""

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.algorithms.decision import ALLOWED, REMAINING
from headgate.algorithms.lockout import Lockout
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.prefetch import AsyncPrefetchEngine, PrefetchEngine
from headgate.engines.layers.prefetch.meter_without_prefetch import ExactMeter
from headgate.engines.layers.prefetch.sync_background_returns import ReturnThread
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.errors import InvalidCharge, InvalidRule
from headgate.limit_syntax import parse
from headgate.testing import SyncAdapter
from tests.engines.layers.prefetch_harness import RecordingEngine

DAY = parse("1000/day fixed")
LOCK = Lockout(3, 1_000_000, 1_000_000)


class RulePrefetchHarness:
    def __init__(self, awaited: bool, hold_us: int | None = None) -> None:
        self.clock = ManualClock()
        self.warehouse = RecordingEngine(self.clock)
        self.engine: Any = PrefetchEngine(self.warehouse, hold_us=hold_us, clock=self.clock)
        if awaited:
            inner = AsyncMemoryEngine(self.warehouse)
            self.engine = SyncAdapter(AsyncPrefetchEngine(inner, hold_us=hold_us, clock=self.clock))
        self.awaited = awaited

    def lends(self, terms: ChargeOptions | None, name: str = "n") -> list[int]:
        """Takes 50 times, and returns what the inner engine is asked for."""
        meter = self.engine.meter(DAY, name, terms)
        assert meter.options is terms
        self.warehouse.costs.clear()
        assert all(meter.decide("k", 1)[ALLOWED] for _ in range(50))
        return self.warehouse.costs

    @property
    def inside(self) -> Any:
        return self.engine.engine if self.awaited else self.engine


@pytest.fixture(params=[False, True], ids=["blocking", "awaited"])
def harness(request: pytest.FixtureRequest) -> Iterator[RulePrefetchHarness]:
    harness = RulePrefetchHarness(request.param)
    yield harness
    harness.engine.close()


EXACTLY = [
    None,
    ChargeOptions("silent"),
    ChargeOptions("locks", prefetch=(100_000, None), lockout=LOCK),
    ChargeOptions("own", prefetch=(100_000, None), overrides=True),
]


@pytest.mark.parametrize("terms", EXACTLY)
def test_a_rule_without_prefetch_is_not_prefetched(
    harness: RulePrefetchHarness, terms: ChargeOptions | None
) -> None:
    assert harness.lends(terms) == [1] * 50
    assert harness.inside.prefetched == 0


def test_a_rule_is_prefetched_by_its_options(harness: RulePrefetchHarness) -> None:
    costs = harness.lends(ChargeOptions("hot", prefetch=(100_000, None)))
    assert len(costs) < 20
    assert 1 < max(costs) <= 101  # a tenth, and the call's own
    few = harness.lends(ChargeOptions("warm", prefetch=(100_000, 7)), "few")
    assert max(few) == 8
    assert harness.inside.prefetched > 50
    assert harness.lends(None, "other") == [1] * 50


def test_units_are_held_for_as_long_as_the_rule_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReturnThread, "run", lambda self: None)  # it would give back by real time
    harness = RulePrefetchHarness(False)
    short = harness.engine.meter(DAY, "short", ChargeOptions("short", prefetch=(50_000, None)))
    long = harness.engine.meter(DAY, "long", ChargeOptions("long", prefetch=(400_000, None)))
    for meter in (long, short, long, short):
        for _ in range(20):
            meter.decide("k", 1)
    hot_keys = harness.inside._hot_keys
    assert hot_keys.due_us(harness.clock.now_us()) == 50_000
    harness.clock.advance(0.05)
    assert len(hot_keys.remove_expired(harness.clock.now_us())) == 1
    assert hot_keys.due_us(harness.clock.now_us()) == 350_000
    harness.clock.advance(-100)
    assert hot_keys.due_us(harness.clock.now_us()) == 400_000  # a clock that stepped back makes nobody wait for it
    harness.engine.close()


def test_the_default_prefetch_is_for_meters_without_options(harness: RulePrefetchHarness) -> None:
    with_default = RulePrefetchHarness(harness.awaited, hold_us=100_000)
    assert len(with_default.lends(None)) < 20
    assert with_default.lends(ChargeOptions("silent"), "silent") == [1] * 50
    with_default.engine.close()


def test_new_terms_take_over_what_is_held(harness: RulePrefetchHarness) -> None:
    """A rule that was changed: what the old one holds goes back, once somebody asks by the new one."""
    old, new = ChargeOptions("r", prefetch=(100_000, None)), ChargeOptions("r", prefetch=(200_000, 5))
    harness.lends(old)
    held = 1000 - harness.warehouse.meter(DAY, "n").decide("k", 0)[REMAINING] - 50
    assert held > 0
    assert max(harness.lends(new)) == 6
    assert held in harness.warehouse.returned
    assert harness.engine.meter(DAY, "n", new) is not harness.engine.meter(DAY, "n", old)
    exact = harness.engine.meter(DAY, "n", ChargeOptions("r"))
    exact.decide("k", 1)
    harness.clock.advance(0.3)
    if not harness.awaited:
        harness.engine.give_back_expired()
        assert exact.decide("k", 0)[REMAINING] == 1000 - 101


def test_a_meter_without_prefetch_is_passed_through() -> None:
    warehouse = RecordingEngine(ManualClock())
    engine = PrefetchEngine(warehouse, hold_us=None)
    meter = engine.meter(DAY, "n", ChargeOptions("r"))
    assert isinstance(meter, ExactMeter)
    assert meter.decide is meter.meter.decide
    assert (meter.limit, meter.name) == (DAY, "n")
    hot = engine.meter(DAY, "hot", ChargeOptions("hot", prefetch=(100_000, None)))
    assert [outcome[REMAINING] for outcome in engine.decide_all([(meter, "k", 2), (hot, "k", 3)])] == [998, 997]
    outcomes = engine.decide_all([(meter, "k", 2), (hot, "k", 3)], None, False)
    assert [outcome[REMAINING] for outcome in outcomes] == [998, 997]
    with pytest.raises(InvalidCharge, match="another engine"):
        engine.decide_all([(warehouse.meter(DAY, "n"), "k", 1)])
    engine.overrides("r").set("k", "5/day fixed")
    assert warehouse.overrides("r").get("k") == "5/day fixed"


def test_each_rule_reports_its_guarantee() -> None:
    off, on = PrefetchEngine(RecordingEngine(), hold_us=None), PrefetchEngine(RecordingEngine())
    assert (
        list(off.guarantees(DAY, 4))
        == list(off.guarantees(DAY, 4, ChargeOptions("r")))
        == list(on.guarantees(DAY, 4, ChargeOptions("r")))
        == []
    )
    ((_, words),) = off.guarantees(DAY, 4, ChargeOptions("r", prefetch=(20_000, 30)))
    assert "at most 30 units each" in words
    assert "at most 120 units are kept from others, for at most 20 ms" in words
    assert "for at most 100 ms" in dict(on.guarantees(DAY, 4))["prefetch"]
    locks = ChargeOptions("r", prefetch=(20_000, 30), lockout=LOCK)
    assert "never prefetched, because its rule has a lockout" in dict(on.guarantees(DAY, 4, locks))["prefetch"]
    paced = dict(off.guarantees(parse("10/s smooth"), 4, ChargeOptions("r", prefetch=(20_000, 30))))["prefetch"]
    assert paced.endswith("decided by the engine itself.")


def test_terms_that_cannot_be() -> None:
    for prefetch in ((0, None), (1000, 0)):
        with pytest.raises(InvalidRule):
            PrefetchEngine(RecordingEngine()).meter(DAY, "n", ChargeOptions("r", prefetch=prefetch))
