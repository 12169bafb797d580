"""The fixed window: stories in seconds, and the laws that its docstring states.

The reason for its length: one algorithm, told on one key class.
"""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.decision import DELAY_US, MARK, REMAINING, RETRY_AFTER_US, Outcome, Receipt
from headgate.algorithms.fixed_window import (
    FixedWindow,
    OutsideCalendar,
    State,
    dead_at_us,
    decide,
    pack,
    refund,
    unpack,
)
from headgate.algorithms.limit import DAY, HORIZON_US, MAX_CLOCK_SWING_US, SECOND, YEAR
from headgate.calendar import resolve
from headgate.errors import InvalidRule

MIDNIGHT = 1_700_006_400  # Wednesday 15 November 2023, 0:00 in UTC
LONG = 10**15


class FixedWindowKey:
    """One count's life. Times are seconds after MIDNIGHT."""

    def __init__(self, limit: FixedWindow) -> None:
        self.limit = limit
        self.state: State | None = None

    def decide(self, at: float, cost: int, patience: float | None = None) -> Outcome:
        now_us = round((MIDNIGHT + at) * SECOND)
        patience_us = None if patience is None else round(patience * SECOND)
        outcome, self.state = decide(ready(self.limit, now_us), self.state, now_us, cost, patience_us)
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
        now_us = round((MIDNIGHT + at) * SECOND)
        after = refund(ready(self.limit, now_us), self.state, now_us, units, receipt, cancel)
        self.state = self.state if after is None else after
        return after is not None


def ready(limit: FixedWindow, now_us: int) -> FixedWindow:
    return cast(FixedWindow, resolve(limit, now_us))


def test_a_window_fills_and_the_next_one_is_empty() -> None:
    key = FixedWindowKey(FixedWindow(3, 60))
    assert key.take(10, 2) == "1 left"
    assert key.take(59, 2) == "in 1"
    assert key.take(59.999999) == "0 left"
    assert key.take(60, 3) == "0 left"
    assert key.take(60, 4) == "never"
    assert key.take(300, 0) == "3 left"


def test_windows_are_cut_on_the_epoch_and_reset_when_they_end() -> None:
    key = FixedWindowKey(FixedWindow(1, 7))
    assert key.decide(0, 0)[3] == 0
    assert key.decide(0, 1)[3] == (7 - MIDNIGHT % 7) * SECOND
    assert key.decide(0, 0)[3] == (7 - MIDNIGHT % 7) * SECOND


