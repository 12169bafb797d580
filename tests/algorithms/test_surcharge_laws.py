"""The laws of surcharges, for every algorithm: what a call used beyond its cost is charged exactly, and once.

A surcharge that fits is a take. One that does not fit is a reservation in a bucket, which goes into debt; a window
or a log counts it beyond its amount, and forgets it with the window. Nothing is lost, and nothing is carried over.
"""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms import algorithm
from headgate.algorithms.decision import ALLOWED, REMAINING, RETRY_AFTER_US, Outcome, Receipt
from headgate.algorithms.limit import EXACT, HORIZON_US, MAX_CLOCK_SWING_US, WindowLimit
from headgate.calendar import resolve
from headgate.limit_syntax import parse

START_US = 1_700_000_000_000_000

BUCKETS = (
    *("1/s burst 100", "10/s burst 10", "7/s burst 9", "700000/s burst 50", "1/minute burst 5"),
    *("1/s queue 99 nodelay", "10/s queue 9 nodelay", "7/s queue 8", "9/s queue 9 delay 3"),
)
SMOOTH = ("10/s smooth", "10/s smooth burst 3s", "7/s smooth burst 0s", "10/s smooth warmup 5s")
WINDOWS = (
    *("10/s fixed", "100/minute fixed", "50/day fixed in Asia/Shanghai"),
    *("10/s sliding", "60/minute sliding cells 3", "10/s log", "100/minute log"),
)

# Takes so many seconds apart, and their costs.
takes = st.lists(
    st.tuples(st.sampled_from([0, 0, 0.001, 0.1, 1.0]) | st.floats(0, 90), st.integers(1, 12)), max_size=8
)


class SurchargedKey:
    """One key under one model: takes, reservations and surcharges of its last charge."""

    def __init__(self, text: str) -> None:
        self._limit = parse(text)
        self.model = algorithm(self._limit)
        self.now_us = START_US
        self.state: Any = None
        self.receipt = Receipt(1, START_US, 0, 0, 0)

    @property
    def limit(self) -> Any:
        return resolve(self._limit, self.now_us)

    def play(self, steps: list[tuple[float, int]]) -> SurchargedKey:
        for seconds, cost in steps:
            self.now_us += round(seconds * 1_000_000)
            self.take(min(cost, self.limit.max_cost))
        return self

    def copy(self) -> SurchargedKey:
        """Another key with the same state. A log's ring is written in place, so its text is copied."""
        other = SurchargedKey(self._limit.text)
        other.now_us, other.receipt = self.now_us, self.receipt
        other.state = self.state
        if self._limit.algorithm == "sliding_log" and self.state is not None:
            other.state = (*self.state[:5], self.state[5][:], self.state[6])
        return other

    def take(self, cost: int, patience_us: int | None = None) -> Outcome:
        outcome, after = self.model.decide(self.limit, self.state, self.now_us, cost, patience_us)
        if after is not self.state:
            self._save(after)
        if outcome[ALLOWED] and cost:
            self.receipt = Receipt.from_outcome(outcome, cost)
        return outcome

    def surcharge(self, units: int) -> None:
        after = self.model.surcharge(self.limit, self.state, self.now_us, units, self.receipt)
        if after is not None:
            self._save(after)

    def _save(self, state: Any) -> None:
        write_pending = self.model.write_pending
        self.state = state if write_pending is None else write_pending(self.limit, state)

    def peek(self) -> Outcome:
        return self.copy().take(0)


@pytest.mark.parametrize("text", [*BUCKETS, *SMOOTH, *WINDOWS])
@given(steps=takes, units=st.integers(1, 100))
def test_a_surcharge_that_fits_equals_a_take(text: str, steps: list[tuple[float, int]], units: int) -> None:
    taken = SurchargedKey(text).play(steps)
    units = min(units, taken.limit.max_cost)
    taken.now_us += taken.copy().take(units)[RETRY_AFTER_US] or 0
    surcharged = taken.copy()
    assert taken.take(units)[ALLOWED]
    surcharged.surcharge(units)
    assert surcharged.state == taken.state


@pytest.mark.parametrize("text", [*BUCKETS, *SMOOTH])
@given(steps=takes, debt=st.integers(0, 100), units=st.integers(1, 100))
def test_a_bucket_goes_into_debt_as_by_a_reservation(
    text: str, steps: list[tuple[float, int]], debt: int, units: int
) -> None:
    reserved = SurchargedKey(text).play(steps)
    surcharged = reserved.copy()
    for each in (debt, units):
        each = min(each, reserved.limit.max_cost)
        if each:
            assert reserved.take(each, HORIZON_US)[ALLOWED]
            surcharged.surcharge(each)
    assert surcharged.state == reserved.state


