"""Compares the fast paths of the in-memory engine with the plain ones: outcomes and states must be the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import ManualClock
from headgate.engines.memory import fast_take_all, take_all
from headgate.engines.memory.engine import MemoryEngine, MemoryMeter
from headgate.limit_syntax import parse

# Two limits of each algorithm under one name: a state that the other one wrote may have to be converted.
FAMILIES = (
    ("3/s", "7/minute burst 3", "1/s"),
    ("5/s queue 3 delay 1", "2/minute queue 3 nodelay"),
    ("3/s fixed", "4/minute fixed"),
    ("3/s sliding", "4/minute sliding"),
    ("3/s log", "4/minute log"),
    ("3/s smooth", "5/s smooth"),
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which limit of the family
        st.sampled_from(["ann", "bob"]),
        st.integers(0, 5),  # the cost
        st.sampled_from([None, None, 0, 400_000]),  # the patience
        st.sampled_from([0, 1, 90_000, 333_333, 1_000_000, 70_000_000, -50_000, -2_000_000]),  # the clock moves by
    ),
    min_size=1,
    max_size=25,
)


class MeteredEngine:
    """An engine with a clock of its own, and a meter for each limit of a family, all under one name."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(self.clock)
        self.meters: list[MemoryMeter] = [self.engine.meter(parse(text), "name") for text in texts]

    def states(self) -> dict[tuple[Any, ...], Any]:
        """Returns all states by their table and key."""
        return {
            (algorithm, name, pace, key): state
            for (algorithm, name), family in self.engine._families.items()
            for pace, table in family.items()
            for key, state in table.states.items()
        }


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FAMILIES), STEPS)
def test_one_charge_is_decided_as_by_the_plain_path(texts: tuple[str, ...], steps: list[Any]) -> None:
    fast, plain = MeteredEngine(texts), MeteredEngine(texts)
    for which, key, cost, patience_us, moved_us in steps:
        fast.clock.advance(moved_us / 1_000_000)
        plain.clock.advance(moved_us / 1_000_000)
        index = which % len(texts)
        expected = plain.meters[index].decide_plainly(key, cost, patience_us)
        assert fast.meters[index].decide(key, cost, patience_us) == expected
        assert fast.states() == plain.states()


@settings(max_examples=200, deadline=None)
@given(st.tuples(*[st.sampled_from(FAMILIES)] * 2), STEPS, st.booleans())
def test_several_charges_are_decided_as_by_the_plain_path(
    families: tuple[tuple[str, ...], ...], steps: list[Any], commit: bool
) -> None:
    texts = tuple(dict.fromkeys(text for family in families for text in family))
    fast, plain = MeteredEngine(texts), MeteredEngine(texts)
    for which, key, cost, patience_us, moved_us in steps:
        fast.clock.advance(moved_us / 1_000_000)
        plain.clock.advance(moved_us / 1_000_000)
        chosen = [(which, key, cost), ((which + 1) % len(texts), "cy", 1)]
        now_us = fast.clock.now_us()
        assert now_us == plain.clock.now_us()
        expected = take_all.decide(
            plain.engine,
            [(plain.meters[at % len(texts)], *rest) for at, *rest in chosen],
            now_us,
            patience_us,
            commit,
        )
        charges = [(fast.meters[at % len(texts)], *rest) for at, *rest in chosen]
        assert fast_take_all.decide(fast.engine, charges, now_us, patience_us, commit) == expected
        assert fast.states() == plain.states()
