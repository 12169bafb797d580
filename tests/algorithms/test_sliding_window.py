"""The sliding window: stories in seconds, and the laws its essay states.

The reason for its length: one algorithm, told on one key class.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.decision import DELAY_US, REMAINING, RESET_AFTER_US, RETRY_AFTER_US, Outcome, Receipt
from headgate.algorithms.limit import HORIZON_US, MAX_CLOCK_SWING_US, SECOND
from headgate.algorithms.sliding_window import (
    MAX_CELLS_BEFORE,
    SlidingWindow,
    State,
    dead_at_us,
    decide,
    pack,
    refund,
    unpack,
)
from headgate.errors import InvalidRule

START = 1_700_000_040  # a full minute
LONG = 10**15


class SlidingWindowKey:
    """One count's life. Times are seconds after START."""

    def __init__(self, limit: SlidingWindow) -> None:
        self.limit = limit
        self.state: State | None = None

    def decide(self, at: float, cost: int, patience: float | None = None) -> Outcome:
        patience_us = None if patience is None else round(patience * SECOND)
        outcome, self.state = decide(self.limit, self.state, round((START + at) * SECOND), cost, patience_us)
        return outcome

    def take(self, at: float, cost: int = 1) -> str:
        allowed, remaining, retry_us, *_ = self.decide(at, cost)
        if allowed:
            return f"{remaining} left"
        return "never" if retry_us is None else f"in {retry_us / SECOND:.12g}"

    def reserve(self, at: float, cost: int = 1, patience: float = 1e9) -> Receipt | None:
        outcome = self.decide(at, cost, patience)
        return Receipt.from_outcome(outcome, cost) if outcome[0] else None

    def refund(self, at: float, receipt: Receipt | None, units: int = 10**9, cancel: bool = False) -> bool:
        assert receipt is not None
        now_us = round((START + at) * SECOND)
        after = refund(self.limit, self.state, now_us, units, receipt, cancel)
        self.state = self.state if after is None else after
        return after is not None

    def counts(self) -> str:
        assert self.state is not None
        return pack(self.state).split(":")[3]


def test_the_frame_moves_a_cell_at_a_time() -> None:
    key = SlidingWindowKey(SlidingWindow(600, 60))
    assert key.take(5, 400) == "200 left"
    assert key.take(20, 200) == "0 left"
    assert key.take(59.999999) == "in 1e-06"
    assert key.take(60, 401) == "in 18"
    assert key.take(60, 400) == "0 left"
    assert key.take(78, 200) == "0 left"
    assert key.take(78, 601) == "never"
    assert key.take(1000, 0) == "600 left"


def test_one_cell_is_a_fixed_window() -> None:
    key = SlidingWindowKey(SlidingWindow(3, 60, cells=1))
    assert key.take(59, 3) == "0 left"
    assert key.take(59) == "in 1"
    assert key.take(60, 3) == "0 left"


def test_reset_is_when_the_last_cell_leaves_the_frame() -> None:
    key = SlidingWindowKey(SlidingWindow(10, 60))
    assert key.decide(5, 1)[3] == 55 * SECOND
    assert key.decide(10, 1)[3] == 56 * SECOND
    assert key.decide(20, 0)[3] == 46 * SECOND
    assert key.decide(67, 0)[3] == 0


