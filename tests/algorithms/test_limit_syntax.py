"""Limits as text: the meaning of each form, its round trip, and the error for an invalid one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.durations import format_period
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import DAY, HOUR, MINUTE, SECOND, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.slots import Slots
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse, parse_all
from tests.parity.walks import fixed_window, leaky_bucket, sliding_log, sliding_window, smooth, token_bucket

MEANINGS: list[tuple[str, Limit, str]] = [
    ("100/s", TokenBucket(100), "100/s"),
    ("100/s burst 200", TokenBucket(100, 1, 200), "100/s burst 200"),
    ("100 / second", TokenBucket(100), "100/s"),
    ("100 per minute", TokenBucket(100, 60), "100/minute"),
    ("100/min", TokenBucket(100, 60), "100/minute"),
    ("100/m", TokenBucket(100, 60), "100/minute"),
    ("10/30s", TokenBucket(10, 30), "10/30s"),
    ("10/90 seconds", TokenBucket(10, 90), "10/90s"),
    ("10/2 hrs", TokenBucket(10, 7200), "10/2h"),
    ("10/2 hours", TokenBucket(10, 7200), "10/2h"),
    ("10/1.5s", TokenBucket(10, 1.5), "10/1500ms"),
    ("10/100ms", TokenBucket(10, 0.1), "10/100ms"),
    ("1/us", TokenBucket(1, 0.000001), "1/1us"),
    ("1_000_000/day", TokenBucket(1_000_000, 86_400), "1000000/day"),
    ("1,000,000/day", TokenBucket(1_000_000, 86_400), "1000000/day"),
    ("1/year", TokenBucket(1, 365 * 86_400), "1/365d"),
    ("5/week", TokenBucket(5, 7 * 86_400), "5/7d"),
    ("10/S BURST 20", TokenBucket(10, 1, 20), "10/s burst 20"),
    ("  10/s  ", TokenBucket(10), "10/s"),
    ("600/minute sliding", SlidingWindow(600, 60), "600/minute sliding"),
    ("600/minute sliding cells 5", SlidingWindow(600, 60, 5), "600/minute sliding cells 5"),
    ("1000/day fixed", FixedWindow(1000, 86_400), "1000/day fixed"),
    (
        "1000/day fixed in Asia/Shanghai",
        FixedWindow(1000, "day", "Asia/Shanghai"),
        "1000/day fixed in Asia/Shanghai",
    ),
    ("1000/month fixed", FixedWindow(1000, "month"), "1000/month fixed"),
    ("9/week fixed in Europe/Berlin", FixedWindow(9, "week", "Europe/Berlin"), "9/week fixed in Europe/Berlin"),
    ("9/year fixed", FixedWindow(9, "year", "UTC"), "9/year fixed"),
    ("9/7d fixed", FixedWindow(9, 7 * 86_400), "9/7d fixed"),
    ("600/minute log", SlidingLog(600, 60), "600/minute log"),
    ("6/minute queue 5", LeakyBucket(6, 60, 5), "6/minute queue 5"),
    ("6/minute queue 5 nodelay", LeakyBucket(6, 60, 5, None), "6/minute queue 5 nodelay"),
    ("6/minute queue 5 delay 2", LeakyBucket(6, 60, 5, 2), "6/minute queue 5 delay 2"),
    ("10/s smooth", Smooth(10), "10/s smooth"),
    ("10/s smooth burst 2s", Smooth(10, burst=2), "10/s smooth burst 2s"),
    ("10/s smooth warmup 5s", Smooth(10, warmup=5), "10/s smooth warmup 5s"),
    ("10/s smooth warmup 5s cold 4", Smooth(10, warmup=5, cold=4), "10/s smooth warmup 5s cold 4"),
    ("2.5/s smooth", Smooth(2.5), "2.5/s smooth"),
    ("20 slots", Slots(20), "20 slots"),
    ("1 slot", Slots(1), "1 slots"),
    ("20 slots ttl 2m", Slots(20, 120), "20 slots ttl 2m"),
]


@pytest.mark.parametrize(("text", "limit", "shortest"), MEANINGS)
def test_parse_returns_the_limit_and_its_shortest_text(text: str, limit: Limit, shortest: str) -> None:
    assert parse(text) == limit
    assert type(parse(text)) is type(limit)
    assert str(parse(text)) == shortest
    assert parse(shortest) == limit


@pytest.mark.parametrize(
    "walk",
    [token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log, smooth],
    ids=lambda walk: walk.__name__,
)
def test_every_limit_can_be_read_back(walk: object) -> None:
    rng = random.Random(7)
    for _ in range(300):
        limit: Limit = walk.limits(rng)  # type: ignore[attr-defined]
        again = parse(limit.text)
        assert (again, again.args, again.text) == (limit, limit.args, limit.text)


@given(st.integers(1, 10**16))
def test_a_length_of_time_is_read_back(us: int) -> None:
    assert parse(f"1/{format_period(us)} fixed" if us <= 10**15 else "1/s fixed").args[1] in (us, SECOND)


def test_the_shortest_length_of_time() -> None:
    spans = [SECOND, MINUTE, HOUR, DAY, 90 * SECOND, 7 * DAY, 1500, 1_500_000, 1]
    assert [format_period(us) for us in spans] == [
        "s",
        "minute",
        "hour",
        "day",
        "90s",
        "7d",
        "1500us",
        "1500ms",
        "1us",
    ]


def test_several_limits() -> None:
    assert parse_all("10/s; 500/hour") == (TokenBucket(10), TokenBucket(500, 3600))
    assert parse_all("10/s;500/hour log") == (TokenBucket(10), SlidingLog(500, 3600))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10/s;;5/m", "10/s; 5/m"),
        ("10/s;", "10/s"),
        ("; 10/s ; 5/m", "10/s; 5/m"),
    ],
)
def test_a_semicolon_without_a_limit_is_refused(text: str, meant: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        parse_all(text)
    assert str(refused.value) == f'"{text}" {START} A semicolon separates two limits. Did you mean {meant}?'


START = "is not a limit. Write AMOUNT/PERIOD, such as 10/minute or 10/30s, or N slots."


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("10/minit", "Did you mean 10/minute?"),
        ("10/secons", "Did you mean 10/second?"),
        ("10/hors", "Did you mean 10/hour?"),
        ("10/dya", "Did you mean 10/day?"),
        ("10/30 minits burst 5", "Did you mean 10/30 minute burst 5?"),
        ("10/ss", "Did you mean 10/s?"),
        ("10/hs", "Did you mean 10/h?"),
        ("10/30mss", "Did you mean 10/30ms?"),
        ("10/xyzzy", '"xyzzy" is not a unit of time.'),
        ("10", ""),
        ("abc", ""),
        ("/s", ""),
        ("10/", ""),
        ("-1/s", ""),
        ("10/s brust 5", 'The word "brust" is not expected there. Did you mean "burst"?'),
        ("10/s slidng", 'Did you mean "sliding"?'),
        ("10/s burst", 'After "burst" comes one whole number.'),
        ("10/s burst x", "x is not a whole number."),
        ("10/s burst 5 6", 'After "burst" comes one whole number.'),
        ("1.5/s", "1.5 is not a whole number."),
        ("10/0s", "A period is a whole number of microseconds, at least one."),
        ("10/0.0000001s", "A period is a whole number of microseconds, at least one."),
        ("10/s fixed in Asia/Shanghai", "Only a day, week, month or year can follow a time zone."),
        ("10/2d fixed in Asia/Shanghai", "Only a day, week, month or year can follow a time zone."),
        ("10/s log 5", 'Nothing was expected after "log", but there is "5".'),
        ("10/s queue", 'After "queue" comes one whole number.'),
        ("10/s queue 5 dely 2", 'Did you mean "delay"?'),
        ("10/s smooth warmup", 'After "warmup" comes a length of time, such as 5s.'),
        ("10/s smooth warmup 5s cold", 'After "cold" comes a number.'),
        ("1..5/s smooth", "1..5 is not a number."),
        ("_/s smooth", "is not a whole number."),
        ("10/s burst ²", "² is not a whole number."),
        ("9" * 5000 + "/s", "An amount has at most 30 digits."),
        ("1/" + "9" * 400 + "s", "A period is at most 285 years."),
        ("10/s smooth warmup 5", '"5" is not a length of time, such as 5s or 2m.'),
        ("2 slots tll 5s", 'Did you mean "ttl"?'),
        ("1000/day in Asia/Shanghai", '"in" goes with "fixed": write 1000/day fixed in Asia/Shanghai.'),
        ("10/s in Asia/Shanghai", '"in" goes with "fixed".'),
        ("10/s nodelay", '"nodelay" goes with "queue": write 10/s queue 5 nodelay.'),
        ("10/s NODELAY", '"nodelay" goes with "queue": write 10/s queue 5 NODELAY.'),
        ("10/s burst 20 nodelay", '"nodelay" goes with "queue": write 10/s queue 20 nodelay.'),
        ("10/s cells 5", '"cells" goes with "sliding": write 10/s sliding cells 5.'),
        ("10/s log cells 5", '"cells" goes with "sliding": write 10/s sliding cells 5.'),
        ("10/s smooth cells 5", '"cells" goes with "sliding": write 10/s sliding cells 5.'),
        ("10/s warmup 5s", '"warmup" goes with "smooth": write 10/s smooth warmup 5s.'),
        ("10/s ttl 5s", '"ttl" goes with "slots".'),
        ("2 slots cells 5", '"cells" goes with "sliding".'),
        ("10/s queue 5 nodelay 3", 'Nothing was expected after "nodelay", but there is "3".'),
        ("10/day fixed in", 'After "in" comes a time zone, such as Europe/Berlin.'),
        ("10/s sliding cells 5 6", 'Nothing was expected after "cells 5", but there is "6".'),
    ],
)
def test_a_text_that_means_nothing(text: str, advice: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        parse(text)
    sentence = str(refused.value)
    assert sentence.startswith(f'"{text}" {START}')
    assert sentence.endswith(advice)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0/s", "The amount of a token bucket must be a whole number of at least 1, not 0."),
        ("1/s burst 0", "The burst of a token bucket must be a whole number of at least 1, not 0."),
        ("1000/day fixed in Asia/Shangai", '"Asia/Shangai" is not a time zone. Did you mean Asia/Shanghai'),
        ("1/hour queue 5", "too slow for a leaky bucket"),
        ("10000000/s log", "too much to remember"),
        ("7/s sliding cells 3", "do not divide"),
        ("1/200year", "cannot be exact"),
    ],
)
def test_a_limit_that_cannot_be_held(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        parse(text)
    assert sentence in str(refused.value)


@given(st.text(max_size=20) | st.from_regex(r"[0-9.,_/a-z ]{0,20}", fullmatch=True))
def test_any_text_parses_or_is_refused_with_a_message(text: str) -> None:
    try:
        limit = parse(text)
    except InvalidRule as refused:
        sentence = str(refused)
    else:
        sentence = f"{limit}."
        assert parse(limit.text) == limit
    assert sentence.endswith((".", "?"))
