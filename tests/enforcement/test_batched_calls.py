"""Several calls decided as one, by rules and by limits that callers pass."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ManualClock
from headgate.enforcement.check_together import BatchedCall
from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
from headgate.limit_syntax import parse
from tests.servers import RedisServer

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "user", "key": "user", "limit": "3/day fixed", "missing": "skip"},
        {"name": "item", "key": "sku", "limit": "10/day fixed", "missing": "skip", "cost": 2},
        {"name": "strict", "when": {"path": "/strict"}, "key": "user", "limit": "1/day fixed", "missing": "deny"},
        {"name": "quiet", "key": "sku", "limit": "1/day fixed", "mode": "shadow", "missing": "skip"},
        {"name": "held", "when": {"path": "/slow"}, "limit": "1 slot"},
        {"name": "here", "when": {"path": "/here"}, "limit": "2/day fixed", "where": "node"},
    ]
}


@pytest.fixture(params=["memory", "redis"])
def limiter(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[RuleLimiter]:
    engine = "memory://" if request.param == "memory" else redis_server.url
    with RuleLimiter(BOOK, engine) as made:
        yield made


def allowed(limiter: RuleLimiter, *calls: BatchedCall) -> list[bool]:
    return [decision.allowed for decision in limiter.check_together(calls)]


def left(limiter: RuleLimiter, **attributes: str) -> dict[str | None, int]:
    return {verdict.rule: verdict.remaining for verdict in limiter.peek(attributes).verdicts}


ANN, BOB, SKU = BatchedCall({"user": "ann"}), BatchedCall({"user": "bob"}), BatchedCall({"sku": "7"})


def test_all_pass_or_none_is_charged(limiter: RuleLimiter) -> None:
    assert allowed(limiter, ANN, BOB, SKU) == [True, True, True]
    assert left(limiter, user="ann", sku="7") == {"user": 2, "item": 8}
    assert allowed(limiter, ANN, BatchedCall({"user": "bob"}, 3), SKU) == [True, False, True]
    assert left(limiter, user="ann", sku="7") == {"user": 2, "item": 8}
    assert left(limiter, user="bob") == {"user": 2}


def test_each_call_gets_the_verdicts_of_its_rules(limiter: RuleLimiter) -> None:
    ann, sku, nobody = limiter.check_together([ANN, SKU, BatchedCall({"path": "/"})])
    assert [verdict.rule for verdict in ann.verdicts] == ["user"]
    assert [verdict.rule for verdict in sku.verdicts] == ["item"]
    assert [verdict.rule for verdict in sku.shadow_verdicts] == ["quiet"]
    assert (nobody.allowed, nobody.rule, nobody.verdicts) == (True, None, ())


def test_calls_on_one_count_are_charged_their_sum(limiter: RuleLimiter) -> None:
    assert allowed(limiter, ANN, ANN) == [True, True]
    assert left(limiter, user="ann") == {"user": 1}
    assert allowed(limiter, ANN, ANN) == [False, False]
    assert left(limiter, user="ann") == {"user": 1}
    assert allowed(limiter, ANN) == [True]


def test_calls_on_one_count_report_what_remains_after_each(limiter: RuleLimiter) -> None:
    calls = [
        BatchedCall({"sku": "7"}),
        BOB,
        BatchedCall({"sku": "8"}),
        BatchedCall({"sku": "7"}),
        BatchedCall({"sku": "7"}, 0),
    ]
    decisions = limiter.check_together(calls)
    assert [decision.remaining for decision in decisions] == [8, 2, 8, 6, 6]
    assert left(limiter, sku="7") == {"item": 6}
    limiter.refund(decisions[0])
    assert left(limiter, sku="7") == {"item": 8}


def test_a_peek_of_a_cost_that_never_fits_is_refused() -> None:
    rules = [{"name": "closed", "limit": "1/day fixed", "cost": 2}, {"name": "held", "limit": "1 slot"}]
    with RuleLimiter({"rules": rules}) as limiter:
        assert allowed(limiter, BatchedCall({}, 0)) == allowed(limiter, BatchedCall({}, 1)) == [False]


def test_a_peek_among_them_charges_nothing(limiter: RuleLimiter) -> None:
    peeked, taken = limiter.check_together([BatchedCall({"sku": "7"}, 0), ANN])
    assert (peeked.allowed, peeked.remaining, taken.remaining) == (True, 10, 2)
    assert left(limiter, sku="7") == {"item": 10}
    assert limiter.check_together([BatchedCall({"user": "bob"}, 0)])[0].remaining == 3
    assert left(limiter, user="bob") == {"user": 3}


def test_a_call_refused_without_a_request_refuses_all(limiter: RuleLimiter) -> None:
    decisions = limiter.check_together([ANN, BatchedCall({"path": "/strict"})])
    assert [decision.allowed for decision in decisions] == [True, False]
    assert decisions[1].why is not None
    assert left(limiter, user="ann") == {"user": 3}


def test_a_limit_that_is_brought_along(limiter: RuleLimiter) -> None:
    attached = BatchedCall({"user": "ann"}, limit=parse("2/day fixed"), name="theirs", key="ann")
    assert allowed(limiter, attached, attached) == [True, True]
    first, other = limiter.check_together([attached, BOB])
    assert (first.allowed, first.rule, str(first.limit), other.allowed) == (False, "theirs", "2/day fixed", True)
    assert first.refusal is not None
    assert first.refusal.status == 429
    assert left(limiter, user="ann") == {"user": 3}, "the rules were not asked"
    assert left(limiter, user="bob") == {"user": 3}


def test_slots_and_what_counts_here_go_together_with_the_rest(limiter: RuleLimiter) -> None:
    slow, here = BatchedCall({"path": "/slow"}), BatchedCall({"path": "/here"})
    first = limiter.check_together([slow, here, ANN])
    assert [decision.allowed for decision in first] == [True, True, True]
    assert allowed(limiter, slow, here, ANN) == [False, True, True]
    assert left(limiter, user="ann") == {"user": 2}
    assert left(limiter, path="/here") == {"here": 1}
    limiter.release(first[0])
    assert [each.allowed for each in limiter.check_together([BatchedCall({"path": "/slow"}, 0), ANN])] == [
        True,
        True,
    ]
    assert allowed(limiter, slow, here) == [True, True], "the peek held nothing"


def test_units_whose_decision_is_gone_are_given_back_as_far_as_they_are_counted(limiter: RuleLimiter) -> None:
    limiter.check({"user": "ann", "sku": "7"}, 2)
    after = limiter.give_back(BatchedCall({"user": "ann"}), 1)
    assert (after.allowed, after.remaining) == (True, 2)
    assert limiter.give_back(BatchedCall({"user": "ann"}), 100).remaining == 3
    assert limiter.give_back(BatchedCall({"user": "nobody"}), 100).remaining == 3
    assert limiter.give_back(BatchedCall({"path": "/"}), 1).rule is None


async def test_awaited_it_is_the_same() -> None:
    async with AsyncRuleLimiter(BOOK, clock=ManualClock()) as limiter:
        assert [each.allowed for each in await limiter.check_together([ANN, ANN, SKU])] == [True, True, True]
        assert [each.allowed for each in await limiter.check_together([ANN, ANN, SKU])] == [False, False, True]
        assert (await limiter.give_back(ANN, 1)).remaining == 2


CALLS = st.fixed_dictionaries(
    {},
    optional={
        "user": st.sampled_from("ab"),
        "sku": st.sampled_from("xy"),
        "path": st.sampled_from(["/strict", "/here", "/"]),
    },
)


@given(st.lists(st.tuples(CALLS, st.integers(1, 3)), max_size=12))
def test_a_batch_of_one_call_is_a_check(calls: list[tuple[dict[str, str], int]]) -> None:
    clock = ManualClock()
    with RuleLimiter(BOOK, clock=clock) as one, RuleLimiter(BOOK, clock=clock) as other:
        for attributes, cost in calls:
            together, alone = one.check_together([BatchedCall(attributes, cost)])[0], other.check(attributes, cost)
            assert (together.verdicts, together.shadow_verdicts, str(together)) == (
                alone.verdicts,
                alone.shadow_verdicts,
                str(alone),
            )


@given(st.lists(st.lists(st.tuples(CALLS, st.integers(0, 2)), max_size=4), max_size=6))
def test_a_refused_batch_leaves_no_trace(rounds: list[list[tuple[dict[str, str], int]]]) -> None:
    clock = ManualClock()
    with RuleLimiter(BOOK, clock=clock) as limiter:
        for calls in rounds:
            everybody = [{"user": user, "sku": sku, "path": "/here"} for user in "ab" for sku in "xy"]
            before = [limiter.peek(each).verdicts for each in everybody]
            decisions = limiter.check_together([BatchedCall(attributes, cost) for attributes, cost in calls])
            if not all(each.allowed for each in decisions):
                assert [limiter.peek(each).verdicts for each in everybody] == before