def test_reservations_take_the_first_cell_in_which_they_fit() -> None:
    key = SlidingWindowKey(SlidingWindow(10, 60))
    key.take(0, 4)
    key.take(30, 4)
    delays = [receipt and receipt.delay_us // SECOND for receipt in map(key.reserve, [30] * 4, [2, 3, 4, 3])]
    assert delays == [0, 30, 60, 60]
    # What was taken up to now, then three at 1:00, seven at 1:30.
    assert key.counts() == "0,0,0,0,4,0,0,0,0,6,0,0,0,0,3,0,0,0,0,7"
    assert key.take(30) == "in 90"
    assert key.take(119) == "in 1"
    assert key.take(120) == "2 left"


def test_a_reservation_that_waits_leaves_nothing_to_take() -> None:
    key = SlidingWindowKey(SlidingWindow(10, 60))
    key.take(0, 8)
    assert key.decide(0, 5, patience=60)[:5] == (True, 0, 0, 120 * SECOND, 60 * SECOND)
    assert key.decide(0, 0)[:4] == (False, 0, 60 * SECOND, 120 * SECOND)


def test_a_reservation_is_refused_beyond_its_patience_and_beyond_the_horizon() -> None:
    key = SlidingWindowKey(SlidingWindow(1, 366 * 86_400, cells=1))
    assert key.take(0) == "0 left"
    wait = (key.decide(0, 1)[RETRY_AFTER_US] or 0) / SECOND
    assert key.reserve(0, patience=wait - 1) is None
    assert key.reserve(0, patience=wait) is not None
    assert key.decide(0, 1, patience=1e9)[:3] == (False, 0, round(wait * SECOND) + HORIZON_US)


def test_a_refund_lowers_the_cell_of_its_charge() -> None:
    key = SlidingWindowKey(SlidingWindow(10, 60))
    first, second = key.reserve(0, 4), key.reserve(12, 6)
    assert key.refund(30, first, 3)
    assert key.counts() == "1,0,6"
    assert key.refund(59, first)
    assert key.counts() == "6"
    assert not key.refund(59, first)
    assert not key.refund(72, second)
    assert key.take(59, 4) == "0 left"


def test_a_charge_is_given_back_once() -> None:
    key = SlidingWindowKey(SlidingWindow(10, 60))
    key.take(0, 2)
    first, second = key.reserve(1, 4), key.reserve(12, 3)
    assert first is not None
    assert key.refund(12, second)
    assert not key.refund(12, second)
    assert key.refund(12, first._replace(refunded_units=3))
    assert not key.refund(12, first._replace(refunded_units=4))
    assert key.counts() == "5,0,0"


def test_a_receipt_of_another_cut_is_not_taken_for_one_of_the_same_number() -> None:
    key = SlidingWindowKey(SlidingWindow(10, 60))
    receipt = key.reserve(0, 4)
    assert receipt is not None
    assert not key.refund(0, receipt._replace(at_us=receipt.at_us - 60 * SECOND))


def test_a_cancelled_reservation_gives_back_nothing_once_served() -> None:
    key = SlidingWindowKey(SlidingWindow(10, 60))
    key.take(0, 10)
    first, second = key.reserve(0, 10), key.reserve(0, 5)
    assert key.refund(0, first, cancel=True)
    assert key.refund(120, second, 1, cancel=True)
    assert not key.refund(121, second, cancel=True)
    assert key.refund(121, second)
    assert key.take(121, 10) == "0 left"


def test_an_emptied_tail_goes_back_to_the_last_cell_in_use() -> None:
    key = SlidingWindowKey(SlidingWindow(1, 1))
    key.take(0)
    before = key.state
    places = [key.reserve(0, 1) for _ in range(3)]
    assert key.refund(0, places[1], cancel=True)
    assert key.take(0) == "in 4"
    assert key.refund(0, places[2], cancel=True)
    assert key.take(0) == "in 2"
    assert key.refund(0, places[0], cancel=True)
    assert key.state == before
    assert key.take(1) == "0 left"


def test_a_tail_goes_back_as_far_as_the_cells_that_are_stored() -> None:
    key = SlidingWindowKey(SlidingWindow(1, 1, cells=1))
    key.take(0)
    places = [key.reserve(0, 1) for _ in range(MAX_CELLS_BEFORE + 10)]
    assert key.counts() == ",".join("1" * (1 + MAX_CELLS_BEFORE))
    for place in reversed(places):
        key.refund(0, place, cancel=True)
    assert key.take(0) == "in 10"


def test_an_emptied_tail_is_dead_when_its_frame_is() -> None:
    key = SlidingWindowKey(SlidingWindow(10, 60))
    key.take(0, 10)
    receipt = key.reserve(0, 10)
    assert key.refund(0, receipt, cancel=True)
    assert key.take(30, 0) == "in 30"
    assert key.state is not None
    assert dead_at_us(key.limit, key.state) == (START + 60) * SECOND + MAX_CLOCK_SWING_US


def test_a_clock_that_steps_back_moves_the_counts_along() -> None:
    key = SlidingWindowKey(SlidingWindow(10, 60))
    key.take(3600, 4)
    key.take(3630, 6)
    assert key.take(0) == "in 30"
    assert key.take(30, 4) == "0 left"
    key.reserve(30, 6)
    assert key.take(-600) == "in 60"


@pytest.mark.parametrize(
    ("after", "answers"),
    [
        (SlidingWindow(12, 60), ["2 left", "1 left", "5 left"]),
        (SlidingWindow(5, 60), ["in 30", "in 12", "0 left"]),
        (SlidingWindow(12, 60, cells=6), ["2 left", "1 left", "5 left"]),
        (SlidingWindow(9, 60, cells=1), ["in 30", "in 12", "8 left"]),
        (SlidingWindow(12, 30, cells=5), ["7 left", "10 left", "10 left"]),
        (SlidingWindow(12, 600), ["2 left", "1 left", "0 left"]),
    ],
)
def test_a_changed_limit_keeps_the_age_of_every_unit(after: SlidingWindow, answers: list[str]) -> None:
    key = SlidingWindowKey(SlidingWindow(10, 60))
    key.take(0, 5)
    key.take(14, 4)
    key.limit = after
    assert [key.take(at) for at in (30, 48, 66)] == answers


def test_a_changed_limit_takes_a_unit_for_as_young_as_it_may_be() -> None:
    key = SlidingWindowKey(SlidingWindow(10, 120, cells=2))
    key.take(1, 7)
    key.limit = SlidingWindow(10, 60)
    assert key.take(70, 4) == "in 44"  # charged by 1:00, the end of its old cell


def test_a_changed_limit_keeps_reservations_where_they_are() -> None:
    key = SlidingWindowKey(SlidingWindow(1, 60))
    for _ in range(3):
        key.reserve(0)
    key.limit = SlidingWindow(2, 50)
    assert key.take(0) == "in 120"
    assert key.take(120) == "0 left"
    assert key.take(168) == "in 2"


def test_a_changed_limit_tells_when_the_old_frame_lets_its_units_go() -> None:
    key = SlidingWindowKey(SlidingWindow(5, 1))
    key.take(0, 5)
    key.limit = SlidingWindow(6, 60)
    assert key.decide(0.1, 0)[:4] == (True, 1, 0, 0.9 * SECOND)
    assert key.take(0.1, 6) == "in 0.9"
    assert key.take(0.999999, 6) == "in 1e-06"
    assert key.take(1, 6) == "0 left"


def test_a_changed_limit_reports_when_old_units_leave_its_frame() -> None:
    """They may have come as late as the end of their old cell, and nobody knows."""
    key = SlidingWindowKey(SlidingWindow(600, 60))
    key.take(0, 600)
    key.limit = SlidingWindow(5, 1)
    assert key.take(0.5) == "in 6.4"
    assert key.take(6.899999) == "in 1e-06"
    assert key.take(6.9, 5) == "0 left"


def test_a_changed_limit_serves_a_reservation_when_a_take_would_pass() -> None:
    key = SlidingWindowKey(SlidingWindow(5, 1))
    key.take(0, 5)
    key.limit = SlidingWindow(6, 60)
    first = key.reserve(0.1, 2)
    assert first is not None
    assert first.delay_us == 0.9 * SECOND
    # In the first cell that begins then or later: nobody passes before it.
    assert key.counts() == "5,0,0,0,0,0,0,0,0,0,2"
    assert key.take(0.1, 4) == "in 5.9"
    assert key.take(1, 4) == "in 5"
    assert key.refund(0.2, first, 1, cancel=True)
    assert key.counts() == "5,0,0,0,0,0,0,0,0,0,1"
    assert key.take(6, 5) == "0 left"


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (SlidingWindow(600, 60), "600/minute sliding"),
        (SlidingWindow(600, 60, cells=6), "600/minute sliding cells 6"),
        (SlidingWindow(5, 30, cells=1), "5/30s sliding cells 1"),
    ],
)
def test_its_text(limit: SlidingWindow, text: str) -> None:
    assert limit.text == text


