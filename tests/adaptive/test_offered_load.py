"""The load of a service: what comes, in what it can do."""

from math import inf

import pytest

from headgate.adaptive.offered_load import OfferedLoad
from headgate.adaptive.window import Window

MS = 1_000_000.0
BASE_NS = 100 * MS


def _load(load: OfferedLoad, rate: float, in_flight: float, response_ms: float, windows: int = 200) -> OfferedLoad:
    """Passes windows of a second, with so many calls per second and in flight."""
    response_ns = response_ms * MS
    window = Window(
        0.0,
        response_ns,
        int(in_flight),
        samples=20,
        typical_ns=response_ns,
        arrived=int(rate),
        length_ns=1000 * MS,
    )
    for _ in range(windows):
        load = load.with_window(window, in_flight, BASE_NS)
    return load


def test_the_load_is_unknown_before_there_was_a_queue() -> None:
    load = _load(OfferedLoad(), rate=80, in_flight=8, response_ms=100)
    assert (load.ratio, load.burst_queue) == (inf, 0.0)


def test_the_capacity_is_what_was_answered_while_there_was_a_queue() -> None:
    load = _load(OfferedLoad(), rate=96, in_flight=24, response_ms=200)  # 12 threads, 100 ms
    assert load.ratio == pytest.approx(0.8, rel=0.01)
    assert 20 < load.burst_queue < 40


def test_an_overload_has_no_queue_for_bursts() -> None:
    assert _load(OfferedLoad(), rate=120, in_flight=24, response_ms=200).burst_queue == 0.0


def test_lost_capacity_is_seen_at_once() -> None:
    load = _load(OfferedLoad(), rate=96, in_flight=24, response_ms=200)
    assert _load(load, rate=96, in_flight=20, response_ms=400, windows=1).ratio == pytest.approx(1.92, rel=0.01)


def test_few_calls_that_are_slow_say_nothing_about_the_capacity() -> None:
    """After a pause of the machine and a cut of the limit, two calls that take 1 s are no capacity of 2/s: the
    limit would hardly dare to grow again."""
    load = _load(OfferedLoad(), rate=96, in_flight=24, response_ms=200)
    slow = _load(load, rate=96, in_flight=2, response_ms=1000, windows=20)
    assert slow.capacity == load.capacity


def test_a_spike_is_seen_within_a_window() -> None:
    load = _load(OfferedLoad(), rate=60, in_flight=24, response_ms=200)
    assert load.burst_queue > 0
    assert _load(load, rate=300, in_flight=12, response_ms=100, windows=1).burst_queue == 0
