"""The law of refunds, for every algorithm: a refund leaves no more room than if the charge had never been made.

Two limiters of one kind live through the same minutes. In one of them a charge was made that the other never saw;
it is given back, whole or in parts, early or late. The first must never let pass what the second refuses.
"""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from headgate.clock import ManualClock
from headgate.limiter import Limiter
from tests.contract.engine_harness import EngineHarness
from tests.contract.verb_table import EXAMPLES

LIMITS = [
    *(example.text for example in EXAMPLES.values()),
    "10/s queue 9 nodelay",
    "7/s burst 9",
    "10/s smooth burst 3s",
]

gaps = st.integers(0, 8).map(lambda tenths: tenths * 0.1) | st.floats(0, 1.5)


@pytest.mark.parametrize("text", LIMITS)
@example(others=[(0.625, 1), (0.0, 9)], cost=7, parts=[(0, 1), (1, 1)], before=1, rest=5.0)
@example(others=[(0.25, 1)], cost=4, parts=[(0, 1), (1, 2)], before=1, rest=5.0)
@given(
    others=st.lists(st.tuples(gaps, st.integers(1, 10)), max_size=6),
    cost=st.integers(1, 10),
    parts=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 10)), min_size=1, max_size=3),
    before=st.integers(1, 5),
    rest=st.sampled_from([0.2, 0.5, 5.0]),
)
def test_nothing_is_minted(
    text: str, others: list[tuple[float, int]], cost: int, parts: list[tuple[int, int]], before: int, rest: float
) -> None:
    slack = 2e-6 if "smooth" in text else 0  # its permits are doubles, and its prices whole microseconds
    clock = ManualClock(1_700_000_000_000_000)
    charged, spared = Limiter(text, clock=clock), Limiter(text, clock=clock)
    # Both were seen before: a smooth limit saves only from then on.
    for limiter in (charged, spared):
        assert limiter.take("key", before)
    clock.advance(rest)
    mine = charged.take("key", cost)
    assume(mine)
    for number, (gap, other) in enumerate([*others, (0.0, 0)]):
        clock.advance(gap)
        for when, units in parts:
            if when == number:
                charged.refund(mine, units)
        with_it, without = charged.take("key", 0), spared.take("key", 0)
        assert with_it.remaining <= without.remaining
        assert (with_it.retry_after or 0) >= (without.retry_after or 0) - slack
        # Others take what they get where the charge was made; where it was not, they get as much.
        if other and charged.take("key", other):
            assert spared.take("key", other)


def test_the_example_of_the_contract(harness: EngineHarness) -> None:
    """Take 10 at t=0 from 10/s burst 10, let others take 10 at t=1, refund the first: nothing is minted."""
    limiter = harness.limiter("10/s burst 10")
    first = limiter.take("key", 10)
    harness.advance(1)
    assert limiter.take("key", 10)
    limiter.refund(first)
    assert limiter.peek("key").remaining == 0


@pytest.mark.parametrize("text", ["10/s fixed", "10/s log", "10/s sliding"])
def test_an_ended_window_gets_nothing(text: str, harness: EngineHarness) -> None:
    limiter = harness.limiter(text)
    first = limiter.take("key", 10)
    harness.advance(1)
    assert limiter.take("key", 6)
    limiter.refund(first)
    assert limiter.peek("key").remaining == 4


def test_a_refund_belongs_to_its_decision(harness: EngineHarness) -> None:
    """Whichever limiter gives it back, it goes where it was charged."""
    limiter = harness.limiter("10/s", "a")
    other = harness.limiter("10/s", "b")
    taken = limiter.take("key", 4)
    other.take("key", 4)
    other.refund(taken)
    assert (limiter.peek("key").remaining, other.peek("key").remaining) == (10, 6)


@pytest.mark.parametrize("text", ["1/s burst 100", "1/s queue 99 nodelay"])
def test_a_charge_holds_less_when_what_lay_below_it_was_given_back(text: str, harness: EngineHarness) -> None:
    """A takes 50, B takes 50, A is refunded. 50 s later B has drained: 100 are taken, B gives nothing back."""
    limiter = harness.limiter(text)
    a, b = limiter.take("key", 50), limiter.take("key", 50)
    limiter.refund(a)
    harness.advance(50)
    assert limiter.take("key", 100)
    limiter.refund(b)
    assert not limiter.take("key")


@pytest.mark.parametrize("text", ["1/s burst 100", "1/s queue 99 nodelay"])
def test_no_two_reservations_are_served_for_one_bucketful(text: str, harness: EngineHarness) -> None:
    limiter = harness.limiter(text)
    taken = limiter.take("key", 100)
    first = limiter.reserve("key", 100)
    limiter.refund(taken)
    second = limiter.reserve("key", 100)
    assert (first.delay, second.delay) == (100, 200)


@pytest.mark.parametrize(
    ("before", "between"), [("1000/hour fixed", "1/minute fixed"), ("10000/month fixed", "100/day fixed")]
)
def test_a_quota_that_was_used_up_survives_a_refusal_under_another_limit(
    before: str, between: str, harness: EngineHarness
) -> None:
    quota, other = harness.limiter(before, "quota"), harness.limiter(between, "quota")
    assert quota.take("key", int(before.split("/")[0]))
    assert not other.take("key")
    assert quota.peek("key").remaining == 0
