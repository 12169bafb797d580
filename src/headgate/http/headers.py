"""What a response says about limits: a pure function of the Decision, in the form that the rulebook names.

    draft-11   RateLimit-Policy: "login";q=10;w=60     what may be used, and in how many seconds
               RateLimit: "login";r=3;t=42             what is left, and when there is more
    legacy     X-RateLimit-Limit, -Remaining, -Reset (seconds from now), of the one count nearest to its end
    envoy      the same, and X-RateLimit-Limit goes on with every policy: 10, 10;w=60;name="login"
    spring     X-RateLimit-Remaining, -Burst-Capacity, -Replenish-Rate, -Requested-Tokens, of the nearest count
    off        none of these

A count is called by its rule; where a rule has several limits the second is login#1. Without a
rule it is called by its limit. What has no limit, and what is decided aside, is not told, and nothing here tells a
key. The nearest is the count that refuses longest, or if none does the one with the smallest share left; Envoy
looks for the least left instead.

q and w are those of the limit. A bucket's quota is what it holds, and its window the time in which it fills; a
window's are its amount and its period, and of months the longest counts. Seconds are rounded up. Slots have no
window; their unit is concurrent-requests. t is, of a count that refused, when the same call would pass, and
otherwise when the count will be as if never used. A t that is later than Retry-After is left out: the draft does
not want the two to disagree, and a daily count that stood by must not keep anybody away for a day.

Laws (tests/http/test_headers.py):
  - whoever uses no more than q in any w seconds is not refused (unless by a smooth limit, where a new
    key has saved nothing, or on the day on which clocks are set back);
  - r is never more than q, and every number has at most 15 digits, as structured fields ask;
  - Retry-After is there on refusals only, in every form; it is at least 1, not earlier than the call would
    pass, nor earlier than any t, and absent where no wait can help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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

_MOST = 10**15 - 1  # the largest integer of a structured field
_LONGEST = {"day": DAY, "week": WEEK, "month": 31 * DAY, "year": 366 * DAY}


def headers(
    decision: Decision, form: Headers = "draft-11", called: Callable[[str | None], str | None] | None = None
) -> Fields:
    """The fields for a response to the call that was decided. `called`: what a rule is called in them.

    >>> decision = Limiter.from_rules(RULES, clock=ManualClock()).check({"user": "ann"}, cost=1)
    >>> headers(decision, "legacy")
    [('X-RateLimit-Limit', '2'), ('X-RateLimit-Remaining', '1'), ('X-RateLimit-Reset', '30')]
    """
    write = _FORMS.get(form)
    if write is None:
        raise InvalidRule(f'"{form}" is not a form of headers. Known are {", ".join(_FORMS)}.')
    verdicts = [verdict for verdict in decision.verdicts if verdict.limit is not UNLIMITED and not verdict.aside]
    if called is not None:
        verdicts = [verdict._replace(rule=called(verdict.rule)) for verdict in verdicts]
    wait = retry_after(decision)
    fields = write(verdicts, wait) if verdicts else []
    return fields if wait is None else [*fields, ("Retry-After", str(wait))]


def retry_after(decision: Decision) -> int | None:
    """Whole seconds after which a refused call may come again; None if it passed, or if no wait can help.

    >>> limiter = Limiter("2/minute", clock=ManualClock())
    >>> passed = limiter.take("ann", 2)
    >>> retry_after(passed), retry_after(limiter.take("ann"))
    (None, 30)
    """
    wait = decision.retry_after
    if decision.allowed or wait is None:
        return None
    return min(_MOST, max(1, _seconds(round(wait * SECOND))))


def quota(limit: Limit) -> int:
    """The most that a count under this limit can have left.

    >>> quota(parse("10/s burst 50"))
    50
    """
    match limit:
        case TokenBucket():
            most = limit.burst
        case LeakyBucket():
            most = limit.burst + 1
        case FixedWindow() | SlidingWindow() | SlidingLog() | Slots():
            most = limit.amount
        case Smooth():
            most = max(1, int(limit.args[0] * _smooth_window(limit)))
        case _:
            raise TypeError(f"No quota is known of {limit!r}.")
    return min(_MOST, most)


def window_seconds(limit: Limit) -> int | None:
    """In how many seconds the quota comes back, rounded up; None for slots, which come back when released.

    >>> window_seconds(parse("10/s burst 50")), window_seconds(parse("5 slots"))
    (5, None)
    """
    match limit:
        case TokenBucket():
            return _ceil_div(limit.capacity, limit.amount * SECOND)
        case LeakyBucket():
            return _ceil_div(limit.capacity, limit.rate)
        case FixedWindow():
            return _seconds(_LONGEST[limit.unit] if limit.unit else limit.period_us)
        case SlidingLog():
            return _seconds(limit.period_us)
        case SlidingWindow():
            return _seconds(limit.cell_us * limit.cells)
        case Smooth():
            return _smooth_window(limit)
        case _:
            return None


def per_second(limit: Limit) -> int | None:
    """Units that come back in a second, if that is a whole number of them.

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
    return None if rest else min(_MOST, units)


