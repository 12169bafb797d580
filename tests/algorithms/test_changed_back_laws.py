"""A limit that is changed and changed back finds all that was used, whatever was refused, refunded or cancelled
under the other one; and a place that is cancelled after a change comes back."""

from __future__ import annotations

from typing import Any

from headgate.algorithms import algorithm
from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import DAY, SECOND, Limit
from headgate.algorithms.sliding_log import MAX_UNITS_BEFORE, SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.token_bucket import TokenBucket

START_US = 1_700_000_000 * SECOND


class ChangedBackKey:
    """One key under limits of one algorithm (and one pace)."""

    def __init__(self) -> None:
        self.state: Any = None

    def _keep(self, limit: Limit, state: Any) -> None:
        write_pending = algorithm(limit).write_pending
        self.state = state if write_pending is None or state is None else write_pending(limit, state)

    def take(self, limit: Limit, at: float, cost: int = 1) -> bool:
        return self._decide(limit, at, cost, None)[0]

    def reserve(self, limit: Limit, at: float, cost: int = 1) -> Outcome:
        outcome = self._decide(limit, at, cost, DAY)
        assert outcome[0]
        return outcome

    def _decide(self, limit: Limit, at: float, cost: int, patience_us: int | None) -> Outcome:
        now_us = START_US + round(at * SECOND)
        outcome, after = algorithm(limit).decide(limit, self.state, now_us, cost, patience_us)
        self._keep(limit, after)
        return outcome

    def give_back(self, limit: Limit, at: float, outcome: Outcome, cost: int, units: int, cancel: bool) -> bool:
        now_us = START_US + round(at * SECOND)
        after = algorithm(limit).refund(
            limit, self.state, now_us, units, Receipt.from_outcome(outcome, cost), cancel
        )
        if after is not None:
            self._keep(limit, after)
        return after is not None


def test_a_log_that_pushed_units_out_knows_it_under_a_raised_limit() -> None:
    limit, raised, count = SlidingLog(10, 1), SlidingLog(20, 1), ChangedBackKey()
    assert count.take(limit, 0, 10)
    places = [count.reserve(limit, 0, 10) for _ in range(MAX_UNITS_BEFORE // 10 + 2)]
    assert count.give_back(raised, 0, places.pop(), 10, 10, cancel=False)
    for place in reversed(places):
        count.give_back(limit, 0, place, 10, 10, cancel=True)
    assert not count.take(limit, 0)  # ten were served at this instant


def test_a_log_gives_back_many_reserved_units_that_pushed_nothing_out() -> None:
    limit, lowered, count = SlidingLog(20_000, 60), SlidingLog(1, 60), ChangedBackKey()
    assert count.take(limit, 0, 15_000)
    place = count.reserve(limit, 0, 10_000)
    assert count.give_back(lowered, 0, place, 10_000, 10_000, cancel=True)
    assert not count.take(limit, 0, 5_001)
    assert count.take(limit, 0, 5_000)


def test_a_refund_under_a_lowered_log_forgets_no_unit() -> None:
    limit, lowered, count = SlidingLog(20_000, 3600), SlidingLog(1, 3600), ChangedBackKey()
    taken = count.reserve(limit, 0, 20_000)
    assert count.give_back(lowered, 0, taken, 20_000, 1, cancel=False)
    assert not count.take(limit, 0, 2)
    assert count.take(limit, 0)


def test_a_log_that_refuses_after_a_step_back_forgets_no_unit_of_another_period() -> None:
    limit, shorter, count = SlidingLog(10, 3600), SlidingLog(1, 60), ChangedBackKey()
    assert count.take(limit, 0, 9)
    assert count.take(limit, 1800)
    assert not count.take(shorter, 1700)
    assert not count.take(limit, 1700)


def test_a_log_that_refuses_after_a_step_back_forgets_no_unit_of_a_larger_amount() -> None:
    limit, lowered, count = SlidingLog(20_000, 3600), SlidingLog(1, 3600), ChangedBackKey()
    assert count.take(limit, 10, 20_000)
    assert not count.take(lowered, 9)
    assert not count.take(limit, 9)


def test_a_place_of_a_window_that_was_cut_anew_comes_back() -> None:
    limit, other, count = SlidingWindow(7, 0.1), SlidingWindow(8, 0.05), ChangedBackKey()
    assert count.take(limit, 0.003, 2)
    place = count.reserve(other, 0.008, 8)
    assert place[4] > 0
    assert not count.take(other, 0.008)
    assert count.give_back(other, 0.008, place, 8, 8, cancel=True)
    assert not count.take(other, 0.008, 7)
    assert count.take(other, 0.008, 6)


def test_places_behind_one_of_a_window_that_was_cut_anew_come_back() -> None:
    limit, other, count = SlidingWindow(7, 2, cells=5), SlidingWindow(7, 2), ChangedBackKey()
    assert count.take(limit, 0, 7)
    assert count.reserve(other, 1, 3)[4] == SECOND
    place = count.reserve(other, 1, 7)
    assert count.give_back(other, 1, place, 7, 7, cancel=True)
    assert count.take(other, 2, 4)


def test_a_refund_under_a_lowered_burst_forgets_nothing() -> None:
    limit, lowered, count = TokenBucket(1, burst=10), TokenBucket(1, burst=1), ChangedBackKey()
    taken = count.reserve(limit, 0, 10)
    count.give_back(lowered, 0, taken, 10, 1, cancel=False)
    assert not count.take(limit, 0, 2)


def test_a_place_cancelled_under_longer_windows_leaves_the_one_before_it() -> None:
    limit, longer, count = FixedWindow(1, 1), FixedWindow(2, 2), ChangedBackKey()
    assert count.take(limit, 1.9)
    assert count.reserve(limit, 1.9)[4] == SECOND // 10  # at 2
    last = count.reserve(limit, 1.9)
    assert count.give_back(longer, 1.9, last, 1, 1, cancel=True)
    assert not count.take(limit, 2.1)
    assert count.take(limit, 3.1)


def test_a_place_cancelled_under_a_lowered_amount_leaves_those_before_it() -> None:
    limit, lowered, count = FixedWindow(2, 1), FixedWindow(1, 1), ChangedBackKey()
    assert count.take(limit, 0, 2)
    for _ in range(2):
        assert count.reserve(limit, 0)[4] == SECOND
    last = count.reserve(limit, 0)
    assert count.give_back(lowered, 0, last, 1, 1, cancel=True)
    assert not count.take(limit, 1)
    assert count.take(limit, 2)
