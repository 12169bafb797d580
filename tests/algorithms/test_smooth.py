"""The laws of smooth pacing, and its stories in time.

The reason for its length: one algorithm, told on one key class.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.decision import (
    ALLOWED,
    DELAY_US,
    REMAINING,
    RESET_AFTER_US,
    RETRY_AFTER_US,
    Outcome,
    Receipt,
)
from headgate.algorithms.limit import DAY, HORIZON_US, MAX_CLOCK_SWING_US
from headgate.algorithms.smooth import Smooth, State, dead_at_us, decide, pack, refund, retune, unpack
from headgate.errors import InvalidRule

T0 = 1_700_000_000_000_000


class SmoothKey:
    """One key that lives through a story, in seconds: what comes back is kept, as an engine would."""

    def __init__(self, limit: Smooth) -> None:
        self.limit = limit
        self.state: State | None = None

    def decide(self, at: float, cost: int = 1, patience: float | None = None) -> tuple[bool, float | None]:
        """Allowed; the wait in seconds if it was, else retry_after (None never)."""
        patience_us = None if patience is None else round(patience * 1_000_000)
        now_us = T0 + round(at * 1_000_000)
        outcome, self.state = decide(self.limit, self.state, now_us, cost, patience_us)
        if outcome[ALLOWED] and cost:
            self.receipt = Receipt.from_outcome(outcome, cost)
        wait_us = outcome[DELAY_US] if outcome[ALLOWED] else outcome[RETRY_AFTER_US]
        return outcome[ALLOWED], None if wait_us is None else wait_us / 1_000_000

    @property
    def level_and_time(self) -> tuple[float, int]:
        assert self.state is not None
        return self.state[0], self.state[1] - T0

    def acquire(self, at: float, cost: int = 1) -> float | None:
        return self.decide(at, cost, 1e9)[1]

    def remaining(self, at: float) -> int:
        return decide(self.limit, self.state, T0 + round(at * 1_000_000), 0)[0][REMAINING]

    def give_back(self, at: float, receipt: Receipt, units: int | None = None, cancel: bool = False) -> bool:
        now_us = T0 + round(at * 1_000_000)
        after = refund(self.limit, self.state, now_us, units or receipt.cost, receipt, cancel)
        self.state = after or self.state
        return after is not None


rates = st.sampled_from([0.5, 1, 3, 7.5, 10, 33.3, 100, 1000, 700_000, 1_000_000])
bursty = st.builds(Smooth, rates, burst=st.sampled_from([0, 0.1, 1, 2, 10]))
warming = st.builds(Smooth, rates, warmup=st.sampled_from([0.01, 1, 3, 10]), cold=st.sampled_from([1, 1.5, 3, 5]))
limits = bursty | warming
# (gap in units' intervals, cost, patience in us)
Steps = list[tuple[float, int, "int | None"]]
arrivals = st.lists(
    st.tuples(st.floats(0, 20), st.integers(1, 30), st.none() | st.integers(0, 10**8)), min_size=1, max_size=25
)


def walk(limit: Smooth, steps: Steps, state: State | None = None) -> tuple[State, int]:
    """The state after those arrivals, and the instant of the last."""
    state = state or retune(limit, None, T0)
    now_us = state[2]
    for gap, cost, patience_us in steps:
        now_us += int(gap * limit.interval_us)
        state = decide(limit, state, now_us, cost, patience_us)[1] or state
    return state, now_us


def reserve(limit: Smooth, state: State | None, now_us: int, cost: int) -> tuple[Outcome, State]:
    outcome, after = decide(limit, state, now_us, cost, 10**15)
    assert after is not None
    return outcome, after


def full_us(limit: Smooth, state: State) -> float:
    """The instant at which the store would be full: every charge of a burst pushes it by its worth."""
    return state[1] + (limit.store - state[0]) * limit.cool_us


# --- Stories


def test_the_next_one_pays() -> None:
    key = SmoothKey(Smooth(5))
    assert [key.acquire(0), key.acquire(0, 4), key.acquire(0)] == [0, 0.2, 1.0]
    assert [key.decide(1.1), key.decide(1.2)] == [(False, 0.1), (True, 0)]


def test_a_burst_is_saved_while_idle() -> None:
    key = SmoothKey(Smooth(10, burst=2))
    assert key.remaining(0) == 1  # nothing saved yet
    key.decide(0)
    assert (key.remaining(0), key.remaining(0.6), key.remaining(100)) == (0, 6, 21)
    assert [key.decide(100)[0] for _ in range(22)] == [True] * 21 + [False]
    key = SmoothKey(Smooth(10, burst=0))  # every unit keeps its distance
    assert [key.decide(0), key.decide(100), key.decide(100)] == [(True, 0), (True, 0), (False, 0.1)]
    assert dead_at_us(key.limit, key.state or retune(key.limit, None, 0)) == T0 + 100_200_000


def test_a_warm_up_starts_cold_and_warms_with_demand() -> None:
    """Guava's own table: 2/s, 4 s of warm-up, cold 3."""
    key = SmoothKey(Smooth(2, warmup=4))
    waits = [key.acquire(0) or 0.0 for _ in range(8)]
    assert [b - a for a, b in pairwise(waits)] == [1.375, 1.125, 0.875, 0.625, 0.5, 0.5, 0.5]
    assert (key.remaining(0), key.remaining(100)) == (0, 1)


