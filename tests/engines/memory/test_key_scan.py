"""Scans of the in-memory counts find everything once, no more than requested, and change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms import ALGORITHMS
from headgate.algorithms.decision import REMAINING
from headgate.algorithms.slots import Slots
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.memory.key_scan import MemoryKey, MemoryKeyScan
from headgate.limit_syntax import parse

LIMITS = {
    "token_bucket": "10/minute",
    "leaky_bucket": "10/minute queue 9 nodelay",
    "fixed_window": "10/minute fixed",
    "sliding_window": "10/minute sliding",
    "sliding_log": "10/minute log",
    "smooth": "10/minute smooth",
}


def test_every_algorithm_is_found_by_its_name_and_key() -> None:
    assert set(LIMITS) == set(ALGORITHMS)
    engine = MemoryEngine()
    for name, limit in LIMITS.items():
        engine.meter(parse(limit), f"of {name}").decide("ann", 1)
    slots = parse("3 slots")
    assert isinstance(slots, Slots)
    engine.slots(slots, "of slots").acquire("ann")
    counts = list(MemoryKeyScan(engine))
    assert set(counts) == {
        *(MemoryKey(name, f"of {name}", "ann") for name in LIMITS),
        ("slots", "of slots", "ann", None, None, True),
    }
    assert len(counts) == 7


def test_a_scan_reports_counts_and_does_not_change_them() -> None:
    engine = MemoryEngine()
    limit = parse("10/hour fixed")
    meter = engine.meter(limit, "a")
    meter.decide("ann", 4)
    survey = MemoryKeyScan(engine)
    (count,) = survey
    for _ in range(2):
        (outcome,) = survey.peek([(count, limit)])
        assert outcome is not None
        assert outcome[REMAINING] == 6
    assert survey.peek([(count, parse("10/hour log"))]) == [None]
    meter.reset("ann")
    assert list(MemoryKeyScan(engine)) == []


def test_a_key_under_two_limits_is_listed_once() -> None:
    engine = MemoryEngine()
    for text in ("10/minute", "20/minute"):
        engine.meter(parse(text), "a").decide("ann", 1)
    assert [count.key for count in MemoryKeyScan(engine)] == ["ann"]


@pytest.mark.parametrize("begins", ["", "a", "b"])
@given(
    names=st.dictionaries(st.sampled_from(["a", "ab", "b"]), st.sets(st.text(max_size=3))), most=st.integers(1, 8)
)
def test_no_more_than_requested_and_all_if_there_is_room(
    begins: str, names: dict[str, set[str]], most: int
) -> None:
    engine = MemoryEngine()
    for name, keys in names.items():
        for key in keys:
            engine.meter(parse("10/hour fixed"), name).decide(key, 1)
    there = {(name, key) for name, keys in names.items() if name.startswith(begins) for key in keys}
    survey = MemoryKeyScan(engine, begins, most)
    listed = [(count.name, count.key) for count in survey]
    assert len(listed) == len(set(listed)) == min(most, len(there))
    assert set(listed) <= there
    assert survey.stopped == (len(there) > most)