def _draft_11(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    policies, counts = [], []
    for name, verdict in zip(_names(verdicts), verdicts, strict=True):
        window, more_in = window_seconds(verdict.limit), _more_in(verdict)
        unit = "" if window is not None else ';qu="concurrent-requests"'
        silent = window is None or (wait is not None and more_in > wait)
        policies.append(f"{_string(name)};q={quota(verdict.limit)}{unit}{_parameter('w', window)}")
        counts.append(f"{_string(name)};r={_left(verdict)}{_parameter('t', None if silent else more_in)}")
    return [("RateLimit-Policy", ", ".join(policies)), ("RateLimit", ", ".join(counts))]


def _legacy(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    return _three(_nearest(verdicts, _share))


def _three(nearest: Verdict) -> Fields:
    return [
        ("X-RateLimit-Limit", str(quota(nearest.limit))),
        ("X-RateLimit-Remaining", str(_left(nearest))),
        ("X-RateLimit-Reset", str(_more_in(nearest))),
    ]


def _envoy(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    (name, first), *rest = _three(_nearest(verdicts, _left))
    policies = [
        f"{quota(verdict.limit)}{_parameter('w', window_seconds(verdict.limit))};name={_string(called)}"
        for called, verdict in zip(_names(verdicts), verdicts, strict=True)
    ]
    return [(name, ", ".join([first, *policies])), *rest]


def _spring(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    nearest = _nearest(verdicts, _share)
    rate = per_second(nearest.limit)
    return [
        ("X-RateLimit-Remaining", str(_left(nearest))),
        ("X-RateLimit-Burst-Capacity", str(quota(nearest.limit))),
        *([] if rate is None else [("X-RateLimit-Replenish-Rate", str(rate))]),
        ("X-RateLimit-Requested-Tokens", str(min(_MOST, nearest.cost))),
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


def _nearest(verdicts: Sequence[Verdict], left: Callable[[Verdict], float]) -> Verdict:
    """The one that refuses longest; if none does, the one with the least left; the first of equals."""

    def distance(verdict: Verdict) -> tuple[bool, float]:
        if verdict.allowed:
            return True, left(verdict)
        return False, -math.inf if verdict.retry_after_us is None else -verdict.retry_after_us

    return min(verdicts, key=distance)


def _names(verdicts: Sequence[Verdict]) -> list[str]:
    """One for each verdict, no two alike."""
    seen: dict[str, int] = {}
    names = []
    for verdict in verdicts:
        name = verdict.rule or verdict.limit.text
        count = seen[name] = seen.get(name, -1) + 1
        names.append(f"{name}#{count}" if count else name)
    return names


def _left(verdict: Verdict) -> int:
    return max(0, min(verdict.remaining, quota(verdict.limit)))


def _share(verdict: Verdict) -> float:
    return _left(verdict) / quota(verdict.limit)


def _more_in(verdict: Verdict) -> int:
    waits = not verdict.allowed and verdict.retry_after_us is not None
    return min(_MOST, _seconds((verdict.retry_after_us or 0) if waits else verdict.reset_after_us))


def _smooth_window(limit: Smooth) -> int:
    """Seconds in which a unit passes at least, and all that can be saved is saved."""
    saved_us = 0 if limit.warmup_us else round(limit.args[2] * SECOND)
    return max(1, _seconds(max(saved_us, math.ceil(limit.interval_us))))


def _parameter(name: str, number: int | None) -> str:
    return "" if number is None else f";{name}={min(_MOST, number)}"


def _string(text: str) -> str:
    """A structured field's String: quoted, and of printable ASCII alone."""
    plain = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _seconds(us: int) -> int:
    return _ceil_div(us, SECOND)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