def test_a_changed_rate_is_guavas() -> None:
    """Recorded from Guava 31.1: the start of guava_066_setrate."""
    limit, faster = Smooth(250.0, warmup=1), Smooth(425.0, warmup=1)
    _, state = reserve(limit, retune(limit, None, 0), 721, 1)
    assert state[:2] == (249.0, 12_689)
    assert retune(faster, state, 12_690) == (423.30042499999996, 12_690, 12_690, faster.args, 0, 0)
    assert reserve(faster, state, 12_690, 1) == reserve(faster, retune(faster, state, 12_690), 12_690, 1)
    key = SmoothKey(Smooth(1))
    key.decide(0, 10)
    key.limit = Smooth(100)
    assert key.decide(0) == (False, 10)  # debt already granted stays
    # Between burst and warm-up one starts as new.
    burst, warm = Smooth(10), Smooth(10, warmup=5)
    _, saved = reserve(burst, None, T0, 3)
    assert retune(warm, saved, T0 + 9_000_000)[0] == warm.store
    _, cold = reserve(warm, None, T0, 1)
    assert retune(burst, cold, T0 + 90_000_000)[0] == 0
    none_saved = retune(Smooth(10, burst=0), saved, T0 + 9_000_000)
    assert retune(burst, none_saved, T0 + 9_000_000)[0] == 0


def test_the_clock_steps_back_and_debt_and_store_are_kept() -> None:
    key = SmoothKey(Smooth(10))
    key.decide(0)
    key.decide(0.55, 6)
    assert key.decide(0.55) == (False, 0.15)
    assert key.decide(-3600) == (False, 0.15)
    assert key.decide(-3599.85) == (True, 0)  # the refusal has put the state right: nobody waits for the hour
    assert key.decide(-7200, 1, 1.0) == (True, 0.1)
    assert key.decide(-7199.8) == (True, 0)


def test_debt_ends_at_the_horizon() -> None:
    key = SmoothKey(Smooth(1))
    most = key.limit.max_units
    assert most == HORIZON_US // 1_000_000
    assert key.decide(0, most + 1) == key.decide(0, most + 1, 1e9) == (False, None)
    assert key.decide(0, most) == (True, 0)
    assert key.decide(0, 1, 1e9) == (False, most)
    assert key.decide(most, most) == (True, 0)
    rested = SmoothKey(Smooth(1, burst=10))
    rested.decide(0)
    assert rested.decide(100, most + 1) == (False, None)  # never, whatever is saved


