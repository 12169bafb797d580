"""The fields of other people's responses, as they are found in the wild, and what a client makes of them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.clock import ManualClock
from headgate.http.headers import headers
from headgate.http.upstream_limits import UpstreamLimit, pause_after, upstream_limits
from headgate.limiter import Limiter

SENT = "Tue, 14 Nov 2023 22:13:20 GMT"  # 1,700,000,000

WILD = {
    "draft 11": (
        {"RateLimit-Policy": '"burst";q=100;w=60,"daily";q=1000;w=86400', "RateLimit": '"burst";r=50;t=30'},
        [UpstreamLimit("burst", 50, 30, 100, 60)],
    ),
    "draft 11, a key and a comma in a name": (
        {"RateLimit-Policy": '"a, b";q=5;w=1;pk=:dXNlcg==:', "RateLimit": '"a, b";pk=:dXNlcg==:;r=4;t=1'},
        [UpstreamLimit("a, b", 4, 1, 5, 1)],
    ),
    "draft 11, two": (
        {"RateLimit": '"burst";r=50;t=30, "daily";r=0;t=600'},
        [UpstreamLimit("burst", 50, 30), UpstreamLimit("daily", 0, 600)],
    ),
    "draft 7": (
        {"RateLimit": "limit=100, remaining=50, reset=30", "RateLimit-Policy": "100;w=60"},
        [UpstreamLimit("", 50, 30, 100, 60)],
    ),
    "draft 6": (
        {"RateLimit-Limit": "100", "RateLimit-Remaining": "50", "RateLimit-Reset": "30"},
        [UpstreamLimit("", 50, 30, 100)],
    ),
    "Envoy": (
        {
            "x-ratelimit-limit": '10, 10;w=1;name="per-ip", 1000;w=3600',
            "x-ratelimit-remaining": "4",
            "x-ratelimit-reset": "1",
        },
        [UpstreamLimit("", 4, 1, 10, 1)],
    ),
    "epoch seconds": (
        {
            "X-RateLimit-Limit": "5000",
            "X-RateLimit-Remaining": "4999",
            "X-RateLimit-Reset": "1700000060",
            "Date": SENT,
        },
        [UpstreamLimit("", 4999, 60, 5000)],
    ),
    "epoch milliseconds": (
        {"X-Rate-Limit-Remaining": "1", "X-Rate-Limit-Reset": "1700000060500", "Date": SENT},
        [UpstreamLimit("", 1, 60.5)],
    ),
    "reset after": (
        {"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "1700000001", "X-RateLimit-Reset-After": "0.64"},
        [UpstreamLimit("", 1, 0.64)],
    ),
    "a duration, of requests and tokens": (
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "6m0s",
            "x-ratelimit-remaining-tokens": "149984",
        },
        [UpstreamLimit("", 59, 360, 60)],
    ),
    "nothing": ({"Content-Type": "text/plain"}, []),
    "not to be read": ({"RateLimit": "many", "X-RateLimit-Remaining": "some", "RateLimit-Policy": ";;,="}, []),
}


@pytest.mark.parametrize("name", WILD)
def test_fields_in_the_wild(name: str) -> None:
    fields, limits = WILD[name]
    assert upstream_limits(fields.items()) == limits
    assert upstream_limits((key.swapcase(), value) for key, value in fields.items()) == limits


@pytest.mark.parametrize("form", ["draft-11", "legacy", "envoy"])
def test_fields_that_headgate_writes_are_read_back(form: str) -> None:
    limiter = Limiter("10/minute", clock=ManualClock())
    [limit] = upstream_limits(headers(limiter.take("ann", 4), form))  # type: ignore[arg-type]
    assert (limit.remaining, limit.reset_after, limit.quota) == (6, 24, 10)
    refused = headers(limiter.take("ann", 7), form)  # type: ignore[arg-type]
    assert pause_after(429, refused) == 6


def test_a_refusal_pauses_for_as_long_as_it_says() -> None:
    assert pause_after(429, [("Retry-After", "7")]) == 7
    assert pause_after(503, [("Retry-After", "7")]) == 7
    assert pause_after(429, [("Retry-After", "Tue, 14 Nov 2023 22:14:00 GMT"), ("Date", SENT)]) == 40
    assert pause_after(429, [("Retry-After", "Tue, 14 Nov 2023 22:14:00 GMT")], now=1_700_000_010) == 30
    assert pause_after(429, [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "9")]) == 9
    assert pause_after(429, [("Retry-After", "7"), ("Retry-After", "60")]) == 60, "a proxy added one"
    assert pause_after(429, [("Retry-After", "9" * 40)]) == 1e15
    assert pause_after(429, []) == 1
    assert pause_after(429, [("Retry-After", "soon")]) == 1
    assert pause_after(503, []) == 0
    assert pause_after(200, [("Retry-After", "7")]) == 0


@pytest.mark.parametrize(
    "text",
    [
        "Tue, 14 Nov 2023 22:14:00 GMT",
        "Tue, 14 Nov 2023 22:14:00 -0000",
        "Tue Nov 14 22:14:00 2023",
        "Tuesday, 14-Nov-23 22:14:00 GMT",
        "2023-11-14T22:14:00Z",
        "2023-11-14T23:14:00+01:00",
    ],
)
def test_dates_mean_the_same_in_every_time_zone(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reset = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", text), ("Date", SENT)]
    try:
        for zone in ("Asia/Tokyo", "America/New_York"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert pause_after(429, [("Retry-After", text), ("Date", SENT)]) == 40
            assert pause_after(429, reset) == 40
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_window_with_little_left_is_spread_over_its_rest() -> None:
    def window(remaining: int, reset: int) -> list[tuple[str, str]]:
        return [("RateLimit-Policy", '"w";q=100;w=60'), ("RateLimit", f'"w";r={remaining};t={reset}')]

    assert pause_after(200, window(50, 5)) == 0
    assert pause_after(200, window(9, 20)) == 2
    assert pause_after(200, window(0, 20)) == 20
    assert pause_after(200, window(9, 20), rate=0.4) == 0, "slow enough by itself"
    assert pause_after(200, window(0, 20), rate=0.4) == 20
    assert pause_after(200, window(9, 20), slow_below=0.05) == 0


def test_a_bucket_that_runs_dry_does_not_stop_a_client_of_its_rate() -> None:
    dry = [("RateLimit-Policy", '"b";q=10;w=2'), ("RateLimit", '"b";r=0;t=2')]
    assert pause_after(200, dry, rate=5) == 0
    assert pause_after(200, dry, rate=50) == 0.2
    assert pause_after(200, dry) == 0.2


texts = st.text(st.characters(max_codepoint=0x17F), max_size=60) | st.from_regex(r'[";,=\w .:]{0,80}')
names = st.sampled_from(
    ["RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After", "Date"]
)


@given(st.lists(st.tuples(names, texts), max_size=6), st.sampled_from([200, 429, 503]))
def test_no_field_breaks_a_client(fields: list[tuple[str, str]], status: int) -> None:
    assert pause_after(status, fields) >= 0


def test_a_long_field_costs_little() -> None:
    """Quotes that do not end, and items without end, are read in time that grows with their length."""
    for text in ('"' * 60_000, ';"' * 30_000, '"a";' * 15_000, "a=" * 30_000, " " * 60_000):
        assert upstream_limits([("RateLimit", text), ("RateLimit-Policy", text)]) == []
