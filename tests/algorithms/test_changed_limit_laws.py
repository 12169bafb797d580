"""Limits that are changed and changed back: a refused charge gives nothing back, and its retry_after is true.

All limits of one algorithm can follow each other on one count. The state is carried along as an engine does it: as
it is, and of a token bucket with the pace that it was written at.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.algorithms import algorithm
from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import Limit
from headgate.calendar import resolve
from headgate.limit_syntax import parse

START_US = 1_700_000_000_000_000
LONGEST_US = 3600 * 10**6

FAMILIES = {
    "token bucket": (
        "100/s burst 200",
        "100/s burst 3",
        "10/hour",
        "10/minute",
        "7/s burst 9",
        "1000/hour burst 5",
    ),
    "leaky bucket": ("10/s queue 9", "10/s queue 0", "1/s queue 100 nodelay", "100/s queue 3"),
    "fixed window": ("1000/hour fixed", "1/minute fixed", "100/s fixed", "10000/week fixed", "3/90s fixed"),
    "sliding window": (
        "600/minute sliding",
        "3/s sliding",
        "6/minute sliding",
        "1000/hour sliding",
        "10/minute sliding cells 5",
    ),
    "sliding log": ("3/minute log", "100/s log", "1/hour log", "50/minute log"),
    "smooth": ("10/s smooth", "1/s smooth burst 5s", "10/s smooth warmup 5s", "100/s smooth burst 0s"),
}
PAIRS = [(one, other) for family in FAMILIES.values() for one in family for other in family if one != other]
FIRST_AND_LAST = [(one, other) for family in FAMILIES.values() for one in family for other in family]


class ChangedLimitKey:
    """One count, judged by whichever limit asks."""

    def __init__(self) -> None:
        self.state: Any = None
        self.written: Limit | None = None
        self.now_us = START_US

    def copy(self) -> ChangedLimitKey:
        other = ChangedLimitKey()
        other.state, other.written, other.now_us = deepcopy(self.state), self.written, self.now_us
        return other

    def decide(self, limit: Limit, cost: int) -> Outcome:
        model = algorithm(limit)
        seen = self.state
        if seen is not None and model.convert_pace is not None and self.written is not None:
            seen = model.convert_pace(limit, seen, self.written.pace)
        outcome, after = model.decide(resolve(limit, self.now_us), seen, self.now_us, cost)
        if after is not seen:
            self.state, self.written = (
                after if model.write_pending is None else model.write_pending(limit, after),
                limit,
            )
        return outcome


# Charges of so many units, after so long.
charges = st.lists(st.tuples(st.integers(0, 2 * 10**6) | st.just(0), st.integers(1, 40)), min_size=1, max_size=12)
pauses = st.sampled_from([0, 0, 1, 10**6, 61 * 10**6]) | st.integers(0, 10**8)


def used(limit: Limit, history: list[tuple[int, int]]) -> ChangedLimitKey:
    count = ChangedLimitKey()
    for gap_us, cost in history:
        count.now_us += gap_us
        count.decide(limit, cost)
    return count


@pytest.mark.parametrize(("first", "last"), FIRST_AND_LAST)
@example(history=[(0, 3)] * 12, pause_us=0, refusals=[(0, 3, 0)], wait_us=0, cost=1)
@example(history=[(0, 3)] * 12, pause_us=0, refusals=[(0, 3, 0), (1, 3, 1)], wait_us=7 * 10**6, cost=1)
@given(
    history=charges,
    pause_us=pauses,
    refusals=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 40), st.integers(0, 9)), max_size=4),
    wait_us=pauses,
    cost=st.integers(0, 40),
)
def test_a_refused_charge_changes_no_answer_of_another_limit(
    first: str,
    last: str,
    history: list[tuple[int, int]],
    pause_us: int,
    refusals: list[tuple[int, int, int]],
    wait_us: int,
    cost: int,
) -> None:
    """Charges under one limit, refusals under others, and then a charge under one that has not refused any."""
    (family,) = (limits for limits in FAMILIES.values() if last in limits)
    refusing = [parse(text) for text in family if text != last]
    count = used(parse(first), history)
    count.now_us += pause_us
    untouched = count.copy()
    for gap_us, units, which in refusals:
        count.now_us += gap_us
        kept = count.copy()
        if count.decide(refusing[which % len(refusing)], units)[0]:
            count = kept  # Only refusals are told here.
    count.now_us += wait_us
    untouched.now_us = count.now_us
    assert count.decide(parse(last), cost) == untouched.decide(parse(last), cost)


@pytest.mark.parametrize(("one", "other"), PAIRS)
@given(history=charges, pause_us=pauses, cost=st.integers(1, 40))
def test_after_a_limit_change_retry_after_is_exact(
    one: str, other: str, history: list[tuple[int, int]], pause_us: int, cost: int
) -> None:
    count, limit = used(parse(one), history), parse(other)
    count.now_us += pause_us
    allowed, _, retry_us, *_ = count.decide(limit, cost)
    if allowed or retry_us is None or retry_us > LONGEST_US:
        return
    count.now_us += retry_us - 1
    if limit.algorithm in ("sliding_window", "sliding_log"):
        assert not count.copy().decide(limit, cost)[0]
    count.now_us += 1
    assert count.decide(limit, cost)[0]


def test_a_quota_survives_a_minute_under_another_limit() -> None:
    """1000/hour used up, changed to 1/minute, refused, changed back: nothing is left; also half an hour later."""
    hour, minute = parse("1000/hour fixed"), parse("1/minute fixed")
    for later_us in (0, 1_000_000):
        count = used(hour, [(0, 1000)])
        count.now_us += later_us
        refused = count.decide(minute, 1)
        assert refused[:2] == (False, 0)
        assert count.decide(hour, 0)[1] == 0


def test_a_note_of_a_second_limit_frees_nothing_for_a_third() -> None:
    """100/day used up, refused by 50/day: 6 s later 1000/minute refuses, as it would have without that."""
    day, half, minute = parse("100/day burst 100"), parse("50/day burst 50"), parse("1000/minute burst 100")
    count = used(day, [(0, 100)])
    assert not count.decide(half, 1)[0]
    count.now_us += 6_000_000
    assert not count.decide(minute, 1)[0]


def test_a_limit_that_alternates_with_the_one_before_keeps_its_word() -> None:
    """Two versions of a rulebook at work: what one refuses does not delay the other."""
    hour, minute = parse("10/hour"), parse("10/minute")
    count = used(hour, [(0, 10)])
    assert count.decide(minute, 1)[:3] == (False, 0, 6_000_000)
    for _ in range(5):
        count.now_us += 1_200_000
        assert not count.decide(hour, 1)[0]
    assert count.decide(minute, 1)[0]
