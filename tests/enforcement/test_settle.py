"""Settling by a rulebook: every rule that charged the call, shadows too, and the one that is named."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import ManualClock
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.enforcement.stored_decision import ChargeReceipt
from headgate.errors import InvalidCharge
from tests.servers import RedisServer

USER = {"key": "user", "missing": "skip"}
BOOK: dict[str, Any] = {
    "rules": [
        {"name": "user", **USER, "limit": "100/day fixed; 1000/day log", "candidate": "50/day fixed"},
        {"name": "here", **USER, "limit": "200/day fixed", "where": "node"},
        {"name": "quiet", **USER, "limit": "300/day fixed", "mode": "shadow"},
        {"name": "free", "limit": "unlimited"},
        {"name": "held", "when": {"path": "/slow"}, "limit": "1 slot ttl 60s"},
    ]
}


@pytest.fixture(params=["memory", "redis"])
def limiter(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[RuleLimiter]:
    engine = "memory://" if request.param == "memory" else redis_server.url
    with RuleLimiter(BOOK, engine) as made:
        yield made


def left(limiter: RuleLimiter, user: str = "ann") -> list[int]:
    now = limiter.peek({"user": user})
    return [verdict.remaining for verdict in (*now.verdicts, *now.shadow_verdicts) if verdict.rule != "free"]


def test_every_rule_counts_the_real_cost(limiter: RuleLimiter) -> None:
    less, more = limiter.check({"user": "ann"}, 10), limiter.check({"user": "bob"}, 10)
    assert limiter.settle(less, 4)
    assert limiter.settle(more, 120)
    assert left(limiter) == [96, 996, 196, 46, 296]
    assert left(limiter, "bob") == [0, 880, 80, 0, 180]
    for decision in (less, more):
        assert limiter.settle(decision, 50)
        assert limiter.refund(decision)
        assert limiter.cancel(decision)
    assert left(limiter) == [96, 996, 196, 46, 296]
    assert left(limiter, "bob") == [0, 880, 80, 0, 180]


def test_a_stored_decision_is_settled_once(limiter: RuleLimiter) -> None:
    taken = limiter.check({"user": "ann"}, 10)

    def restored() -> Any:
        sent = json.loads(json.dumps(limiter.receipts(taken)))
        return limiter.restore_decision([ChargeReceipt(*each) for each in sent])

    stored = restored()
    assert limiter.settle(stored, 30)
    taken = stored
    assert limiter.settle(restored(), 70)
    assert left(limiter) == [70, 970, 170, 20, 270]


def test_slots_of_the_call_stay_held(limiter: RuleLimiter) -> None:
    slow = {"user": "ann", "path": "/slow"}
    taken = limiter.check(slow, 1)
    assert limiter.settle(taken, 5)
    assert left(limiter) == [95, 995, 195, 45, 295]
    assert limiter.release(taken)
    only_slots = limiter.check({"path": "/slow"})
    with pytest.raises(InvalidCharge, match="is held, not taken: it has no cost to settle"):
        limiter.settle(only_slots.only({"held"}), 5)
    with pytest.raises(InvalidCharge, match="is held, not taken: it has no cost to settle"):
        limiter.settle(only_slots, 5, rule="held")


COSTS: dict[str, Any] = {
    "rules": [
        {"name": "requests", **USER, "limit": "60/hour"},
        {"name": "tokens", **USER, "limit": "9000/hour", "cost": "estimate"},
    ]
}


@pytest.mark.parametrize("estimate", ["1000", "1"])
def test_a_rule_with_a_separate_cost_is_named(estimate: str) -> None:
    limiter = RuleLimiter(COSTS, clock=ManualClock())
    taken = limiter.check({"user": "ann", "estimate": estimate})
    with pytest.raises(InvalidCharge, match=rf'1 by "requests" and {estimate} by "tokens".*: name the rule'):
        limiter.settle(taken, 1234)
    with pytest.raises(
        InvalidCharge, match="""The rule 'token' did not charge this call; "requests" and "tokens" did"""
    ):
        limiter.settle(taken, 1234, rule="token")
    assert limiter.settle(taken, 1234, rule="tokens")
    assert limiter.settle(taken.only({"tokens"}), 1, rule="tokens")
    now = limiter.peek({"user": "ann", "estimate": "1"})
    assert [verdict.remaining for verdict in now.verdicts] == [59, 7766]
    limiter.refund(taken)  # the requests come back; the tokens are settled
    now = limiter.peek({"user": "ann", "estimate": "1"})
    assert [verdict.remaining for verdict in now.verdicts] == [60, 7766]


def test_a_part_that_was_refunded_is_not_refunded_by_the_whole() -> None:
    limiter = RuleLimiter(COSTS, clock=ManualClock())
    taken = limiter.check({"user": "ann", "estimate": "100"})
    limiter.refund(taken.only({"tokens"}))
    limiter.check({"user": "ann", "estimate": "100"})
    limiter.refund(taken)
    now = limiter.peek({"user": "ann", "estimate": "1"})
    assert [verdict.remaining for verdict in now.verdicts] == [59, 8900]


def test_neither_a_lockout_nor_its_count_is_touched() -> None:
    """Refusals lock out; what is settled beyond the limit is no refusal, and is charged to a locked key too."""
    clock = ManualClock()
    lockout = {"after": 2, "within": "10m", "for": "1h"}
    limiter = RuleLimiter(
        {"rules": [{"name": "user", **USER, "limit": "10/minute", "lockout": lockout}]}, clock=clock
    )
    taken = limiter.check({"user": "ann"}, 2)
    later = limiter.check({"user": "ann"}, 2)
    limiter.settle(taken, 40)
    refused = limiter.check({"user": "ann"})
    assert (refused.allowed, refused.locked) == (False, False)
    assert limiter.check({"user": "ann"}).locked
    limiter.settle(later, 1500)
    clock.advance(3600)
    refused = limiter.check({"user": "ann"})
    assert (refused.locked, refused.retry_after) == (False, 60 * (40 + 1500 - 600 + 1 - 10) / 10)


def test_an_override_is_settled_by_its_limit() -> None:
    limiter = RuleLimiter({"rules": [{"name": "user", **USER, "limit": "10/hour fixed", "overrides": True}]})
    limiter.overrides("user").set("user=ann", "100/hour fixed")
    taken = limiter.check({"user": "ann"}, 5)
    assert limiter.settle(taken, 60)
    assert limiter.peek({"user": "ann"}).remaining == 40


def test_a_refused_call_and_one_without_rules_cost_nothing() -> None:
    limiter = RuleLimiter(BOOK)
    limiter.check({"user": "ann"}, 100)
    refused = limiter.check({"user": "ann"})
    assert not refused
    assert limiter.settle(refused, 5)
    assert limiter.settle(limiter.check({}), 5)
    assert left(limiter)[:2] == [0, 900]


def test_copies_settle_nothing() -> None:
    limiter = RuleLimiter(BOOK)
    taken = limiter.check({"user": "ann"}, 10)
    for other in (copy.copy(taken), pickle.loads(pickle.dumps(taken))):
        with pytest.raises(InvalidCharge, match="copied or pickled"):
            limiter.settle(other, 20)
    assert left(limiter) == [90, 990, 190, 40, 290]
