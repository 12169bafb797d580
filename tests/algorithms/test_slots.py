"""Slots as numbers: parsing, bounds, descriptions. Their behaviour in time is in tests/engines/slot_stories.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import MAX_CLOCK_SWING_US
from headgate.algorithms.slots import (
    TICKET_US,
    Slots,
    State,
    dead_at_us,
    decide,
    draw,
    renewed_us,
    stepped_us,
    turn,
)
from headgate.errors import InvalidRule

NOW = 1_700_000_000_000_000
SECOND = 1_000_000

instants = st.integers(NOW - 3600 * SECOND, NOW + 3600 * SECOND)
limits = st.builds(Slots, st.integers(1, 50), st.sampled_from([0.000_001, 1, 30, 86400]))


@st.composite
def counts(draw: st.DrawFn, now_us: int = NOW) -> State:
    """Draws the counts of a slot table: a new lease ends last, and live ones end in the future."""
    alive = draw(st.integers(0, 100))
    behind = draw(st.integers(0, alive))
    opens_us = now_us + draw(st.integers(1, 100 * SECOND))
    last_us = opens_us + draw(st.integers(0, 100 * SECOND)) if alive else draw(st.integers(0, now_us))
    return alive, behind, opens_us, last_us, draw(st.integers(0, now_us + 1000))


def test_a_limit_has_a_text_form() -> None:
    assert str(Slots(20)) == "20 slots"
    assert str(Slots(20, ttl=30)) == "20 slots"
    assert str(Slots(1, ttl=45)) == "1 slots ttl 45s"
    assert str(Slots(3, ttl=0.25)) == "3 slots ttl 250ms"
    assert Slots(20).args == (20, 30 * SECOND)
    assert Slots(20) == Slots(20, 30.0) != Slots(20, 31)


@pytest.mark.parametrize(
    ("amount", "ttl", "words"),
    [
        (0, 30, "number of slots must be a whole number of at least 1, not 0"),
        (-1, 30, "not -1"),
        (2.5, 30, "not 2.5"),
        (True, 30, "not True"),
        (2**53 + 1, 30, "at most 2\\^53"),
        (1, 0, "ttl of slots must be between"),
        (1, -1, "ttl of slots must be between"),
        (1, float("nan"), "ttl of slots must be between"),
        (1, "30s", "must be a number of seconds"),
        (1, 367 * 86400, "at most 366 days"),
    ],
)
def test_an_invalid_limit_is_refused_with_the_reason(amount: int, ttl: float, words: str) -> None:
    with pytest.raises(InvalidRule, match=words):
        Slots(amount, ttl)


#                  alive, behind, opens, last, fresh      cost   outcome                          lease
STORY: list[tuple[State | None, int, Outcome, tuple[int, int] | None]] = [
    (None, 0, (True, 3, 0, 0, 0, NOW, 0), None),
    (None, 1, (True, 2, 0, 30 * SECOND, 0, NOW, NOW), (NOW, NOW + 30 * SECOND)),
    # Two more within the same microsecond: the numbers run ahead of the clock.
    (
        (1, 0, 0, NOW + 30 * SECOND, NOW + 1),
        1,
        (True, 1, 0, 30 * SECOND, 0, NOW, NOW + 1),
        (NOW + 1, NOW + 30 * SECOND),
    ),
    (
        (2, 0, 0, NOW + 30 * SECOND, NOW + 2),
        1,
        (True, 0, 0, 30 * SECOND, 0, NOW, NOW + 2),
        (NOW + 2, NOW + 30 * SECOND),
    ),
    # A lease that was given under a longer ttl is the last to end.
    ((2, 0, 0, NOW + 90 * SECOND, 0), 1, (True, 0, 0, 90 * SECOND, 0, NOW, NOW), (NOW, NOW + 30 * SECOND)),
    # All taken: until the first of them ends.
    ((3, 0, NOW + 5, NOW + 9, NOW), 1, (False, 0, 5, 9, 0, NOW, 1), None),
    ((3, 0, NOW + 5, NOW + 9, NOW), 0, (False, 0, 5, 9, 0, NOW, 1), None),
    # One is free, but one is in line.
    ((3, 0, NOW + 5, NOW + 9, NOW), 1, (False, 0, 5, 9, 0, NOW, 1), None),
    # That one asks: two are held, and one more came to wait behind it.
    ((3, 1, NOW + 5, NOW + 9, NOW), 1, (True, 0, 0, 30 * SECOND, 0, NOW, NOW), (NOW, NOW + 30 * SECOND)),
    # The amount was lowered.
    ((7, 0, NOW + 5, NOW + 9, NOW), 1, (False, 0, 5, 9, 0, NOW, 5), None),
    ((7, 4, NOW + 5, NOW + 9, NOW), 1, (False, 0, 5, 9, 0, NOW, 1), None),
    ((7, 5, NOW + 5, NOW + 9, NOW), 1, (True, 0, 0, 30 * SECOND, 0, NOW, NOW), (NOW, NOW + 30 * SECOND)),
    # Something dead is still lying about.
    ((0, 0, 0, NOW - 9, NOW - 9), 0, (True, 3, 0, 0, 0, NOW, 0), None),
]


@pytest.mark.parametrize(("state", "cost", "outcome", "lease"), STORY)
def test_story(state: State | None, cost: int, outcome: Outcome, lease: tuple[int, int] | None) -> None:
    assert decide(Slots(3), state, NOW, cost) == (outcome, lease)


def test_the_one_that_opens() -> None:
    assert [turn(Slots(3), alive) for alive in range(6)] == [None, None, None, 0, 1, 2]


@given(limits, counts())
def test_a_caller_with_fewer_leases_ahead_than_slots_gets_a_slot(limit: Slots, state: State) -> None:
    alive, behind, *_ = state
    outcome, lease = decide(limit, state, NOW, 1)
    assert outcome[0] == (lease is not None) == (alive - behind < limit.amount)
    assert 0 <= outcome[1] < limit.amount


@given(limits, counts())
def test_a_peek_reports_the_outcome_of_a_new_caller(limit: Slots, state: State) -> None:
    state = state[0], 0, *state[2:]
    seen, none = decide(limit, state, NOW, 0)
    got, _ = decide(limit, state, NOW, 1)
    assert none is None
    assert seen[0] == got[0]
    assert seen[2] == got[2]
    assert seen[1] == got[1] + got[0]


@given(limits, counts())
def test_a_refusal_reports_when_a_slot_expires(limit: Slots, state: State) -> None:
    outcome, _ = decide(limit, state, NOW, 1)
    if outcome[0]:
        assert outcome[2] == 0
    else:
        assert turn(limit, state[0]) is not None
        assert outcome[2] == state[2] - NOW > 0
        assert outcome[2] <= outcome[3]
        assert outcome[6] == state[0] - state[1] - limit.amount + 1 > 0


@given(limits, counts())
def test_a_fence_is_new_and_not_behind_the_clock(limit: Slots, state: State) -> None:
    outcome, lease = decide(limit, state, NOW, 1)
    if lease is not None:
        assert outcome[6] == lease[0] >= max(state[4], NOW)
        assert lease[1] == renewed_us(limit, NOW) == NOW + limit.ttl_us


@given(limits, st.integers(0, NOW + SECOND), st.integers(0, NOW + SECOND), st.integers(0, SECOND))
def test_a_dead_key_says_no_more_than_one_never_seen(limit: Slots, last_us: int, fresh: int, more_us: int) -> None:
    now_us = dead_at_us(last_us, fresh) + more_us
    for cost in (0, 1):
        assert decide(limit, (0, 0, 0, last_us, fresh), now_us, cost) == decide(limit, None, now_us, cost)
    assert draw(fresh, now_us) == draw(0, now_us)


@given(st.integers(0, NOW + SECOND), st.integers(1, NOW + SECOND))
def test_a_living_key_says_more(last_us: int, fresh: int) -> None:
    now_us = dead_at_us(last_us, fresh) - 1
    assert (last_us + MAX_CLOCK_SWING_US > now_us) or draw(fresh, now_us) != draw(0, now_us)


@given(st.integers(0, NOW + SECOND))
def test_a_ticket_is_a_new_number_that_expires_soon(fresh: int) -> None:
    number, expires_us = draw(fresh, NOW)
    assert number >= max(fresh, NOW)
    assert expires_us == NOW + TICKET_US


@given(instants, instants)
def test_a_step_back_is_how_far_the_clock_is_behind(stamp_us: int, now_us: int) -> None:
    behind_us = stamp_us - now_us
    assert stepped_us(stamp_us, now_us) == (behind_us if behind_us > MAX_CLOCK_SWING_US else 0)


@pytest.mark.parametrize("behind_us", [1, MAX_CLOCK_SWING_US])
def test_a_swing_is_no_step_back(behind_us: int) -> None:
    assert stepped_us(NOW + behind_us, NOW) == 0
    assert stepped_us(NOW + MAX_CLOCK_SWING_US + behind_us, NOW) == MAX_CLOCK_SWING_US + behind_us
