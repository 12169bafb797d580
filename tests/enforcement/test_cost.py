"""A call's cost multiplies the rule's: one check of cost n is charged what n checks are."""

from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, RuleLimiter
from headgate.enforcement.check_together import BatchedCall
from tests.servers import RedisServer

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "weighed", "limit": "1000/day fixed", "cost": 5},
        {"name": "plain", "limit": "1000/day fixed"},
        {"name": "counted", "limit": "1000/day fixed", "cost": "tokens", "missing": "one"},
    ]
}
CALL = {"tokens": 7}


def used(limiter: RuleLimiter) -> list[int]:
    return [1000 - verdict.remaining for verdict in limiter.peek(CALL, 1).verdicts]


@pytest.mark.parametrize("count", [1, 3, 10])
def test_one_check_of_cost_n_is_n_checks(count: int, server: RedisServer) -> None:
    for url in ("memory://", server.url):
        with (
            Limiter.from_rules(BOOK, url, prefix="once") as once,
            Limiter.from_rules(BOOK, url, prefix="each") as each,
        ):
            assert once.check(CALL, count)
            for _ in range(count):
                assert each.check(CALL)
            assert used(once) == used(each) == [5 * count, count, 7 * count]


def test_a_cost_that_cannot_fit_is_refused() -> None:
    with Limiter.from_rules(BOOK) as limiter:
        refused = limiter.check(CALL, 201)
        assert (refused.allowed, refused.rule, refused.retry_after) == (False, "weighed", None)
        assert limiter.check(CALL, 2**53).allowed is False
        assert used(limiter) == [0, 0, 0]


async def test_give_back_weighs_units_as_the_charge_did() -> None:
    async with AsyncLimiter.from_rules(BOOK) as limiter:
        await limiter.check(CALL, 10)
        after = await limiter.give_back(BatchedCall(CALL), 4)
        assert [1000 - verdict.remaining for verdict in after.verdicts] == [30, 6, 42]


def test_nothing_is_charged_at_no_cost() -> None:
    with Limiter.from_rules(BOOK) as limiter:
        assert limiter.check(CALL, 0)
        assert used(limiter) == [0, 0, 0]
