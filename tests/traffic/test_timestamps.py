"""Times of logs become microseconds, whatever their form."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from headgate.traffic.formats.timestamps import TimeParser

AT_US = 1_760_104_536_000_000  # 2025-10-10 13:55:36 UTC


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("10/Oct/2025:13:55:36 +0000", AT_US),
        ("10/Oct/2025:20:55:36 +0700", AT_US),
        ("[10/Oct/2025:13:55:36.250 +0000]", AT_US + 250_000),
        ("2025-10-10T13:55:36Z", AT_US),
        ("2025-10-10T15:55:36+02:00", AT_US),
        ("2025-10-10 13:55:36.1234567", AT_US + 123_456),
        ("1760104536", AT_US),
        ("1760104536.25", AT_US + 250_000),
        ("1760104536000", AT_US),
        ("1760104536000.5", AT_US + 500),
        ("1760104536000123", AT_US + 123),
        ("1760104536000123456", AT_US + 123),
        ("Oct 10 13:55:36", AT_US),
        ("2025-10-10 13:55:36 UTC", AT_US),
        ("2025/10/10 13:55:36", AT_US),
        ("Fri, 10 Oct 2025 13:55:36 GMT", AT_US),
        ("Fri, 10 Oct 2025 15:55:36 +0200", AT_US),
        ("Fri Oct 10 13:55:36 2025", AT_US),
        ("Fri Oct 10 13:55:36 UTC 2025", AT_US),
    ],
)
def test_every_form(text: str, time_us: int) -> None:
    parse = TimeParser(year=2025)
    assert parse(text) == time_us
    assert parse(text) == time_us


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "soon", "2025-10-10", "10/Foo/2025:13:55:36 +0000", "31/Feb/2025:00:00:00 +0000"),
        *("0001-01-01T00:00:00Z", "9999-12-31T00:00:00Z", "Fri, 10 Foo 2025 13:55:36 GMT", "Feb 29 00:00:00"),
    ],
)
def test_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        TimeParser(year=2025)(text)


def test_the_zone_of_times_without_one() -> None:
    parse = TimeParser(ZoneInfo("Asia/Bangkok"))
    assert parse("2025-10-10 20:55:36") == AT_US
    assert parse.assumed_zone


def test_a_parser_meets_several_kinds() -> None:
    parse = TimeParser()
    for text in ("1760104536", "10/Oct/2025:13:55:36 +0000", "2025-10-10T13:55:36Z", "1760104536"):
        assert parse(text) == AT_US


def test_hours_that_no_day_has() -> None:
    parse = TimeParser()
    assert parse("10/Oct/2025:13:55:36 +0000") == AT_US
    with pytest.raises(ValueError, match="is no time"):
        parse("10/Oct/2025:25:55:36 +0000")


@pytest.mark.parametrize(
    "form", ["2025-10-26 {}", "26/Oct/2025:{}", "Oct 26 {}"], ids=["ISO 8601", "common log", "syslog"]
)
def test_the_hour_that_is_there_twice(form: str) -> None:
    """Summer time ends at three o'clock, which is two o'clock again."""
    parse = TimeParser(ZoneInfo("Europe/Berlin"), year=2025)
    clocks = ("01:40:00", "02:10:00", "02:50:00", "02:00:00", "02:30:00", "02:50:00", "03:00:00")
    minutes = [parse(form.format(clock)) // 60_000_000 for clock in clocks]
    assert [minute - minutes[0] for minute in minutes] == [0, 30, 70, 80, 110, 130, 140]


def test_the_hour_that_is_left_out() -> None:
    parse = TimeParser(ZoneInfo("Europe/Berlin"), year=2025)
    before, after = parse("Mar 30 01:59:59"), parse("Mar 30 03:00:00")
    assert after - before == 1_000_000


def test_a_day_that_few_years_have() -> None:
    parse = TimeParser(year=2026, written_us=AT_US + 365 * 86_400_000_000)
    assert parse("Feb 29 00:00:00") == 1_709_164_800_000_000
    assert parse.year == 2024
