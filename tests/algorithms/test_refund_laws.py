"""Refunds against an oracle: over any span no more than burst + rate * span pass, besides what was given back.

The oracle knows nothing of states. It notes when each charge was served and how many of its units were not given
back, in exact fractions, and looks at every span between two charges. The histories are the hostile ones: charges
that are given back in any order and in parts, reservations that are cancelled or given back, takes in between, and
surcharges: those raise the level by exactly their units, and otherwise count as nothing that passed.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.algorithms import algorithm
from headgate.algorithms.decision import Receipt
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import HORIZON_US, MAX_CLOCK_SWING_US, Limit
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.limit_syntax import parse

START_US = 1_700_000_000_000_000

LIMITS = (
    *("1/s burst 100", "10/s burst 10", "7/s burst 9", "3/s burst 2", "700000/s burst 50", "1/minute burst 5"),
    *("1/s queue 99 nodelay", "10/s queue 9 nodelay", "7/s queue 8 nodelay", "9/s queue 9", "9/s queue 9 delay 3"),
    *("10/s smooth", "10/s smooth burst 3s", "7/s smooth burst 2s", "100/s smooth burst 100ms"),
    "10/s smooth burst 0s",
)

# What happens next, after how many units' time, for how many units; which charge, and whether it is cancelled.
Step = tuple[str, float, int, int, bool]
step = st.tuples(
    st.sampled_from(["take", "take", "reserve", "refund", "refund", "surcharge"]),
    st.sampled_from([0, 0, 0, 0.00001, 0.5, 1, 3]) | st.floats(0, 120),
    st.integers(1, 120),
    st.integers(0, 11),
    st.booleans(),
)
steps = st.lists(step, max_size=30)


class Oracle:
    """The units that passed, and when, in exact fractions."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.overdraft = isinstance(limit, Smooth)
        match limit:
            case TokenBucket():
                self.burst, self.rate, self.slack_us = (
                    Fraction(limit.burst),
                    Fraction(limit.amount, limit.period_us),
                    1,
                )
            case LeakyBucket():
                self.burst, self.rate, self.slack_us = Fraction(limit.burst + 1), Fraction(limit.rate, 10**9), 3000
            case Smooth():
                self.burst, self.rate, self.slack_us = Fraction(limit.store), 1 / Fraction(limit.interval_us), 60

    def check(self, served: list[tuple[int, Fraction]]) -> None:
        """`slack_us`: what rounding the instants of service to whole microseconds or milliseconds is worth."""
        # A smooth limit rounds what it gives back down to whole microseconds: what is left of such a unit is none.
        served = sorted(each for each in served if each[1] > (Fraction(1, 1000) if self.overdraft else 0))
        for first, (from_us, _) in enumerate(served):
            units = Fraction(0)
            for until_us, more in served[first:]:
                most = self.burst + self.rate * (until_us - from_us + self.slack_us)
                if self.overdraft:  # The last charge is paid by the next one.
                    assert units <= most, (from_us - START_US, until_us - START_US, float(units), float(most))
                units += more
                if not self.overdraft:
                    assert units <= most, (from_us - START_US, until_us - START_US, float(units), float(most))