def test_reservations_fill_the_following_windows_in_order() -> None:
    key = FixedWindowKey(FixedWindow(10, 60))
    key.take(0, 6)
    delays = [receipt and receipt.delay_us // SECOND for receipt in map(key.reserve, [10] * 4, [5, 5, 1, 10])]
    assert delays == [50, 50, 110, 170]  # 6 and a rest of 4; 5 + 5; 1 and a rest of 9; 10
    assert key.take(10) == "in 230"
    assert key.decide(10, 0)[:4] == (False, 0, 230 * SECOND, 230 * SECOND)
    assert key.take(190) == "in 50"
    assert key.take(240, 10) == "0 left"


def test_a_reservation_that_waits_leaves_nothing_to_take() -> None:
    key = FixedWindowKey(FixedWindow(10, 60))
    key.take(0, 6)
    assert key.decide(0, 5, patience=60)[:5] == (True, 0, 0, 120 * SECOND, 60 * SECOND)


def test_a_reservation_is_refused_beyond_its_patience_and_beyond_the_horizon() -> None:
    key = FixedWindowKey(FixedWindow(1, 366 * 86_400))
    assert key.take(0) == "0 left"
    wait = (key.decide(0, 1)[RETRY_AFTER_US] or 0) / SECOND
    assert key.reserve(0, patience=wait - 1) is None
    assert key.reserve(0, patience=wait) is not None
    assert key.decide(0, 1, patience=1e9)[:3] == (False, 0, round(wait * SECOND) + HORIZON_US)


def test_a_calendar_can_be_booked_two_windows_ahead() -> None:
    key = FixedWindowKey(FixedWindow(1, "day", zone="Asia/Shanghai"))  # midnight there is 16:00 in UTC
    waits = [key.decide(8 * 3600, 1, patience=1e9)[:5:4] for _ in range(3)]
    assert waits == [(True, 0), (True, 8 * 3600 * SECOND), (True, 32 * 3600 * SECOND)]
    assert key.decide(8 * 3600, 1, patience=1e9)[:3] == (False, 0, 56 * 3600 * SECOND)
    assert key.take(64 * 3600) == "0 left"


def test_a_calendar_without_boundaries_says_so() -> None:
    limit = FixedWindow(1, "month")
    with pytest.raises(OutsideCalendar) as caught:
        decide(limit, None, 7, 1)
    assert caught.value.now_us == 7
    resolved = limit.at((0, 10, 20, 30, 40, 50))
    assert [decide(resolved, None, now, 1)[0][MARK] for now in (0, 9, 10, 29)] == [10, 10, 20, 30]
    for now in (30, 45):
        with pytest.raises(OutsideCalendar):
            refund(resolved, (50, 1, 0, 0), now, 1, Receipt(1, 0, 50, 0, 50), False)


def test_a_refund_belongs_to_its_window() -> None:
    key = FixedWindowKey(FixedWindow(5, 60))
    first = key.reserve(0, 4)
    assert key.refund(59, first, 3)
    assert key.take(59, 0) == "4 left"
    late = key.reserve(59, 4)
    assert not key.refund(60, late)
    key.take(61)
    assert not key.refund(61, late)
    assert key.take(61, 0) == "4 left"


def test_a_cancelled_reservation_gives_back_what_nobody_built_on() -> None:
    key = FixedWindowKey(FixedWindow(5, 60))
    taken, second, third = key.reserve(0, 3), key.reserve(0, 4), key.reserve(0, 2)
    assert not key.refund(0, taken)
    assert not key.refund(0, second, cancel=True)
    assert key.refund(0, third, cancel=True)
    minute_us = [(MIDNIGHT + 60 * n) * SECOND for n in range(3)]
    # How full the window before was is not known.
    assert key.state == (minute_us[2], 10**15, minute_us[0], minute_us[1])
    assert key.refund(0, second, cancel=True)
    assert key.take(60, 4) == "0 left"
    served = key.reserve(60, 5)
    assert key.refund(120, served, 1, cancel=True)
    assert not key.refund(121, served, 1, cancel=True)
    assert key.refund(121, served, 1)


def test_a_refund_never_goes_below_nothing() -> None:
    limit, now_us, end_us = FixedWindow(9, 60), MIDNIGHT * SECOND, (MIDNIGHT + 60) * SECOND
    receipt = Receipt(5, now_us, 60 * SECOND, 0, end_us)
    assert refund(limit, (end_us, 1, now_us, now_us), now_us, 5, receipt, False) == (
        end_us,
        0,
        now_us,
        now_us,
    )
    assert refund(limit, (end_us, 1, now_us, now_us), now_us, 0, receipt, False) is None
    partly = receipt._replace(refunded_units=3)
    assert refund(limit, (end_us, 7, now_us, now_us), now_us, 5, partly, False) == (
        end_us,
        5,
        now_us,
        now_us,
    )


def test_a_clock_that_steps_back_keeps_the_count_and_locks_nobody_out() -> None:
    key = FixedWindowKey(FixedWindow(2, 60))
    key.take(3600, 2)
    assert key.take(0) == "in 60"
    assert key.take(60) == "1 left"


def test_a_clock_that_steps_back_keeps_reservations_as_far_ahead_as_they_were() -> None:
    key = FixedWindowKey(FixedWindow(2, 60))
    key.take(3600, 2)
    key.reserve(3600, 2)
    assert key.take(0) == "in 120"
    key = FixedWindowKey(FixedWindow(1, "month"))
    key.take(90 * 86_400)
    key.reserve(90 * 86_400)
    assert key.take(0) == f"in {(16 + 31) * 86_400}"  # the rest of November, and December


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [
        (FixedWindow(9, 60), FixedWindow(12, 60), "4 left"),
        (FixedWindow(9, 60), FixedWindow(3, 60), "in 30"),
        (FixedWindow(9, 60), FixedWindow(9, 3600), "1 left"),
        (FixedWindow(9, 60), FixedWindow(9, "month"), "1 left"),
        (FixedWindow(9, 3600), FixedWindow(5, 60), "in 30"),
        (FixedWindow(9, "year"), FixedWindow(10, 60), "2 left"),
    ],
)
def test_a_changed_limit_counts_what_the_unended_window_holds(
    before: FixedWindow, after: FixedWindow, answer: str
) -> None:
    key = FixedWindowKey(before)
    key.take(10, 7)
    key.limit = after
    assert key.take(30) == answer


