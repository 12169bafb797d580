"""Heavy keys are those far above all others, if they are few; the evidence says what they look like."""

from __future__ import annotations

import pytest

from headgate.rules.attributes import Attributes
from headgate.rules.keys import Dimension, key_builder
from headgate.traffic.call_table import CallTable
from headgate.traffic.heavy_keys import describe_heavy_keys, find_heavy_keys
from headgate.traffic.recorded_call import RecordedCall


@pytest.mark.parametrize(
    ("bursts", "heavy"),
    [
        ([9] * 40 + [900], {40}),
        ([9] * 40 + [900, 30], {40, 41}),  # behind the worst one
        ([9] * 40 + [17], set()),  # not far above
        ([1] * 40 + [4], set()),  # too small to mean anything
        ([9] * 30 + [900] * 10, set()),  # not few
        ([9] * 5 + [900], set()),  # too few others
        ([], set()),
    ],
)
def test_the_gap(bursts: list[int], heavy: set[int]) -> None:
    assert find_heavy_keys([bursts]) == heavy


# The busiest needs a burst of 60, the next one 30, then 20, 15, 12, 10: such gaps come by chance.
LONG_TAIL = [60 // rank for rank in range(1, 61)]


def test_a_gap_that_chance_makes_sets_no_more_than_a_harmless_share_apart() -> None:
    assert find_heavy_keys([LONG_TAIL]) == set()
    assert find_heavy_keys([[1] * 400 + LONG_TAIL]) == {400}  # one of 460 keys: harmless
    assert find_heavy_keys([[*LONG_TAIL, 241]]) == {60}  # four times the busiest: sure
    assert find_heavy_keys([[*LONG_TAIL, 181, 181, 181, 181]]) == {60, 61, 62, 63}  # four of them: no chance


def test_the_rate_with_the_largest_gap_decides() -> None:
    assert find_heavy_keys([[9] * 40 + [12], [5] * 40 + [60]]) == {40}
    assert find_heavy_keys([]) == set()


def calls_of(pace_us: list[int], paths: int, statuses: list[int], agents: int = 1) -> list[RecordedCall]:
    calls, time_us = [], 0
    for number in range(200):
        time_us += pace_us[number % len(pace_us)]
        attributes = Attributes(
            {
                "address": "192.0.2.7",
                "path": f"/{number % paths}",
                "header.user-agent": f"agent {number % agents}",
            }
        )
        calls.append(RecordedCall(time_us, attributes, statuses[number % len(statuses)]))
    return calls


@pytest.mark.parametrize(
    ("calls", "word"),
    [
        (calls_of([100_000], 200, [404, 404, 200]), "scanner"),
        (calls_of([100_000], 60, [200] * 5 + [403]), "scanner"),
        (calls_of([100_000], 200, [200]), "crawler"),
        (calls_of([100_000, 5_000_000], 30, [200], agents=8), "proxy with many people"),
        (calls_of([1_000_000], 2, [200]), "customer"),
        (calls_of([1_000, 900_000_000], 2, [200]), "unknown"),
        ([call._replace(status=None) for call in calls_of([1_000_000], 2, [200])], "unknown"),
    ],
)
def test_looks_like(calls: list[RecordedCall], word: str) -> None:
    table = CallTable(key_builder([Dimension.parse("address")], blank=False))
    table.add(calls)
    [evidence] = describe_heavy_keys(table, {0}, {0: 50})
    assert evidence.looks_like == word
    assert (evidence.key, evidence.calls, evidence.burst) == ("address=192.0.2.7", 200, 50)
