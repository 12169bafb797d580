"""Writes the rate limit header fields of a response: a pure function of the Decision, in the rulebook's format.

    draft-11   RateLimit-Policy: "login";q=10;w=60     the quota, and its window in seconds
               RateLimit: "login";r=3;t=42             what is left, and when there is more
    legacy     X-RateLimit-Limit, -Remaining, -Reset (seconds from now), of the most restrictive limit
    envoy      the same, and X-RateLimit-Limit goes on with every policy: 10, 10;w=60;name="login"
    spring     X-RateLimit-Remaining, -Burst-Capacity, -Replenish-Rate, -Requested-Tokens, of the same limit
    off        none of these

A policy is named after its rule; where a rule has several limits the second is login#1. Without a rule it is named
after its limit. Unlimited rules and shadow verdicts are left out, and no field ever contains a key. The most
restrictive limit is the one that refuses longest, or if none does the one with the smallest share left; the envoy
format looks for the least left instead.

q and w are those of the limit. A bucket's quota is what it holds, and its window the time in which it fills; a
window's are its amount and its period, and of months the longest counts. Seconds are rounded up. Slots have no
window; their unit is concurrent-requests. For a limit that refused, t is when the same call would pass; otherwise
it is when the limit will be as if never used. A t that is later than Retry-After is left out: the draft does not
want the two to disagree, and a daily limit that did not refuse must not keep a client away for a day.

Laws (tests/http/test_headers.py):
  - a client that uses no more than q in any w seconds is not refused (unless by a smooth limit, where a new
    key has saved nothing, or on the day on which clocks are set back);
  - r is never more than q, and every number has at most 15 digits, as structured fields require;
  - Retry-After is there on refusals only, in every format; it is at least 1, not earlier than the call would
    pass, nor earlier than any t, and absent where no wait can help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from headgate.algorithms.decision import Decision, Verdict
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import DAY, SECOND, UNLIMITED, WEEK, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.slots import Slots
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.errors import InvalidRule

if TYPE_CHECKING:
    from headgate.rules.rule import Headers

Fields = list[tuple[str, str]]

_MAX_INTEGER = 10**15 - 1  # the largest integer of a structured field
_MAX_UNIT_US = {"day": DAY, "week": WEEK, "month": 31 * DAY, "year": 366 * DAY}


def headers(
    decision: Decision, form: Headers = "draft-11", called: Callable[[str | None], str | None] | None = None
) -> Fields:
    """Returns the header fields for the response to a decided call. `called` maps rules to their names there.

    >>> decision = Limiter.from_rules(RULES, clock=ManualClock()).check({"user": "ann"}, cost=1)
    >>> headers(decision, "legacy")
    [('X-RateLimit-Limit', '2'), ('X-RateLimit-Remaining', '1'), ('X-RateLimit-Reset', '30')]
    """
    return merged_headers((decision,), form, called)


def merged_headers(
    decisions: Sequence[Decision],
    form: Headers = "draft-11",
    called: Callable[[str | None], str | None] | None = None,
) -> Fields:
    """Returns the header fields for the response to a call that was decided in several steps: one set for all.

    >>> limiter = Limiter.from_rules(RULES, clock=ManualClock())
    >>> merged_headers([limiter.check({"user": "ann"}), limiter.check({"user": "bob"}, cost=2)])[1]
    ('RateLimit', '"login";r=1;t=30, "login#1";r=0;t=60')
    """
    write = _FORMS.get(form)
    if write is None:
        raise InvalidRule(f'"{form}" is not a form of headers. Known are {", ".join(_FORMS)}.')
    verdicts = [
        verdict
        for decision in decisions
        for verdict in decision.verdicts
        if verdict.limit is not UNLIMITED and not verdict.shadow_kind
    ]
    if called is not None:
        verdicts = [verdict._replace(rule=called(verdict.rule)) for verdict in verdicts]
    wait = max((wait for decision in decisions if (wait := retry_after(decision)) is not None), default=None)
    fields = write(verdicts, wait) if verdicts else []
    return fields if wait is None else [*fields, ("Retry-After", str(wait))]


def retry_after(decision: Decision) -> int | None:
    """Returns the whole seconds after which a refused call may retry; None if it passed, or if no wait can help.

    >>> limiter = Limiter("2/minute", clock=ManualClock())
    >>> passed = limiter.take("ann", 2)
    >>> retry_after(passed), retry_after(limiter.take("ann"))
    (None, 30)
    """
    if decision.allowed or (wait := decision.retry_after) is None:
        return None
    return min(_MAX_INTEGER, max(1, _seconds(round(wait * SECOND))))


def quota(limit: Limit) -> int:
    """Returns the most units that a key can have left under this limit.

    >>> quota(parse("10/s burst 50"))
    50
    """
    match limit:
        case TokenBucket():
            units = limit.burst
        case LeakyBucket():
            units = limit.burst + 1
        case FixedWindow() | SlidingWindow() | SlidingLog() | Slots():
            units = limit.amount
        case Smooth():
            units = max(1, int(limit.args[0] * _smooth_window(limit)))
        case _:
            raise TypeError(f"No quota is known of {limit!r}.")
    return min(_MAX_INTEGER, units)


def window_seconds(limit: Limit) -> int | None:
    """Returns the seconds in which the quota comes back, rounded up; None for slots, which are released.

    >>> window_seconds(parse("10/s burst 50")), window_seconds(parse("5 slots"))
    (5, None)
    """
    match limit:
        case TokenBucket():
            return _ceil_div(limit.capacity, limit.amount * SECOND)
        case LeakyBucket():
            return _ceil_div(limit.capacity, limit.rate)
        case FixedWindow():
            return _seconds(_MAX_UNIT_US[limit.unit] if limit.unit else limit.period_us)
        case SlidingLog():
            return _seconds(limit.period_us)
        case SlidingWindow():
            return _seconds(limit.cell_us * limit.cells)
        case Smooth():
            return _smooth_window(limit)
        case _:
            return None


def per_second(limit: Limit) -> int | None:
    """Returns the units that come back in a second, if that is a whole number; otherwise None.

    >>> per_second(parse("600/minute")), per_second(parse("1/minute"))
    (10, None)
    """
    match limit:
        case TokenBucket():
            units, rest = divmod(limit.amount * SECOND, limit.period_us)
        case LeakyBucket():
            units, rest = divmod(limit.rate, 1000)
        case FixedWindow() | SlidingLog() if limit.period_us:
            units, rest = divmod(limit.amount * SECOND, limit.period_us)
        case SlidingWindow():
            units, rest = divmod(limit.amount * SECOND, limit.cell_us * limit.cells)
        case Smooth():
            units, rest = int(limit.args[0]), not limit.args[0].is_integer()
        case _:
            return None
    return None if rest else min(_MAX_INTEGER, units)


def _draft_11(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    policies, limits = [], []
    for name, verdict in zip(_policy_names(verdicts), verdicts, strict=True):
        string, policy, units, windowed = _cached_policy(name, verdict.limit)
        reset = _seconds_to_reset(verdict)
        omit_t = not windowed or (wait is not None and reset > wait)
        policies.append(policy)
        remaining = max(0, min(verdict.remaining, units))
        limits.append(f"{string};r={remaining}" if omit_t else f"{string};r={remaining};t={reset}")
    return [("RateLimit-Policy", ", ".join(policies)), ("RateLimit", ", ".join(limits))]


def _policy(name: str, limit: Limit) -> tuple[str, str, int, bool]:
    """Returns a policy's name as a String, its text, its quota, and whether it has a window."""
    window, units, string = window_seconds(limit), quota(limit), _string(name)
    unit = "" if window is not None else ';qu="concurrent-requests"'
    return string, f"{string};q={units}{unit}{_parameter('w', window)}", units, window is not None