def test_a_lowered_limit_does_not_outlast_the_window() -> None:
    key = FixedWindowKey(FixedWindow(90, 60))
    receipt = key.reserve(0, 90)
    key.limit = FixedWindow(10, 60)
    assert key.refund(1, receipt, 5)
    assert key.take(1) == "in 59"
    assert key.take(60, 10) == "0 left"


def test_a_changed_limit_keeps_reservations_in_the_window_that_holds_them() -> None:
    key = FixedWindowKey(FixedWindow(1, 60))
    for _ in range(4):
        key.reserve(0)
    key.limit = FixedWindow(5, 90)  # served at 60, 120 and 180, the last one in the window that ends at 270
    assert key.take(0) == "in 180"
    assert key.take(180) == "3 left"


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (FixedWindow(100), "100/s fixed"),
        (FixedWindow(5, 30), "5/30s fixed"),
        (FixedWindow(1000, 86_400), "1000/day fixed"),
        (FixedWindow(1000, "day"), "1000/day fixed"),
        (FixedWindow(1000, "day", zone="Asia/Shanghai"), "1000/day fixed in Asia/Shanghai"),
        (FixedWindow(500, 7 * 86_400), "500/7d fixed"),
        (FixedWindow(500, "week"), "500/week fixed"),
        (FixedWindow(500, "month", zone="UTC"), "500/month fixed"),
    ],
)
def test_its_text(limit: FixedWindow, text: str) -> None:
    assert limit.text == text
    assert len(limit.args) == 8  # what a script reads, also of windows that need no boundaries


def test_equality_ignores_the_boundaries() -> None:
    limit = FixedWindow(5, "week")
    resolved = resolve(limit, MIDNIGHT * SECOND)
    assert resolved == limit == FixedWindow(5, "week", zone="UTC")
    assert hash(resolved) == hash(limit)
    assert resolved.args != limit.args
    assert limit not in (FixedWindow(6, "week"), FixedWindow(5, "week", zone="Asia/Tokyo"), "5/week fixed")
    with pytest.raises(ValueError, match="6 boundaries"):
        limit.at((1, 2))


@pytest.mark.parametrize(
    ("amount", "per", "zone", "sentence"),
    [
        (0, 1, None, "at least 1"),
        (10**15 + 1, 1, None, "at most 10\\^15"),
        (1, 0, None, "between one microsecond"),
        (1, 101 * 365 * 86_400, None, "at most 100 years"),
        (1, 60, "Asia/Shanghai", "has no time zone"),
        (1, "hour", None, "a number of seconds, or"),
        (1, "day", "Asia Shanghai", "is a name such as"),
    ],
)
def test_an_invalid_limit_is_refused_with_the_reason(
    amount: int, per: float | str, zone: str | None, sentence: str
) -> None:
    with pytest.raises(InvalidRule, match=sentence):
        FixedWindow(amount, per, zone)


# Laws. A limit, and a life under it: at each step time passes, and somebody takes, reserves or gives back.

