"""The law of settling, for every algorithm: never more room than if the call had cost that from the start.

Two limiters of one kind live through the same minutes. In one of them a call is charged an estimate and settled
later; in the other one it is charged its real cost at once. The first must never let pass what the second refuses.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.algorithms.decision import Charge
from headgate.clock import ManualClock
from headgate.errors import InvalidCharge
from headgate.limiter import Limiter
from tests.contract.engine_harness import EngineHarness
from tests.contract.verb_table import EXAMPLES

LIMITS = [
    *(example.text for example in EXAMPLES.values()),
    "10/s queue 9 nodelay",
    "7/s burst 9",
    "10/s smooth burst 3s",
    "10/s sliding cells 2",
]

gaps = st.integers(0, 8).map(lambda tenths: tenths * 0.1) | st.floats(0, 1.5)


@pytest.mark.parametrize("text", LIMITS)
@example(others=[(0.0, 1), (0.5, 3)], estimate=1, cost=9, settled=1)
@example(others=[(0.3, 2), (0.9, 9)], estimate=9, cost=2, settled=1)
@given(
    others=st.lists(st.tuples(gaps, st.integers(1, 10)), max_size=6),
    estimate=st.integers(1, 9),
    cost=st.integers(1, 9),
    settled=st.integers(0, 6),
)
def test_it_leaves_no_more_room_than_its_real_cost(
    text: str, others: list[tuple[float, int]], estimate: int, cost: int, settled: int
) -> None:
    slack = 3e-6 if "smooth" in text else 0  # its permits are doubles, and its prices whole microseconds
    clock = ManualClock(1_700_000_000_000_000)
    settling, knowing = Limiter(text, clock=clock), Limiter(text, clock=clock)
    for limiter in (settling, knowing):  # a smooth limit saves only once it was used
        assert limiter.take("key")
    clock.advance(5)
    mine = settling.take("key", estimate)
    assert mine
    assert knowing.take("key", cost)
    for number, (gap, other) in enumerate([*others, (0.0, 0)]):
        clock.advance(gap)
        if number == min(settled, len(others)):
            settling.settle(mine, cost)
        is_settled = number >= min(settled, len(others))
        if is_settled:
            one, another = settling.peek("key"), knowing.peek("key")
            assert one.remaining <= another.remaining
            assert (one.retry_after or 0) >= (another.retry_after or 0) - slack
        # Of the two the stricter one decides: until it is settled, an estimate that was too low leaves more room.
        strict, loose = (settling, knowing) if is_settled or estimate >= cost else (knowing, settling)
        if other and strict.take("key", other):
            assert loose.take("key", other)


@pytest.mark.parametrize("text", [example.text for example in EXAMPLES.values()])
def test_settling_charges_the_missing_units_once(harness: EngineHarness, text: str) -> None:
    """On every engine: 12 units where 10 pass at once keep the key refused for as long as 12 take."""
    limiter = harness.limiter(text)
    decision = limiter.take("key", 4)
    limiter.settle(decision, 12)
    limiter.settle(decision, 12)
    refused = limiter.take("key")
    assert not refused
    wait = {"10/s": 0.3, "10/s queue 9": 0.3, "10/s smooth": 1.2}.get(text, 1.0)
    assert refused.retry_after == pytest.approx(wait, abs=2e-6)


def test_a_part_that_was_refunded_before_is_counted(harness: EngineHarness) -> None:
    limiter = harness.limiter("100/hour")
    less, more = limiter.take("less", 20), limiter.take("more", 20)
    limiter.refund(less, 5)
    limiter.settle(less, 10)
    limiter.refund(more, 5)
    limiter.settle(more, 30)
    assert (limiter.peek("less").remaining, limiter.peek("more").remaining) == (90, 70)


def test_every_limit_of_one_call_is_settled(harness: EngineHarness) -> None:
    limiter = harness.limiter("100/minute; 500/hour")
    limiter.settle(limiter.take("key", 10), 30)
    assert [verdict.remaining for verdict in limiter.peek("key").verdicts] == [70, 470]


def test_charges_of_different_costs_are_settled_one_by_one(harness: EngineHarness) -> None:
    limiter = harness.limiter("60/minute")
    decision = limiter.take_all([Charge("ann"), Charge("ann", "9000/hour", cost=1000)])
    before = harness.stored()
    with pytest.raises(
        InvalidCharge, match=r'charged 1 by "60/minute" and 1000 by "9000/hour".*counter_decisions'
    ):
        limiter.settle(decision, 1234)
    assert harness.stored() == before
    requests, tokens = decision.counter_decisions
    limiter.settle(tokens, 1234)
    limiter.settle(tokens, 1)
    verdicts = limiter.take_all([Charge("ann", cost=0), Charge("ann", "9000/hour", cost=0)]).verdicts
    assert [verdict.remaining for verdict in verdicts] == [59, 7766]
    assert not requests.settled


@pytest.mark.parametrize("cost", [-1, 1.5, True, "7", None])
def test_a_cost_that_is_none_changes_nothing(harness: EngineHarness, cost: object) -> None:
    limiter = harness.limiter("10/hour")
    decision = limiter.take("key", 2)
    before = harness.stored()
    with pytest.raises(InvalidCharge, match="A cost is "):
        limiter.settle(decision, cost)  # type: ignore[arg-type]
    assert harness.stored() == before
    limiter.settle(decision, 5)
    assert limiter.peek("key").remaining == 5
