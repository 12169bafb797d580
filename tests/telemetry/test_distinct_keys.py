"""Distinct keys: estimated within 3 %, for any number of keys, over hours and merged."""

from __future__ import annotations

import pytest

from headgate import Counts, Limiter, ManualClock
from headgate.telemetry.distinct_keys import DistinctKeys


@pytest.mark.parametrize("number", [0, 1, 100, 2048, 2049, 5_000, 20_000, 40_000, 70_000, 300_000])
def test_an_estimate_is_within_three_percent(number: int) -> None:
    distinct = DistinctKeys()
    for start in range(0, number, 1000):
        batch = [f"user={key}" for key in range(start, min(start + 1000, number))]
        distinct.add(batch)
        distinct.add(batch)  # again: changes nothing
    assert abs(distinct.estimate() - number) <= 0.03 * number


@pytest.mark.parametrize(("first", "second"), [(50, 100), (50, 9000), (9000, 50), (8000, 9000)])
def test_a_merge_counts_common_keys_once(first: int, second: int) -> None:
    one, other = DistinctKeys(), DistinctKeys()
    one.add(f"user={key}" for key in range(first))
    other.add(f"user={key}" for key in range(second))
    one.merge(other)
    assert abs(one.estimate() - max(first, second)) <= 0.03 * max(first, second)


def test_counts_estimate_refused_and_tried_keys_by_the_hour() -> None:
    clock = ManualClock(1_700_000_000_000_000)
    counts = Counts(clock=clock)
    rule = {"name": "login", "key": "user", "missing": "deny", "limit": "3/minute", "candidate": "1/minute"}
    limiter = Limiter.from_rules({"rules": [rule]}, clock=clock, observers=[counts])
    for user in range(40):
        for _ in range(1 + user % 4):  # 10 users call once, 10 twice, 10 three, 10 four times
            limiter.check({"user": str(user)})
    assert counts.distinct_keys("login") == 10
    assert counts.distinct_keys("login", "candidate_refused") == 30
    assert counts.distinct_keys("login", "tried") == 40
    clock.advance(3600)
    assert counts.distinct_keys("login", "tried") == 0
    for _ in range(4):
        limiter.check({"user": "new"})
    assert counts.distinct_keys("login", "tried", hours=1) == 1
    assert counts.distinct_keys("login", "tried", hours=2) == 41
    assert counts.distinct_keys("nobody") == 0
    clock.advance(26 * 3600)
    for _ in range(4):
        limiter.check({"user": "last"})
    assert counts.distinct_keys("login", hours=100) == 1