def test_a_refund_opens_the_window_and_refills_the_store() -> None:
    key = SmoothKey(Smooth(10))
    key.decide(0)
    key.decide(0.5, 6)  # four saved, two to be paid for
    assert key.give_back(0.5, key.receipt, units=1)
    assert key.decide(0.5) == (False, 0.1)
    assert key.give_back(0.5, key.receipt._replace(refunded_units=1))
    assert key.remaining(0.5) == 5
    assert key.give_back(0.5, key.receipt._replace(refunded_units=6)) is False
    # What has drained is not given back twice.
    key = SmoothKey(Smooth(10))
    key.decide(0)
    key.decide(10, 10)
    first = key.receipt
    assert key.give_back(10.6, first._replace(refunded_units=5)) is False
    key.decide(11.5, 10)
    assert key.give_back(11.5, first) is False
    assert key.remaining(11.5) == 1
    key = SmoothKey(Smooth(10))
    key.decide(0)
    assert [key.give_back(1.1, key.receipt), key.give_back(1.099999, key.receipt)] == [False, True]


def test_a_refund_cools_the_warm_up_again() -> None:
    key = SmoothKey(Smooth(2, warmup=4))
    key.decide(0, 4)
    assert key.level_and_time == (4.0, 4_000_000)
    assert key.give_back(1, key.receipt)
    assert key.level_and_time == (8.0, 1_000_000)
    key = SmoothKey(Smooth(2, warmup=4))
    key.decide(0, 2)
    assert key.give_back(0, key.receipt, units=1)
    assert key.level_and_time == (7.0, 1_375_000)  # as if one had been taken, the dearest
    assert key.give_back(1.3, key.receipt._replace(refunded_units=1)) is False


def test_a_refund_under_a_later_charge_opens_no_window_of_a_warm_up() -> None:
    key = SmoothKey(Smooth(1, warmup=2, cold=1))
    key.acquire(0, 4)
    first = key.receipt
    assert key.acquire(0, 4) == 4  # is served then, and pays until 8
    before = key.level_and_time
    assert key.give_back(0, first) is False
    assert key.level_and_time == before


def test_a_reservation_is_cancelled_whole_or_not_at_all() -> None:
    for limit in (Smooth(10), Smooth(10, warmup=5)):
        key = SmoothKey(limit)
        key.decide(0, 5)
        before = key.level_and_time
        key.acquire(0, 3)
        assert key.give_back(0.1, key.receipt, cancel=True)
        assert key.level_and_time == before
        key.acquire(0.1, 3)
        first = key.receipt
        key.acquire(0.1, 1)
        assert key.give_back(0.1, first, cancel=True) is False
        served = (key.receipt.served_us - T0) / 1_000_000
        assert key.give_back(served + 0.000001, key.receipt, cancel=True) is False
        assert key.give_back(served, key.receipt, cancel=True) is True


def test_a_limit_prints_its_text_form() -> None:
    assert (Smooth(10.0, 60).text, Smooth(0.5).text) == ("10/minute smooth", "0.5/s smooth")
    assert Smooth(10, warmup=60, cold=4).text == "10/s smooth warmup 1m cold 4"
    assert Smooth(10, warmup=0.25, cold=1.5).text == "10/s smooth warmup 250ms cold 1.5"
    assert (Smooth(10, burst=2).text, Smooth(10, burst=0).text) == ("10/s smooth burst 2s", "10/s smooth burst 0s")


def test_a_limit_that_cannot_be_is_refused_with_a_sentence() -> None:
    refused: dict[tuple[float, ...], str] = {
        (0,): "amount of a smooth limit must be a number",
        (10, 1, 5, 0.5): "cold factor of a smooth limit must be a number",
        (10, 1, -5): "warm-up of a smooth limit must be between",
        (10, 1, 0, 4): "either warms up, with a cold factor, or saves a burst",
        (10, 1, 5, 3, 2): "either warms up, with a cold factor, or saves a burst",
        (1_000_001,): "one unit in 366 days and 1,000,000 a second",
        (1, 1, 0, 3, 10**9): "longer than 366 days",
        (1, 300 * 86_400, 5): "when cold, one unit would take more than 366 days",
    }
    for args, sentence in refused.items():
        with pytest.raises(InvalidRule, match=sentence):
            Smooth(*args)


# --- Laws


