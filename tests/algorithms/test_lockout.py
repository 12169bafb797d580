"""The laws of lockouts, as stories and against a model that remembers every refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms import lockout
from headgate.algorithms.limit import HOUR, MINUTE, SECOND, YEAR
from headgate.algorithms.lockout import Lockout, State
from headgate.errors import InvalidRule

LOGIN = Lockout(after=3, within_us=10 * MINUTE, for_us=HOUR)
NOW = 1_700_000_000 * SECOND


def knock(state: State | None, now_us: int, numbers: Lockout = LOGIN) -> tuple[int, State | None]:
    """A refusal by the limits: how long it is locked before, and the state after it."""
    settled = lockout.current_state(numbers, state, now_us)
    left_us = lockout.left_us(settled, now_us)
    return left_us, settled if left_us else lockout.count_refusal(numbers, settled, now_us)


def test_the_third_refusal_locks_for_an_hour() -> None:
    state: State | None = None
    for minute in (0, 4):
        left_us, state = knock(state, NOW + minute * MINUTE)
        assert (left_us, lockout.left_us(state, NOW + minute * MINUTE)) == (0, 0)
    left_us, state = knock(state, NOW + 9 * MINUTE)
    assert (left_us, lockout.left_us(state, NOW + 9 * MINUTE)) == (0, HOUR)


def test_a_span_begins_with_its_first_refusal_and_ends_without_a_trace() -> None:
    _, state = knock(None, NOW)
    _, state = knock(state, NOW + 9 * MINUTE)
    assert state == (NOW + 10 * MINUTE, 2)
    assert lockout.current_state(LOGIN, state, NOW + 10 * MINUTE - 1) is state
    assert lockout.current_state(LOGIN, state, NOW + 10 * MINUTE) is None
    _, state = knock(state, NOW + 10 * MINUTE)
    assert state == (NOW + 20 * MINUTE, 1)


def test_while_locked_nothing_is_counted_and_the_end_does_not_move() -> None:
    state: State | None = (NOW + HOUR, 0)
    for minute in range(60):
        left_us, after = knock(state, NOW + minute * MINUTE)
        assert (left_us, after) == (HOUR - minute * MINUTE, state)
    assert knock(state, NOW + HOUR - 1) == (1, state)
    assert knock(state, NOW + HOUR) == (0, (NOW + HOUR + 10 * MINUTE, 1))


def test_after_one_every_refusal_locks() -> None:
    strict = Lockout(1, SECOND, MINUTE)
    assert knock(None, NOW, strict) == (0, (NOW + MINUTE, 0))


def test_a_step_back_locks_nobody_for_longer() -> None:
    locked = (NOW + HOUR, 0)
    back_us = NOW - 24 * HOUR
    settled = lockout.current_state(LOGIN, locked, back_us)
    assert settled == (back_us + HOUR, 0)
    assert lockout.left_us(settled, back_us) == HOUR
    counting = (NOW + 10 * MINUTE, 2)
    assert lockout.current_state(LOGIN, counting, back_us) == (back_us + 10 * MINUTE, 2)


def test_shorter_numbers_hold_at_once() -> None:
    mild = Lockout(2, MINUTE, MINUTE)
    assert lockout.current_state(mild, (NOW + HOUR, 0), NOW) == (NOW + MINUTE, 0)
    assert knock((NOW + 9 * MINUTE, 2), NOW, mild) == (0, (NOW + MINUTE, 0))


@given(
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 40),
    st.lists(st.integers(0, 25), max_size=60),
)
def test_it_does_what_a_long_memory_would(after: int, within_us: int, for_us: int, gaps: list[int]) -> None:
    numbers, state, now_us = Lockout(after, within_us, for_us), None, NOW
    span: list[int] = []
    locked_us = 0
    for gap in gaps:
        now_us += gap
        left_us, state = knock(state, now_us, numbers)
        assert left_us == max(0, locked_us - now_us)
        if left_us:
            continue
        if not span or now_us >= span[0] + within_us:
            span = []
        span.append(now_us)
        if len(span) == after:
            span, locked_us = [], now_us + for_us
        assert state is not None
        assert lockout.dead_at_us(state) == (span[0] + within_us if span else locked_us)
        assert lockout.unpack(lockout.pack(state)) == state


@given(st.lists(st.integers(-100, 100), max_size=60))
def test_a_clock_change_never_prolongs_a_lockout(steps: list[int]) -> None:
    numbers, state, now_us = Lockout(2, 30, 50), None, NOW
    for step in steps:
        now_us += step
        left_us, state = knock(state, now_us, numbers)
        assert 0 <= left_us <= numbers.for_us
        assert state is not None
        assert now_us < state[0] <= now_us + (numbers.within_us if state[1] else numbers.for_us)


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((0, 1, 1), '"after", its number of refusals, must be a whole number of at least 1, not 0'),
        ((True, 1, 1), "must be a whole number of at least 1, not True"),
        ((10**15 + 1, 1, 1), r"at most 10\^15 refusals"),
        ((1, 0, 1), '"within", in microseconds, must be a whole number of at least 1, not 0'),
        ((1, 1, 0.5), '"for", in microseconds, must be a whole number of at least 1, not 0.5'),
        ((1, 1, 100 * YEAR + 1), '"for" may be at most 100 years'),
    ],
)
def test_an_invalid_lockout_is_refused_with_the_reason(numbers: tuple[int, int, int], sentence: str) -> None:
    with pytest.raises(InvalidRule, match=sentence):
        Lockout(*numbers)
    assert Lockout(1, 1, 1) == (1, 1, 1)
