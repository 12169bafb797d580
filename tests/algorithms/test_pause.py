"""The laws of pauses: the clock of a key stands while it is paused, and never jumps."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms import pause
from headgate.algorithms.limit import MINUTE, SECOND
from headgate.algorithms.pause import State

NOW = 1_700_000_000 * SECOND

steps = st.lists(
    st.tuples(st.integers(0, 5 * MINUTE), st.integers(1, 2 * MINUTE), st.booleans()), min_size=1, max_size=30
)


def test_the_key_clock_stops_until_the_pause_ends() -> None:
    state = pause.extended(None, NOW, 10 * SECOND)
    shown = [pause.clock_us(state, NOW + second * SECOND, False) - NOW for second in (0, 4, 10, 11, 70)]
    assert shown == [0, 0, 0, SECOND, 60 * SECOND]
    assert pause.left_us(state, NOW + 4 * SECOND) == 6 * SECOND
    assert pause.left_us(state, NOW + 10 * SECOND) == 0


def test_with_edges_the_clock_is_set_ahead() -> None:
    state = pause.extended(None, NOW, 10 * SECOND)
    shown = [pause.clock_us(state, NOW + second * SECOND, True) - NOW for second in (0, 4, 10, 11)]
    assert shown == [10 * SECOND, 10 * SECOND, 10 * SECOND, 11 * SECOND]


def test_a_pause_never_shortens_a_longer_one() -> None:
    state = pause.extended(None, NOW, MINUTE)
    assert pause.extended(state, NOW + SECOND, 59 * SECOND) is state
    longer = pause.extended(state, NOW + SECOND, MINUTE)
    assert pause.left_us(longer, NOW + SECOND) == MINUTE
    assert pause.clock_us(longer, NOW + SECOND, False) == NOW


@given(steps)
def test_the_clock_never_goes_back_nor_faster_than_time(walk: list[tuple[int, int, bool]]) -> None:
    now_us, state = NOW, None
    shown_us, edges_us = NOW, NOW
    for step_us, duration_us, pauses in walk:
        now_us += step_us
        for has_edges, before_us in ((False, shown_us), (True, edges_us)):
            after_us = pause.clock_us(state, now_us, has_edges)
            assert after_us >= before_us
            assert has_edges or after_us <= before_us + step_us
        shown_us = pause.clock_us(state, now_us, False)
        if pauses:
            left_us = pause.left_us(state, now_us)
            state = pause.extended(state, now_us, duration_us)
            assert pause.left_us(state, now_us) == max(left_us, duration_us)
            assert pause.clock_us(state, now_us, False) == shown_us, "a pause moves no clock"
        edges_us = pause.clock_us(state, now_us, True)
        assert state is None or pause.unpack(pause.pack(state)) == state


def test_a_clock_that_is_set_back_ends_the_pause_earlier() -> None:
    state: State = pause.extended(None, NOW, MINUTE)
    assert pause.current_state(state, NOW - 100_000) is state
    back_us = NOW - 3600 * SECOND
    current = pause.current_state(state, back_us)
    assert pause.left_us(current, back_us) == MINUTE
    assert pause.clock_us(current, back_us, False) == back_us