@given(limits, arrivals, st.integers(0, 60), st.none() | st.integers(0, 10**7))
def test_a_denied_charge_passes_exactly_at_its_retry(
    limit: Smooth, steps: Steps, cost: int, patience_us: int | None
) -> None:
    state, now_us = walk(limit, steps)
    outcome, after = decide(limit, state, now_us, cost, patience_us)
    assert after is state or (outcome[ALLOWED] and cost)
    retry_us = outcome[RETRY_AFTER_US] or 0
    if outcome[ALLOWED]:
        assert retry_us == 0
        assert outcome[DELAY_US] == max(0, state[1] - now_us)
    else:
        assert decide(limit, state, now_us + retry_us, cost)[0][ALLOWED]
        assert not decide(limit, state, now_us + retry_us - 1, cost)[0][ALLOWED]
        assert decide(limit, state, now_us, cost or 1, retry_us)[0][DELAY_US] == retry_us


@given(limits, arrivals)
def test_remaining_units_pass_one_by_one(limit: Smooth, steps: Steps) -> None:
    state, now_us = walk(limit, steps)
    remaining, stored = decide(limit, state, now_us, 0)[0][REMAINING], retune(limit, state, now_us)[0]
    if limit.store < 1000:
        for _ in range(remaining):
            outcome, state = reserve(limit, state, now_us, 1)
            assert outcome[DELAY_US] == 0
        # A last unit that lacks less than a microsecond's worth costs nothing, as in Guava.
        if limit.warmup_us or (math.ceil(stored) - stored) * limit.interval_us > 1 or stored == int(stored):
            assert not decide(limit, state, now_us, 1)[0][ALLOWED]


@given(limits, arrivals)
def test_no_span_passes_more_than_its_share_and_nobody_overtakes(limit: Smooth, steps: Steps) -> None:
    state: State | None = None
    now_us = T0
    served: list[tuple[int, int]] = []
    for gap, cost, patience_us in steps:
        now_us += int(gap * limit.interval_us)
        outcome, state = decide(limit, state, now_us, cost, patience_us)
        if outcome[ALLOWED]:
            served.append((now_us + outcome[DELAY_US], cost))
    assert served == sorted(served, key=lambda one: one[0])
    for i, (start_us, _) in enumerate(served):
        units = 0
        for n, (end_us, cost) in enumerate(served[i:]):
            # Each price may have lost a microsecond three times over to rounding, as in Guava.
            spent = (units * limit.interval_us) - 3 * n
            room_us = 0.0 if limit.warmup_us else limit.store * limit.interval_us
            assert spent <= room_us + end_us - start_us + 1e-3
            units += cost


@given(warming, arrivals, st.integers(0, 10**9), st.integers(0, 60), st.none() | st.integers(0, 10**9))
def test_a_forgotten_warm_up_answers_as_the_kept_one(
    limit: Smooth, steps: Steps, later_us: int, cost: int, patience_us: int | None
) -> None:
    state, now_us = walk(limit, steps)
    full_us = state[2] + decide(limit, state, state[2], 0)[0][RESET_AFTER_US]
    assert dead_at_us(limit, state) == full_us + MAX_CLOCK_SWING_US
    now_us = dead_at_us(limit, state) + later_us
    outcome, after = decide(limit, state, now_us, cost, patience_us)
    forgotten, fresh = decide(limit, None, now_us, cost, patience_us)
    assert outcome == forgotten
    assert after == fresh or not (outcome[ALLOWED] and cost)


@given(bursty, arrivals, st.integers(0, 10**9), arrivals)
def test_a_forgotten_burst_never_gets_more_than_the_kept_one(
    limit: Smooth, steps: Steps, later_us: int, then: Steps
) -> None:
    state, _ = walk(limit, steps)
    now_us = dead_at_us(limit, state) + later_us
    assert limit.store == 0 or dead_at_us(limit, state) >= max(state[1] + DAY, full_us(limit, state))
    forgotten: State | None = None
    for gap, cost, _ in then:
        now_us += int(gap * limit.interval_us)
        first, state = reserve(limit, state, now_us, cost)
        other, forgotten = reserve(limit, forgotten, now_us, cost)
        assert first[DELAY_US] <= other[DELAY_US] + 1


