"""Reads the rate limit fields of somebody else's responses, and how long a client should pause for them. Pure.

    Retry-After: 30                                    seconds, or a date
    RateLimit: "burst";r=50;t=30                       with RateLimit-Policy: "burst";q=100;w=60
    RateLimit: limit=100, remaining=50, reset=30       the form before draft 8; also as RateLimit-Limit and so on
    X-RateLimit-Limit, -Remaining, -Reset              Reset in seconds, or as epoch seconds or milliseconds;
                                                       X-Rate-Limit-*, X-RateLimit-Reset-After and the suffix
                                                       -Requests are understood, too

A field that cannot be read is as if it were not there: nobody's typing mistake stops a client.

Whether a limit comes back at once (a window) or unit by unit (a bucket) is not stated. It shows where the policy
is known: a bucket's reset is its used share of the window. Then there is always a unit to come soon, and a client
that sends no faster than the policy's rate need not slow down.

Laws (tests/http/test_upstream_limits.py):
  - no pause is longer than what the fields state; without fields only a refusal pauses, for a second;
  - a window with nothing left pauses until it ends; one with little left is spread over the rest of it;
  - what the fields of headgate's own services state is read back as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

PAUSE_WITHOUT_FIELDS_S = 1.0  # after a 429 that does not say for how long
SLOW_BELOW = 0.1  # the share of a quota below which the rest is spread over the time until it comes back

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_ITEM = re.compile(rf'(\s*{_QUOTED}\s*|[^;,"]*)((?:;[^;,"]*(?:{_QUOTED}[^;,"]*)*)*)(?:,|$)')
_PARAMETER = re.compile(r';\s*([a-z*][\w.*-]*)=("(?:[^"\\]|\\.)*"|[^;,\s]*)')
_NUMBER = re.compile(r"[0-9]{1,300}(?:\.[0-9]{1,9})?")
_MAX_NUMBER = 1e15  # what is larger is read as this
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_CHARS = 4096  # of a field: more is not read
_EPOCH_S, _EPOCH_MS = 10**9, 10**12  # numbers above these are instants


class UpstreamLimit(NamedTuple):
    """One limit of the other side: what is left of it, and when it comes back, in seconds.

    >>> upstream_limits([("RateLimit-Policy", '"burst";q=100;w=60'), ("RateLimit", '"burst";r=50;t=30')])
    [UpstreamLimit(name='burst', remaining=50, reset_after=30.0, quota=100, window=60.0)]
    """

    name: str
    remaining: int
    reset_after: float | None = None
    quota: int | None = None
    window: float | None = None

    @property
    def refills_by_unit(self) -> bool:
        """Returns whether units come back one by one: then the reset is the used share of the window."""
        if self.quota is None or self.window is None or self.reset_after is None or not self.quota:
            return False
        exact = (self.quota - self.remaining) * self.window / self.quota
        return exact - 0.001 <= self.reset_after < exact + 1.001


def upstream_limits(fields: Iterable[tuple[str, str]], now: float = 0.0) -> list[UpstreamLimit]:
    """Returns the limits that the header fields of a response state. `now`: epoch seconds, if it has no Date.

    >>> upstream_limits([("X-RateLimit-Limit", "60"), ("X-RateLimit-Remaining", "7"), ("X-RateLimit-Reset", "42")])
    [UpstreamLimit(name='', remaining=7, reset_after=42.0, quota=60, window=None)]
    """
    return _limits(_by_name(fields), now)


def pause_after(
    status: int,
    fields: Iterable[tuple[str, str]],
    *,
    now: float = 0.0,
    rate: float | None = None,
    slow_below: float = SLOW_BELOW,
) -> float:
    """Returns for how many seconds to pause after this response; 0 if not at all.

    rate         the most calls per second that this client makes by itself
    slow_below   the share of a quota below which the rest is spread

    >>> pause_after(429, [("Retry-After", "30")])
    30.0
    >>> pause_after(200, [("RateLimit-Policy", '"all";q=100;w=60'), ("RateLimit", '"all";r=4;t=20')])
    4.0
    """
    by_name = _by_name(fields)
    limits, stated = _limits(by_name, now), retry_after(by_name.get("retry-after"), _sent_at(by_name, now))
    if is_refusal(status, stated is not None):
        if stated is not None:
            return stated
        exhausted = [limit.reset_after for limit in limits if not limit.remaining and limit.reset_after]
        return max(exhausted, default=PAUSE_WITHOUT_FIELDS_S)
    return max((_slow_down(limit, rate, slow_below) for limit in limits), default=0.0)


def is_refusal(status: int, has_retry_after: bool) -> bool:
    """Returns whether a response turns the call away for now: 429, or 503 that says when to come back.

    >>> is_refusal(429, False), is_refusal(503, True), is_refusal(503, False)
    (True, True, False)
    """
    return status == 429 or (status == 503 and has_retry_after)


def retry_after(value: str | None, now: float) -> float | None:
    """Returns the seconds that a Retry-After states, as a number or as a date; None if it cannot be read.

    >>> retry_after("120", 0), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 45), retry_after("soon", 0)
    (120.0, 15.0, None)
    >>> retry_after("30, 60", 0)    # two fields: the longer wait
    60.0
    """
    if value is None:
        return None
    seconds = [_number(each) for each in value.split(",")]  # a proxy may have added a field of its own
    if None not in seconds:
        return max(each for each in seconds if each is not None)
    date = _date(value)
    return None if date is None else max(0.0, date - now)


def _slow_down(limit: UpstreamLimit, rate: float | None, slow_below: float) -> float:
    """Returns how long to pause because of one limit that did not refuse."""
    remaining, reset_after = limit.remaining, limit.reset_after
    if not reset_after:
        return 0.0
    few = not remaining or (limit.quota is not None and remaining < slow_below * limit.quota)
    if not few:
        return 0.0
    if limit.refills_by_unit and limit.quota and limit.window:
        between = limit.window / limit.quota
        return 0.0 if rate is not None and rate * between <= 1.001 else between
    between = reset_after / (remaining + 1)
    return 0.0 if remaining and rate is not None and rate * between <= 1 else between


def _limits(by_name: dict[str, str], now: float) -> list[UpstreamLimit]:
    if "ratelimit" in by_name:
        limits = list(_draft_limits(by_name["ratelimit"], by_name.get("ratelimit-policy", "")))
        if limits:
            return limits
    for prefix in ("ratelimit-", "x-ratelimit-", "x-rate-limit-"):
        for suffix in ("", "-requests"):
            limit = _legacy_limit(by_name, prefix, suffix, now)
            if limit is not None:
                return [limit]
    return []


def _draft_limits(text: str, policy: str) -> Iterator[UpstreamLimit]:
    """Yields the limits of the RateLimit field, with the quota and window of the policy of the same name."""
    items = dict(_items(text))
    if "remaining" in items or any(name.startswith("remaining=") for name in items):
        pairs = dict(name.split("=", 1) for name in items if "=" in name)
        remaining = _whole(pairs.get("remaining"))
        if remaining is not None:
            window = next((_number(parameters.get("w")) for _, parameters in _items(policy)), None)
            yield UpstreamLimit("", remaining, _number(pairs.get("reset")), _whole(pairs.get("limit")), window)
        return
    policies = dict(_items(policy))
    for name, parameters in items.items():
        remaining = _whole(parameters.get("r", parameters.get("a")))
        if remaining is not None:
            reset_after = _number(parameters.get("t", parameters.get("w")))
            of_policy = policies.get(name, {})
            quota, window = _whole(of_policy.get("q")), _number(of_policy.get("w"))
            yield UpstreamLimit(name, remaining, reset_after, quota, window)


def _items(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the names of a structured field's list, each with its parameters, up to what cannot be read."""
    position = 0
    while position < len(text) and (item := _ITEM.match(text, position)):
        name, position = item[1].strip().strip('"'), item.end()
        if name:
            yield name, {key: value.strip('"') for key, value in _PARAMETER.findall(item[2])}


