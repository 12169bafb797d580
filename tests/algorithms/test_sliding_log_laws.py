"""The sliding log: its laws, held against a log that forgets nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.algorithms.decision import DELAY_US, MARK, RESET_AFTER_US, RETRY_AFTER_US, Outcome, Receipt
from headgate.algorithms.limit import HORIZON_US, MAX_CLOCK_SWING_US, SECOND
from headgate.algorithms.sliding_log import SlidingLog, State, dead_at_us, decide, pack, refund, unpack
from tests.algorithms.test_sliding_log import START, decide_and_store

# Laws. Small periods make coincidences likely: equal instants, and units exactly one period old.

limits = st.builds(SlidingLog, st.integers(1, 12), st.integers(1, 40).map(lambda us: us / SECOND))
gaps = st.one_of(st.just(0), st.integers(0, 12), st.integers(0, 90))
costs = st.integers(1, 13)
patience = st.one_of(st.none(), st.integers(0, 200))
calls = st.lists(st.tuples(gaps, costs, patience), max_size=60)
now_0 = START * SECOND


def walk(limit: SlidingLog, steps: list[tuple[int, int, int | None]]) -> tuple[State | None, int]:
    state, now_us = None, now_0
    for gap, cost, patience_us in steps:
        now_us += gap
        _, state = decide_and_store(limit, state, now_us, cost, patience_us)
    return state, now_us


class UnboundedLog:
    """A log that forgets nothing and counts: the same answers, the obvious way."""

    def __init__(self, limit: SlidingLog) -> None:
        self.amount, self.period_us = limit.amount, limit.period_us
        self.units: list[int] = []

    def held(self, at_us: int) -> int:
        """Units in the window that ends at this instant."""
        return bisect_right(self.units, at_us) - bisect_right(self.units, at_us - self.period_us)

    def due_us(self, now_us: int, cost: int) -> int:
        newest = self.units[-1:]
        tried = sorted({now_us, *newest, *(us + self.period_us for us in self.units)})
        return next(us for us in tried if us >= max([now_us, *newest]) and self.held(us) + cost <= self.amount)

    def decide(self, now_us: int, cost: int, patience_us: int | None) -> Outcome:
        due_us = self.due_us(now_us, cost or 1) if cost <= self.amount else None
        if cost and due_us is not None and due_us - now_us <= (patience_us or 0):
            self.units += [due_us] * cost
            remaining = self.amount - self.held(now_us) if due_us == now_us else 0
            return True, remaining, 0, due_us + self.period_us - now_us, due_us - now_us, now_us, due_us
        ahead = self.units[-1:] > [now_us]
        remaining = 0 if ahead else self.amount - self.held(now_us)
        reset_us = max(0, *(us + self.period_us - now_us for us in [0, *self.units[-1:]]))
        wait_us = None if due_us is None else due_us - now_us
        return not cost and wait_us == 0, remaining, wait_us, reset_us, 0, now_us, 0


@settings(max_examples=400, deadline=None)
@given(limits, st.lists(st.tuples(gaps, st.integers(0, 13), patience), max_size=60))
def test_it_answers_as_a_log_that_forgets_nothing(
    limit: SlidingLog, steps: list[tuple[int, int, int | None]]
) -> None:
    everything = UnboundedLog(limit)
    state, now_us = None, now_0
    for gap, cost, patience_us in steps:
        now_us += gap
        outcome, state = decide_and_store(limit, state, now_us, cost, patience_us)
        assert outcome == everything.decide(now_us, cost, patience_us)


moves = st.tuples(
    st.integers(-20, 40), costs, patience, st.booleans(), st.booleans(), st.integers(0, 4), st.integers(1, 13)
)


@settings(max_examples=400, deadline=None)
@given(limits, st.lists(moves, max_size=60))
def test_no_period_ever_serves_more_than_the_amount(
    limit: SlidingLog, steps: list[tuple[int, int, int | None, bool, bool, int, int]]
) -> None:
    """With clocks that step back, refunds and cancellations of any charge, in any order."""
    charges: list[tuple[int, Receipt]] = []
    gone: list[tuple[int, Receipt]] = []  # with the log they stood in
    state, now_us, true_us = None, now_0, 0
    for gap, cost, patience_us, give_back, cancel, back, units in steps:
        now_us += gap
        true_us += max(0, gap)
        if decide(limit, state, now_us, 0)[0][RESET_AFTER_US] == 0:
            gone += charges
            charges = []
        if give_back and charges:
            place = -1 - back % len(charges)
            instant_us, receipt = charges[place]
            held = 0 if state is None else list(unpack(pack(state))[5]).count(receipt.mark)
            given = min(units, receipt.cost - receipt.refunded_units, held)
            delay_us = decide(limit, state, now_us, cost, HORIZON_US)[0][DELAY_US]
            after = refund(limit, state, now_us, units, receipt, cancel)
            if after is not None:
                state = after
                charges[place] = instant_us, receipt._replace(refunded_units=receipt.refunded_units + given)
                assert given > 0
                assert decide(limit, state, now_us, cost, HORIZON_US)[0][DELAY_US] <= delay_us
        else:
            outcome, state = decide_and_store(limit, state, now_us, cost, patience_us)
            if outcome[0]:
                charges.append((true_us + outcome[DELAY_US], Receipt.from_outcome(outcome, cost)))
    served: Counter[int] = Counter()
    for instant_us, receipt in gone + charges:
        served[instant_us] += receipt.cost - receipt.refunded_units
    for start in served:
        assert sum(served[us] for us in served if start <= us < start + limit.period_us) <= limit.amount


@given(limits, calls, st.integers(2, 12))
def test_taking_several_is_taking_one_several_times(
    limit: SlidingLog, steps: list[tuple[int, int, int | None]], cost: int
) -> None:
    state, now_us = walk(limit, steps)
    outcome, at_once = decide_and_store(limit, None if state is None else unpack(pack(state)), now_us, cost)
    passed = []
    for _ in range(cost):
        one, state = decide_and_store(limit, state, now_us, 1)
        passed.append(one)
    assert outcome[0] == all(one[0] for one in passed)
    if outcome[0]:
        assert passed[-1] == outcome
        assert state is not None
        assert at_once is not None
        assert pack(state) == pack(at_once)


@given(limits, calls, costs)
def test_a_denied_charge_leaves_no_trace_and_passes_exactly_retry_after_later(
    limit: SlidingLog, steps: list[tuple[int, int, int | None]], cost: int
) -> None:
    state, now_us = walk(limit, steps)
    before = None if state is None else pack(state)
    outcome, after = decide(limit, state, now_us, cost)
    assert decide(limit, state, now_us, cost) == (outcome, after)
    assert outcome[0] or after is state
    assert before == (None if state is None else pack(state))
    if cost > limit.amount:
        assert outcome[RETRY_AFTER_US] is None
    elif wait_us := outcome[RETRY_AFTER_US]:
        assert decide(limit, state, now_us + wait_us - 1, cost)[0][RETRY_AFTER_US] == 1
        assert decide(limit, state, now_us + wait_us, cost)[0][0]
        assert decide(limit, state, now_us, cost, wait_us)[0][4] == wait_us
        assert not decide(limit, state, now_us, cost, wait_us - 1)[0][0]


@given(limits, calls, st.integers(1, 10**12), st.integers(0, 13))
def test_a_clock_that_steps_back_changes_no_answer(
    limit: SlidingLog, steps: list[tuple[int, int, int | None]], back_us: int, cost: int
) -> None:
    state, _ = walk(limit, steps)
    if state is None:
        return
    stamped_us = state[3]
    back_us += MAX_CLOCK_SWING_US
    then, after = decide(limit, state, stamped_us, cost, 100)
    now, stepped = decide(limit, state, stamped_us - back_us, cost, 100)
    assert now[:5] == then[:5]
    assert now[MARK] == then[MARK]
    assert stepped is not state
    assert stepped is not None
    assert after is not None
    assert dead_at_us(limit, stepped) == dead_at_us(limit, after) - back_us


@given(limits, calls, st.integers(1, MAX_CLOCK_SWING_US), st.integers(0, 13))
def test_a_clock_that_swings_is_waited_for(
    limit: SlidingLog, steps: list[tuple[int, int, int | None]], back_us: int, cost: int
) -> None:
    state, _ = walk(limit, steps)
    if state is None:
        return
    then, after = decide(limit, state, state[3], cost)
    now, swung = decide(limit, state, state[3] - back_us, cost)
    allowed, remaining, *times = then[:5]
    assert now[:5] == (allowed, remaining, *(us and us + back_us for us in times))
    assert now[MARK] == then[MARK]
    assert swung == after


@given(limits, st.lists(moves, max_size=30), st.integers(0, 50), st.integers(0, 13), patience)
def test_a_dead_state_says_no_more_than_none(
    limit: SlidingLog,
    steps: list[tuple[int, int, int | None, bool, bool, int, int]],
    later_us: int,
    cost: int,
    patience_us: int | None,
) -> None:
    state, now_us = None, now_0
    for gap, units, patient_us, *_ in steps:
        now_us += gap
        _, state = decide_and_store(limit, state, now_us, units, patient_us)
    if state is None:
        return
    dead_us = dead_at_us(limit, state)
    assert decide(limit, state, dead_us - MAX_CLOCK_SWING_US - 1, 0)[0][RESET_AFTER_US] > 0
    outcome, after = decide(limit, state, dead_us + later_us, cost, patience_us)
    fresh, first = decide(limit, None, dead_us + later_us, cost, patience_us)
    assert outcome == fresh
    assert after == (first if outcome[0] and cost else state)


@given(limits, calls)
def test_unpack_restores_a_packed_state(limit: SlidingLog, steps: list[tuple[int, int, int | None]]) -> None:
    state, now_us = walk(limit, steps)
    if state is not None:
        again = unpack(pack(state))
        assert pack(again) == pack(state)
        assert decide(limit, again, now_us, 1, 50)[0] == decide(limit, state, now_us, 1, 50)[0]
