"""The sliding log: stories in seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.algorithms.decision import REMAINING, RESET_AFTER_US, RETRY_AFTER_US, Outcome, Receipt
from headgate.algorithms.limit import HORIZON_US, MAX_CLOCK_SWING_US, SECOND
from headgate.algorithms.sliding_log import (
    MAX_UNITS_BEFORE,
    SlidingLog,
    State,
    dead_at_us,
    decide,
    pack,
    refund,
    unpack,
    write_pending,
)
from headgate.errors import InvalidRule

START = 1_700_000_000


def decide_and_store(
    limit: SlidingLog, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Outcome, State | None]:
    """Returns the outcome, and the state that an engine stores."""
    outcome, after = decide(limit, state, now_us, cost, patience_us)
    return outcome, after if after is None or after is state else write_pending(limit, after)


class SlidingLogKey:
    """One log's life. Times are seconds after START."""

    def __init__(self, limit: SlidingLog) -> None:
        self.limit = limit
        self.state: State | None = None

    def decide(self, at: float, cost: int, patience: float | None = None) -> Outcome:
        patience_us = None if patience is None else round(patience * SECOND)
        outcome, self.state = decide_and_store(
            self.limit, self.state, round((START + at) * SECOND), cost, patience_us
        )
        return outcome

    def take(self, at: float, cost: int = 1) -> str:
        allowed, remaining, retry_us, *_ = self.decide(at, cost)
        if allowed:
            return f"{remaining} left"
        return "never" if retry_us is None else f"in {retry_us / SECOND:.12g}"

    def reserve(self, at: float, cost: int = 1, patience: float = 1e9) -> Receipt:
        outcome = self.decide(at, cost, patience)
        assert outcome[0]
        return Receipt.from_outcome(outcome, cost)

    def refund(self, at: float, receipt: Receipt, units: int = 10**9, cancel: bool = False) -> bool:
        after = refund(self.limit, self.state, round((START + at) * SECOND), units, receipt, cancel)
        self.state = self.state if after is None else after
        return after is not None

    def units(self) -> list[float]:
        """The instants in the log, in seconds after START of the log's own time."""
        return [] if self.state is None else [us / SECOND - START for us in unpack(pack(self.state))[5]]


def test_a_unit_leaves_exactly_one_period_after_it_came() -> None:
    key = SlidingLogKey(SlidingLog(3, 60))
    assert [key.take(at) for at in (0, 10, 50)] == ["2 left", "1 left", "0 left"]
    assert key.take(50) == "in 10"
    assert key.take(59.999999) == "in 1e-06"
    assert key.take(60) == "0 left"
    assert key.take(60, 2) == "in 50"
    assert key.take(69.999999, 0) == "in 1e-06"
    assert key.take(70, 2) == "in 40"
    assert key.take(70, 0) == "1 left"
    assert key.take(110, 2) == "0 left"


def test_a_cost_of_several_units_waits_for_the_last_of_them() -> None:
    key = SlidingLogKey(SlidingLog(5, 10))
    assert [key.take(at, 2) for at in (0, 1)] == ["3 left", "1 left"]
    assert key.take(2, 2) == "in 8"
    assert key.take(2, 5) == "in 9"
    assert key.take(2, 6) == "never"
    assert key.decide(2, 6)[REMAINING] == 1
    assert key.take(10, 2) == "1 left"


@pytest.mark.parametrize("gone", range(101))
def test_remaining_is_right_after_any_number_of_units_expired(gone: int) -> None:
    key = SlidingLogKey(SlidingLog(150, 1000))
    for at in range(100):
        key.take(at)
    assert key.take(999 + gone) == f"{49 + gone} left"


def test_reset_is_when_the_newest_unit_leaves() -> None:
    key = SlidingLogKey(SlidingLog(3, 60))
    resets = [
        key.decide(at, cost)[RESET_AFTER_US] / SECOND for at, cost in ((0, 0), (0, 1), (20, 1), (50, 0), (80, 0))
    ]
    assert resets == [0, 60, 60, 30, 0]


def test_reservations_are_served_in_order_as_units_leave() -> None:
    key = SlidingLogKey(SlidingLog(3, 60))
    key.take(0)
    key.take(10, 2)
    delays = [key.reserve(20, cost).delay_us / SECOND for cost in (1, 3, 1)]
    assert delays == [40, 100, 160]
    assert key.units() == [0, 10, 10, 60, 120, 120, 120, 180]
    assert key.take(20) == "in 160"
    assert key.take(120) == "in 60"  # first come, first served: one waits for 180
    assert key.take(120, 0) == "in 60"
    assert key.take(180) == "1 left"


