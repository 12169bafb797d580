"""TargetConcurrency: the limit on calls in flight holds a quantile of response times."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import AdaptiveLimiter
from headgate.adaptive.gate import DROPPED, SUCCESS, ConcurrencyGate
from headgate.adaptive.target_concurrency import TargetConcurrency
from headgate.adaptive.window import Window
from headgate.errors import InvalidRule

MS = 1e6
SETTINGS = TargetConcurrency(target=0.2, floor=5, ceiling=500, initial=100)


def _window(quantile_ms: float, *, in_flight: int = 100, refused: int = 0, strained: bool = False) -> Window:
    return Window(0.0, 1.0, in_flight, refused=refused, strained=strained, quantile_ns=quantile_ms * MS)


@pytest.mark.parametrize(
    ("window", "limit", "reason"),
    [
        (_window(201), 90, "above the target"),
        (_window(401), 81, "above the target"),
        (_window(math.inf), 81, "above the target"),
        (_window(199), 100, "at the target"),
        (_window(171), 100, "at the target"),
        (_window(169), 105, "below the target"),
        (_window(99), 110, "below the target"),
        (_window(99, in_flight=99), 100, "not used"),
        (_window(99, in_flight=99, refused=1), 110, "below the target"),
        (_window(99, strained=True), 100, "strained"),
    ],
)
def test_it_moves_by_the_quantile(window: Window, limit: int, reason: str) -> None:
    moved, state, why = SETTINGS.update(SETTINGS.start(), window)
    assert (moved, why) == (limit, reason)
    assert SETTINGS.limit_of(state) == limit


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 600), st.booleans()), max_size=60))
def test_the_limit_stays_within_its_bounds_and_moves_the_right_way(steps: list[tuple[float, int, bool]]) -> None:
    state = SETTINGS.start()
    for quantile_ms, in_flight, strained in steps:
        before = SETTINGS.limit_of(state)
        limit, state, _ = SETTINGS.update(state, _window(quantile_ms, in_flight=in_flight, strained=strained))
        assert 5 <= limit <= 500
        assert limit <= before if quantile_ms > 200 else limit >= before


def _serve(gate: ConcurrencyGate, threads: int, work_ms: float, calls: int, now_ns: float) -> float:
    """Sends calls as fast as the gate allows to a service in which they share threads; returns the last end."""
    for _ in range(calls):
        running = []
        while entered := gate.try_enter(now_ns):
            running.append(entered)
        took_ns = work_ms * MS * max(1.0, len(running) / threads)
        for entered in running:
            gate.leave(entered, now_ns, now_ns + took_ns, SUCCESS)
        now_ns += took_ns
    return now_ns


def test_the_gate_finds_the_limit_that_keeps_the_target() -> None:
    gate = ConcurrencyGate(TargetConcurrency(target=0.2, floor=1, ceiling=500, initial=100), 0.0)
    now_ns = _serve(gate, 12, 100, 400, 0.0)
    assert 18 <= gate.limit <= 24  # 24 calls share 12 threads: 200 ms
    now_ns = _serve(gate, 24, 100, 400, now_ns)
    assert 36 <= gate.limit <= 48
    _serve(gate, 6, 100, 400, now_ns)
    assert 9 <= gate.limit <= 12


def test_drops_count_as_slower_than_any_other_call() -> None:
    gate = ConcurrencyGate(TargetConcurrency(target=0.2, initial=20), 0.0)
    for number in range(200):
        entered = gate.try_enter(number * 10 * MS)
        gate.leave(entered, number * 10 * MS, number * 10 * MS + MS, DROPPED if number % 10 == 0 else SUCCESS)
    assert gate.limit < 20
    assert gate.reason == "above the target"


def test_a_call_can_begin_above_the_limit_and_hear_of_its_refusal() -> None:
    limiter = AdaptiveLimiter(TargetConcurrency(target=0.2, floor=1, initial=1, ceiling=1))
    first, passes = limiter.observe()
    second, refusal = limiter.observe()
    assert passes is None
    assert refusal is not None
    assert not refusal.allowed
    assert limiter.in_flight == 2
    first.success()
    second.success()
    assert limiter.in_flight == 0


def test_settings_can_change_while_calls_are_in_flight() -> None:
    limiter = AdaptiveLimiter(TargetConcurrency(target=0.2, initial=30))
    call = limiter.acquire()
    limiter.change(TargetConcurrency(target=0.2, ceiling=10, initial=10))
    assert (limiter.limit, limiter.in_flight) == (10, 1)
    call.success()
    assert limiter.in_flight == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"target": 0}, "target is a number above 0; not 0"),
        ({"target": 0.2, "floor": 9, "ceiling": 8}, "floor of 9 is above the ceiling of 8"),
        ({"target": 0.2, "quantile": 99}, "quantile is a number at least 0.5, at most 0.999"),
        ({"target": 0.2, "initial": 2000}, "outside its own bounds"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRule, match=sentence):
        TargetConcurrency(**settings)