amounts = st.integers(1, 8)
limits = st.one_of(
    st.builds(FixedWindow, amounts, st.sampled_from([0.000001, 0.00001, 0.00007, 60])),
    st.builds(FixedWindow, amounts, st.sampled_from(["day", "week"]), st.just("Asia/Beirut")),
)
step = st.tuples(
    st.floats(-2, 2).map(lambda windows: max(windows, 0.0)),
    st.sampled_from(["take", "reserve", "refund", "cancel"]),
    st.integers(0, 9),
    st.integers(0, 5),
)
Life = list[tuple[float, str, int, int]]
lives = st.lists(step, max_size=30)


def length_us(limit: FixedWindow) -> int:
    return limit.period_us or {"day": DAY, "week": 7 * DAY}[cast(str, limit.unit)]


def live(limit: FixedWindow, life: Life) -> tuple[State | None, int, list[Receipt]]:
    """The state and the time at the end, and every charge with what it still counts for."""
    state: State | None = None
    now_us = MIDNIGHT * SECOND
    charges: list[Receipt] = []
    for windows, verb, cost, which in life:
        now_us += round(windows * length_us(limit))
        if verb in ("take", "reserve"):
            patience_us = None if verb == "take" else which * length_us(limit)
            outcome, state = decide(ready(limit, now_us), state, now_us, cost, patience_us)
            if outcome[0] and cost:
                charges.append(Receipt.from_outcome(outcome, cost))
        elif which < len(charges):
            charge = charges[-1 - which]
            given = refund(ready(limit, now_us), state, now_us, cost, charge, verb == "cancel")
            if given is not None:
                state = given
                returned = min(charge.cost, charge.refunded_units + cost)
                charges[-1 - which] = charge._replace(refunded_units=returned)
    return state, now_us, charges


@given(limits, lives)
def test_at_most_amount_is_served_in_any_window(limit: FixedWindow, life: Life) -> None:
    served: dict[int, int] = {}
    for charge in live(limit, life)[2]:
        end_us = decide(ready(limit, charge.served_us), None, charge.served_us, 1)[0][MARK]
        served[end_us] = served.get(end_us, 0) + charge.cost - charge.refunded_units
    assert all(units <= limit.amount for units in served.values())


@given(limits, lives)
def test_reservations_are_served_in_order(limit: FixedWindow, life: Life) -> None:
    gone = [step for step in life if step[1] in ("take", "reserve")]
    served = [charge.served_us for charge in live(limit, gone)[2]]
    assert served == sorted(served)


@given(limits, lives, st.integers(1, 9))
def test_a_denied_charge_leaves_no_trace_and_passes_exactly_retry_after_later(
    limit: FixedWindow, life: Life, cost: int
) -> None:
    state, now_us, _ = live(limit, life)
    outcome, after = decide(ready(limit, now_us), state, now_us, cost)
    retry_us = outcome[RETRY_AFTER_US]
    assert (retry_us is None) == (cost > limit.amount)
    if outcome[0] or retry_us is None:
        return
    assert after is state
    assert decide(ready(limit, now_us + retry_us), state, now_us + retry_us, cost)[0][0]
    assert not decide(ready(limit, now_us + retry_us - 1), state, now_us + retry_us - 1, cost)[0][0]
    reserved, _ = decide(ready(limit, now_us), state, now_us, cost, LONG)
    if limit.period_us:
        assert reserved[0]
    assert reserved[DELAY_US] == (retry_us if reserved[0] else 0)


@given(limits, lives)
def test_taking_one_n_times_is_taking_n(limit: FixedWindow, life: Life) -> None:
    state, now_us, _ = live(limit, life)
    limit = ready(limit, now_us)
    peeked, _ = decide(limit, state, now_us, 0)
    assert peeked[0] is (peeked[REMAINING] > 0)
    one_by_one, taken = state, 0
    while decide(limit, one_by_one, now_us, 1)[0][0]:
        one_by_one, taken = decide(limit, one_by_one, now_us, 1)[1], taken + 1
    assert taken == peeked[REMAINING]
    if taken:
        assert decide(limit, state, now_us, taken)[1] == one_by_one


