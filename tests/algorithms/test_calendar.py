"""Calendar windows begin where the time zone says, also where clocks jump over midnight or a day is left out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import HOUR, SECOND
from headgate.algorithms.token_bucket import TokenBucket
from headgate.calendar import boundaries, resolve, time_zone
from headgate.errors import InvalidRule


def us(text: str) -> int:
    """An instant given in UTC."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def around(unit: str, zone: str, now: str) -> list[str]:
    edges = boundaries(unit, zone, us(now))
    return [f"{datetime.fromtimestamp(start // SECOND, UTC):%Y-%m-%d %H:%M}" for start in edges]


def hours(zone: str, now: str) -> float:
    """Returns how long the day is."""
    _, start, end, *_ = boundaries("day", zone, us(now))
    return (end - start) / HOUR


def test_days_of_a_zone() -> None:
    assert around("day", "Asia/Shanghai", "2024-02-28 20:00") == [
        *("2024-02-27 16:00", "2024-02-28 16:00", "2024-02-29 16:00"),
        *("2024-03-01 16:00", "2024-03-02 16:00", "2024-03-03 16:00"),
    ]


def test_weeks_start_on_monday() -> None:
    assert around("week", "UTC", "2024-01-07 23:59")[:3] == [
        "2023-12-25 00:00",
        "2024-01-01 00:00",
        "2024-01-08 00:00",
    ]
    assert around("week", "UTC", "2024-01-08 00:00")[1] == "2024-01-08 00:00"


def test_months_and_years() -> None:
    assert around("month", "Europe/Berlin", "2024-03-31 22:30") == [
        *("2024-02-29 23:00", "2024-03-31 22:00", "2024-04-30 22:00"),
        *("2024-05-31 22:00", "2024-06-30 22:00", "2024-07-31 22:00"),
    ]
    assert around("month", "UTC", "2024-12-05 00:00")[2] == "2025-01-01 00:00"
    assert around("year", "UTC", "2024-12-31 23:59")[:3] == [
        "2023-01-01 00:00",
        "2024-01-01 00:00",
        "2025-01-01 00:00",
    ]


@pytest.mark.parametrize(
    ("zone", "noon", "length"),
    [
        ("Europe/Berlin", "2024-03-31 12:00", 23),
        ("Europe/Berlin", "2024-10-27 12:00", 25),
        ("Australia/Lord_Howe", "2024-04-07 02:00", 24.5),
        ("America/Sao_Paulo", "2018-11-04 15:00", 23),  # midnight was jumped over
        ("Africa/Cairo", "2023-04-28 12:00", 23),
        ("Asia/Beirut", "2024-03-31 12:00", 23),
        ("Asia/Beirut", "2024-10-26 12:00", 25),  # midnight came, and 23:00 again
        ("America/Toronto", "1919-03-31 12:00", 23.5),  # 23:30 was followed by 0:30
        ("America/St_Johns", "2010-11-06 12:00", 24),  # at 0:01 it was 23:01 again: the day had begun
        ("America/St_Johns", "2010-11-07 12:00", 25),
        ("Pacific/Apia", "2011-12-29 12:00", 24),  # and the next day was the 31st
        ("Pacific/Kwajalein", "1969-09-30 12:00", 47),
    ],
)
def test_a_day_is_as_long_as_it_is(zone: str, noon: str, length: float) -> None:
    assert hours(zone, noon) == length


def test_a_day_that_was_left_out_is_no_window() -> None:
    assert around("day", "Pacific/Apia", "2011-12-30 09:59") == [
        *("2011-12-28 10:00", "2011-12-29 10:00", "2011-12-30 10:00"),
        *("2011-12-31 10:00", "2012-01-01 10:00", "2012-01-02 10:00"),
    ]
    start = boundaries("day", "Pacific/Apia", us("2011-12-30 10:00"))[1] // SECOND
    assert f"{datetime.fromtimestamp(start, ZoneInfo('Pacific/Apia')):%d %H:%M}" == "31 00:00"


ZONES = [
    *("UTC", "Asia/Shanghai", "America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut", "America/St_Johns"),
    *("Pacific/Apia", "Pacific/Kwajalein", "Australia/Lord_Howe", "America/Toronto", "Africa/Monrovia"),
]


@given(st.sampled_from(["day", "week", "month", "year"]), st.sampled_from(ZONES), st.integers(0, 5 * 10**15))
def test_windows_follow_each_other_without_gap_or_overlap(unit: str, zone: str, now_us: int) -> None:
    edges = boundaries(unit, zone, now_us)
    assert len(edges) == 6
    assert list(edges) == sorted(set(edges))
    assert edges[1] <= now_us < edges[2]
    assert boundaries(unit, zone, edges[1]) == edges
    assert boundaries(unit, zone, edges[2] - 1) == edges
    assert boundaries(unit, zone, edges[2])[:5] == edges[1:]
    tz = ZoneInfo(zone)
    for start in edges:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=start // SECOND)
        today, before = at.astimezone(tz).date(), (at - timedelta(seconds=1)).astimezone(tz).date()
        assert before < today
        if unit == "week" and zone == "UTC":
            assert today.weekday() == 0
    assert all(later - earlier < 367 * 24 * HOUR for earlier, later in pairwise(edges))


def test_resolving_brings_the_boundaries_and_remembers_them() -> None:
    limit = FixedWindow(5, "day", zone="Asia/Shanghai")
    now_us = us("2024-02-28 20:00")
    resolved = resolve(limit, now_us)
    assert resolved == limit
    assert resolved.args == (5, 0, *boundaries("day", "Asia/Shanghai", now_us))
    assert resolve(limit, us("2024-02-29 15:59")) is resolved
    assert resolve(limit, us("2024-02-29 16:00")).args[3] == us("2024-02-29 16:00")
    assert resolve(limit, now_us) == resolved


def test_other_limits_are_ready_as_they_are() -> None:
    for limit in (FixedWindow(5, 60), FixedWindow(5, "day"), TokenBucket(5)):
        assert resolve(limit, 0) is limit


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Asia/Shangai", "Did you mean Asia/Shanghai"),
        ("asia/shanghai", "Did you mean Asia/Shanghai"),
        ("Berlin", "Did you mean Europe/Berlin"),
        ("America", "Did you mean America/"),
        ("qqqqqqqq", "Write a name of the IANA database"),
    ],
)
def test_an_unknown_zone_is_refused_with_what_may_be_meant(name: str, advice: str) -> None:
    with pytest.raises(InvalidRule, match=f'"{name}" is not a time zone. {advice}'):
        time_zone(name)


def test_a_missing_zone_database_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    with pytest.raises(InvalidRule, match="install the package tzdata"):
        time_zone("Mars/Olympus")
