"""A rate that holds a quantile of response times."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adaptive.gate import DROPPED, SUCCESS
from headgate.adaptive.rate_gate import RateGate
from headgate.adaptive.target_rate import RateState, RateWindow, TargetRate
from headgate.errors import InvalidRule

SETTINGS = TargetRate(target=0.2, quantile=0.9, floor=10, ceiling=500, initial=100, step=5)
SECOND = 1e9


def _calls(slow: int, fast: int, *, dropped: int = 0) -> RateWindow:
    return RateWindow([0.3] * slow + [0.05] * fast, dropped, 1.0)


@pytest.mark.parametrize(
    ("window", "rate", "reason"),
    [
        (_calls(0, 100), 110, "below the target"),  # two steps: it is below half of the target
        (_calls(9, 91), 110, "below the target"),  # the P90 is not among the slow 9 %
        (_calls(11, 89), 85, "above the target"),
        (RateWindow([0.5] * 100, 0, 1.0), 72.25, "above the target"),
        (RateWindow([0.19] * 100, 0, 1.0), 100, "at the target"),
        (RateWindow([0.15] * 100, 0, 1.0), 105, "below the target"),
        (_calls(0, 89, dropped=11), 72.25, "above the target"),
        (_calls(0, 50), 100, "not used"),
        (RateWindow([], 0, 1.0), 100, "no calls"),
    ],
)
def test_it_moves_as_tcp_does(window: RateWindow, rate: float, reason: str) -> None:
    new_rate, state, why = SETTINGS.update(RateState(100.0), window)
    assert new_rate == pytest.approx(rate)
    assert (state.rate, why) == (new_rate, reason)


rate_windows = st.builds(
    RateWindow, st.lists(st.floats(0, 10), max_size=50), st.integers(0, 50), st.floats(0.1, 10)
)


@given(st.lists(rate_windows, max_size=50))
def test_the_rate_stays_within_its_bounds_and_moves_the_right_way(windows: list[RateWindow]) -> None:
    state = SETTINGS.start()
    for window in windows:
        before = state.rate
        rate, state, reason = SETTINGS.update(state, window)
        assert 10 <= rate == state.rate <= 500
        if reason == "above the target":
            assert rate <= before
        elif reason == "below the target":
            assert rate >= before
        else:
            assert rate == before


def test_the_gate_admits_the_rate() -> None:
    gate = RateGate(SETTINGS, 0.0)
    admitted = sum(bool(gate.try_enter(number * SECOND / 1000)) for number in range(1000))
    assert admitted == pytest.approx(110, abs=2)  # a second's worth, and the burst of a tenth


def test_the_gate_follows_the_service() -> None:
    gate = RateGate(SETTINGS, 0.0)
    for number in range(300):
        now_ns = number * SECOND / 100
        if entered := gate.try_enter(now_ns):
            gate.leave(entered, now_ns - 0.5 * SECOND, now_ns, SUCCESS)
    assert gate.limit < 60
    assert gate.in_flight == 0
    low = gate.limit
    for number in range(300, 1500):
        now_ns = number * SECOND / 100
        if entered := gate.try_enter(now_ns):
            gate.leave(entered, now_ns - 0.01 * SECOND, now_ns, SUCCESS)
    assert gate.limit > low
    gate.try_enter(15 * SECOND)
    gate.leave(1, 0.0, 100 * SECOND, DROPPED)


def test_a_window_of_many_calls_keeps_some_of_their_response_times() -> None:
    settings = TargetRate(target=0.2, quantile=0.9, ceiling=1_000_000, initial=100_000, min_window=60)
    gate = RateGate(settings, 0.0)
    for number in range(1, 50_001):
        now_ns = number * SECOND / 100_000
        gate.leave(gate.try_enter(now_ns), now_ns - 0.01 * SECOND, now_ns, SUCCESS)
    assert sys.getsizeof(gate._responses) < 200_000
    gate.leave(gate.try_enter(60 * SECOND), 59.99 * SECOND, 60 * SECOND, SUCCESS)
    assert (gate.windows, gate.reason) == (1, "not used")
    window = RateWindow([0.01] * 10, 0, 1.0, others=90_000)
    assert settings.update(settings.start(), window)[2] == "below the target"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": 0}, "target is a number above 0; not 0."),
        ({"target": 1, "floor": 20, "ceiling": 10}, "The floor of 20 is above the ceiling of 10: exchange them."),
        ({"target": 1, "quantile": 99}, "quantile is a number at least 0.5, at most 0.999; not 99."),
        ({"target": 1, "initial": 0.5}, "A rate that starts at 0.5 is outside its own bounds, 1 to 10000."),
        ({"target": 1, "step": 0}, "step is a number above 0; not 0."),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        TargetRate(**settings)
    assert str(refused.value) == message