@pytest.mark.parametrize("text", [*BUCKETS, *WINDOWS])
@given(steps=takes, units=st.integers(1, 500), more=st.integers(1, 500))
def test_in_parts_it_is_the_same(text: str, steps: list[tuple[float, int]], units: int, more: int) -> None:
    at_once = SurchargedKey(text).play(steps)
    in_parts = at_once.copy()
    at_once.surcharge(units + more)
    in_parts.surcharge(units)
    in_parts.surcharge(more)
    pack = import_module(f"headgate.algorithms.{at_once.limit.algorithm}").pack
    assert pack(in_parts.state) == pack(at_once.state)


@pytest.mark.parametrize("text", BUCKETS)
@given(
    events=st.lists(
        st.tuples(st.floats(0, 30), st.integers(1, 100), st.sampled_from(["take", "take", "take", "surcharge"])),
        max_size=20,
    )
)
def test_surcharged_units_count_against_the_limit(text: str, events: list[tuple[float, int, str]]) -> None:
    """Over any span up to a take that passed: the units taken and surcharged are at most burst + rate * span."""
    key, counted = SurchargedKey(text), []
    burst, rate = Fraction(key.limit.units_at_once), key.limit.units_per_second / 1_000_000
    for units_later, units, verb in events:
        key.now_us += round(units_later / rate)
        cost = 1 + (units - 1) % key.limit.max_cost
        if verb == "surcharge":
            key.surcharge(units)
            counted.append((key.now_us, units))
        elif key.take(cost)[ALLOWED]:
            counted.append((key.now_us, cost))
            total = Fraction(0)
            for from_us, each in reversed(counted):
                total += each
                assert total <= burst + rate * (key.now_us - from_us + 3000)  # nginx's milliseconds


@pytest.mark.parametrize("text", WINDOWS)
@given(steps=takes, units=st.integers(1, 10**6))
def test_a_window_carries_nothing_over(text: str, steps: list[tuple[float, int]], units: int) -> None:
    key = SurchargedKey(text).play(steps)
    key.surcharge(units)
    limit = key.limit
    assert isinstance(limit, WindowLimit)
    before = SurchargedKey(text).play(steps)
    assert key.peek()[REMAINING] == max(0, before.peek()[REMAINING] - units)
    assert (key.peek()[RETRY_AFTER_US] or 0) <= limit.longest_window_us
    key.now_us += limit.longest_window_us
    assert key.peek()[REMAINING] == limit.amount


@pytest.mark.parametrize("text", [*BUCKETS, *SMOOTH, *WINDOWS])
@given(steps=takes, costs=st.lists(st.integers(1, EXACT), min_size=1, max_size=3))
def test_debt_is_bounded(text: str, steps: list[tuple[float, int]], costs: list[int]) -> None:
    """However much is surcharged, and however often: units pass again 366 days and a refill later."""
    key = SurchargedKey(text).play(steps)
    for cost in costs:
        key.surcharge(cost)
    limit = key.limit
    fill_us = (limit.window_seconds or 0) * 1_000_000 + 2 * HORIZON_US * ("smooth" in text) + 86_400_000_000
    assert key.model.dead_at_us(limit, key.state) <= key.now_us + HORIZON_US + fill_us + MAX_CLOCK_SWING_US
    key.now_us += HORIZON_US + (limit.window_seconds or 0) * 1_000_000
    assert key.peek()[ALLOWED]


@pytest.mark.parametrize("text", ["10/s fixed", "10/s sliding", "50/day fixed in Asia/Shanghai"])
@given(units=st.integers(1, 100), ahead=st.integers(0, 2))
def test_a_reservation_that_lies_ahead_is_settled_where_it_lies(text: str, units: int, ahead: int) -> None:
    """Its own window counts the units; the current one is full already, and those behind it are untouched."""
    key = SurchargedKey(text).play([(0, 10**6)])
    key.take(key.limit.amount)
    early = key.receipt
    for _ in range(min(ahead, 1)):
        key.take(3, HORIZON_US)
    late, before = key.receipt, key.state
    if ahead:
        key.receipt = early
        key.surcharge(units)
        if "fixed" in text:
            assert key.state == before  # windows before a reservation count as full
        key.state, key.receipt = before, late
    key.surcharge(units)
    key.now_us = max(key.now_us, late.served_us)
    assert key.peek()[REMAINING] == max(0, key.limit.amount - late.cost - units)


def test_units_beyond_a_log_are_kept_for_refunds() -> None:
    """A charge that was pushed out by a surcharge still gives its units back, and no others."""
    key = SurchargedKey("10/s log").play([(0, 4)])
    first = key.receipt
    key.now_us += 1000
    key.surcharge(30)
    refunded = key.model.refund(key.limit, key.state, key.now_us, 4, first, False)
    key.state = refunded
    key.now_us += 999_999
    assert key.peek()[RETRY_AFTER_US] == 1
    key.now_us += 1
    assert key.peek()[REMAINING] == 10