@given(limits, lives, st.floats(0, 9))
def test_a_dead_state_says_what_none_does(limit: FixedWindow, life: Life, later: float) -> None:
    state, now_us, _ = live(limit, life)
    if state is None:
        return
    assert unpack(pack(state)) == state
    dead_us = dead_at_us(limit, state)
    when_us = max(now_us, dead_us) + round(later * length_us(limit))
    for cost in (0, 1, limit.amount, limit.amount + 1):
        outcome, after = decide(ready(limit, when_us), state, when_us, cost)
        assert (outcome, None if after is state else after) == decide(ready(limit, when_us), None, when_us, cost)
    last_us = dead_us - MAX_CLOCK_SWING_US - 1
    if last_us >= now_us and state[1]:
        assert not decide(ready(limit, last_us), state, last_us, limit.amount)[0][0]


@given(limits, lives, st.floats(0, 50))
def test_a_clock_that_steps_back_frees_nothing_and_locks_nobody_out(
    limit: FixedWindow, life: Life, back: float
) -> None:
    state, now_us, _ = live(limit, life)
    if state is None or state[0] <= now_us:
        return
    before, _ = decide(ready(limit, now_us), state, now_us, 0)
    then_us = now_us - round(back * length_us(limit))
    outcome, after = decide(ready(limit, then_us), state, then_us, 0)
    assert outcome[REMAINING] <= before[REMAINING]
    wait_us = outcome[RETRY_AFTER_US]
    assert wait_us is not None
    assert decide(ready(limit, then_us + wait_us), after, then_us + wait_us, 1)[0][0]
    if limit.period_us:
        assert wait_us <= (state[2] + 1) * limit.period_us  # as far as it was ever put


@given(limits, limits, lives)
def test_a_changed_limit_counts_what_was_served_in_its_window(
    limit: FixedWindow, changed: FixedWindow, life: Life
) -> None:
    state, now_us, _ = live(limit, life)
    if state is None or state[0] <= now_us:
        return
    changed = ready(changed, now_us)
    outcome, after = decide(changed, state, now_us, 0)
    start_us = now_us - now_us % changed.period_us if changed.period_us else changed.boundaries_us[1]
    counts = state[3] >= start_us
    assert 0 <= outcome[REMAINING] <= max(0, changed.amount - (state[1] if counts else 0))
    assert after is state
    assert dead_at_us(changed, state) == dead_at_us(limit, state) <= now_us + HORIZON_US + YEAR


def test_a_refund_that_empties_a_window_does_not_open_the_one_before() -> None:
    key = FixedWindowKey(FixedWindow(5, 1))
    assert key.take(0.95, 5) == "0 left"
    first = key.reserve(1.01, 1)
    assert key.refund(1.01, first)
    assert key.take(0.950001, 5) == "0 left"  # as at 1.01
    assert key.take(1.02) == "in 0.98"


def test_a_window_that_ends_with_that_of_another_limit_is_counted_separately() -> None:
    """3600/hour are used up at :58:05. Under 60/minute they count in that minute; not in the next one, which ends
    with the hour."""
    key = FixedWindowKey(FixedWindow(3600, 3600))
    used = key.reserve(58 * 60 + 5, 3600)
    key.limit = FixedWindow(60, 60)
    assert key.take(58 * 60 + 5) == "in 55"
    assert key.take(59 * 60, 60) == "0 left"
    assert not key.refund(59 * 60, used)
    assert key.take(59 * 60) == "in 60"


def test_under_a_longer_window_units_count_no_longer_than_their_window_lasts() -> None:
    key = FixedWindowKey(FixedWindow(10, 60))
    key.take(50, 10)
    key.limit = FixedWindow(6, "day", "America/New_York")
    assert key.take(50) == "in 10"
    reserved = key.reserve(50, 6)
    assert reserved is not None
    assert reserved.delay_us == 10 * SECOND
    assert key.take(55) == "in 17945"  # nobody passes before the one that waits; and then the day is full
    assert key.take(60) == "in 17940"