@pytest.mark.parametrize(
    ("amount", "per", "cells", "sentence"),
    [
        (0, 1, 10, "at least 1"),
        (10**13 + 1, 1, 10, "at most 10\\^13"),
        (1, -1, 10, "between one microsecond"),
        (1, 101 * 365 * 86_400, 10, "at most 100 years"),
        (1, 1, 0, "at least 1"),
        (1, 1, 1001, "at most 1000 cells"),
        (1, 1, 7, "7 cells do not divide 1s into whole microseconds. Use 8 cells"),
        (1, 0.000013, 10, "Use 13 cells"),
    ],
)
def test_an_invalid_limit_is_refused_with_the_reason(amount: int, per: float, cells: int, sentence: str) -> None:
    with pytest.raises(InvalidRule, match=sentence):
        SlidingWindow(amount, per, cells)


# Laws. A limit, and a life under it: at each step time passes, and somebody takes, reserves or gives back.

limits = st.builds(
    lambda amount, cell, cells: SlidingWindow(amount, cell * cells / SECOND, cells),
    st.integers(1, 8),
    st.sampled_from([1, 7, 10, 1000]),
    st.integers(1, 6),
)
step = st.tuples(
    st.floats(-1, 4).map(lambda cells: max(cells, 0.0)),
    st.sampled_from(["take", "reserve", "refund", "cancel"]),
    st.integers(0, 9),
    st.integers(0, 5),
)
Life = list[tuple[float, str, int, int]]
lives = st.lists(step, max_size=30)


