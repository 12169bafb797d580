"""The laws of AIMD, Vegas and Gradient2; recorded decisions of Netflix's own are in tests/recorded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adaptive.aimd import Aimd
from headgate.adaptive.gradient2 import Gradient2
from headgate.adaptive.vegas import Vegas
from headgate.adaptive.window import Window
from headgate.errors import InvalidRule
from tests.adaptive.windows import window, windows

ALGORITHMS: list[Any] = [Aimd(floor=2), Vegas(), Gradient2(floor=3)]

some_windows = st.lists(windows(), max_size=50)
one_call = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)


@one_call
@given(calls=some_windows)
def test_the_limit_stays_within_its_bounds(algorithm: Any, calls: list[Window]) -> None:
    state = algorithm.start()
    for call in calls:
        if call.response_ns:
            limit, state, _ = algorithm.update(state, call)
            assert getattr(algorithm, "floor", 1) <= limit <= algorithm.ceiling
            assert limit == algorithm.limit_of(state)


@one_call
@given(calls=some_windows)
def test_the_same_windows_give_the_same_limits(algorithm: Any, calls: list[Window]) -> None:
    def limits() -> list[int]:
        state, found = algorithm.start(), []
        for call in calls:
            if call.response_ns:
                limit, state, _ = algorithm.update(state, call)
                found.append(limit)
        return found

    assert limits() == limits()


def test_aimd_is_blind_to_latency_below_its_timeout() -> None:
    aimd = Aimd(initial=30, floor=1, timeout=5.0)
    assert aimd.update(aimd.start(), window(4999, 30, peak=30))[0] == 31
    assert aimd.update(aimd.start(), window(5001, 30, peak=30))[0] == 27
    assert aimd.update(aimd.start(), window(1, 30, peak=30, dropped=1))[0] == 27


def test_vegas_holds_a_queue_between_alpha_and_beta() -> None:
    vegas = Vegas(initial=10, ceiling=20, alpha=3, beta=6, probe=0)
    _, state, _ = vegas.update(vegas.start(), window(10, 10, peak=10))
    assert vegas.update(state, window(10, 14, peak=14))[0] == 16
    assert vegas.update(state, window(50, 14, peak=14))[0] == 9


def test_vegas_takes_a_queue_for_the_service_when_it_probes() -> None:
    vegas = Vegas(initial=10)
    _, state, _ = vegas.update(vegas.start(), window(10, 10, peak=10))
    for _ in range(400):
        _, state, reason = vegas.update(state, window(100, 50, peak=1000))
        if reason == "probe":
            break
    assert state.shortest_ns == 100e6


def test_gradient2_ignores_drops() -> None:
    gradient2 = Gradient2()
    dropped = gradient2.update(gradient2.start(), window(10, 20, peak=20, dropped=20))
    assert dropped[0] == gradient2.update(gradient2.start(), window(10, 20, peak=20))[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Aimd(floor=30, ceiling=20), "The floor of 30 is above the ceiling of 20: exchange them."),
        (lambda: Aimd(initial=300), "A limit that starts at 300 is outside its own bounds, 20 to 200."),
        (lambda: Aimd(timeout=0), "timeout is a number above 0; not 0."),
        (lambda: Vegas(smoothing=0), "smoothing is a number above 0, at most 1; not 0."),
        (lambda: Vegas(initial=0), "initial is a whole number of at least 1; not 0."),
        (lambda: Gradient2(tolerance=float("nan")), "tolerance is a number at least 1; not nan."),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(make: Any, message: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        make()
    assert str(refused.value) == message
