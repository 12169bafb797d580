"""Clocks that drift, swing and are set back, for every algorithm: no unit is minted, no key is locked out.

The judge keeps the highest reading since the clock was last set back: that is, since it read more than
MAX_CLOCK_SWING_US less than the highest. `forward_us` is how far the highest reading has moved on in all: the
advance of the clock's running maximum and the sum of all steps back, for after a step the way is gone again.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.algorithms import algorithm
from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import HORIZON_US, MAX_CLOCK_SWING_US, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.limit_syntax import parse

BUCKETS = (TokenBucket, LeakyBucket, Smooth)
START_US = 1_700_000_000_000_000
NGINX_LOCKOUT_US = 120_000_000

LIMITS = (
    *("1000/s burst 10", "10/s burst 3", "7/s burst 2", "700000/s burst 50", "1/minute burst 2"),
    *("50/s fixed", "3/1ms fixed", "20/minute fixed", "50/s sliding", "3/100ms sliding", "20/s sliding cells 1"),
    *("20/s log", "3/1ms log", "5/minute log", "10/s queue 4 nodelay", "1000/s queue 0", "10/s queue 3"),
    *("10/s smooth", "100/s smooth burst 100ms", "10/s smooth warmup 1s"),
)


class SteppingClockKey:
    """One key under one limit, and what the judge saw of its clock."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.model = algorithm(limit)
        self.state: Any = None
        self.now_us = self.highest_us = START_US
        self.forward_us = self.steps = self.passed = 0
        self.spans = [[START_US, START_US]]  # the highest readings, from step to step
        self.receipts: list[Receipt] = []
        self.delay_us = self.served_us = 0  # the longest that a charge was told to wait, and the latest

    def read(self, now_us: int) -> None:
        self.now_us = now_us
        if self.state is None:  # What was read before the first charge proves nothing.
            self.highest_us = now_us
            self.spans = [[now_us, now_us]]
        if now_us > self.highest_us:
            self.forward_us += now_us - self.highest_us
            self.highest_us = now_us
        elif now_us < self.highest_us - MAX_CLOCK_SWING_US:
            # What a state proves may lie up to a swing after the reading that was a step, and be followed later,
            # by a reading that is up to a swing less.
            self.forward_us += MAX_CLOCK_SWING_US
            self.highest_us = now_us
            self.steps += 1
            self.spans.append([now_us - MAX_CLOCK_SWING_US, now_us])
        self.spans[-1][1] = self.highest_us

    def runs(self, cell_us: int, cells: int) -> int:
        """Returns how many runs of so many cells the highest readings went through, those anew that they went back
        to.
        """
        return sum(-(-(last_us // cell_us - first_us // cell_us + 1) // cells) for first_us, last_us in self.spans)

    def take(self, cost: int, patience_us: int | None = None) -> Outcome:
        outcome, after = self.model.decide(self.limit, self.state, self.now_us, cost, patience_us)
        if not outcome[0] and not self.steps:
            assert after is self.state, "a refusal on a clock that only swings leaves no trace"
        if after is not self.state:
            self.state = after if self.model.write_pending is None else self.model.write_pending(self.limit, after)
        if outcome[0]:
            self.passed += cost
            self.receipts.append(Receipt.from_outcome(outcome, cost))
            self.delay_us = max(self.delay_us, outcome[4])
            self.served_us = max(self.served_us, self.now_us + outcome[4])
        return outcome

    def give_back(self, which: int, units: int, cancel: bool) -> None:
        """Some units of one of the last charges."""
        if self.receipts:
            which = -1 - which % len(self.receipts)
            receipt = self.receipts[which]
            units = min(units, receipt.cost - receipt.refunded_units)
            after = (
                self.model.refund(self.limit, self.state, self.now_us, units, receipt, cancel) if units else None
            )
            self.state = self.state if after is None else after
            self.receipts[which] = receipt._replace(refunded_units=receipt.refunded_units + units)

    @property
    def bound(self) -> float:
        """Returns how many units may have passed."""
        limit, forward_us, again = self.limit, self.forward_us, 1 + self.steps
        match limit:
            case TokenBucket():
                return limit.burst + forward_us * limit.amount / limit.period_us
            case LeakyBucket():
                return limit.burst + 1 + (forward_us + 1000 * again) * limit.rate / 10**9
            case Smooth():
                # What rounding prices down is worth a microsecond each; the last charge is on top.
                return limit.store + 4 + (forward_us + self.passed) / limit.interval_us
            case FixedWindow():
                return limit.amount * self.runs(limit.period_us, 1)
            case SlidingWindow():
                return limit.amount * self.runs(limit.cell_us, limit.cells)
            case SlidingLog():
                return limit.amount * (again + forward_us // limit.period_us)
        raise AssertionError(limit)

    @property
    def expected_wait_us(self) -> int:
        """The longest that the limit itself makes a charge of up to 3 units wait."""
        limit = self.limit
        match limit:
            case TokenBucket():
                return -(-limit.capacity // limit.amount)
            case LeakyBucket():
                return limit.capacity * 10**6 // limit.rate + 1000 + NGINX_LOCKOUT_US
            case Smooth():
                return int(limit.interval_us * 3 * 3) + 1
            case SlidingWindow():
                return int(limit.cell_us * limit.cells)
            case FixedWindow() | SlidingLog():
                return int(limit.period_us)
        raise AssertionError(limit)

    def wait_us(self, cost: int) -> int:
        """The longest that a full bucket itself makes a charge wait."""
        limit = self.limit
        match limit:
            case TokenBucket():
                return -(-cost * limit.period_us // limit.amount)
            case LeakyBucket():
                return -(-cost * 10**6 // limit.rate) * 1000 + 1000
        return self.expected_wait_us


# How the clock is read next: so much later, so much earlier than the highest reading, or set back.
moves = st.one_of(
    st.tuples(st.just("on"), st.sampled_from([0, 1, 500, 1000, 20_000, 1_000_000, 61_000_000])),
    st.tuples(st.just("on"), st.integers(0, 3_000_000)),
    st.tuples(st.just("swing"), st.sampled_from([1, 1000, 50_000, MAX_CLOCK_SWING_US])),
    st.tuples(st.just("swing"), st.integers(0, MAX_CLOCK_SWING_US)),
    st.tuples(
        st.just("back"), st.sampled_from([MAX_CLOCK_SWING_US + 1, 150_000, 10**6, 59 * 10**6, 3600 * 10**6])
    ),
)
histories = st.lists(st.tuples(moves, st.integers(1, 3), st.integers(1, 12)), min_size=1, max_size=40)
swings = st.lists(
    st.tuples(moves.filter(lambda move: move[0] != "back"), st.integers(1, 3), st.integers(1, 12)), max_size=40
)


def live(text: str, history: list[tuple[tuple[str, int], int, int]]) -> SteppingClockKey:
    life = SteppingClockKey(parse(text))
    for (kind, us), cost, times in history:
        life.read((life.now_us if kind == "on" else life.highest_us) + (us if kind == "on" else -us))
        for _ in range(times):
            life.take(cost)
        assert life.passed <= life.bound, (kind, us)
    return life


@pytest.mark.parametrize("text", LIMITS)
@example(history=[(("swing", 1000 * (n % 2)), 1, 12) for n in range(40)])
@example(history=[(("on", 999_999), 1, 12), *((("swing", n % 2), 1, 12) for n in range(20))])
@given(history=swings)
def test_a_clock_that_swings_mints_nothing(text: str, history: list[tuple[tuple[str, int], int, int]]) -> None:
    live(text, history)


@pytest.mark.parametrize("text", LIMITS)
@given(history=histories)
def test_a_clock_that_is_set_back_mints_the_way_back_at_most(
    text: str, history: list[tuple[tuple[str, int], int, int]]
) -> None:
    live(text, history)


@pytest.mark.parametrize("text", LIMITS)
@given(history=histories, cost=st.integers(1, 3))
def test_a_clock_swing_adds_at_most_the_maximum_swing_to_a_wait(
    text: str, history: list[tuple[tuple[str, int], int, int]], cost: int
) -> None:
    life = live(text, history)
    retry_us = life.take(cost)[2]
    if retry_us is None:
        return  # More than this limit can ever hold.
    assert retry_us <= life.expected_wait_us + MAX_CLOCK_SWING_US
    life.read(life.now_us + retry_us)
    assert not retry_us or life.take(cost)[0]


# A move, and what follows: for how many units, and how many times or on which of the last charges.
Doing = tuple[tuple[str, int], str, int, int]
doings = st.lists(
    st.tuples(
        moves, st.sampled_from(["take", "reserve", "refund", "cancel"]), st.integers(1, 3), st.integers(0, 12)
    ),
    max_size=40,
)


@pytest.mark.parametrize("text", [text for text in LIMITS if isinstance(parse(text), BUCKETS)])
@example(history=[(("on", 0), "take", 1, 12), *[(("on", -99_000), "refund", 1, 0)] * 2], cost=1)
@given(history=doings, cost=st.integers(1, 3))
def test_a_clock_swing_adds_at_most_the_maximum_swing_with_reservations_and_refunds(
    text: str, history: list[Doing], cost: int
) -> None:
    """No longer than it may swing, besides the limit's own wait and what a reservation was told. Where it was not
    set back, nobody waits longer than behind the last reservation, or the highest reading."""
    life = SteppingClockKey(parse(text))
    for (kind, us), verb, units, times in history:
        life.read((life.now_us if kind == "on" else life.highest_us) + (us if kind == "on" else -us))
        if verb in ("take", "reserve"):
            for _ in range(times):
                life.take(units, None if verb == "take" else HORIZON_US)
        else:
            life.give_back(times, units, verb == "cancel")
        retry_us = life.take(cost)[2] or 0
        clock_us = NGINX_LOCKOUT_US if isinstance(life.limit, LeakyBucket) else MAX_CLOCK_SWING_US
        assert retry_us <= life.wait_us(cost) + life.delay_us + clock_us
        if not life.steps:
            assert life.now_us + retry_us <= max(life.highest_us, life.served_us) + life.wait_us(cost)


@pytest.mark.parametrize("text", LIMITS)
@given(history=histories, later_us=st.integers(0, 10**6), cost=st.integers(0, 3), back_us=st.integers(0, 10**5))
def test_a_dead_state_says_no_more_than_none_even_if_the_clock_swings_back(
    text: str, history: list[tuple[tuple[str, int], int, int]], later_us: int, cost: int, back_us: int
) -> None:
    """A server forgets a state when it is dead by its highest reading, and then reads less again."""
    life = live(text, history)
    if life.state is None or isinstance(life.limit, Smooth):
        return  # A smooth burst that is forgotten starts anew, with less.
    dead_us = life.model.dead_at_us(life.limit, life.state) + later_us - min(back_us, MAX_CLOCK_SWING_US)
    if dead_us >= life.highest_us:
        outcome, _ = life.model.decide(life.limit, life.state, dead_us, cost)
        assert outcome == life.model.decide(life.limit, None, dead_us, cost)[0]
