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
    ],
)
def test_every_form(text: str, time_us: int) -> None:
    parse = TimeParser(year=2025)
    assert parse(text) == time_us
    assert parse(text) == time_us


@pytest.mark.parametrize(
    "text", ["", "-", "soon", "2025-10-10", "10/Foo/2025:13:55:36 +0000", "31/Feb/2025:00:00:00 +0000"]
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
