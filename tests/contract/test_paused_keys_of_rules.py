"""Pauses of rules on every engine: refused until the end, in one round trip, also beside other rules."""

from typing import Any, cast

import pytest

from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
from headgate.errors import InvalidCharge, InvalidRule
from tests.contract.engine_harness import BlockingProxy, EngineHarness
from tests.contract.verb_table import EXAMPLES

ANN = {"user": "ann"}
RULES: list[dict[str, Any]] = [
    {
        "name": "api",
        "key": "user",
        "missing": "skip",
        "limit": {"by": "plan", "cases": {"pro": ["5/minute", "20/hour fixed"]}, "otherwise": "2/minute"},
        "pausable": True,
    },
    {"name": "all", "limit": "100/minute"},
]


def follow(harness: EngineHarness, *rules: dict[str, Any]) -> RuleLimiter:
    book = {"rules": list(rules or RULES)}
    if harness.awaited:
        limiter = AsyncRuleLimiter(book, harness.async_engine, clock=harness.clock)
        return cast(RuleLimiter, BlockingProxy(limiter, harness.loop))
    return RuleLimiter(book, harness.engine, clock=harness.clock)


def test_a_paused_key_is_refused_until_the_end_whatever_its_case(harness: EngineHarness) -> None:
    limiter = follow(harness)
    assert limiter.check(ANN)
    assert limiter.pause("api", "user=ann", 30) == 30
    assert limiter.pause("api", ANN, 10) == 30
    harness.advance(10)
    before = harness.stored()
    for call in (ANN, ANN | {"plan": "pro"}):
        refused = limiter.check(call)
        assert (refused.allowed, refused.rule, refused.paused_for) == (False, "api", 20)
        assert refused.retry_after == 20
        assert "because its key is paused: retry after 20 s" in str(refused)
    assert harness.stored() == before
    assert limiter.check({"user": "bob"})
    harness.advance(20)
    assert limiter.check(ANN).remaining == 0  # nothing came back meanwhile
    assert not limiter.check(ANN)


def test_a_pause_lasts_an_hour_at_most_unless_the_rule_says_otherwise(harness: EngineHarness) -> None:
    limiter = follow(harness, RULES[0], RULES[0] | {"name": "long", "pausable": "2h"})
    assert limiter.pause("api", ANN, 9000) == 3600
    assert limiter.pause("long", ANN, 9000) == 7200
    limiter.reset(ANN)
    assert limiter.peek(ANN).paused_for == 0
    assert limiter.check(ANN)


@pytest.mark.parametrize("text", [example.text for example in EXAMPLES.values()], ids=list(EXAMPLES))
def test_under_every_algorithm(harness: EngineHarness, text: str) -> None:
    rule = {"name": "one", "key": "user", "missing": "deny", "limit": text, "pausable": True}
    limiter = follow(harness, rule, {"name": "all", "limit": "100/minute"})
    limiter.pause("one", ANN, 7)
    assert not limiter.check(ANN)
    assert limiter.peek(ANN).paused_for == 7
    waited = harness.seconds()
    assert limiter.wait(ANN, timeout=60)
    assert harness.seconds() >= waited + 7


def test_a_shadow_reports_its_pause_and_refuses_nobody(harness: EngineHarness) -> None:
    limiter = follow(harness, RULES[0] | {"mode": "shadow"}, RULES[1])
    limiter.pause("api", ANN, 5)
    decision = limiter.check(ANN)
    assert decision
    [verdict] = decision.shadow_verdicts
    assert (verdict.allowed, verdict.retry_after) == (False, 5)


def test_slots(harness: EngineHarness) -> None:
    limiter = follow(
        harness, {"name": "jobs", "key": "user", "missing": "deny", "limit": "1 slots", "pausable": True}
    )
    limiter.pause("jobs", ANN, 5)
    refused = limiter.check(ANN)
    assert (refused.allowed, refused.paused_for) == (False, 5)
    harness.advance(5)
    assert limiter.check(ANN)


def test_a_pause_is_no_refusal_that_a_lockout_counts(harness: EngineHarness) -> None:
    lockout = {"after": 2, "within": "1m", "for": "1h"}
    limiter = follow(harness, RULES[0] | {"lockout": lockout})
    limiter.pause("api", ANN, 5)
    for _ in range(5):
        assert not limiter.check(ANN).locked
    harness.advance(5)
    assert limiter.check(ANN)


def test_a_decision_from_before_the_pause_is_refunded_by_another_process(harness: EngineHarness) -> None:
    limiter = follow(harness)
    receipts = limiter.receipts(limiter.check(ANN))
    limiter.pause("api", ANN, 90)
    harness.advance(90)
    other = follow(harness)
    other.refund(other.restore_decision(receipts))
    assert limiter.peek(ANN).verdicts[0].remaining == 2


def test_what_cannot_be_paused(harness: EngineHarness) -> None:
    limiter = follow(harness, *RULES, {"name": "free", "limit": "unlimited", "pausable": True})
    for rule, key, sentence in (
        ("al", "all", 'There is no rule "al" in the rulebook. Did you mean all?'),
        ("all", "all", 'Rule "all" cannot be paused: say `pausable: true` in it first.'),
        ("free", "all", 'Rule "free" is unlimited: a pause would hold nothing up.'),
        ("api", "usr=ann", '"usr=ann" is no key of rule "api". Write user=VALUE.'),
    ):
        with pytest.raises(InvalidRule) as caught:
            limiter.pause(rule, key, 5)
        assert sentence in str(caught.value)
    with pytest.raises(InvalidRule, match="consists of user, and the call has not all of them"):
        limiter.pause("api", {"path": "/"}, 5)
    with pytest.raises(InvalidCharge, match="A pause lasts a number of seconds above 0, not 0"):
        limiter.pause("api", ANN, 0)