def live(limit: SlidingWindow, life: Life) -> tuple[State | None, int, list[Receipt]]:
    """The state and the time at the end, and every charge with what it still counts for."""
    state: State | None = None
    now_us = START * SECOND
    charges: list[Receipt] = []
    for cells, verb, cost, which in life:
        now_us += round(cells * limit.cell_us)
        if verb in ("take", "reserve"):
            patience_us = None if verb == "take" else which * 2 * limit.cell_us
            outcome, state = decide(limit, state, now_us, cost, patience_us)
            if outcome[0] and cost:
                charges.append(Receipt.from_outcome(outcome, cost))
        elif which < len(charges):
            charge = charges[-1 - which]
            given = refund(limit, state, now_us, cost, charge, verb == "cancel")
            if given is not None:
                state = given
                returned = min(charge.cost, charge.refunded_units + cost)
                charges[-1 - which] = charge._replace(refunded_units=returned)
    return state, now_us, charges


@given(limits, lives)
def test_at_most_amount_is_served_in_any_run_of_cells(limit: SlidingWindow, life: Life) -> None:
    served: dict[int, int] = {}
    for charge in live(limit, life)[2]:
        cell = charge.served_us // limit.cell_us
        served[cell] = served.get(cell, 0) + charge.cost - charge.refunded_units
    for first in served:
        assert sum(served.get(first + step, 0) for step in range(limit.cells)) <= limit.amount


@given(limits, lives)
def test_reservations_are_served_in_order(limit: SlidingWindow, life: Life) -> None:
    served = [charge.served_us for charge in live(limit, life)[2]]
    assert served == sorted(served)


@given(limits, lives, st.integers(1, 9))
def test_a_denied_charge_leaves_no_trace_and_passes_exactly_retry_after_later(
    limit: SlidingWindow, life: Life, cost: int
) -> None:
    state, now_us, _ = live(limit, life)
    outcome, after = decide(limit, state, now_us, cost)
    retry_us = outcome[RETRY_AFTER_US]
    assert (retry_us is None) == (cost > limit.amount)
    if outcome[0] or retry_us is None:
        return
    assert after is state
    assert decide(limit, state, now_us + retry_us, cost)[0][0]
    assert not decide(limit, state, now_us + retry_us - 1, cost)[0][0]
    reserved, _ = decide(limit, state, now_us, cost, LONG)
    assert reserved[0]
    assert reserved[DELAY_US] == retry_us


@given(limits, lives)
def test_taking_one_n_times_is_taking_n(limit: SlidingWindow, life: Life) -> None:
    state, now_us, _ = live(limit, life)
    peeked, _ = decide(limit, state, now_us, 0)
    assert peeked[0] is (peeked[REMAINING] > 0)
    one_by_one, taken = state, 0
    while decide(limit, one_by_one, now_us, 1)[0][0]:
        one_by_one, taken = decide(limit, one_by_one, now_us, 1)[1], taken + 1
    assert taken == peeked[REMAINING]
    if taken:
        assert decide(limit, state, now_us, taken)[1] == one_by_one


@given(limits, lives, st.integers(0, 10**6), limits)
def test_a_dead_state_says_what_none_does(
    limit: SlidingWindow, life: Life, later_us: int, changed: SlidingWindow
) -> None:
    state, now_us, _ = live(limit, life)
    if state is None:
        return
    assert unpack(pack(state)) == state
    dead_us = dead_at_us(limit, state)
    when_us = max(now_us, dead_us) + later_us
    for judge in (limit, changed):
        for cost in (0, 1, judge.amount, judge.amount + 1):
            outcome, after = decide(judge, state, when_us, cost)
            assert (outcome, None if after is state else after) == decide(judge, None, when_us, cost)
    last_us = dead_us - MAX_CLOCK_SWING_US - 1
    if last_us >= now_us:
        assert not decide(limit, state, last_us, limit.amount)[0][0]


