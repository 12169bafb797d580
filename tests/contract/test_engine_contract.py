"""Our engines pass the public engine contract, and engines that break a guarantee fail it."""

from collections.abc import Sequence

import pytest

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.memory.engine import MemoryEngine, MemoryMeter
from headgate.engines.port import Meter
from headgate.testing import Story, SyncAdapter, engine_stories
from tests.contract.engine_harness import EngineHarness

stories = pytest.mark.parametrize("story", engine_stories, ids=lambda story: story.__name__)


@stories
def test_our_engines_keep_their_promises(story: Story, harness: EngineHarness) -> None:
    if not harness.awaited:
        return story(harness.engine, harness.clock)
    engine = SyncAdapter(harness.async_engine)
    story(engine, harness.clock)
    return engine.close()


class PartialChargeEngine(MemoryEngine):
    """Charges what it can of a joint question, one by one."""

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        return [meter.decide(key, cost, patience_us) for meter, key, cost in charges]


class SingleCounterEngine(MemoryEngine):
    """Has one count for everybody."""

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> MemoryMeter:
        return super().meter(limit, "everybody", options)


class RepeatedRefundEngine(MemoryEngine):
    """Gives back as often as it is asked, and what was served too."""

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> MemoryMeter:
        meter = super().meter(limit, name, options)
        refund = meter.refund

        def again(key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
            return refund(key, units, receipt._replace(refunded_units=0), False)

        meter.refund = again  # type: ignore[method-assign]
        return meter


class NoReservationEngine(MemoryEngine):
    """Knows no reservations."""

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> MemoryMeter:
        meter = super().meter(limit, name, options)
        decide = meter.decide

        def at_once(key: str, cost: int, patience_us: int | None = None) -> Outcome:
            return decide(key, cost, None)

        meter.decide = at_once
        return meter


@pytest.mark.parametrize(
    "kind", [PartialChargeEngine, SingleCounterEngine, RepeatedRefundEngine, NoReservationEngine]
)
def test_a_broken_promise_is_noticed(kind: type[MemoryEngine]) -> None:
    broken = []
    for story in engine_stories:
        clock = ManualClock()
        try:
            story(kind(clock), clock)
        except AssertionError:
            broken.append(story.__name__)
    assert broken
