"""The checker accepts sequential histories, and finds every kind of wrong answer.

The truth is told by an engine that is nothing but the model. Its instants are milliseconds after BASE_US; a call
is made a little before its instant and answered a little after, or as far apart as the story says.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.decision import ALLOWED, AT_US, REMAINING, Outcome, Receipt
from headgate.limit_syntax import parse
from tests.linearizability.checker import ExactLaw, LawViolation, Model, check
from tests.linearizability.history import CallHistory, Operation, Verb
from tests.linearizability.inexact_engine_laws import DenialCacheLaw, PrefetchLaw
from tests.linearizability.test_linearizability import LIMITS

BASE_US = 1_700_000_000_000_000
MS = 1_000_000  # nanoseconds
BASE_NS = BASE_US * 1000
BUCKET = "2/s burst 3"


class SequentialHistory:
    """Does one thing at a time, and writes down what it answered."""

    def __init__(self, limit: str = BUCKET) -> None:
        self.limit = limit
        self.seen: list[Operation] = []
        self._model = Model(parse(limit))
        self._state: str | None = None

    def take(self, at: float, cost: int = 1, early: float = 0.1, late: float = 0.1, who: str = "") -> Operation:
        outcome, self._state = self._model.decide(self._state, self._us(at), cost)
        verb: Verb = "take" if cost else "peek"
        who = who or f"0.{len(self.seen)}"
        return self._wrote(at, Operation(who, verb, "key", cost, None, outcome, 0, 0), early, late)

    def peek(self, at: float, early: float = 0.1, late: float = 0.1) -> Operation:
        return self.take(at, 0, early, late)

    def refund(
        self, at: float, charge: Operation, units: int, returned: int = 0, early: float = 0.1, late: float = 0.1
    ) -> Operation:
        assert charge.outcome is not None
        receipt = Receipt.from_outcome(charge.outcome, charge.units, returned)
        outcome, self._state = self._model.refund(self._state, self._us(at), units, receipt)
        done = Operation(charge.who, "refund", "key", units, receipt, outcome, 0, 0, charge.called_ns)
        return self._wrote(at, done, early, late)

    def reset(self, at: float, early: float = 0.1, late: float = 0.1) -> Operation:
        self._state = None
        return self._wrote(at, Operation("0", "reset", "key", 0, None, None, 0, 0), early, late)

    def history(self) -> CallHistory:
        return CallHistory(self.limit, self.seen)

    def instead(self, old: Operation, new: Operation) -> CallHistory:
        """The same, with one of the operations told otherwise."""
        return CallHistory(self.limit, [new if one is old else one for one in self.seen])

    def _us(self, at: float) -> int:
        return BASE_US + round(at * 1000)

    def _wrote(self, at: float, operation: Operation, early: float, late: float) -> Operation:
        called_ns, answered_ns = BASE_NS + round((at - early) * MS), BASE_NS + round((at + late) * MS)
        self.seen.append(operation._replace(called_ns=called_ns, answered_ns=answered_ns))
        return self.seen[-1]


def test_one_thing_after_another_is_believed() -> None:
    truth = SequentialHistory()
    charge = truth.take(0, 3)
    truth.take(1)
    truth.peek(2)
    truth.refund(3, charge, 1)
    truth.refund(4, charge, 2, returned=1)
    truth.reset(5)
    truth.take(6, 3)
    check(truth.history())


def test_calls_of_one_microsecond_may_come_in_any_order() -> None:
    truth = SequentialHistory("5/s")
    for cost in (2, 1, 3, 1, 0, 2, 1):
        truth.take(1, cost)
    check(CallHistory(truth.limit, truth.seen[::-1]))


def test_a_reset_may_be_anywhere_between_its_call_and_its_answer() -> None:
    truth = SequentialHistory()
    truth.take(0, 3, early=5, late=30)
    truth.take(10, 3, late=20)
    truth.reset(15, early=14, late=20)
    truth.take(20, 3)
    check(truth.history())


def swinging(*instants: float) -> CallHistory:
    """Takes one after another, at these instants of the engine's clock."""
    truth = SequentialHistory("4/10ms log")
    for number, at in enumerate(instants):
        truth.take(at)
        called_ns = BASE_NS + number * MS  # by the callers' clock, which does not swing
        truth.seen[-1] = truth.seen[-1]._replace(called_ns=called_ns, answered_ns=called_ns + MS // 2)
    return truth.history()


@pytest.mark.parametrize("instants", [(10, 11, 10.9, 12), (10, 11, 10.5, 10.6, 12), (10, 11, 12, 12.5, 11.5)])
def test_one_swing_of_the_clock_is_forgiven_where_it_may_be(instants: tuple[float, ...]) -> None:
    with pytest.raises(LawViolation):
        check(swinging(*instants))
    check(swinging(*instants), ExactLaw(swings=1))


@pytest.mark.parametrize("instants", [(10, 12, 10.9, 13), (10, 11, 10.9, 12, 11.9)])
def test_a_longer_or_a_second_swing_is_not(instants: tuple[float, ...]) -> None:
    with pytest.raises(LawViolation):
        check(swinging(*instants), ExactLaw(swings=1))


def test_keys_know_nothing_of_each_other() -> None:
    one, other = SequentialHistory(), SequentialHistory()
    one.take(0, 3)
    other.take(1, 3)
    check(CallHistory(BUCKET, [*one.seen, *(operation._replace(key="other") for operation in other.seen)]))
    with pytest.raises(LawViolation):
        check(CallHistory(BUCKET, [*one.seen, *other.seen]))


def test_a_lost_update() -> None:
    """Both saw a full bucket, and both took from it."""
    truth, rival = SequentialHistory(), SequentialHistory()
    truth.take(10, early=5, late=5)
    rival.take(11, early=5, late=5, who="1")
    truth.peek(20)
    with pytest.raises(LawViolation, match=r"1 take\(1\) .+remaining=2 .+\n +allowed remaining=1 .+ by the model"):
        check(CallHistory(BUCKET, [*truth.seen, *rival.seen]))


def test_a_stale_peek() -> None:
    """The charge was answered before anybody peeked."""
    truth, stale = SequentialHistory(), SequentialHistory()
    truth.take(10)
    stale.peek(20)
    with pytest.raises(LawViolation, match="by the model"):
        check(CallHistory(BUCKET, [*truth.seen, *stale.seen]))


def test_an_answer_out_of_real_time() -> None:
    """By the engine's clock the first was the first; but it was called after the second was answered."""
    truth = SequentialHistory()
    first = truth.take(10)
    truth.take(11)
    late = first._replace(called_ns=BASE_NS + 20 * MS, answered_ns=BASE_NS + 21 * MS)
    with pytest.raises(LawViolation, match="is the next by the engine's clock, but was called after"):
        check(truth.instead(first, late))
    check(truth.instead(first, first._replace(answered_ns=BASE_NS + 21 * MS)))  # called before, it may be


def test_a_refund_that_minted() -> None:
    truth = SequentialHistory()
    charge = truth.take(0, 2)
    refund = truth.refund(10, charge, 2)
    twice = truth.refund(11, charge, 2, returned=2)
    assert refund.outcome == (True, 3, 0, 0, 0, BASE_US + 10_000, 0)
    check(truth.history())
    minted = twice._replace(outcome=(True, 5, 0, 0, 0, BASE_US + 11_000, 0))
    with pytest.raises(LawViolation, match=r"remaining=3 .+ by the model"):
        check(truth.instead(twice, minted))


def test_a_refund_of_partly_drained_units() -> None:
    """Of the 200 ms that the charge poured, 150 have drained: 50 are given back, and 100 of another one stay."""
    truth = SequentialHistory("10/s burst 2")
    charge = truth.take(0, 2)
    truth.take(100)
    refund = truth.refund(150, charge, 2)
    assert refund.outcome == (True, 1, 0, 100_000, 0, BASE_US + 150_000, 1)
    check(truth.history())
    with pytest.raises(LawViolation):
        check(truth.instead(refund, refund._replace(outcome=(True, 2, 0, 0, 0, BASE_US + 150_000, 1))))


def test_a_reset_that_did_not() -> None:
    truth, forgotten = SequentialHistory(), SequentialHistory()
    truth.take(0, 3)
    truth.take(10, 3)
    forgotten.reset(5)
    with pytest.raises(LawViolation):
        check(CallHistory(BUCKET, [*truth.seen, *forgotten.seen]))


def test_two_answers_that_were_mixed_up() -> None:
    """One batch, one instant, two callers: each was given the other's answer."""
    truth = SequentialHistory("5/s")
    one, two = truth.take(10, 1), truth.take(10, 2)
    check(truth.history())
    mixed = [one._replace(outcome=two.outcome), two._replace(outcome=one.outcome)]
    with pytest.raises(LawViolation):
        check(CallHistory(truth.limit, mixed))


def test_a_counter_example_can_be_read() -> None:
    truth = SequentialHistory()
    truth.take(0)
    lie = truth.take(1, who="2.1")
    with pytest.raises(LawViolation) as broken:
        check(truth.instead(lie, lie._replace(outcome=(True, 2, 0, 500_000, 0, BASE_US + 1000, 0))))
    answer = "allowed remaining={} retry=0 reset={} delay=0 at={} mark=0".format
    expected = f"""\
On the key "key" under "2/s burst 3": no order explains the answers. 1 of 2 can be put in order:
    0.0 take(1)  [{BASE_NS - MS // 10} .. {BASE_NS + MS // 10} ns]  {answer(2, 500_000, BASE_US)}
Then the state is {BASE_US + 500_000}, and nothing can come next:
    2.1 take(1)  [{BASE_NS + 9 * MS // 10} .. {BASE_NS + 11 * MS // 10} ns]  {answer(2, 500_000, BASE_US + 1000)}
        {answer(1, 999_000, BASE_US + 1000)} by the model"""
    assert str(broken.value) == expected


@st.composite
def truths(draw: st.DrawFn, resets: bool = True, overlaps: bool = True) -> SequentialHistory:
    """Anything that can be done to one key, by callers who wait for their answers as long as they like."""
    truth, at = SequentialHistory(draw(st.sampled_from(LIMITS))), 0.0
    charges: list[tuple[Operation, int]] = []
    verbs = st.sampled_from(["take", "take", "take", "peek", "refund", *(["reset"] if resets else [])])
    for verb in draw(st.lists(verbs, min_size=1, max_size=25)):
        at += draw(st.sampled_from([0, 0, 0.001, 0.25, 1, 1.5, 4, 11]) if overlaps else st.integers(1, 9))
        early, late = (draw(st.floats(0.1, 6)), draw(st.floats(0.1, 6))) if overlaps else (0.1, 0.1)
        if verb == "reset":
            truth.reset(at, early, late)
        elif verb == "refund" and charges:
            charge, returned = charges.pop(draw(st.integers(0, len(charges) - 1)))
            units = draw(st.integers(1, charge.units - returned))
            truth.refund(at, charge, units, returned, early, late)
            charges += [(charge, returned + units)] if returned + units < charge.units else []
        else:
            taken = truth.take(at, 0 if verb == "peek" else draw(st.integers(1, 6)), early, late)
            charges += [(taken, 0)] if taken.admitted else []
    return truth


@given(truths())
def test_the_truth_is_believed_whoever_overlaps(truth: SequentialHistory) -> None:
    check(truth.history())
    check(truth.history(), ExactLaw(swings=1))
    check(truth.history(), DenialCacheLaw())
    check(truth.history(), PrefetchLaw(0))


@given(truths(resets=False, overlaps=False), st.data())
def test_one_wrong_fact_is_one_too_many(truth: SequentialHistory, data: st.DataObject) -> None:
    """Any fact but the instant: that one may be a little off and still be true, if nobody else was there."""
    operation = data.draw(st.sampled_from(truth.seen))
    fact = data.draw(st.sampled_from([0, 1, 2, 3, 4, 6]))
    assert operation.outcome is not None
    outcome: list[Any] = list(operation.outcome)
    outcome[fact] = (
        not outcome[fact] if fact == ALLOWED else (outcome[fact] or 0) + data.draw(st.sampled_from([-1, 1]))
    )
    history = truth.instead(operation, operation._replace(outcome=cast(Outcome, tuple(outcome))))
    with pytest.raises(LawViolation):
        check(history)
    with pytest.raises(LawViolation):
        check(history, ExactLaw(swings=1))


class CachedDenialHistory(SequentialHistory):
    """A dry bucket, refused at 0 to process 0: a unit comes after 500 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.charge = self.take(-10, 3)
        self.refused = self.take(0, 2)

    def again(self, at: float, cost: int = 2, who: str = "0.7") -> CallHistory:
        """The refusal again, without asking, with outcome that may be anything."""
        assert self.refused.outcome is not None
        outcome = (*self.refused.outcome[:AT_US], self._us(at), 7)
        repeated = Operation(who, "take", "key", cost, None, outcome, self._us(at) * 1000, self._us(at) * 1000 + 1)
        return CallHistory(self.limit, [*self.seen, repeated])


def test_a_memo_may_repeat_a_refusal() -> None:
    truth = CachedDenialHistory()
    truth.reset(5)
    truth.seen[-1] = truth.seen[-1]._replace(who="1")
    for cost in (2, 3, 9):
        check(truth.again(10, cost), DenialCacheLaw())
    with pytest.raises(LawViolation):
        check(truth.again(10))


@pytest.mark.parametrize(
    ("at", "cost", "who"),
    [(10, 1, "0.7"), (10, 2, "1.0"), (1001, 2, "0.7")],
    ids=["a lower cost", "another process", "too late"],
)
def test_a_memo_may_not_make_one_up(at: float, cost: int, who: str) -> None:
    with pytest.raises(LawViolation):
        check(CachedDenialHistory().again(at, cost, who), DenialCacheLaw())


def test_a_cached_denial_ends_with_a_refund_of_the_same_process() -> None:
    truth = CachedDenialHistory()
    truth.refund(5, truth.charge, 1)
    with pytest.raises(LawViolation):
        check(truth.again(10), DenialCacheLaw())


def test_a_repeated_refusal_does_not_justify_the_next_one() -> None:
    """The refusal was for 990 ms; a repetition at 900 ms must not hold until 1800."""
    truth = CachedDenialHistory()
    truth.seen += truth.again(900).operations[-1:]
    check(truth.history(), DenialCacheLaw())
    with pytest.raises(LawViolation):
        check(truth.again(1200), DenialCacheLaw())


@pytest.mark.parametrize("limit", LIMITS)
def test_a_lease_may_admit_so_much_more(limit: str) -> None:
    """As much again, from another truth, in the same moment."""
    truth, more = SequentialHistory(limit), SequentialHistory(limit)
    while truth.take(5.5).admitted:
        more.take(5.5)
    most = sum(operation.admitted for operation in more.seen)
    both = CallHistory(limit, [*truth.seen, *more.seen])
    check(both, PrefetchLaw(most))
    with pytest.raises(LawViolation, match=f"{2 * most} units were admitted .* {2 * most - 1} may be"):
        check(both, PrefetchLaw(most - 1))


def test_refunded_units_can_be_taken_again() -> None:
    truth = SequentialHistory()
    truth.refund(1, truth.take(0, 3), 3)
    again = truth.take(2, 3)
    assert again.outcome is not None
    assert again.outcome[REMAINING] == 0
    check(truth.history(), PrefetchLaw(0))
    with pytest.raises(LawViolation):
        check(CallHistory(BUCKET, [one for one in truth.seen if one.verb == "take"]), PrefetchLaw(0))


def test_no_span_reaches_over_a_reset() -> None:
    truth = SequentialHistory()
    truth.take(0, 3)
    reset = truth.reset(1)
    truth.take(2, 3)
    check(truth.history(), PrefetchLaw(0))
    with pytest.raises(LawViolation):
        check(CallHistory(BUCKET, [one for one in truth.seen if one is not reset]), PrefetchLaw(0))


def test_a_refund_after_a_reset_makes_room() -> None:
    """The count knows no charges, only units: it is the model that admits 5 after the reset, not a lease."""
    truth = SequentialHistory("3/s fixed")
    forgotten = truth.take(0, 2)
    truth.reset(1)
    truth.take(2, 3)
    refund = truth.refund(3, forgotten, 2)
    truth.take(4, 2)
    assert truth.seen[-1].admitted
    check(truth.history())
    check(truth.history(), PrefetchLaw(0))
    with pytest.raises(LawViolation, match=r"5 units were admitted .* 3 may be"):
        check(CallHistory(truth.limit, [one for one in truth.seen if one is not refund]), PrefetchLaw(0))
