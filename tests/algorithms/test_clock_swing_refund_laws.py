"""Logs and windows whose clock swings while charges are given back: nothing is minted.

The judge's time is the highest reading at which a charge passed (or something was given back to a log, which notes
when it was written last). A charge is served then, or later if it was reserved. He counts what was served and not
given back, one by one.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.algorithms import algorithm
from headgate.algorithms.decision import DELAY_US, Receipt
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import MAX_CLOCK_SWING_US
from headgate.algorithms.sliding_log import SlidingLog, pack, unpack
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.limit_syntax import parse

START_US = 1_700_000_000_000_000

LIMITS = (
    *("5/s log", "3/100ms log", "2/300ms log", "1/1ms log", "4/70us log"),
    *("5/s sliding", "3/100ms sliding", "4/400ms sliding cells 4", "2/s sliding cells 1", "3/5ms sliding"),
    *("5/s fixed", "3/100ms fixed", "4/30ms fixed"),
)

# How the clock is read: so much after the last reading, or so much before the highest.
moves = st.one_of(
    st.tuples(st.just("on"), st.sampled_from([0, 0, 1, 1000, 50_000, 100_000, 200_000, 900_000, 1_000_000])),
    st.tuples(st.just("on"), st.integers(0, 1_500_000)),
    st.tuples(st.just("swing"), st.sampled_from([0, 1, 1000, 50_000, 99_999, MAX_CLOCK_SWING_US])),
    st.tuples(st.just("swing"), st.integers(0, MAX_CLOCK_SWING_US)),
)
# And what happens then, for how many units; with which charge; and whether a dead state has been forgotten.
Step = tuple[tuple[str, int], str, int, int, bool]
verbs = st.sampled_from(["take", "take", "take", "reserve", "refund", "refund", "cancel"])
steps = st.lists(st.tuples(moves, verbs, st.integers(1, 5), st.integers(0, 3), st.booleans()), max_size=40)


class SwingingClockKey:
    """One key, and every charge with the instant at which it was served."""

    def __init__(self, text: str) -> None:
        self.limit: Any = parse(text)
        self.model = algorithm(self.limit)
        self.state: Any = None
        self.now_us = self.highest_us = START_US
        self.proved_us = 0
        self.charges: list[tuple[int, Receipt]] = []

    def play(self, step: Step) -> None:
        (kind, us), verb, units, which, forgets = step
        self.now_us = self.now_us + us if kind == "on" else self.highest_us - us
        self.highest_us = max(self.highest_us, self.now_us)
        if forgets and self.state and self.model.dead_at_us(self.limit, self.state) <= self.highest_us:
            self.state = None
        if verb in ("take", "reserve"):
            self.charge(units, 300_000 * which if verb == "reserve" else None)
        elif self.charges:
            self.refund(-1 - which % len(self.charges), units, verb == "cancel")

    def charge(self, cost: int, patience_us: int | None) -> None:
        outcome, after = self.model.decide(self.limit, self.state, self.now_us, cost, patience_us)
        if outcome[0]:
            self.proved_us = max(self.proved_us, self.now_us)
            served_us = max(self.proved_us, self.now_us + outcome[DELAY_US])
            self.charges.append((served_us, Receipt.from_outcome(outcome, cost)))
        if after is not self.state:
            self.state = after if self.model.write_pending is None else self.model.write_pending(self.limit, after)

    def refund(self, which: int, units: int, cancel: bool) -> None:
        served_us, receipt = self.charges[which]
        before = self.held(receipt)
        after = self.model.refund(self.limit, self.state, self.now_us, units, receipt, cancel)
        if after is None:
            return
        self.state = after
        if isinstance(self.limit, SlidingLog):
            self.proved_us = max(self.proved_us, self.now_us)
        given = min(before, units, receipt.cost - receipt.refunded_units)
        self.charges[which] = served_us, receipt._replace(refunded_units=receipt.refunded_units + given)

    def held(self, receipt: Receipt) -> int:
        """Returns how many units the state holds where the charge's are."""
        if self.state is None:
            return 0
        if isinstance(self.limit, SlidingLog):
            return unpack(pack(self.state))[5].count(receipt.mark)
        if isinstance(self.limit, FixedWindow):
            return int(self.state[1]) if self.state[0] == receipt.mark else 0
        _, tail, counts, _ = self.state
        return sum(counts[receipt.mark - tail + len(counts) - 1 :][:1])

    def check(self) -> None:
        """No span of one period serves more than the amount; of a window, no run of cells, or no window."""
        unit_us, length = 1, 1
        if isinstance(self.limit, SlidingLog):
            length = self.limit.period_us
        elif isinstance(self.limit, SlidingWindow):
            unit_us, length = self.limit.cell_us, self.limit.cells
        else:
            unit_us = self.limit.period_us
        served = [(us // unit_us, receipt.cost - receipt.refunded_units) for us, receipt in self.charges]
        for first, _ in served:
            passed = sum(units for when, units in served if first <= when < first + length)
            assert passed <= self.limit.amount, (first * unit_us - START_US, passed)


EMPTIED: list[Step] = [
    (("on", 0), "take", 1, 0, False),
    (("on", 1_000_000), "take", 1, 0, False),
    (("on", 0), "refund", 1, 0, False),
    *[(("swing", MAX_CLOCK_SWING_US), "take", 1, 0, True)] * 5,
    *[(("on", 1_000_000), "take", 1, 0, False)],
    *[(("on", 0), "take", 1, 0, False)] * 5,
]


@pytest.mark.parametrize("text", LIMITS)
@example(history=EMPTIED)
@given(history=steps)
def test_a_clock_that_swings_mints_nothing_whatever_is_given_back(text: str, history: list[Step]) -> None:
    life = SwingingClockKey(text)
    for step in history:
        life.play(step)
        life.check()
