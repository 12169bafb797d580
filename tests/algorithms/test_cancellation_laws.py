"""Reservations that are all cancelled, against a history in which they never were.

Two counts on one clock. On the first, places are reserved and cancelled in any order, with takes and time in
between; on the second, only what the first one admitted at once is taken. No place is held until it is served.
Once the last place has been cancelled, both answer alike. Before that the second one admits whatever the first
one does: no cancellation mints anything.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.algorithms.decision import AT_US, RETRY_AFTER_US
from headgate.algorithms.limit import SECOND
from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.limiter import Limiter
from headgate.reservation import Reservation

START_US = 1_700_000_000_000_000

EXACT = (
    "1/s sliding",
    "2/s sliding",
    "10/s sliding cells 4",
    "7/s sliding cells 1",
    "1/s log",
    "2/s log",
    "10/s log",
)
# Here a place that is cancelled before a cheaper one behind it gives back only what that one left of it, and one
# whose time has come before those behind it left gives nothing.
OF_ONE_COST = ("10/s", "2/s burst 1", "10/s burst 3", "10/s queue 9 nodelay", "10/s smooth", "1/s fixed")

Step = tuple[str, float, int, int]
step = st.tuples(
    st.sampled_from(["take", "reserve", "reserve", "reserve", "cancel", "cancel"]),
    st.sampled_from([0, 0, 0, 0.1, 0.5, 1]) | st.floats(0, 2),
    st.integers(1, 10),
    st.integers(0, 20),
)
steps = st.lists(step, max_size=40)
HOSTILE: list[Step] = [("take", 0, 1, 0), *[("reserve", 0, 1, 0)] * 3, ("cancel", 0, 1, 0), ("reserve", 0, 1, 0)]


class Histories:
    """The same takes with reservations that are cancelled, and without."""

    def __init__(self, text: str, cost: int | None) -> None:
        self.clock = ManualClock(START_US)
        engine = MemoryEngine(self.clock)
        self.limiter = Limiter(text, engine, clock=self.clock, name="with")
        self.without = Limiter(text, engine, clock=self.clock, name="without")
        self.most = self.limiter.peek("key").remaining
        self.cost = cost
        self.places: list[Reservation] = []
        self.soonest_us = self.last_us = 0  # when places would be served, also of those cancelled before others

    def play(self, step: Step) -> None:
        verb, later, cost, which = step
        self.advance(later)
        cost = self.cost or 1 + (cost - 1) % self.most
        if verb == "cancel":
            if self.places:
                self.cancel(which)
            return
        place = self.limiter.reserve("key", cost) if verb == "reserve" else None
        if place is None or not place.delay:
            taken = self.limiter.take("key", cost) if place is None else place.decision
            assert not taken or self.without.take("key", cost).allowed
        else:
            self.places.append(place)
            served_us = place.decision.outcome[AT_US] + place.decision.delay_us
            self.soonest_us = min(self.soonest_us or served_us, served_us)
            self.last_us = max(self.last_us, served_us)

    def cancel(self, which: int) -> None:
        self.places.pop(which % len(self.places)).cancel()
        if not self.places:
            self.soonest_us = 0

    def advance(self, seconds: float) -> None:
        """Not so far that a place would be served."""
        until_us = self.clock.now_us() + round(seconds * SECOND)
        self.clock.set_us(min(until_us, self.soonest_us - 1) if self.soonest_us else until_us)

    def leave(self, order: list[int]) -> None:
        for which in order + [0] * len(self.places):
            if self.places:
                self.cancel(which)

    def compare(self) -> None:
        for later in (0, 0.05, 0.1, 0.35, 0.5, 1):
            self.advance(later)
            assert self.limiter.peek("key").outcome[:5] == self.without.peek("key").outcome[:5]
        for _ in range(3):
            self.advance(0.2)
            cost = self.cost or self.most
            assert self.limiter.take("key", cost).outcome[:6] == self.without.take("key", cost).outcome[:6]


@pytest.mark.parametrize(("text", "cost"), [(text, None) for text in EXACT] + [(text, 1) for text in OF_ONE_COST])
@given(steps=steps, order=st.lists(st.integers(0, 20), max_size=20))
@example(steps=HOSTILE, order=[])
@example(steps=HOSTILE, order=[20, 20, 20])
def test_places_that_are_all_cancelled_were_never_there(
    text: str, cost: int | None, steps: list[Step], order: list[int]
) -> None:
    histories = Histories(text, cost)
    for step in steps:
        histories.play(step)
    histories.leave(order)
    histories.compare()


@pytest.mark.parametrize("text", [*OF_ONE_COST, "10/s fixed", "10/s queue 9", "7/s smooth warmup 2s"])
@given(steps=steps, order=st.lists(st.integers(0, 20), max_size=20))
@example(steps=HOSTILE, order=[])
def test_places_of_any_cost_that_are_cancelled_mint_nothing_and_outlast_no_place(
    text: str, steps: list[Step], order: list[int]
) -> None:
    histories = Histories(text, None)
    for step in steps:
        histories.play(step)
    histories.leave(order)
    stands, without = (each.peek("key").outcome for each in (histories.limiter, histories.without))
    longest_us = max(without[RETRY_AFTER_US] or 0, histories.last_us - histories.clock.now_us(), SECOND)
    unit_us = SECOND // int(text.partition("/")[0])  # a unit behind the last place is served so much later
    rounding_us = 1000 if "queue" in text else 0  # a leaky bucket lives in milliseconds
    assert (stands[RETRY_AFTER_US] or 0) <= longest_us + unit_us + rounding_us
