"""Decisions that were written down, and what was given back of them later."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ManualClock
from headgate.algorithms.decision import Decision
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.enforcement.stored_decision import ChargeReceipt
from headgate.errors import InvalidCharge
from tests.servers import RedisServer

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "user", "key": "user", "limit": "10/day fixed; 100/day log", "missing": "skip"},
        {"name": "here", "key": "user", "limit": "20/day fixed", "where": "node", "missing": "skip"},
        {"name": "quiet", "key": "user", "limit": "30/day fixed", "mode": "shadow", "missing": "skip"},
        {"name": "free", "limit": "unlimited"},
        {"name": "held", "when": {"path": "/slow"}, "limit": "1 slot ttl 60s"},
        {"name": "queue", "when": {"path": "/queue"}, "limit": "1/minute burst 1"},
    ]
}


@pytest.fixture(params=["memory", "redis"])
def limiter(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[RuleLimiter]:
    engine = "memory://" if request.param == "memory" else redis_server.url
    with RuleLimiter(BOOK, engine) as made:
        yield made


def again(limiter: RuleLimiter, decision: Decision) -> RuleDecision:
    """The decision, after it was sent to somebody and back."""
    sent = json.loads(json.dumps(limiter.receipts(decision)))
    return limiter.restore_decision([ChargeReceipt(*each) for each in sent])


def left(limiter: RuleLimiter) -> list[int]:
    now = limiter.peek({"user": "ann"})
    return [verdict.remaining for verdict in (*now.verdicts, *now.shadow_verdicts) if verdict.rule != "free"]


def test_a_refund_is_that_of_the_decision(limiter: RuleLimiter) -> None:
    taken = limiter.check({"user": "ann"}, 5)
    assert left(limiter) == [5, 95, 15, 25]
    stored = again(limiter, taken)
    limiter.refund(stored, 2)
    assert left(limiter) == [7, 97, 17, 27]
    limiter.refund(again(limiter, stored), 100)
    assert left(limiter) == [10, 100, 20, 30]
    limiter.refund(stored)
    assert left(limiter) == [10, 100, 20, 30]


def test_the_book_may_have_changed_meanwhile(limiter: RuleLimiter) -> None:
    taken = again(limiter, limiter.check({"user": "ann"}, 5))
    before = limiter.rulebook
    limiter.replace(type(before)())
    limiter.refund(again(limiter, taken))
    limiter.replace(before)
    assert left(limiter) == [10, 100, 20, 30]


def test_slots_are_renewed_and_released(limiter: RuleLimiter) -> None:
    slow = {"path": "/slow"}
    held = again(limiter, limiter.check(slow))
    assert limiter.renew(held)
    assert not limiter.check(slow)
    limiter.release(again(limiter, held))
    assert not limiter.renew(held)
    assert limiter.check(slow)


def test_a_place_is_given_back(limiter: RuleLimiter) -> None:
    queue = {"path": "/queue"}
    assert limiter.reserve(queue).delay == 0
    assert not limiter.reserve(queue, timeout=1), "nobody waits so long"
    place = limiter.reserve(queue)
    assert 50 < place.delay <= 60
    assert limiter.reserve(queue, timeout=0).retry_after > 60  # type: ignore[operator]
    limiter.cancel(again(limiter, place))
    assert limiter.peek(queue).retry_after <= 60  # type: ignore[operator]


def test_a_refused_decision_has_no_receipts(limiter: RuleLimiter) -> None:
    refused = limiter.check({"user": "ann"}, 11)
    assert limiter.receipts(refused) == []
    limiter.refund(again(limiter, refused))
    limiter.cancel(again(limiter, refused))
    assert left(limiter) == [10, 100, 20, 19], "a shadow keeps what its own verdict says"


def test_nonsense_is_refused(limiter: RuleLimiter) -> None:
    good = limiter.receipts(limiter.check({"user": "ann"}))[0]
    with pytest.raises(InvalidCharge, match="a limit that is none"):
        limiter.restore_decision([good._replace(limit="lots")])


LIMITS = ["10/s", "7/minute fixed", "9/minute sliding", "5/minute log", "60/minute queue 5", "10/s smooth"]


@given(st.sampled_from(LIMITS), st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), st.integers(1, 3))))
def test_every_algorithm_gives_back_what_it_would_have_given(text: str, story: list[tuple[int, int, int]]) -> None:
    clock = ManualClock()
    book = {"rules": [{"name": "one", "limit": text}]}
    with RuleLimiter(book, clock=clock) as plain, RuleLimiter(book, clock=clock) as sent:
        for cost, pause, units in story:
            ours, theirs = plain.check({}, cost), sent.check({}, cost)
            clock.advance(pause)
            plain.refund(ours, units)
            sent.refund(again(sent, theirs), units)
            assert plain.peek({}).verdicts == sent.peek({}).verdicts
