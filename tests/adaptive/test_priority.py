"""Rejection by priority: the least important calls are refused first, and the queue is short."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adaptive.aimd import Aimd, AimdState
from headgate.adaptive.gate import IGNORED, SUCCESS
from headgate.adaptive.priority import QUEUED, RECENT_CALLS, PriorityGate, RejectionRatio
from headgate.adaptive.window import Window, WindowSize
from headgate.errors import InvalidRule

MS = 1_000_000.0
HIGH, LOW = 0, 1


def _gate(limit: int, *, classes: int = 2, max_wait_ms: float = 100.0) -> PriorityGate:
    fixed = Aimd(initial=limit, floor=limit, ceiling=limit)
    return PriorityGate(fixed, 0.0, classes, max_wait_ns=max_wait_ms * MS, random=Random(1))


def _warm(ratio: float, shares: list[int], *, fair: bool = False) -> RejectionRatio:
    """A rejection that has seen so many calls of each class, at this ratio."""
    rejection = RejectionRatio(len(shares), Random(1), fair=fair)
    for priority, share in enumerate(shares):
        for _ in range(share):
            rejection.rejects(0.0, priority)
    rejection.ratio = ratio
    return rejection


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.69])
def test_the_least_important_class_is_refused_first_and_at_random(ratio: float) -> None:
    rejection = _warm(ratio, [300, 700])
    assert not any(rejection.rejects(1.0, HIGH) for _ in range(50))
    refused = sum(rejection.rejects(1.0, LOW) for _ in range(50))
    assert 0 < refused < 50


def test_a_more_important_class_is_refused_only_after_all_of_the_less_important() -> None:
    rejection = _warm(0.85, [300, 700])
    assert all(rejection.rejects(1.0, LOW) for _ in range(20))
    refused = sum(rejection.rejects(1.0, HIGH) for _ in range(20))
    assert 0 < refused < 20


def test_the_last_places_are_kept_for_more_important_calls_while_calls_are_refused() -> None:
    rejection = _warm(0.5, [100, 200, 700])
    assert [rejection.reserved(priority, 20) for priority in range(3)] == [0, 4, 4]
    assert [rejection.reserved(2, places) for places in (1, 4, 5, 1000)] == [0, 0, 1, 10]
    assert _warm(0.5, [10, 0, 990]).reserved(2, 1000) == 2, "few important calls need few places"
    assert _warm(0.0, [100, 200, 700]).reserved(2, 20) == 0, "nobody is refused"
    assert _warm(0.5, [0, 0, 1000]).reserved(2, 20) == 0, "nobody is more important"


def test_a_call_leaves_the_last_places_of_the_limit() -> None:
    gate = _gate(20, max_wait_ms=0.0)
    for number in range(RECENT_CALLS):
        gate.rejection.rejects(0.0, HIGH if number % 2 else LOW)
    gate.rejection.ratio = 0.01
    gate.rejection._period_ends_ns = 1e18  # the ratio stays
    admitted = sum(gate.enter(1.0, number, LOW) > 0 for number in range(100))
    assert admitted == 16
    assert [gate.enter(1.0, number, HIGH) > 0 for number in range(5)] == [True] * 4 + [False]


def test_heavy_users_are_refused_first_where_that_is_configured() -> None:
    rejection = RejectionRatio(1, Random(1), fair=True)
    for number in range(900):
        rejection.rejects(0.0, 0, "heavy" if number % 3 else f"user {number}")
    rejection.ratio = 0.5
    heavy = sum(rejection.rejects(1.0, 0, "heavy") for _ in range(50))
    light = sum(rejection.rejects(1.0, 0, f"light {number}") for number in range(50))
    assert heavy > 1.5 * light


def test_the_ratio_rises_while_calls_find_no_room_and_falls_afterwards() -> None:
    rejection = RejectionRatio(1, Random(1))
    for tenth in range(20):
        for _ in range(10):
            rejection.rejects(tenth * 100 * MS, 0)
            rejection.found_no_room()
    assert rejection.ratio > 0.5
    for tenth in range(20, 80):
        rejection.rejects(tenth * 100 * MS, 0)
    assert rejection.ratio == 0.0


def test_memory_is_bounded() -> None:
    rejection = RejectionRatio(1, Random(1), fair=True)
    for number in range(5 * RECENT_CALLS):
        rejection.rejects(number * MS, 0, number)
    assert len(rejection._users) == len(rejection._recent) == RECENT_CALLS


def test_the_important_call_waits_and_comes_first() -> None:
    gate = _gate(1, classes=3)
    assert gate.enter(0.0, "first", 2) == 1
    assert gate.enter(1 * MS, "medium", 1) == QUEUED
    assert gate.enter(2 * MS, "high", 0) == QUEUED
    assert gate.enter(3 * MS, "low", 2) == 0
    assert gate.leave(1, 0.0, 10 * MS, IGNORED) == [("high", 1)]
    assert gate.leave(1, 10 * MS, 20 * MS, IGNORED) == [("medium", 1)]


class NotedWindows(Aimd):
    """Notes the windows that it gets, of at least two calls; the limit is always 1."""

    def __init__(self) -> None:
        super().__init__(initial=1, floor=1, ceiling=1)
        self.windows: list[Window] = []

    def window_of(self, state: AimdState) -> WindowSize:
        return WindowSize(0.0, 2)

    def update(self, state: AimdState, window: Window) -> tuple[int, AimdState, str]:
        self.windows.append(window)
        return super().update(state, window)


def test_each_call_arrives_once_whatever_becomes_of_it() -> None:
    algorithm = NotedWindows()
    gate = PriorityGate(algorithm, 0.0, 3, max_wait_ns=100 * MS, random=Random(1))
    assert gate.enter(0.0, "passes", 1) == 1
    assert gate.enter(1 * MS, "finds no room", 2) == 0
    assert gate.enter(2 * MS, "waits", 0) == QUEUED
    assert gate.enter(3 * MS, "comes behind it", 2) == 0
    assert gate.enter(4 * MS, "must not wait", 1, may_wait=False) == 0
    assert gate.leave(1, 0.0, 10 * MS, SUCCESS) == [("waits", 1)]
    assert gate.leave(1, 10 * MS, 20 * MS, SUCCESS) == []
    assert [(window.arrived, window.refused) for window in algorithm.windows] == [(5, 4)]


def test_nobody_waits_longer_than_allowed() -> None:
    gate = _gate(1)
    gate.enter(0.0, "first", HIGH)
    assert gate.enter(5 * MS, "waits", HIGH) == QUEUED
    assert gate.expires_ns == 105 * MS
    assert gate.expire(104 * MS) == []
    assert gate.expire(105 * MS) == ["waits"]
    assert gate.leave(1, 0.0, 110 * MS, IGNORED) == []


def test_a_call_can_be_withdrawn() -> None:
    gate = _gate(1)
    gate.enter(0.0, "first", HIGH)
    gate.enter(1 * MS, "gone", HIGH)
    assert gate.withdraw("gone")
    assert not gate.withdraw("gone")
    assert gate.leave(1, 0.0, 2 * MS, IGNORED) == []


def test_there_is_at_least_one_class() -> None:
    with pytest.raises(InvalidRule, match="at least one class of priorities; not 0"):
        _gate(1, classes=0)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=200), st.integers(1, 5))
def test_never_more_in_flight_than_the_limit(steps: list[tuple[int, bool]], limit: int) -> None:
    gate = _gate(limit, classes=3)
    running: list[int] = []
    for number, (priority, leaves) in enumerate(steps):
        now_ns = number * 10 * MS
        gate.expire(now_ns)
        if leaves and running:
            running += [entered for _, entered in gate.leave(running.pop(), now_ns, now_ns, IGNORED)]
        elif (entered := gate.enter(now_ns, number, priority)) > 0:
            running.append(entered)
        assert len(running) == gate.gate.in_flight <= limit
        assert gate._length <= 10


def test_calls_of_a_class_that_is_refused_in_part_do_not_wait() -> None:
    gate = _gate(1, classes=3)
    assert gate.enter(0.0, "first", 2) == 1
    for _ in range(100):
        gate.rejection.rejects(0.0, 1)
    gate.rejection.ratio = 0.5
    assert {gate.enter(1 * MS, "medium", 1) for _ in range(10)} == {0}
    assert gate.enter(2 * MS, "high", 0) == QUEUED


def test_a_flood_returns_by_a_part_at_a_time() -> None:
    rejection = _warm(0.9, [1000])
    passed = 1 - rejection.ratio
    for tenth in range(1, 6):
        rejection.rejects(tenth * 100 * MS + 1, 0)
        assert 1 - rejection.ratio <= 1.21 * passed
        passed = 1 - rejection.ratio
