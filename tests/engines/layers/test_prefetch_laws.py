"""The laws of prefetching on random walks of several processes: how much more is admitted, and that nothing is
lost.

Several lease engines over one embedded engine are several processes to it.
"""

from collections.abc import Iterator
from itertools import takewhile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.algorithms.decision import Decision
from headgate.clock import ManualClock
from headgate.engines.layers.prefetch import PrefetchEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.limiter import Limiter
from tests.engines.layers.prefetch_harness import PrefetchHarness

SLOW = ["1000/365d", "1000/365d fixed", "1000/365d sliding", "1000/365d log"]
NODES, UNITS = 3, 4
STEPS = {
    "take": st.integers(1, 3),  # one call of so many units
    "warm": st.integers(4, 20),  # so many calls, after which something may be in stock
    "flood": st.just(200),  # calls until one is refused
    "close": st.just(0),
}
WALKS = st.lists(
    st.one_of(
        *(st.tuples(st.just(step), st.integers(0, NODES - 1), what) for step, what in STEPS.items()),
        st.tuples(st.just("pass"), st.sampled_from([1, 20, 50, 90, 100, 400, 850, 950, 1000]), st.just(0)),
    ),
    max_size=60,
)


def _walk(text: str, steps: list[tuple[str, int, int]]) -> list[tuple[int, int]]:
    """Returns what several processes admit, as pairs of instant and units."""
    clock = ManualClock(1_700_000_000_000_000)
    inner = MemoryEngine(clock)
    engines = [PrefetchEngine(inner, units=UNITS, clock=clock) for _ in range(NODES)]
    limiters = [Limiter(text, engine, clock=clock) for engine in engines]
    admitted = []
    for step, which, what in steps:
        if step == "take" and limiters[which].take("k", what):
            admitted.append((clock.now_us(), what))
        elif step == "warm":
            admitted += [(clock.now_us(), 1) for _ in range(what) if limiters[which].take("k")]
        elif step == "flood":
            admitted += [(clock.now_us(), 1) for _ in takewhile(bool, map(limiters[which].take, "k" * what))]
        elif step == "close":
            engines[which].close()
        elif step == "pass":
            clock.advance(which / 1000)
            for engine in engines:
                engine.give_back_expired()
    for engine in engines:
        engine.close()
    return admitted


# Units are fetched and handed out 90 ms later; everybody floods as soon as those that were charged are free again.
HOARD = [("warm", 0, 10), ("warm", 1, 9), ("pass", 90, 0), ("warm", 0, 8), ("warm", 1, 7), ("pass", 950, 0)]
HOARD += [("flood", node, 200) for node in range(NODES)]
# Units are fetched at the end of a window, and there is a new one when they could be handed out.
ACROSS = [("pass", 950, 0), ("warm", 0, 14), ("pass", 90, 0), ("warm", 0, 4), ("flood", 1, 200)]


def _spans(admitted: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Every span from one admission to another: its length, and the units in it."""
    for first in range(len(admitted)):
        units = 0
        for at_us, cost in admitted[first:]:
            units += cost
            yield at_us - admitted[first][0], units


@example(HOARD)
@example(ACROSS)
@given(WALKS)
def test_law_of_the_token_bucket(steps: list[tuple[str, int, int]]) -> None:
    for length_us, units in _spans(_walk("40/s", steps)):
        assert units <= 40 + 40 * length_us / 1_000_000 + NODES * UNITS


def test_the_bound_is_reached() -> None:
    """Four units, charged by one process just before a span, are handed out in it beside all that it admits."""
    walk = [
        ("warm", 0, 14),
        ("warm", 1, 200),
        ("pass", 90, 0),
        ("warm", 0, 4),
        ("pass", 950, 0),
        ("flood", 1, 200),
    ]
    spans = _spans(_walk("40/s log", walk))
    assert max(units for length, units in spans if length < 10**6) == 40 + UNITS


@example(HOARD)
@example(ACROSS)
@given(WALKS)
def test_law_of_the_sliding_log(steps: list[tuple[str, int, int]]) -> None:
    assert all(units <= 40 + NODES * UNITS for length, units in _spans(_walk("40/s log", steps)) if length < 10**6)


@example(HOARD)
@example(ACROSS)
@given(WALKS)
def test_law_of_the_sliding_window(steps: list[tuple[str, int, int]]) -> None:
    admitted = _walk("40/s sliding", steps)
    for end in {at_us // 100_000 for at_us, _ in admitted}:
        frame = [units for at_us, units in admitted if end - 10 < at_us // 100_000 <= end]
        assert sum(frame) <= 40 + NODES * UNITS


@example(HOARD)
@example(ACROSS)
@given(WALKS)
def test_law_of_the_fixed_window(steps: list[tuple[str, int, int]]) -> None:
    admitted = _walk("40/s fixed", steps)
    for window in {at_us // 1_000_000 for at_us, _ in admitted}:
        assert sum(units for at_us, units in admitted if at_us // 1_000_000 == window) <= 40


@pytest.mark.parametrize("text", SLOW)
@given(steps=WALKS, refunded=st.sets(st.integers(0, 100)))
def test_nothing_is_lost(text: str, steps: list[tuple[str, int, int]], refunded: set[int]) -> None:
    harness = PrefetchHarness(text, units=50)
    decisions: list[Decision] = []
    for step, which, what in steps:
        if step in ("take", "warm"):
            times, cost = (1, what) if step == "take" else (what, 1)
            decisions += [decision for decision in harness.takes(times, cost=cost) if decision.allowed]
        elif step == "close":
            harness.engine.close()
        elif step == "pass":
            harness.clock.advance(which / 1000)
            harness.engine.give_back_expired()
        for number in refunded & {len(decisions) - 1, len(decisions) - 3}:
            harness.limiter.refund(decisions[number])
    harness.engine.close()
    charged = sum(decision.cost - decision.refunded_units for decision in decisions)
    assert (harness.counted(), harness.engine.lost_units) == (charged, 0)
