"""Harness of fallback tests: one of two members, an engine that may fail, and rules with fallbacks."""

from collections.abc import Callable
from typing import Any

import pytest

from headgate.algorithms.decision import ALLOWED, REMAINING, DegradedOutcome, Outcome
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.fallback import AsyncFallbackEngine
from headgate.engines.layers.fallback.membership import AsyncMembership, Membership
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.url_options import FallbackMode
from headgate.errors import EngineUnavailable
from headgate.limit_syntax import parse
from headgate.testing import SyncAdapter
from tests.engines.layers.faulty_engine import ImmediateFallback, faulty_memory_engine

DAY = parse("10/day fixed")


class FallbackHarness:
    """A member of two, an engine that may fail, and rules."""

    def __init__(self, mode: FallbackMode | None = None, awaited: bool = False, parts: bool = False) -> None:
        self.clock = ManualClock()
        self.wire = faulty_memory_engine(self.clock, parts)
        self.engine: Any
        self.inside: Any
        if awaited:
            members = AsyncMembership()
            members.note_reply(2, 0)
            inner = AsyncMemoryEngine(self.wire)
            self.inside = AsyncFallbackEngine(inner, fallback=mode, members=members, clock=self.clock)
            self.engine = SyncAdapter(self.inside)
        else:
            membership = Membership()
            membership.note_reply(2, 0)
            self.engine = self.inside = ImmediateFallback(
                self.wire, fallback=mode, members=membership, clock=self.clock
            )

    def rule(self, name: str, fallback: FallbackMode | None = None, **terms: Any) -> Any:
        return self.engine.meter(DAY, name, ChargeOptions(name, fallback=fallback, **terms))

    def together(self, *charges: tuple[Any, str, int], commit: bool = True) -> list[Outcome]:
        outcomes: list[Outcome] = self.engine.decide_all(charges, None, commit)
        return outcomes

    def left(self, meter: Any, key: str = "k") -> int:
        """Returns the remaining units of the share: it has 5 of 10."""
        outcome: Outcome = meter.decide(key, 0)
        assert isinstance(outcome, DegradedOutcome)
        return outcome[REMAINING]

    def share(self, meter: Any, key: str = "k") -> Any:
        hand = meter if hasattr(meter, "tag") else meter.meter
        return self.inside.shards[0].counts[hand.tag(key)].meter

    def outage(self) -> None:
        self.wire.down = True

    def back(self) -> None:
        self.wire.down = False
        self.clock.advance(0.6)


def allowed_and_remaining(outcome: Outcome) -> tuple[bool, int]:
    assert isinstance(outcome, DegradedOutcome)
    return outcome[ALLOWED], outcome[REMAINING]


def assert_unavailable(work: Callable[[], object]) -> None:
    with pytest.raises(EngineUnavailable):
        work()