def test_a_reservation_is_refused_beyond_its_patience_and_beyond_the_horizon() -> None:
    key = SlidingLogKey(SlidingLog(1, 366 * 86_400))
    key.take(0)
    wait = (key.decide(0, 1)[RETRY_AFTER_US] or 0) / SECOND
    assert not key.decide(0, 1, patience=wait - 1)[0]
    assert key.reserve(0, patience=wait).delay_us == HORIZON_US
    assert key.decide(0, 1, patience=1e9)[:3] == (False, 0, 2 * HORIZON_US)


def test_a_refund_erases_the_units_of_its_instant() -> None:
    key = SlidingLogKey(SlidingLog(10, 60))
    first, second, third = key.reserve(0, 4), key.reserve(1, 3), key.reserve(2, 3)
    assert key.refund(5, second, 2)
    assert key.units() == [0, 0, 0, 0, 1, 2, 2, 2]
    assert key.refund(5, third)
    assert key.refund(5, second._replace(refunded_units=2))
    assert key.units() == [0, 0, 0, 0]
    assert not key.refund(5, second)
    key.take(30)
    assert key.refund(59.999999, first, 1)
    assert not key.refund(60, first, 1)
    assert key.take(60, 0) == "9 left"


def test_a_log_that_was_erased_is_as_good_as_none() -> None:
    key = SlidingLogKey(SlidingLog(3, 60))
    assert key.refund(1, key.reserve(0, 3))
    assert key.state is not None
    assert dead_at_us(key.limit, key.state) == (START + 1) * SECOND + MAX_CLOCK_SWING_US
    key.limit = SlidingLog(3, 3600)
    assert key.decide(1, 0)[:4] == (True, 3, 0, 0)
    assert key.take(1) == "2 left"


def test_a_cancelled_reservation_gives_back_nothing_once_served() -> None:
    key = SlidingLogKey(SlidingLog(2, 60))
    key.take(0, 2)
    first, second = key.reserve(10), key.reserve(10)
    assert (first.delay_us, second.delay_us) == (50 * SECOND, 50 * SECOND)
    assert key.refund(60, second, cancel=True)
    assert not key.refund(60.000001, first, cancel=True)
    assert key.refund(60.000001, first)


def test_cancelling_from_the_end_of_the_queue_undoes_it() -> None:
    key = SlidingLogKey(SlidingLog(2, 60))
    key.take(0)
    key.take(54)
    queue = [key.reserve(54) for _ in range(6)]
    assert [receipt.delay_us / SECOND + 54 for receipt in queue] == [60, 114, 120, 174, 180, 234]
    for receipt in reversed(queue):
        assert key.refund(54, receipt, cancel=True)
        assert key.reserve(54).delay_us == receipt.delay_us
        assert key.refund(54, receipt, cancel=True)
    assert key.units() == [0, 54]


def test_reservations_are_given_back_in_any_order() -> None:
    key = SlidingLogKey(SlidingLog(2, 60))
    key.take(0, 2)
    first, second = key.reserve(0, 2), key.reserve(0, 2)
    assert key.refund(0, first, cancel=True)
    assert key.units() == [0, 0, 120, 120]
    assert key.refund(0, second, cancel=True)
    assert key.units() == [0, 0]


