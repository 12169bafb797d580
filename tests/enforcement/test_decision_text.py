"""str() of a decision names one rule, or one limit, with its own numbers."""

from headgate import Limiter, ManualClock
from headgate.algorithms.limit import SECOND

WIDE = {"name": "wide", "limit": "1000/day fixed"}
NARROW = {"name": "narrow", "limit": "100/day fixed"}


def test_of_a_call_that_passes_the_rule_nearest_to_its_limit() -> None:
    """The wide rule has more left in units, and less of its limit."""
    with Limiter.from_rules({"rules": [WIDE, NARROW | {"when": {"user": "ann"}}]}) as limiter:
        for _ in range(600):
            limiter.check({})
        decision = limiter.check({"user": "ann"})
    assert decision.remaining == 99  # of both the least
    assert str(decision) == 'allowed by rule "wide" (1000/day fixed), 399 remaining'


def test_of_a_call_that_waits_the_rule_that_it_waits_for() -> None:
    clock = ManualClock(1_700_000_000 * SECOND)
    slow = {"name": "slow", "limit": "1/s queue 50"}
    with Limiter.from_rules({"rules": [{"name": "few", "limit": "3/day fixed"}, slow]}, clock=clock) as limiter:
        limiter.check({})
        decision = limiter.check({})
    assert str(decision) == 'allowed after 1 s by rule "slow" (1/s queue 50), 49 remaining'


def test_of_several_limits_the_one_that_it_waits_for() -> None:
    clock = ManualClock(1_700_000_000 * SECOND)
    with Limiter("3/day fixed; 1/s queue 50", clock=clock) as limiter:
        limiter.take("key")
        assert str(limiter.take("key")) == "allowed after 1 s by 1/s queue 50, 49 remaining"