def _legacy_limit(by_name: dict[str, str], prefix: str, suffix: str, now: float) -> UpstreamLimit | None:
    remaining = _whole(by_name.get(f"{prefix}remaining{suffix}"))
    if remaining is None:
        return None
    limit, _, policies = by_name.get(f"{prefix}limit{suffix}", "").partition(",")
    quota = _whole(limit.partition(";")[0])
    window = next((_number(parameters.get("w")) for _, parameters in _items(policies)), None)
    after = _number(by_name.get(f"{prefix}reset-after{suffix}"))
    reset_after = after if after is not None else _reset(by_name.get(f"{prefix}reset{suffix}"), by_name, now)
    return UpstreamLimit("", remaining, reset_after, quota, window)


def _reset(value: str | None, by_name: dict[str, str], now: float) -> float | None:
    """Returns the seconds until a reset: given in seconds, as an instant, as 1m30s, or as a date."""
    if value is None:
        return None
    value = value.strip()
    number, sent_at = _number(value), _sent_at(by_name, now)
    if number is not None:
        if number < _EPOCH_S:
            return number
        return max(0.0, number / (1000 if number >= _EPOCH_MS else 1) - sent_at)
    durations = _DURATION.findall(value)
    if durations and "".join(f"{amount}{unit}" for amount, unit in durations) == value:
        return sum(float(amount) * _SECONDS[unit] for amount, unit in durations)
    date = _date(value)
    return None if date is None else max(0.0, date - sent_at)


def _by_name(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the fields by their names in lower case; a field that occurs twice is a list."""
    by_name: dict[str, str] = {}
    for name, value in fields:
        name = name.lower()
        value = value[:_MAX_CHARS]
        by_name[name] = f"{by_name[name]}, {value}"[:_MAX_CHARS] if name in by_name else value
    return by_name


def _sent_at(by_name: dict[str, str], now: float) -> float:
    """Returns when the response was sent, by the other side's clock; by ours if it does not say."""
    date = _date(by_name.get("date", ""))
    return now if date is None else date


def _date(value: str) -> float | None:
    """Returns a date of HTTP or of ISO 8601 as seconds since 1970; one without a time zone is UTC."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = read(value.strip())
            return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            pass
    return None


def _number(value: str | None) -> float | None:
    if value is None or not _NUMBER.fullmatch(value.strip()):
        return None
    return min(float(value), _MAX_NUMBER)


def _whole(value: str | None) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
