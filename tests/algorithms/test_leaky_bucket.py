"""The laws of the leaky bucket, and its stories in time. Times are milliseconds unless they say otherwise.

The reason for its length: one algorithm, told on one key class.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.decision import (
    ALLOWED,
    DELAY_US,
    MARK,
    REMAINING,
    RESET_AFTER_US,
    RETRY_AFTER_US,
    Receipt,
)
from headgate.algorithms.leaky_bucket import LeakyBucket, State, dead_at_us, decide, pack, refund, unpack
from headgate.algorithms.limit import HORIZON_US, MAX_CLOCK_SWING_US
from headgate.errors import InvalidRule

T0 = 1_700_000_000_000_000
FOREVER_US = 10**15


class LeakyBucketKey:
    """One key that lives through a story: what comes back is kept, as an engine would."""

    def __init__(self, limit: LeakyBucket) -> None:
        self.limit = limit
        self.state: State | None = None

    def decide(self, at_ms: float, cost: int = 1, patience_us: int | None = None) -> tuple[bool, int, int | None]:
        """Allowed; nginx's excess; the wait in ms if allowed, else retry_after in ms (None never)."""
        outcome, self.state = decide(self.limit, self.state, T0 + round(at_ms * 1000), cost, patience_us)
        if outcome[ALLOWED] and cost:
            self.receipt = Receipt.from_outcome(outcome, cost)
        wait_us = outcome[DELAY_US] if outcome[ALLOWED] else outcome[RETRY_AFTER_US]
        return outcome[ALLOWED], outcome[MARK], None if wait_us is None else wait_us // 1000

    def remaining(self, at_ms: int) -> int:
        return decide(self.limit, self.state, T0 + at_ms * 1000, 0)[0][REMAINING]

    def give_back(self, at_ms: int, receipt: Receipt, units: int | None = None, cancel: bool = False) -> bool:
        after = refund(self.limit, self.state, T0 + at_ms * 1000, units or receipt.cost, receipt, cancel)
        self.state = after or self.state
        return after is not None


periods, delays = st.sampled_from([1, 1, 60]), st.none() | st.integers(0, 35)
limits = st.builds(LeakyBucket, st.integers(1, 5000), periods, st.integers(0, 30), delays)
# (gap in us, cost): arrivals, mostly within a few units of each other.
Steps = list[tuple[int, int]]
arrivals = st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 4)), min_size=1, max_size=30)
patiences = st.none() | st.integers(0, 10**8)


def walk(limit: LeakyBucket, steps: Steps) -> tuple[State | None, int]:
    state: State | None = None
    now_us = T0
    for gap_us, cost in steps:
        now_us += gap_us
        _, state = decide(limit, state, now_us, cost)
    return state, now_us


# --- Stories


def test_a_queue_of_five_is_served_at_the_pace_of_the_limit() -> None:
    key = LeakyBucketKey(LeakyBucket(6, per=60, burst=5))
    waits = [key.decide(0) for _ in range(7)]
    assert waits[:6] == [(True, i * 1000, i * 10_000) for i in range(6)]
    assert waits[6] == (False, 6000, 10_000)
    assert key.decide(9_999) == (False, 5001, 1)
    assert key.decide(10_000) == (True, 5000, 50_000)


def test_without_delay_the_queue_merely_counts() -> None:
    """The recorded nginx_real_01: 6r/m burst=5 nodelay, six at once, then one at 11 s and one at 21.5 s."""
    key = LeakyBucketKey(LeakyBucket(6, per=60, burst=5, delay=None))
    assert [key.decide(0)[::2] for _ in range(6)] == [(True, 0)] * 6
    assert key.decide(0)[0] is False
    assert key.decide(11_000)[::2] == (True, 0)
    assert key.decide(11_000)[0] is False
    assert key.decide(21_500)[::2] == (True, 0)
    key = LeakyBucketKey(LeakyBucket(1, burst=4, delay=2))
    assert [key.decide(0)[2] for _ in range(5)] == [0, 0, 0, 1000, 2000]


