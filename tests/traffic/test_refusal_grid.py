"""The grid counts the refusals of many limits; each count is that of its limit alone."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from headgate.rules.keys import Dimension, key_builder
from headgate.traffic import refusal_grid as grids
from headgate.traffic.call_table import CallTable
from headgate.traffic.reader import LogReader
from headgate.traffic.refusal_grid import MAX_BURSTS, MAX_NAMED_KEYS, RefusalGrid, refusal_grid
from headgate.traffic.suggestion import Suggestion, count_refusals, suggest_limit
from tests.traffic.sample_logs import combined_log, scan, visits


def grid_of(folder: Path, calls: Iterable[tuple[float, str, str]]) -> tuple[CallTable, Suggestion, RefusalGrid]:
    table = CallTable(key_builder([Dimension.parse("address")], blank=False))
    for batch in LogReader([str(combined_log(folder / "access.log", calls))]).batches():
        table.add(batch)
    suggestion = suggest_limit(table)
    return table, suggestion, refusal_grid(table, suggestion)


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> tuple[CallTable, Suggestion, RefusalGrid]:
    return grid_of(tmp_path_factory.mktemp("logs"), [*visits(300), *scan(6000.0, 1500, per_second=5)])


def test_a_point_refuses_what_its_limit_refuses(scanned: tuple[CallTable, Suggestion, RefusalGrid]) -> None:
    table, suggestion, grid = scanned
    keyed = table.by_key()
    assert len(grid.rows) == len(suggestion.frontier)
    for row in grid.rows[::5]:
        for point in row.points:
            refusals = count_refusals(keyed, row.rate, point.burst)
            assert point.calls + point.heavy_calls == refusals.refused_calls
            assert point.keys + point.heavy_keys == refusals.refused_keys
    assert (grid.keys + grid.heavy_keys, grid.calls + grid.heavy_calls) == (len(table.keys), len(table))


def test_the_suggested_limit_is_a_point_and_sets_the_scanner_apart(
    scanned: tuple[CallTable, Suggestion, RefusalGrid],
) -> None:
    _, suggestion, grid = scanned
    [row] = [row for row in grid.rows if row.rate == suggestion.rate]
    [point] = [point for point in row.points if point.burst == suggestion.burst]
    assert point.calls + point.heavy_calls == suggestion.expected.refused_calls
    assert (point.heavy_keys, grid.heavy_keys) == (1, 1)
    assert (grid.named[0].key, grid.named[0].calls, grid.named[0].heavy) == ("address=203.0.113.66", 1500, True)
    assert point.named[0] == point.heavy_calls > 1000
    assert sum(point.named[1:]) == point.calls  # all ordinary keys that are refused anything are named


def test_a_larger_burst_refuses_no_more(scanned: tuple[CallTable, Suggestion, RefusalGrid]) -> None:
    for row in scanned[2].rows:
        for smaller, larger in pairwise(row.points):
            assert smaller.burst < larger.burst
            assert smaller.keys >= larger.keys
            assert smaller.calls >= larger.calls


def test_its_size_has_a_bound(scanned: tuple[CallTable, Suggestion, RefusalGrid]) -> None:
    _, _, grid = scanned
    assert len(grid.named) <= 2 * MAX_NAMED_KEYS
    assert all(3 <= len(row.points) <= MAX_BURSTS for row in grid.rows)


def test_a_long_log_gets_fewer_points_and_keeps_those_of_the_frontier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scanned: tuple[CallTable, Suggestion, RefusalGrid]
) -> None:
    monkeypatch.setattr(grids, "MAX_STEPS", 3000)
    _, suggestion, short = grid_of(tmp_path, [*visits(300), *scan(6000.0, 1500, per_second=5)])
    assert sum(len(row.points) for row in short.rows) < sum(len(row.points) for row in scanned[2].rows)
    for row, full in zip(short.rows, scanned[2].rows, strict=True):
        assert row.frontier.all_keys in [point.burst for point in row.points]
        assert {point.burst: point.calls for point in row.points}.items() <= {
            point.burst: point.calls for point in full.points
        }.items()
    assert suggestion.burst in [
        point.burst for row in short.rows for point in row.points if row.rate == suggestion.rate
    ]


def test_a_log_of_few_keys_has_a_grid(tmp_path: Path) -> None:
    _, _, grid = grid_of(tmp_path, [(0.0, "192.0.2.1", "/a"), (60.0, "192.0.2.1", "/b")])
    assert (grid.keys, grid.calls, grid.heavy_keys) == (1, 2, 0)
    assert grid.document()["totals"] == [1, 2, 0, 0]