def test_a_refund_skips_units_that_later_reservations_pushed_out() -> None:
    key = SlidingLogKey(SlidingLog(2, 60))
    key.take(0, 2)
    first, *_, last = [key.reserve(0, 2) for _ in range(2 + MAX_UNITS_BEFORE // 2)]
    assert len(key.units()) == 2 + MAX_UNITS_BEFORE
    assert not key.refund(0, first, cancel=True)
    assert key.refund(0, last, cancel=True)
    assert len(key.units()) == 2 + MAX_UNITS_BEFORE  # two at the start, in place of those that were pushed out


def test_a_clock_that_steps_back_leaves_every_unit_its_age() -> None:
    key = SlidingLogKey(SlidingLog(2, 60))
    key.take(1000)
    receipt = key.reserve(1020)
    assert key.take(0) == "in 40"  # and this refusal is kept: the log's time goes on from here
    assert key.take(10) == "in 30"
    assert key.refund(10, receipt)
    assert key.take(10) == "0 left"
    assert key.take(39.999999) == "in 1e-06"
    assert key.take(40) == "0 left"
    assert key.take(2000) == "1 left"
    assert key.units() == [2000]  # a new log is on the clock again


def test_a_log_does_not_refund_the_charge_of_an_earlier_one() -> None:
    key = SlidingLogKey(SlidingLog(2, 60))
    key.take(1000)
    receipt = key.reserve(0)
    assert key.units() == [1000, 1000]
    key.take(1000)
    assert key.units() == [1000]
    assert not key.refund(1000, receipt)


def test_a_refund_is_a_stamp_too() -> None:
    key = SlidingLogKey(SlidingLog(3, 60))
    key.take(0)
    assert key.refund(50, key.reserve(50))
    assert key.take(40) == "1 left"
    assert key.units() == [0, 50]


def test_a_log_that_was_erased_keeps_its_stamp_while_the_clock_may_swing() -> None:
    key = SlidingLogKey(SlidingLog(5, 1))
    key.take(0, 5)
    assert key.refund(1, key.reserve(1))
    assert key.decide(0.9, 5)[:4] == (True, 0, 0, 1.1 * SECOND)
    assert key.units() == [1] * 5
    assert key.take(1.9) == "in 0.1"


def test_so_does_one_whose_last_unit_has_left() -> None:
    key = SlidingLogKey(SlidingLog(5, 1))
    key.take(0)
    receipt = key.reserve(0.99)
    assert key.refund(1.5, receipt)
    assert key.take(1.4, 5) == "0 left"
    assert key.units() == [1.5] * 5


def test_a_log_that_was_erased_does_not_wait_for_a_clock_that_was_set_back() -> None:
    key = SlidingLogKey(SlidingLog(5, 1))
    assert key.refund(1, key.reserve(1))
    assert key.take(0.899999) == "4 left"
    assert key.units() == pytest.approx([0.899999])


def test_a_log_that_was_erased_keeps_its_stamp_by_the_clock() -> None:
    key = SlidingLogKey(SlidingLog(2, 60))
    key.take(1000, 2)
    assert key.take(0) == "in 60"
    assert key.refund(61, key.reserve(60.5))
    assert key.take(60.95, 2) == "0 left"
    assert key.units() == [61, 61]


def test_a_lowered_limit_bites_at_once_and_a_raised_one_gives_its_difference() -> None:
    key = SlidingLogKey(SlidingLog(10, 60))
    for at in range(6):
        key.take(at)
    key.limit = SlidingLog(2, 60)
    assert key.decide(6, 0)[:3] == (False, 0, 58 * SECOND)
    key.limit = SlidingLog(8, 60)
    assert key.take(6) == "1 left"
    key.limit = SlidingLog(3, 60)
    assert key.take(62) == "in 2"
    assert key.take(64) == "0 left"
    assert key.units() == [5, 6, 64]
    assert key.state is not None
    assert len(key.state[5]) == 3


def test_a_changed_period_judges_the_same_units() -> None:
    key = SlidingLogKey(SlidingLog(3, 60))
    for at in (0, 10, 20):
        key.take(at)
    key.limit = SlidingLog(3, 15)
    assert key.take(20) == "0 left"
    key.limit = SlidingLog(3, 3600)
    assert key.take(30) == "in 3580"


def test_a_changed_limit_lets_nobody_overtake_what_is_booked() -> None:
    key = SlidingLogKey(SlidingLog(2, 60))
    key.take(0, 2)
    first, second = key.reserve(0), key.reserve(30, 2)
    key.limit = SlidingLog(5, 60)
    assert key.units() == [0, 0, 60, 120, 120]
    assert key.take(30) == "in 90"
    assert key.reserve(30).delay_us == 90 * SECOND
    key.limit = SlidingLog(5, 10)
    assert key.take(60) == "in 60"
    assert key.refund(60, second, 1)
    assert key.refund(60, first)
    assert key.units() == [0, 0, 120, 120]


def test_units_written_in_again_come_before_all_others() -> None:
    key = SlidingLogKey(SlidingLog(2, 60))
    key.take(0, 2)
    *_, receipt = [key.reserve(0, 2) for _ in range(2 + MAX_UNITS_BEFORE // 2)]
    oldest = key.units()[0]
    key.limit = SlidingLog(2, 10)
    assert key.refund(0, receipt)
    assert key.units()[:3] == [oldest] * 3


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SlidingLog(0), "at least 1"),
        (lambda: SlidingLog(1_000_001, 60), '"1000001/minute sliding" keeps two counts'),
        (lambda: SlidingLog(1, 101 * 365 * 86_400), "at most 100 years"),
        (lambda: SlidingLog(1, 0), "between one microsecond"),
    ],
)
def test_an_invalid_limit_is_refused_with_the_reason(make: Callable[[], SlidingLog], sentence: str) -> None:
    with pytest.raises(InvalidRule, match=sentence):
        make()


def test_its_text() -> None:
    assert [SlidingLog(600, 60).text, SlidingLog(5).text, SlidingLog(1_000_000, 90).text] == [
        *("600/minute log", "5/s log", "1000000/90s log"),
    ]


def test_a_log_that_is_hardly_used_stays_small() -> None:
    key = SlidingLogKey(SlidingLog(100_000, 1000))
    for second in range(5000):
        key.take(second / 10)
    assert key.state is not None
    assert 5000 <= len(key.state[5]) <= 10_000
    for second in range(3000):
        key.take(1500 + second)
    assert 1000 <= len(key.state[5]) <= 10_000
    for second in range(0, 100_000, 400):
        key.take(4500 + second)
    assert len(key.state[5]) <= 32