@given(limits, arrivals, st.integers(1, 10**12))
def test_a_clock_that_steps_back_keeps_debt_and_store(limit: Smooth, steps: Steps, back_us: int) -> None:
    state, _ = walk(limit, steps)
    stamp_us = state[2]
    there, moved = decide(limit, state, stamp_us - back_us, 0)
    allowed, remaining, wait_us, reset_us, *_ = decide(limit, state, stamp_us, 0)[0]
    if back_us > MAX_CLOCK_SWING_US:
        assert there[:4] == (allowed, remaining, wait_us, reset_us)
        assert moved == (state[0], state[1] - back_us, stamp_us - back_us, *state[3:])
    else:
        assert there[:4] == (allowed, remaining, wait_us and wait_us + back_us, reset_us + back_us)
        assert moved is state


@given(limits, limits, arrivals, st.integers(0, 10**8))
def test_a_changed_limit_keeps_debt_and_saves_no_fresh_burst(
    limit: Smooth, other: Smooth, steps: Steps, later_us: int
) -> None:
    state, now_us = walk(limit, [*steps, (later_us / limit.interval_us, limit.max_units + 1, None)])
    after = retune(other, state, now_us)
    assert after[1] == max(state[1], now_us)
    if not other.warmup_us:
        share = retune(limit, state, now_us)[0] / limit.store if limit.store else 0.0
        assert after[0] <= share * other.store * (1 + 1e-9)


@given(bursty, arrivals, st.integers(1, 30), arrivals, st.integers(0, 10**6))
def test_a_refund_of_a_burst_never_gives_more_than_had_the_charge_not_been_made(
    limit: Smooth, before: Steps, cost: int, later: Steps, gap_us: int
) -> None:
    without, now_us = walk(limit, before)
    outcome, state = reserve(limit, without, now_us, cost)
    for gap, units, _ in later:
        now_us += int(gap * limit.interval_us)
        _, state = reserve(limit, state, now_us, units)
        _, without = reserve(limit, without, now_us, units)
    now_us += gap_us
    back = refund(limit, state, now_us, cost, Receipt.from_outcome(outcome, cost), False)
    if back is not None:
        assert back[1] >= now_us
        assert 0 <= back[0] <= limit.store
        # Every price is rounded down by less than a microsecond, in one history or in the other.
        assert full_us(limit, back) >= full_us(limit, retune(limit, without, now_us)) - len(later) - 1e-3


@given(limits, arrivals, st.integers(1, 30), arrivals, st.integers(1, 30))
def test_refunding_and_taking_again_gains_nothing(
    limit: Smooth, before: Steps, cost: int, later: Steps, units: int
) -> None:
    state, now_us = walk(limit, before)
    outcome, state = reserve(limit, state, now_us, cost)
    state, now_us = walk(limit, later, state)
    units = min(units, cost)
    back = refund(limit, state, now_us, units, Receipt.from_outcome(outcome, cost), False)
    if back is not None:
        _, again = reserve(limit, back, now_us, units)
        held = retune(limit, state, now_us)
        assert again[1] >= held[1] - 3
        assert again[0] <= held[0] + 3 / limit.interval_us or limit.warmup_us
        assert full_us(limit, again) >= full_us(limit, held) - 3 or limit.warmup_us


@given(limits, arrivals, st.integers(1, 30), st.booleans())
def test_a_refund_at_once_restores_what_was(limit: Smooth, steps: Steps, cost: int, cancel: bool) -> None:
    state, now_us = walk(limit, steps)
    before = retune(limit, state, now_us)
    outcome, after = reserve(limit, state, now_us, cost)
    back = refund(limit, after, now_us, cost, Receipt.from_outcome(outcome, cost), cancel)
    assert back is not None or after[1] == before[1]
    if back is not None and limit.warmup_us:
        assert back[1] == before[1]
        assert back[0] >= before[0] * (1 - 1e-12)
    elif back is not None:
        assert -1e-3 <= full_us(limit, back) - full_us(limit, before) <= 1 + 1e-3


@given(limits, limits, arrivals)
def test_a_state_reads_back_and_expires_by_its_numbers(limit: Smooth, other: Smooth, steps: Steps) -> None:
    state, _ = walk(limit, steps)
    assert unpack(pack(state)) == state
    assert dead_at_us(other, state) == dead_at_us(limit, state)
