"""The calendar's windows in Lua: at every instant the words that Python sends."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import SECOND, Limit
from headgate.calendar import resolve, time_zone
from headgate.limit_syntax import parse
from tests.nginx.pure_modules_process import bundle_entry, start_twins
from tests.nginx.rules.luajit_process import LuajitProcess

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS = 2003, 2056  # what is asked lies between 2005 and 2050; windows of years around that must be known
ZONES = [
    "UTC",
    "Asia/Shanghai",
    "Asia/Kathmandu",
    "Asia/Gaza",
    "Asia/Beirut",  # the clocks jump over midnight
    "Asia/Tehran",
    "Asia/Pyongyang",
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/New_York",
    "America/Santiago",
    "America/Havana",
    "America/Sao_Paulo",
    "America/Asuncion",
    "America/Scoresbysund",  # the clocks are set back from 1:00 to midnight
    "Atlantic/Azores",
    "Antarctica/Troll",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
    "Pacific/Chatham",
]
UNITS = ["day", "week", "month", "year"]


@pytest.fixture(scope="module")
def lua() -> Iterator[LuajitProcess]:
    running = start_twins()
    yield running
    running.close()


def second(*date: int) -> int:
    return int((datetime(*date, tzinfo=UTC) - EPOCH).total_seconds())  # type: ignore[misc, arg-type]


def offset(zone: str, at: int) -> int:
    utc_offset = (EPOCH + timedelta(seconds=at)).astimezone(time_zone(zone)).utcoffset()
    assert utc_offset is not None
    return int(utc_offset.total_seconds())


@cache
def offsets(zone: str) -> list[list[int]]:
    """As a bundle has them: from which second on the zone is how many seconds ahead."""
    start, end = second(YEARS[0], 1, 1), second(YEARS[1], 1, 1)
    changes = [[0, offset(zone, start)]]
    for day in range(start, end, 86400):
        low, high = day, day + 86400
        if offset(zone, high) != changes[-1][1]:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(zone, middle) == changes[-1][1] else (low, middle)
            changes.append([high, offset(zone, high)])
    return changes


def calendar_answer(lua: LuajitProcess, limit: Limit, zone: str, times: list[int]) -> Any:
    return lua.call_driver("calendar", limit=bundle_entry(limit), zones={zone: offsets(zone)}, times=times)


def words(limit: Limit, now_us: int) -> list[str]:
    return [str(number) for number in resolve(limit, now_us).args]


@st.composite
def instants(draw: st.DrawFn) -> tuple[str, int]:
    """A zone and an instant: any, or around a change of its clocks, or around one of its midnights."""
    zone = draw(st.sampled_from(ZONES))
    at = draw(st.integers(second(2005, 1, 1), second(2050, 1, 1)))
    near = draw(st.sampled_from(["any", "change", "midnight"]))
    if near == "change":
        changes = [start for start, _ in offsets(zone) if second(2005, 1, 1) < start < second(2050, 1, 1)]
        if changes:
            at = draw(st.sampled_from(changes)) + draw(st.sampled_from([0, -1, 1]) | st.integers(-90000, 90000))
    elif near == "midnight":
        at -= (at + offset(zone, at)) % 86400 + draw(st.integers(-1, 1))
    return zone, at * SECOND + draw(st.sampled_from([0, 1, SECOND - 1]))


@settings(max_examples=2000, deadline=None)
@given(instants(), st.sampled_from(UNITS))
@example(("Pacific/Apia", second(2011, 12, 30, 9, 59, 59) * SECOND), "day")
@example(("Pacific/Apia", second(2011, 12, 30, 10) * SECOND), "day")
@example(("UTC", second(2000, 2, 29) * SECOND), "month")
@example(("UTC", second(2100, 2, 28) * SECOND), "month")
def test_the_words_are_pythons(lua: LuajitProcess, instant: tuple[str, int], unit: str) -> None:
    zone, now_us = instant
    limit = FixedWindow(1000, unit, zone)
    assert calendar_answer(lua, limit, zone, [now_us])["words"] == [words(limit, now_us)]


@settings(max_examples=200, deadline=None)
@given(
    instants(), st.sampled_from(UNITS), st.lists(st.integers(-40, 400).map(lambda hours: hours * 3600), max_size=8)
)
def test_one_limit_over_time(lua: LuajitProcess, instant: tuple[str, int], unit: str, steps: list[int]) -> None:
    """Forth and back: what is kept on the limit is never taken for another window's."""
    zone, start_us = instant
    limit = FixedWindow(7, unit, zone)
    times = [start_us, *(start_us + step * SECOND for step in steps)]
    answer = calendar_answer(lua, limit, zone, times)
    assert answer["words"] == [words(limit, now_us) for now_us in times]


def test_within_a_window_nothing_is_worked_out_again(lua: LuajitProcess) -> None:
    limit = parse("1000/day fixed in Asia/Shanghai")
    midnight_us = second(2026, 3, 3, 16) * SECOND
    day_us = 86400 * SECOND
    assert (
        calendar_answer(lua, limit, "Asia/Shanghai", [midnight_us, midnight_us + 5, midnight_us + day_us - 1])[
            "tables"
        ]
        == 1
    )
    assert calendar_answer(lua, limit, "Asia/Shanghai", [midnight_us, midnight_us - 1])["tables"] == 2
    assert calendar_answer(lua, limit, "Asia/Shanghai", [midnight_us, midnight_us + day_us])["tables"] == 2


@pytest.mark.parametrize("text", ["1000/day fixed", "10/s", "10/minute queue 5", "5/s smooth"])
def test_without_a_calendar_the_numbers_are_the_bundles(lua: LuajitProcess, text: str) -> None:
    limit = parse(text)
    answer = lua.call_driver("calendar", limit=bundle_entry(limit), zones={}, times=[second(2026, 1, 1) * SECOND])
    assert answer["words"] == [bundle_entry(limit)["numbers"]]


def test_a_zone_that_the_bundle_leaves_out_is_named(lua: LuajitProcess) -> None:
    limit = parse("1000/month fixed in Europe/Berlin")
    answer = lua.call_driver("calendar", limit=bundle_entry(limit), zones={}, times=[second(2026, 1, 1) * SECOND])
    assert answer["words"][0]["error"] == (
        'The bundle does not say when the clocks of "Europe/Berlin" change, which the limit 1000/month fixed in '
        "Europe/Berlin asks for. Compile or push the rulebook again."
    )