def test_rates_and_drains_are_rounded_down_as_nginx_rounds_them() -> None:
    assert LeakyBucket(10, per=60).rate == 166
    key = LeakyBucketKey(LeakyBucket(10, per=60))
    assert key.decide(0) == (True, 0, 0)
    assert key.decide(6000) == (False, 4, 25)
    assert key.decide(6024) == (False, 1, 1)
    assert key.decide(6025) == (True, 0, 0)
    key = LeakyBucketKey(LeakyBucket(10, per=60, burst=9))
    for at_ms in range(0, 35, 5):
        key.decide(at_ms)
    assert key.state is not None
    assert key.state[0] == 7000  # 0.83 thousandths drained between two of them, 4.98 in all


def test_the_clock_steps_back_as_recorded_from_nginx() -> None:
    key = LeakyBucketKey(LeakyBucket(5))
    key.decide(0)
    assert key.decide(-60_001) == (False, 995, 60_201)
    assert key.decide(-60_000) == (False, 1000, 60_200)
    assert key.decide(-1) == (False, 1000, 201)
    assert key.decide(100) == (False, 500, 100)
    assert key.decide(200) == (True, 0, 0)


def test_a_small_step_back_stops_the_drain_and_a_large_one_restarts_it() -> None:
    key = LeakyBucketKey(LeakyBucket(5, burst=5, delay=None))
    key.decide(0)
    key.decide(-500)
    assert key.state is not None
    assert key.state[:2] == (2000, T0 // 1000)
    key.decide(-70_000)
    assert key.state is not None
    assert key.state[:2] == (2995, T0 // 1000 - 70_000)
    assert key.decide(-69_000)[1] == 0


def test_facts_speak_of_the_whole_queue() -> None:
    key = LeakyBucketKey(LeakyBucket(1, burst=3))
    assert key.remaining(0) == 4
    key.decide(0, 3)
    assert (key.remaining(0), key.remaining(999), key.remaining(1000)) == (1, 1, 2)
    outcome, _ = decide(key.limit, key.state, T0 + 500_500, 0)
    assert outcome == (True, 1, 0, 2_499_500, 0, T0 + 500_500, 2500)
    outcome, _ = decide(key.limit, key.state, T0 + 500_500, 4)
    assert outcome == (False, 1, 2_499_500, 2_499_500, 0, T0 + 500_500, 5500)


def test_more_than_the_queue_can_hold_is_never_allowed() -> None:
    key = LeakyBucketKey(LeakyBucket(1, burst=3))
    assert key.decide(0, 5) == (False, 0, None)
    assert key.decide(0, 5, FOREVER_US) == (False, 0, None)
    assert key.decide(0, 4)[0] is True


def test_a_reservation_waits_for_room_and_holds_up_those_behind_it() -> None:
    key = LeakyBucketKey(LeakyBucket(1, burst=1, delay=None))
    assert key.decide(0, 2) == (True, 1000, 0)
    assert key.decide(0, 2, 1_999_999) == (False, 3000, 2000)
    assert key.decide(0, 2, 2_000_000) == (True, 3000, 2000)
    assert key.decide(1000) == (False, 3000, 2000)
    assert key.decide(2999) == (False, 1001, 1)
    assert key.decide(3000) == (True, 1000, 0)


def test_a_reservation_that_fits_still_waits_its_delay() -> None:
    key = LeakyBucketKey(LeakyBucket(1, burst=5))
    key.decide(0)
    assert key.decide(0, 1, 999_999) == (False, 1000, 1000)
    assert key.decide(0, 1, 1_000_000) == (True, 1000, 1000)
    key.decide(0, 4)
    assert key.decide(0, 1, 5_999_999) == (False, 6000, 6000)  # room after one second, its turn after six
    assert key.decide(0) == (False, 6000, 1000)


def test_debt_ends_at_the_horizon() -> None:
    patient = LeakyBucketKey(LeakyBucket(1, per=1000, burst=10**5))
    assert patient.decide(0, 10**5, FOREVER_US) == (False, 99_999_000, 99_999_000_000)
    assert patient.decide(0, 10**5) == (True, 99_999_000, 99_999_000_000)  # a take is nginx's: any delay
    limit = LeakyBucket(1, per=1000, burst=10**5, delay=None)
    key = LeakyBucketKey(limit)
    while key.decide(0, 10_001, FOREVER_US)[0]:
        assert key.receipt.delay_us <= HORIZON_US
    assert key.state is not None
    assert key.state[0] + 10_001_000 > limit.max_water
    fast = LeakyBucketKey(LeakyBucket(10**9, burst=10**12, delay=None))
    while fast.decide(0, 10**12, FOREVER_US)[0]:
        assert fast.state is not None
        assert fast.state[0] <= 2**52


def test_a_refund_makes_room_again_also_for_the_first_unit() -> None:
    key = LeakyBucketKey(LeakyBucket(1))
    key.decide(0)
    assert key.give_back(0, key.receipt) is True
    assert key.give_back(0, key.receipt) is False
    assert key.decide(0) == (True, 0, 0)


def test_a_charge_is_given_back_in_parts_but_not_more_than_once() -> None:
    for cancel in (False, True):
        key = LeakyBucketKey(LeakyBucket(1, burst=9))
        key.decide(0, 2)
        key.decide(0, 5)
        charge = key.receipt
        assert key.give_back(0, charge, units=2, cancel=cancel) is True
        assert key.give_back(0, charge._replace(refunded_units=2), units=5, cancel=cancel) is True
        assert key.state is not None
        assert key.state[:2] == (2000, T0 // 1000)
        assert key.give_back(0, charge._replace(refunded_units=5), cancel=cancel) is False


def test_a_refund_does_not_give_back_drained_units() -> None:
    """Take 10, let others take 10 a second later, refund the first: nothing is minted."""
    key = LeakyBucketKey(LeakyBucket(10, burst=9, delay=None))
    key.decide(0, 10)
    first = key.receipt
    key.decide(1000, 10)
    assert key.give_back(1000, first) is False
    assert key.remaining(1000) == 0
    assert key.give_back(500, first) is False  # nor when the clock steps back to before it had drained
    key = LeakyBucketKey(LeakyBucket(10, burst=9, delay=None))
    key.decide(0, 10)
    first = key.receipt
    key.decide(400, 4)
    assert key.give_back(400, first) is True
    assert key.remaining(400) == 6
    assert key.give_back(400, first._replace(refunded_units=6)) is False


def test_a_cancelled_reservation_frees_its_place_unless_it_was_served() -> None:
    key = LeakyBucketKey(LeakyBucket(1, delay=None))
    key.decide(0)
    key.decide(0, 1, FOREVER_US)
    assert key.decide(0)[2] == 2000
    assert key.give_back(1000, key.receipt, cancel=True) is True
    assert key.decide(1000) == (True, 0, 0)
    key = LeakyBucketKey(LeakyBucket(1, burst=9))
    key.decide(0, 3)
    assert key.receipt.delay_us == 2_000_000
    assert key.give_back(2001, key.receipt, cancel=True) is False
    assert key.give_back(2000, key.receipt, cancel=True) is True


def test_a_cancelled_place_keeps_the_units_that_later_reservations_wait_for() -> None:
    key = LeakyBucketKey(LeakyBucket(1, burst=4, delay=None))
    key.decide(0, 5)
    key.decide(0, 3, FOREVER_US)
    first = key.receipt
    key.decide(0, 2, FOREVER_US)
    assert key.give_back(0, first, cancel=True) is True
    assert key.state is not None
    assert key.state[:2] == (9000, T0 // 1000)
    for delay, water in ((0, 4000), (5, 2000)):  # a turn in the queue as well, but not a unit waved through
        key = LeakyBucketKey(LeakyBucket(1, burst=9, delay=delay))
        key.decide(0, 3)
        first = key.receipt
        key.decide(0, 2)
        assert key.give_back(0, first, cancel=True) is True
        assert key.state is not None
        assert key.state[:2] == (water, T0 // 1000)


def test_a_changed_limit_keeps_the_queue() -> None:
    key = LeakyBucketKey(LeakyBucket(10, burst=20))
    key.decide(0, 15)
    key.limit = LeakyBucket(1, burst=5)
    assert key.decide(0) == (False, 15_000, 10_000)
    key.limit = LeakyBucket(100, burst=50)
    assert key.decide(0)[1] == 15_000
    # A debt of a faster limit is cut to the deepest of this one.
    slow = LeakyBucket(1, per=1000)
    state = (2**52, T0 // 1000, 0, 0)
    outcome, _ = decide(slow, state, T0, 1)
    assert outcome[RETRY_AFTER_US] == (slow.max_water + 1000 - slow.capacity) * 1_000_000
    assert outcome[MARK] == slow.max_water
    assert (
        dead_at_us(slow, state) - T0 - MAX_CLOCK_SWING_US == outcome[RESET_AFTER_US] == slow.max_water * 1_000_000
    )


def test_a_limit_prints_its_text_form() -> None:
    assert LeakyBucket(6, 60, 5).text == "6/minute queue 5"
    assert LeakyBucket(6, 60).text == "6/minute queue 0"
    assert LeakyBucket(6, 60, 5, None).text == "6/minute queue 5 nodelay"
    assert LeakyBucket(6, 60, 5, 3).text == "6/minute queue 5 delay 3"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((3, 3600), "too slow.*at least one unit per 1000 s.*3/hour burst 1"),
        ((0,), "amount of a leaky bucket must be a whole number"),
        ((1, 1, -1), "queue of a leaky bucket must be a whole number"),
        ((1, 1, 1, -1), "delay of a leaky bucket must be a whole number"),
        ((1, 1000, 10**12), "cannot be exact.*100 years"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_with_a_sentence(args: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(InvalidRule, match=sentence):
        LeakyBucket(*args)


# --- Laws


@given(limits, arrivals, st.integers(2, 6))
def test_taking_n_is_taking_one_n_times(limit: LeakyBucket, steps: Steps, cost: int) -> None:
    state, now_us = walk(limit, steps)
    once, after_once = decide(limit, state, now_us, cost)
    answers = []
    for _ in range(cost):
        outcome, state = decide(limit, state, now_us, 1)
        answers.append(outcome)
    assert once[ALLOWED] == all(outcome[ALLOWED] for outcome in answers)
    if once[ALLOWED]:
        assert once == answers[-1]
        assert after_once == state


@given(limits, arrivals, st.integers(0, 40))
def test_a_denied_charge_passes_exactly_at_its_retry(limit: LeakyBucket, steps: Steps, cost: int) -> None:
    state, now_us = walk(limit, steps)
    outcome, after = decide(limit, state, now_us, cost)
    assert after is state or (outcome[ALLOWED] and cost)
    retry_us = outcome[RETRY_AFTER_US]
    if outcome[ALLOWED]:
        assert retry_us == 0
    elif retry_us is None:
        assert cost > limit.burst + 1
    else:
        assert (now_us + retry_us) % 1000 == 0
        assert decide(limit, state, now_us + retry_us, cost)[0][ALLOWED]
        assert not decide(limit, state, now_us + retry_us - 1, cost)[0][ALLOWED]


@given(limits, arrivals)
def test_remaining_is_what_a_take_could_get(limit: LeakyBucket, steps: Steps) -> None:
    state, now_us = walk(limit, steps)
    remaining = decide(limit, state, now_us, 0)[0][REMAINING]
    assert not decide(limit, state, now_us, remaining + 1)[0][ALLOWED]
    assert remaining == 0 or decide(limit, state, now_us, remaining)[0][ALLOWED]


@given(limits, arrivals, st.lists(patiences, min_size=30, max_size=30))
def test_no_span_passes_more_than_its_share_and_nobody_overtakes(
    limit: LeakyBucket, steps: Steps, patience: list[int | None]
) -> None:
    state: State | None = None
    now_us = T0
    served: list[tuple[int, int]] = []
    for (gap_us, cost), patience_us in zip(steps, patience, strict=False):
        now_us += gap_us
        outcome, state = decide(limit, state, now_us, cost, patience_us)
        if outcome[ALLOWED]:
            served.append(((now_us + outcome[DELAY_US]) // 1000, cost))
    assert served == sorted(served, key=lambda one: one[0])
    for i, (start_ms, _) in enumerate(served):
        units = 0
        for end_ms, cost in served[i:]:
            units += cost
            assert units * 1000 <= limit.capacity + limit.rate * (end_ms - start_ms + 1) // 1000


@given(limits, arrivals, st.integers(0, 10**9), st.integers(0, 40), st.none() | st.integers(0, 10**9))
def test_a_forgotten_key_answers_as_the_kept_one(
    limit: LeakyBucket, steps: Steps, later_us: int, cost: int, patience_us: int | None
) -> None:
    state, _ = walk(limit, [(0, 1), *steps])
    assert state is not None
    now_us = dead_at_us(limit, state) + later_us
    outcome, after = decide(limit, state, now_us, cost, patience_us)
    forgotten, fresh = decide(limit, None, now_us, cost, patience_us)
    assert outcome == forgotten
    assert after == fresh or not (outcome[ALLOWED] and cost)
    before_us = dead_at_us(limit, state) - MAX_CLOCK_SWING_US - 1
    assert decide(limit, state, before_us, 0)[0] != decide(limit, None, before_us, 0)[0]


@given(limits, arrivals, st.integers(1, 10**8))
def test_a_clock_that_steps_back_drains_nothing(limit: LeakyBucket, steps: Steps, back_us: int) -> None:
    state, now_us = walk(limit, steps)
    here = decide(limit, state, now_us, 0)[0][MARK]
    there = decide(limit, state, now_us - back_us, 0)[0][MARK]
    assert there >= here - (limit.rate // 1000 if back_us > 59_999_000 else 0)


@given(limits, arrivals, st.integers(1, 6), arrivals, st.integers(0, 10**6))
def test_a_refund_never_leaves_less_water_than_had_the_charge_not_been_made(
    limit: LeakyBucket, before: Steps, cost: int, later: Steps, gap_us: int
) -> None:
    without, now_us = walk(limit, before)
    outcome, state = decide(limit, without, now_us, cost)
    if not outcome[ALLOWED]:
        return
    for step_us, units in later:
        now_us += step_us
        passed, after = decide(limit, state, now_us, units)
        if passed[ALLOWED]:
            state = after
            without = decide(limit, without, now_us, units)[1]
    now_us += gap_us
    given_back = refund(limit, state, now_us, cost, Receipt.from_outcome(outcome, cost), False)
    if given_back is not None:
        assert given_back[0] >= 0
        held = decide(limit, given_back, now_us, 0)[0][MARK]
        assert held >= decide(limit, without, now_us, 0)[0][MARK]


@given(limits, arrivals, st.integers(1, 6), st.none() | st.integers(0, 10**8), st.booleans())
def test_a_refund_at_once_restores_what_was(
    limit: LeakyBucket, steps: Steps, cost: int, patience_us: int | None, cancel: bool
) -> None:
    state, now_us = walk(limit, steps)
    outcome, after = decide(limit, state, now_us, cost, patience_us)
    if outcome[ALLOWED]:
        restored = refund(limit, after, now_us, cost, Receipt.from_outcome(outcome, cost), cancel)
        assert restored is not None
        before = decide(limit, state, now_us, 0)[0]
        again = decide(limit, restored, now_us, 0)[0]
        assert again[MARK] == before[MARK]
        assert again[REMAINING] == before[REMAINING]


@given(st.tuples(st.integers(0, 2**52), st.integers(0, 2**43), st.integers(1, 2**40), st.integers(1, 2**43)))
def test_the_stored_form_reads_back(state: State) -> None:
    assert unpack(pack(state)) == state


def test_a_clock_set_back_locks_out_for_two_minutes_at_most() -> None:
    """Up to 120 s exactly as nginx; further back a refusal starts the drain again."""
    key = LeakyBucketKey(LeakyBucket(10, burst=9, delay=None))
    key.decide(0, 10)
    assert key.decide(-120_000) == (False, 10_000 - 10, 120_000 + 100)
    assert key.state == (10_000, T0 // 1000, 0, 0)
    allowed, _, wait = key.decide(-3_600_000)
    assert (allowed, wait) == (False, 99)
    assert key.decide(-3_600_000 + 99)[0] is True