def level_of(limit: Any) -> Callable[[Any, int], Fraction]:
    """Returns how many units a state holds at an instant, for the algorithms that hold water."""
    model = algorithm(limit)

    def token_bucket(state: Any, now_us: int) -> Fraction:
        *_, reset_us, _, _, mark = model.decide(limit, state, now_us, 0)[0]
        grains = mark % limit.amount
        return Fraction((reset_us - (grains > 0)) * limit.amount + grains, limit.period_us)

    def leaky_bucket(state: Any, now_us: int) -> Fraction:
        water, last_ms, *_ = state
        return Fraction(max(0, water - limit.rate * max(0, now_us // 1000 - last_ms) // 1000), 1000)

    def smooth(state: Any, now_us: int) -> Fraction:
        stored, free_us, *_ = state
        idle = Fraction(max(0, now_us - free_us)) / Fraction(limit.interval_us)
        saved = min(Fraction(limit.store), Fraction(stored) + idle)
        shut = Fraction(max(0, free_us - now_us)) / Fraction(limit.interval_us)
        return shut + Fraction(limit.store) - saved

    formula = {"token_bucket": token_bucket, "leaky_bucket": leaky_bucket, "smooth": smooth}[limit.algorithm]
    return lambda state, now_us: Fraction(0) if state is None else formula(state, now_us)


class RefundedKey:
    """One key: every charge, and how much of it was not given back."""

    def __init__(self, text: str) -> None:
        self.limit = parse(text)
        self.model, self.oracle = algorithm(self.limit), Oracle(self.limit)
        self.unit_us = float(1 / self.oracle.rate)
        self.most = int(self.oracle.burst) + 2 * self.oracle.overdraft
        self.level = level_of(self.limit)
        self.state: Any = None
        self.now_us = START_US
        self.charges: list[tuple[Receipt, Fraction]] = []

    def play(self, step: Step) -> None:
        verb, units_later, units, which, flag = step
        self.now_us += round(min(units_later, self.most * 1.2) * self.unit_us)
        if verb == "surcharge":
            self.surcharge(units)
        elif verb != "refund":
            self.charge(1 + (units - 1) % self.most, verb == "reserve")
        elif self.charges:
            self.refund(which % len(self.charges), units, flag)
        self.oracle.check([(receipt.served_us, units) for receipt, units in self.charges])

    def charge(self, cost: int, reserves: bool) -> None:
        outcome, self.state = self.model.decide(
            self.limit, self.state, self.now_us, cost, HORIZON_US if reserves else None
        )
        if outcome[0]:
            self.charges.append((Receipt.from_outcome(outcome, cost), Fraction(cost)))

    def surcharge(self, units: int) -> None:
        if not self.charges:
            return
        before, (receipt, _) = self.level(self.state, self.now_us), self.charges[-1]
        self.state = self.model.surcharge(self.limit, self.state, self.now_us, units, receipt)
        poured = self.level(self.state, self.now_us) - before
        assert abs(poured - units) <= Fraction(1, 1000) + self.oracle.overdraft * Fraction(units, 1000), poured

    def refund(self, which: int, units: int, cancel: bool) -> None:
        receipt, kept = self.charges[which]
        units = min(units, receipt.cost - receipt.refunded_units)
        if not units:
            return
        before = self.level(self.state, self.now_us)
        cancels = cancel and receipt.served_us >= self.now_us
        after = self.model.refund(self.limit, self.state, self.now_us, units, receipt, cancels)
        self.state = self.state if after is None else after
        given = before - self.level(self.state, self.now_us)
        assert -Fraction(1, 1000) <= given <= units + Fraction(1, 1000)
        self.charges[which] = receipt._replace(refunded_units=receipt.refunded_units + units), kept - given


# A takes half, B takes half, A is refunded; when B has drained all is taken, and B is refunded.
HALVES = [
    ("take", 0, 50, 0, False),
    ("take", 0, 50, 0, False),
    ("refund", 0, 100, 0, False),
    ("take", 50, 100, 0, False),
    ("refund", 0, 100, 1, False),
    ("take", 0, 50, 0, False),
]
# A reservation behind a take that is refunded, and another reservation.
BEHIND = [
    ("take", 0, 100, 0, False),
    ("reserve", 0, 100, 0, False),
    ("refund", 0, 100, 0, False),
    ("reserve", 0, 100, 0, False),
]


# Refunds that are remembered no more when a charge that knows of them is given back, and others since.
FORGOTTEN = [
    ("take", 0, 3, 0, False),
    ("refund", 0, 1, 0, False),
    ("refund", 0, 1, 0, False),
    ("take", 0, 40, 0, False),
    ("take", 3.1, 30, 0, False),
    ("take", 0, 10, 0, False),
    ("refund", 0, 1, 3, False),
    ("refund", 0, 1, 3, False),
    ("refund", 0, 40, 1, False),
    *(("take", 35 * (not n), 1, 0, False) for n in range(97)),
    ("refund", 0, 30, 2, False),
    *[("take", 0, 1, 0, False)] * 30,
]
# A part of a charge empties the bucket, and the rest of it is given back when others have filled it.
EMPTIED = [
    ("take", 0, 50, 0, False),
    ("take", 0, 50, 0, False),
    ("refund", 0, 49, 0, False),
    ("refund", 26, 25, 1, False),
    ("take", 0, 100, 0, False),
    ("refund", 0, 25, 1, False),
    ("take", 0, 25, 0, False),
]


@pytest.mark.parametrize("text", LIMITS)
@example(history=HALVES)
@example(history=BEHIND)
@example(history=FORGOTTEN)
@example(history=EMPTIED)
@given(history=steps)
def test_over_any_span_no_more_pass_than_the_limit_says(text: str, history: list[Step]) -> None:
    life = RefundedKey(text)
    for step in history:
        life.play(step)


class ClockedRefundedKey(RefundedKey):
    """A key whose clock swings and is set back. `forward_us` is how much time can have drained it: the advance of
    the highest reading, and a swing for each step back, for what a state proves may lie that far ahead of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.highest_us = START_US
        self.forward_us = 0

    def read(self, now_us: int) -> None:
        self.now_us = now_us
        if self.state is None:
            self.highest_us, self.forward_us = now_us, 0
        if now_us > self.highest_us:
            self.forward_us += now_us - self.highest_us
            self.highest_us = now_us
        elif now_us < self.highest_us - MAX_CLOCK_SWING_US:
            self.forward_us += MAX_CLOCK_SWING_US
            self.highest_us = now_us

    @property
    def least(self) -> Fraction:
        """The units that the bucket must hold at the highest reading."""
        rounded = Fraction(2 * len(self.charges), 1000) if isinstance(self.limit, LeakyBucket) else 0
        slack_us = 2000 if isinstance(self.limit, LeakyBucket) else 0
        charged = sum((units for _, units in self.charges), Fraction(0))
        return charged - rounded - self.oracle.rate * (self.forward_us + slack_us)


readings = st.one_of(
    st.tuples(st.just("on"), st.sampled_from([0, 0, 1, 1000, 100_000]) | st.integers(0, 3 * 10**6)),
    st.tuples(st.just("back"), st.sampled_from([1, 1000, 99_999, 100_000]) | st.integers(0, 100_000)),
    st.tuples(st.just("back"), st.sampled_from([100_001, 200_000, 20 * 10**6]) | st.integers(0, 3 * 10**6)),
)
# A debt, the clock set back, and two more reservations.
SET_BACK = [
    (("on", 0), ("take", 0.0, 120, 0, False)),
    (("on", 0), ("reserve", 0.0, 5, 0, False)),
    *[(("back", 200_000 * (n == 0)), ("reserve", 0.0, 1, 0, False)) for n in range(3)],
]


@pytest.mark.parametrize("text", [text for text in LIMITS if "smooth" not in text])
@example(history=SET_BACK)
@given(history=st.lists(st.tuples(readings, step), max_size=40))
def test_a_clock_change_never_frees_units(text: str, history: list[tuple[tuple[str, int], Step]]) -> None:
    life = ClockedRefundedKey(text)
    for (kind, us), (verb, _, units, which, cancels) in history:
        life.read(life.now_us + us if kind == "on" else life.highest_us - us)
        if verb != "refund":
            life.charge(1 + (units - 1) % life.most, verb == "reserve")
        elif life.charges:
            life.refund(which % len(life.charges), units, cancels)
        assert life.level(life.state, life.highest_us) >= life.least


@pytest.mark.parametrize("text", ["1/minute burst 20", "7/s burst 20", "700000/s burst 20"])
@given(order=st.permutations(range(6)), costs=st.lists(st.integers(1, 3), min_size=6, max_size=6))
def test_a_token_bucket_gets_all_back_in_whatever_order(text: str, order: list[int], costs: list[int]) -> None:
    life = RefundedKey(text)
    for cost in costs:
        life.charge(cost, False)
    for which in order:
        life.refund(which, costs[which], False)
    assert life.level(life.state, life.now_us) == 0


def test_drained_units_are_kept_while_charges_are_refunded() -> None:
    """Six charges a tenth of a second apart, five given back as far apart: only what the sixth took is used."""
    life = RefundedKey("1/minute burst 20")
    for _ in range(6):
        life.charge(1, False)
        life.now_us += 100_000
    for which in range(5):
        life.now_us += 100_000
        life.refund(which, 1, False)
    assert 1 - Fraction(1, 30) <= life.level(life.state, life.now_us) <= 1


@pytest.mark.parametrize("text", ["100/s burst 100", "100/s queue 99 nodelay", "100/s smooth"])
def test_a_charge_that_knows_of_a_refund_can_be_given_back_after_it_is_forgotten(text: str) -> None:
    life = RefundedKey(text)
    life.charge(1, False)
    life.now_us += 100_000_000
    life.charges.clear()
    life.charge(2, False)
    life.refund(0, 1, False)
    life.charge(90, False)
    life.now_us += 21_000
    life.charge(1, False)
    life.refund(1, 90, False)
    assert life.level(life.state, life.now_us) <= 2


def test_a_refund_while_the_clock_of_a_queue_catches_up_is_remembered_as_long_as_any() -> None:
    """Nothing drains meanwhile: B lies where A lay, and once it has drained it has nothing to give back."""
    life = RefundedKey("10/s queue 99 nodelay")
    for _ in range(2):
        life.charge(50, False)
    life.now_us -= 50_000_000
    life.refund(0, 50, False)
    life.now_us += 20_000_000
    life.charge(50, False)
    life.now_us += 35_000_000
    before = life.level(life.state, life.now_us)
    life.refund(1, 50, False)
    assert life.level(life.state, life.now_us) == before == 50
