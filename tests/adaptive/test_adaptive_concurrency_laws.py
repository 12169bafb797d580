"""The laws of the default algorithm, for any windows."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.adaptive.adaptive_concurrency import AdaptiveConcurrency
from headgate.adaptive.adaptive_concurrency_state import ConcurrencyState
from headgate.adaptive.window import Window
from tests.adaptive.windows import windows

ALGORITHM = AdaptiveConcurrency(floor=2, ceiling=500)

some_windows = st.lists(windows(), max_size=60)


def _states(calls: list[Window]) -> list[ConcurrencyState]:
    state, states = ALGORITHM.start(), []
    for call in calls:
        _, state, _ = ALGORITHM.update(state, call)
        states.append(state)
    return states


@given(some_windows)
def test_the_limit_stays_within_its_bounds(calls: list[Window]) -> None:
    state = ALGORITHM.start()
    for call in calls:
        limit, state, reason = ALGORITHM.update(state, call)
        assert 2 <= limit <= 500
        assert limit == ALGORITHM.limit_of(state)
        assert reason


@given(some_windows)
def test_the_same_windows_give_the_same_states(calls: list[Window]) -> None:
    assert _states(calls) == _states(calls)


@given(some_windows)
def test_drops_never_raise_the_limit(calls: list[Window]) -> None:
    state = ALGORITHM.start()
    for call in calls:
        before = state.limit
        _, state, reason = ALGORITHM.update(state, call)
        if reason in ("dropped", "few drops"):
            assert state.limit <= before


@given(some_windows)
def test_nobody_is_refused_in_order_to_probe(calls: list[Window]) -> None:
    """If nobody was refused and nothing dropped, the limit is not set below what is in flight, unless the limit
    itself was reached and calls queue."""
    state = ALGORITHM.start()
    for call in calls:
        before = state
        _, state, _ = ALGORITHM.update(state, call)
        if not call.refused and not call.dropped and state.limit < before.limit:
            full = call.in_flight >= int(before.limit)
            assert full or state.limit >= call.in_flight


@given(some_windows)
def test_windows_are_bounded(calls: list[Window]) -> None:
    for state in _states(calls):
        length_ns, samples, settle_ns = ALGORITHM.window_of(state)
        assert length_ns >= max(50e6, settle_ns)
        assert 2 <= samples <= 200