_cached_policy = lru_cache(maxsize=1024)(_policy)


def _legacy(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    return _limit_remaining_reset(_most_restrictive(verdicts, _remaining_share))


def _limit_remaining_reset(verdict: Verdict) -> Fields:
    return [
        ("X-RateLimit-Limit", str(quota(verdict.limit))),
        ("X-RateLimit-Remaining", str(_remaining(verdict))),
        ("X-RateLimit-Reset", str(_seconds_to_reset(verdict))),
    ]


def _envoy(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    (name, limit), *rest = _limit_remaining_reset(_most_restrictive(verdicts, _remaining))
    policies = [
        f"{quota(verdict.limit)}{_parameter('w', window_seconds(verdict.limit))};name={_string(policy_name)}"
        for policy_name, verdict in zip(_policy_names(verdicts), verdicts, strict=True)
    ]
    return [(name, ", ".join([limit, *policies])), *rest]


def _spring(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    verdict = _most_restrictive(verdicts, _remaining_share)
    rate = per_second(verdict.limit)
    return [
        ("X-RateLimit-Remaining", str(_remaining(verdict))),
        ("X-RateLimit-Burst-Capacity", str(quota(verdict.limit))),
        *([] if rate is None else [("X-RateLimit-Replenish-Rate", str(rate))]),
        ("X-RateLimit-Requested-Tokens", str(min(_MAX_INTEGER, verdict.cost))),
    ]


def _off(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    return []


_FORMS: dict[str, Callable[[Sequence[Verdict], int | None], Fields]] = {
    "draft-11": _draft_11,
    "legacy": _legacy,
    "envoy": _envoy,
    "spring": _spring,
    "off": _off,
}


def _most_restrictive(verdicts: Sequence[Verdict], remaining: Callable[[Verdict], float]) -> Verdict:
    """Returns the verdict that refuses longest; if none does, the one with the least left; the first of equals."""

    def restriction(verdict: Verdict) -> tuple[bool, float]:
        if verdict.allowed:
            return True, remaining(verdict)
        return False, -math.inf if verdict.retry_after_us is None else -verdict.retry_after_us

    return min(verdicts, key=restriction)


def _policy_names(verdicts: Sequence[Verdict]) -> list[str]:
    """Returns a name for each verdict, no two alike."""
    if len(verdicts) == 1:
        return [verdicts[0].rule or verdicts[0].limit.text]
    counts: dict[str, int] = {}
    names = []
    for verdict in verdicts:
        name = verdict.rule or verdict.limit.text
        count = counts[name] = counts.get(name, -1) + 1
        names.append(f"{name}#{count}" if count else name)
    return names


def _remaining(verdict: Verdict) -> int:
    return max(0, min(verdict.remaining, quota(verdict.limit)))


def _remaining_share(verdict: Verdict) -> float:
    return _remaining(verdict) / quota(verdict.limit)


def _seconds_to_reset(verdict: Verdict) -> int:
    waits = not verdict.allowed and verdict.retry_after_us is not None
    return min(_MAX_INTEGER, _seconds((verdict.retry_after_us or 0) if waits else verdict.reset_after_us))


def _smooth_window(limit: Smooth) -> int:
    """Returns the seconds in which at least one unit passes, and all that can be saved is saved."""
    saved_us = 0 if limit.warmup_us else round(limit.args[2] * SECOND)
    return max(1, _seconds(max(saved_us, math.ceil(limit.interval_us))))


def _parameter(name: str, number: int | None) -> str:
    return "" if number is None else f";{name}={min(_MAX_INTEGER, number)}"


def _string(text: str) -> str:
    """Returns a structured field's String: quoted, and of printable ASCII alone."""
    printable = "".join(char if " " <= char <= "~" else "?" for char in text)
    return '"' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _seconds(us: int) -> int:
    return _ceil_div(us, SECOND)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