@given(limits, lives, st.integers(0, 10**6))
def test_a_clock_that_steps_back_frees_nothing_and_locks_nobody_out(
    limit: SlidingWindow, life: Life, back_us: int
) -> None:
    state, now_us, _ = live(limit, life)
    if state is None:
        return
    before, _ = decide(limit, state, now_us, 0)
    outcome, after = decide(limit, state, now_us - back_us, 0)
    assert outcome[REMAINING] <= before[REMAINING]
    wait_us = outcome[RETRY_AFTER_US]
    assert wait_us is not None
    assert wait_us <= (state[3] + limit.cells) * limit.cell_us + MAX_CLOCK_SWING_US  # as far as it was ever put
    assert decide(limit, after, now_us - back_us + wait_us, 1)[0][0]


@given(limits, lives, limits)
def test_a_changed_limit_gives_nobody_a_fresh_window(
    limit: SlidingWindow, life: Life, changed: SlidingWindow
) -> None:
    state, now_us, _ = live(limit, life)
    if state is None or state[1] * limit.cell_us > now_us:
        return
    mine, _ = decide(limit, state, now_us, 0)
    theirs, _ = decide(changed, state, now_us, 0)
    # A frame surely reaches back over all its cells but the current one, which may have just begun.
    if changed.cell_us * (changed.cells - 1) >= limit.cell_us * (limit.cells + 1):
        assert theirs[REMAINING] == max(0, changed.amount - (limit.amount - mine[REMAINING]))


@given(limits, lives, limits, st.integers(0, 30), st.integers(0, 200), st.integers(1, 8))
def test_a_changed_limit_tells_the_wait_to_the_microsecond(
    limit: SlidingWindow, life: Life, changed: SlidingWindow, later_us: int, back_us: int, cost: int
) -> None:
    """Of takes and of reservations, on a clock that swings; and nobody passes before an earlier reservation."""
    state, now_us, _ = live(limit, life)
    now_us += later_us - back_us
    outcome, after = decide(changed, state, now_us, cost)
    retry_us = outcome[RETRY_AFTER_US]
    peeked = decide(changed, state, now_us, 0)[0]
    assert (outcome[0] or not cost) == (cost <= peeked[REMAINING])
    if outcome[0] or retry_us is None:
        return
    assert after is state
    assert retry_us <= peeked[RESET_AFTER_US]
    assert decide(changed, state, now_us + retry_us - 1, cost)[0][0] is False
    assert decide(changed, state, now_us + retry_us, cost)[0][0]
    reserved, booked = decide(changed, state, now_us, cost, retry_us)
    assert reserved[0]
    assert reserved[DELAY_US] == retry_us
    assert not decide(changed, state, now_us, cost, retry_us - 1)[0][0]
    changed_retry_us = decide(changed, booked, now_us, 1)[0][RETRY_AFTER_US]
    assert changed_retry_us is not None
    assert changed_retry_us >= retry_us
    assert not decide(changed, booked, now_us + changed_retry_us - 1, 1)[0][0]
    assert refund(changed, booked, now_us, cost, Receipt.from_outcome(reserved, cost), cancel=True) is not None


@given(limits, lives, limits, st.integers(0, 30))
def test_after_a_change_nothing_is_left_when_reset_is_over(
    limit: SlidingWindow, life: Life, changed: SlidingWindow, later_us: int
) -> None:
    state, now_us, _ = live(limit, life)
    now_us += later_us
    reset_us = decide(changed, state, now_us, 0)[0][RESET_AFTER_US]
    assert decide(changed, state, now_us + reset_us, 0)[0][:4] == (True, changed.amount, 0, 0)
    assert not reset_us or not decide(changed, state, now_us + reset_us - 1, changed.amount)[0][0]


@given(limits, lives, st.integers(1, 9))
def test_a_refund_gives_back_no_more_than_it_says(limit: SlidingWindow, life: Life, units: int) -> None:
    """While places lie ahead nothing remains, whatever the window holds: its room is seen again when the last of
    them is cancelled. (That it is no more than without them: test_leaving_laws.py.)"""
    state, now_us, charges = live(limit, life)
    before = decide(limit, state, now_us, 0)[0][REMAINING]
    queue = state is not None and state[1] > now_us // limit.cell_us
    for charge in charges:
        given = refund(limit, state, now_us, units, charge, False)
        if given is not None:
            room = decide(limit, given, now_us, 0)[0][REMAINING] - before
            assert 0 <= room <= (limit.amount if queue else min(units, charge.cost - charge.refunded_units))
            assert charge.mark + limit.cells > now_us // limit.cell_us
