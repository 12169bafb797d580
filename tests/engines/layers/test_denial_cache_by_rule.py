"""The denial cache and charge options: lockouts and shadows always reach the engine, and a changed override
applies at once.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.algorithms.decision import ALLOWED, RETRY_AFTER_US, LockedOutcome, Outcome, OverriddenOutcome
from headgate.algorithms.lockout import Lockout
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.denial_cache import AsyncDenialCacheEngine, DenialCacheEngine
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.limit_syntax import parse
from headgate.testing import SyncAdapter
from tests.engines.layers.faulty_engine import faulty_memory_engine

DRY = parse("1/minute fixed")
LOCK = Lockout(3, 60_000_000, 600_000_000)


class RuleDenialCacheHarness:
    def __init__(self, awaited: bool) -> None:
        self.clock = ManualClock()
        self.engine: Any = faulty_memory_engine(self.clock)
        self.memo: Any = DenialCacheEngine(self.engine, clock=self.clock)
        if awaited:
            self.memo = SyncAdapter(AsyncDenialCacheEngine(AsyncMemoryEngine(self.engine), clock=self.clock))

    def rule(self, name: str = "n", **terms: Any) -> Any:
        return self.memo.meter(DRY, name, ChargeOptions(name, **terms))

    @property
    def questions(self) -> int:
        """Charges that the engine was asked about."""
        count: int = self.engine.calls
        return count


@pytest.fixture(params=[False, True], ids=["blocking", "awaited"])
def harness(request: pytest.FixtureRequest) -> Iterator[RuleDenialCacheHarness]:
    harness = RuleDenialCacheHarness(request.param)
    yield harness
    harness.memo.close()


def test_a_plain_rule_is_remembered(harness: RuleDenialCacheHarness) -> None:
    meter = harness.rule()
    assert [meter.decide("k", 1)[ALLOWED] for _ in range(5)] == [True, False, False, False, False]
    assert harness.questions == 2


def test_every_refusal_reaches_a_rule_that_counts_them_and_then_that_it_is_locked_out_is_repeated(
    harness: RuleDenialCacheHarness,
) -> None:
    meter = harness.rule(lockout=LOCK)
    answers: list[Outcome] = [meter.decide("k", 1) for _ in range(8)]
    assert [isinstance(outcome, LockedOutcome) for outcome in answers] == [False] * 3 + [True] * 5
    assert harness.questions == 4  # that it is locked out is told once a second
    harness.clock.advance(0.25)
    repeated = meter.decide("k", 7)
    assert isinstance(repeated, LockedOutcome)
    assert repeated[RETRY_AFTER_US] == 600_000_000 - 250_000
    assert harness.questions == 4
    assert isinstance(meter.decide("k", 0), LockedOutcome)  # a peek is always asked
    assert harness.questions == 5
    harness.clock.advance(1)
    assert isinstance(meter.decide("k", 1), LockedOutcome)
    assert harness.questions == 6
    meter.reset("k")
    assert meter.decide("k", 1)[ALLOWED]


def test_a_cached_refusal_is_not_repeated_to_a_rule_with_a_lockout(
    harness: RuleDenialCacheHarness,
) -> None:
    plain, counts = harness.rule(), harness.rule(lockout=LOCK)
    plain.decide("k", 1)
    assert not plain.decide("k", 1)[ALLOWED]
    before = harness.questions
    assert not isinstance(counts.decide("k", 1), LockedOutcome)
    counts.decide("k", 1)
    assert isinstance(counts.decide("k", 1), LockedOutcome)
    assert harness.questions == before + 3
    assert not isinstance(plain.decide("k", 1), LockedOutcome)  # nor the other way round


def test_shadow_charges_always_reach_the_engine(harness: RuleDenialCacheHarness) -> None:
    meter = harness.rule(is_shadow=True)
    assert [meter.decide("k", 1)[ALLOWED] for _ in range(5)] == [True, False, False, False, False]
    assert harness.questions == 5


@pytest.mark.parametrize("terms", [{"is_shadow": True}, {"lockout": Lockout(100, 60_000_000, 1)}])
def test_charges_together_with_a_shadow_or_lockout_reach_the_engine(
    harness: RuleDenialCacheHarness, terms: dict[str, Any]
) -> None:
    plain, such = harness.rule("plain"), harness.rule("such", **terms)
    alone, both = [(plain, "a", 1), (plain, "b", 1)], [(plain, "k", 1), (such, "k", 1)]
    for _ in range(5):
        harness.memo.decide_all(alone)
    assert harness.questions == 2 * 2
    for _ in range(5):
        harness.memo.decide_all(both)
    assert harness.questions == 2 * (2 + 5)


def test_a_call_that_commits_nothing_reaches_the_engine_and_is_not_cached(harness: RuleDenialCacheHarness) -> None:
    meter = harness.rule()
    meter.decide("k", 1)
    for _ in range(3):
        assert not harness.memo.decide_all([(meter, "k", 1), (meter, "k", 1)], None, False)[0][ALLOWED]
    assert harness.questions == 1 + 2 * 3
    for _ in range(3):
        harness.memo.decide_all([(meter, "k", 1), (meter, "k", 1)])
    assert harness.questions == 1 + 2 * 4


def test_an_override_that_is_changed_here_ends_what_is_remembered(harness: RuleDenialCacheHarness) -> None:
    meter, overrides = harness.rule(overrides=True), harness.memo.overrides("n")
    for _ in range(3):
        meter.decide("k", 1)
    assert harness.questions == 2
    assert overrides.set("k", "2/minute fixed")
    assert meter.decide("k", 1)[ALLOWED]
    refused = [meter.decide("k", 1) for _ in range(3)]
    assert harness.questions == 4
    assert all(
        isinstance(outcome, OverriddenOutcome) and outcome.limit.text == "2/minute fixed" for outcome in refused
    )
    assert overrides.get("k") == "2/minute fixed"
    assert list(overrides.list()) == [("k", "2/minute fixed")]
    assert not overrides.set("k", "9/minute fixed", absent=True)
    assert overrides.unset("k")
    assert not isinstance(meter.decide("k", 1), OverriddenOutcome)
    assert harness.questions == 6 - 1  # the refusal by the rule's own limit, asked anew
