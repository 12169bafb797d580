"""Split rules: N nodes together have the limit's rate, also where its burst is smaller than N."""

from typing import Any

import pytest

from headgate import InvalidRule, Limiter
from headgate.clock import ManualClock

NOBODY = "redis://127.0.0.1:1/0"


def admitted(limit: str, nodes: int, seconds: float, step: float = 0.001) -> list[int]:
    """Returns what each node admits while every node is called at every step."""
    clock = ManualClock(1_700_000_000_000_000)
    rules = {"rules": [{"name": "share", "where": "split", "nodes": nodes, "limit": limit}]}
    gates = [Limiter.from_rules(rules, clock=clock) for _ in range(nodes)]
    passed = [0] * nodes
    for _ in range(round(seconds / step)):
        for node, gate in enumerate(gates):
            passed[node] += bool(gate.check({}))
        clock.advance(step)
    return passed


@pytest.mark.parametrize("limit", ["100/s queue 0", "100/s queue 0 nodelay", "100/s burst 2", "100/s burst 1"])
def test_the_rate_is_divided_whatever_the_burst(limit: str) -> None:
    passed = admitted(limit, 4, 3)
    assert 290 <= sum(passed) <= 300 + 4
    assert max(passed) - min(passed) <= 1


@pytest.mark.parametrize("limit", ["2/s fixed", "2/s sliding", "2/s log", "2/s smooth"])
def test_windows_with_fewer_units_than_nodes_are_lengthened(limit: str) -> None:
    passed = admitted(limit, 3, 30, 0.05)
    assert 55 <= sum(passed) <= 60 + 3
    assert max(passed) == min(passed)


@pytest.mark.parametrize(
    ("limit", "where"),
    [
        ("2/month fixed in Asia/Tokyo", "limit"),
        ("2/month fixed in Asia/Tokyo", "candidate"),
        ("3/week fixed", "limit"),
        ("2 slots", "limit"),
    ],
)
def test_a_book_is_refused_that_splits_too_few_units_of_a_calendar_or_slots(limit: str, where: str) -> None:
    rule: dict[str, Any] = {"name": "few", "where": "split", "nodes": 4, "limit": "100/s", where: limit}
    message = (
        rf'rule "few": {limit} has fewer units than 4 nodes.*Raise the limit, lower nodes, or write where: cluster'
    )
    with pytest.raises(InvalidRule, match=message):
        Limiter.from_rules({"rules": [rule]})
    Limiter.from_rules({"rules": [rule | {"nodes": 2}]}).close()


def test_where_the_number_is_not_in_the_book_each_process_keeps_one_unit() -> None:
    rules = {"rules": [{"name": "few", "where": "split", "limit": "2/month fixed in Asia/Tokyo"}]}
    with Limiter.from_rules(rules, f"{NOBODY}?nodes=3") as gate:
        assert [bool(gate.check({})) for _ in range(3)] == [True, False, False]
