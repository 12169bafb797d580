"""A suggested limit refuses no ordinary visitor, and most calls of abusers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from headgate.algorithms.lockout import Lockout
from headgate.errors import InvalidLog
from headgate.rules import load
from headgate.rules.keys import Dimension, key_builder
from headgate.rules.rule import Rulebook
from headgate.traffic.call_table import CallTable
from headgate.traffic.reader import LogReader
from headgate.traffic.replay import enforced, replay_calls
from headgate.traffic.replay_counts import REFUSED
from headgate.traffic.suggested_rulebook import rulebook_text, suggested_rulebook
from headgate.traffic.suggestion import Refusals, Suggestion, suggest_limit
from tests.traffic.sample_logs import combined_log, scan, visits

ADDRESS = [Dimension.parse("address")]
Visit = tuple[float, str, str]


def table_of(log: Path, max_calls: int = 10**7) -> CallTable:
    table = CallTable(key_builder(ADDRESS, blank=False), max_calls=max_calls)
    for batch in LogReader([str(log)]).batches():
        table.add(batch)
    return table


def suggested(log: Path, lockout: bool = False) -> tuple[Suggestion, Rulebook]:
    suggestion = suggest_limit(table_of(log))
    text = rulebook_text(suggestion, suggested_rulebook(suggestion, ADDRESS, lockout=lockout), [log.name])
    return suggestion, load.parse(text)


def shares(log: Path, book: Rulebook) -> tuple[float, float]:
    """The share of keys that have any call refused, and the share of calls refused."""
    replay = replay_calls(LogReader([str(log)]).batches(), enforced(book))
    [counts] = replay.new.counts.values()
    return counts.keys.refused_keys / counts.keys.keys, replay.new.answers[REFUSED] / replay.calls


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return combined_log(tmp_path_factory.mktemp("logs") / "july.log", visits(600))


@pytest.mark.parametrize("scanned", [None, 0.0, 6000.0, 13_000.0])
def test_another_month_passes_and_abusers_do_not(tmp_path: Path, scanned: float | None) -> None:
    training: Iterable[Visit] = visits(600)
    if scanned is not None:
        training = [*training, *scan(scanned, 3000, per_second=5)]
    suggestion, book = suggested(combined_log(tmp_path / "july.log", training))
    assert suggestion.burst >= suggestion.needed_burst * 1.5
    keys, _ = shares(combined_log(tmp_path / "august.log", visits(600, seed=8)), book)
    assert keys <= 0.01
    for name, abuse in (("scan", scan(0, 2000, per_second=4)), ("flood", scan(0, 858, per_second=286))):
        _, calls = shares(combined_log(tmp_path / name, abuse), book)
        assert calls >= 0.9


@pytest.mark.parametrize("begin", [0.0, 2_000.0])
def test_a_flood_among_few_visitors_cannot_choose_the_limit(tmp_path: Path, begin: float) -> None:
    few, flood = list(visits(60)), list(scan(begin, 6000, per_second=4))
    _, without = suggested(combined_log(tmp_path / "calm.log", few))
    suggestion, book = suggested(combined_log(tmp_path / "flooded.log", [*few, *flood]))
    assert [heavy.calls for heavy in suggestion.heavy_keys] == [6000]
    assert book.rules[0].limit == without.rules[0].limit


def test_a_lockout_stops_a_scanner_that_goes_slowly(ordinary: Path, tmp_path: Path) -> None:
    slow = combined_log(tmp_path / "slow.log", scan(0, 300, per_second=0.25))
    without = shares(slow, suggested(ordinary)[1])[1]
    suggestion, book = suggested(ordinary, lockout=True)
    assert book.rules[0].lockout == Lockout(suggestion.burst, 600_000_000, 3_600_000_000)
    assert without < 0.75
    assert shares(slow, book)[1] > 0.8
    assert shares(ordinary, book)[0] == 0


def test_the_scanner_is_set_apart_with_evidence(tmp_path: Path) -> None:
    log = combined_log(tmp_path / "log", [*visits(600), *scan(100, 900, per_second=3)])
    suggestion, _ = suggested(log)
    [heavy] = suggestion.heavy_keys
    assert (heavy.key, heavy.calls, heavy.looks_like) == ("address=203.0.113.66", 900, "scanner")
    assert heavy.errors == 1
    assert suggestion.expected.refused_keys == 1


def test_a_scanner_at_the_end_is_described_too(tmp_path: Path) -> None:
    log = combined_log(tmp_path / "log", [*visits(600), *scan(13_000, 900, per_second=3)])
    suggestion, _ = suggested(log)
    assert suggestion.confirmation.new_heavy_keys == 1
    [heavy] = suggestion.heavy_keys
    assert (heavy.calls, heavy.looks_like) == (900, "scanner")
    assert suggestion.confirmed


def test_the_rulebook_is_a_shadow_with_its_reasons(ordinary: Path) -> None:
    suggestion, book = suggested(ordinary)
    [rule] = book.rules
    assert rule.mode.shadow == 10_000
    assert rule.limit.otherwise[0].text == suggestion.limit
    assert "not used to choose" in (book.text or "")
    assert "Expected on the whole log" in (book.text or "")


def test_the_last_third_confirms(ordinary: Path) -> None:
    suggestion = suggest_limit(table_of(ordinary))
    ordinary_keys = suggestion.confirmation.ordinary
    assert suggestion.confirmed
    assert ordinary_keys.calls == pytest.approx(suggestion.calls / 3, rel=0.05)
    assert ordinary_keys.key_share <= 0.01


def test_a_burst_that_only_the_last_third_has_is_not_confirmed(tmp_path: Path) -> None:
    quiet = [(number * 10.0, f"192.0.2.{number % 200}", "/") for number in range(1200)]
    busy = [(12_000 + number * 0.1, f"198.51.100.{number % 30}", "/") for number in range(600)]
    suggestion = suggest_limit(table_of(combined_log(tmp_path / "log", [*quiet, *busy])), refuse_keys=0.05)
    assert suggestion.confirmation.ordinary.key_share > 0.05
    assert not suggestion.confirmed


def test_a_bound_takes_less_burst_and_is_confirmed(ordinary: Path) -> None:
    table = table_of(ordinary)
    bounded, free = suggest_limit(table, refuse_keys=0.05), suggest_limit(table)
    assert bounded.confirmed
    assert bounded.confirmation.ordinary.key_share <= 0.05
    assert bounded.needed_burst <= free.needed_burst


def test_the_whole_log_chooses_where_its_last_third_is_busier(tmp_path: Path) -> None:
    quiet = [(number * 10.0, f"192.0.2.{number % 200}", "/") for number in range(1200)]
    busy = [(12_000 + number * 0.1, f"198.51.100.{number % 30}", "/") for number in range(600)]
    log = combined_log(tmp_path / "log", [*quiet, *busy])
    suggestion, book = suggested(log)
    assert suggestion.chosen_again
    assert not suggestion.confirmed
    assert suggestion.confirmation.ordinary.refused_keys == 30
    assert suggestion.limit != suggestion.confirmation.limit
    assert suggestion.expected.refused_keys == 0
    assert "nothing is left to confirm it" in (book.text or "")


@pytest.mark.parametrize("visitors", [40, 80])
def test_few_visitors_get_more_headroom(tmp_path: Path, visitors: int) -> None:
    everybody = combined_log(tmp_path / "all.log", visits(600, seed=8))
    refused = []
    for seed in range(3):
        suggestion, book = suggested(combined_log(tmp_path / f"{seed}.log", visits(visitors, seed)))
        assert suggestion.headroom > 1.5
        refused.append(shares(everybody, book)[0])
    assert sum(refused) / len(refused) <= 0.005


def test_so_many_keys_may_be_refused_after_all() -> None:
    assert Refusals(100, 0, 58, 0).largest_key_share == pytest.approx(0.0503, abs=0.0001)  # 1 - 0.05^(1/58)
    assert Refusals(100, 0, 353, 0).largest_key_share == pytest.approx(0.0085, abs=0.0001)
    assert Refusals(100, 9, 100, 5).largest_key_share == pytest.approx(0.1023, abs=0.0001)  # Clopper and Pearson
    assert Refusals(100, 9, 3, 3).largest_key_share == 1


def test_too_little_to_confirm(tmp_path: Path) -> None:
    suggestion = suggest_limit(table_of(combined_log(tmp_path / "log", [(0, "192.0.2.7", "/")])))
    assert not suggestion.confirmed
    assert not suggestion.confirmation.enough
    assert suggestion.chosen_again
    assert suggestion.burst >= 1


def test_day_against_night(tmp_path: Path) -> None:
    by_day = [(hour * 3600 + n * 60.0, f"192.0.2.{n}", "/") for hour in range(12) for n in range(50)]
    by_night = [(hour * 3600 + n * 60.0, f"192.0.2.{n}", "/") for hour in range(12, 24) for n in range(5)]
    suggestion = suggest_limit(table_of(combined_log(tmp_path / "log", [*by_day, *by_night])))
    day, night = suggestion.day_parts
    assert (day.name, night.name) == ("day", "night")
    assert night.calls == 8 * 5
    assert day.calls == 600 + 60 - night.calls


def test_light_keys_are_sampled_beyond_the_bound(ordinary: Path, tmp_path: Path) -> None:
    whole = table_of(ordinary)
    log = combined_log(tmp_path / "log", [*visits(600), *scan(100, 2000, per_second=3)])
    table = table_of(log, max_calls=2500)
    assert table.sampled > 1
    assert len(table) <= 5000
    assert "address=203.0.113.66" in table.keys
    assert len(table) + table.dropped == len(whole) + 2000
    assert len(table.keys) < len(whole.keys)


def test_no_calls() -> None:
    with pytest.raises(InvalidLog, match="No call is left"):
        suggest_limit(CallTable(key_builder(ADDRESS, blank=False)))
