"""Writes the rate limit header fields of a response: a pure function of the Decision, in the rulebook's format.

    draft-11   RateLimit-Policy: "login";q=10;w=60     the quota, and its window in seconds
               RateLimit: "login";r=3;t=42             what is left, and when all is back
    legacy     X-RateLimit-Limit, -Remaining, -Reset (seconds from now), of the most restrictive limit
    envoy      the same, and X-RateLimit-Limit goes on with every policy: 10, 10;w=60;name="login"
    spring     X-RateLimit-Remaining, -Burst-Capacity, -Replenish-Rate, -Requested-Tokens, of the same limit
    off        none of these

A policy is named after its rule; where a rule has several limits the second is login#1. Without a rule it is named
after its limit. Unlimited rules, adaptive ones (whose limit is no promise), shadow verdicts and calls that passed
uncounted in an outage (fallback: allow) are left out, and no field ever contains a key. The most restrictive limit
refuses longest or, if none refuses, has the smallest share left.

q and w are those of the limit. A bucket's quota is what it holds, and its window the time in which it fills; a
window's are its amount and its period, and of months the longest counts. Seconds are rounded up. Slots have no
window; their unit is concurrent-requests. For a limit that refused, t is when the same call would pass; otherwise,
when the limit is as if unused. A t that is later than Retry-After is left out: the draft does not
want the two to disagree, and a daily limit that did not refuse must not keep a client away for a day.

Laws (tests/http/test_headers.py):
  - a client that uses no more than q in any w seconds is not refused (unless by a smooth limit, where a new
    key has saved nothing, or on the day on which clocks are set back);
  - r is never more than q, and every number has at most 15 digits, as structured fields require;
  - Retry-After is there on refusals only, in every format; it is at least 1, not earlier than the call would
    pass, nor earlier than any t, and absent where no wait can help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from headgate.algorithms.decision import (
    ALLOWED,
    REMAINING,
    RESET_AFTER_US,
    RETRY_AFTER_US,
    Decision,
    Outcome,
    Verdict,
    most_restrictive,
)
from headgate.algorithms.limit import SECOND, UNLIMITED, Limit, ceil_seconds
from headgate.errors import InvalidRule

if TYPE_CHECKING:
    from headgate.rules.rule import Headers

Fields = list[tuple[str, str]]

_MAX_INTEGER = 10**15 - 1  # the largest integer of a structured field
_MAX_RESET_US = _MAX_INTEGER * SECOND


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
        if verdict.limit is not UNLIMITED
        and verdict.limit.is_advertised
        and not verdict.shadow_kind
        and not is_uncounted(verdict)
    ]
    if called is not None:
        verdicts = [verdict._replace(rule=called(verdict.rule)) for verdict in verdicts]
    wait = None
    for decision in decisions:
        if not decision.allowed:
            wait = max(wait or 0, retry_after(decision) or 0) or None
    fields = write(verdicts, wait) if verdicts else []
    return fields if wait is None else [*fields, ("Retry-After", str(wait))]


def is_uncounted(outcome: Outcome | Verdict) -> bool:
    """Returns whether a call passed without being counted, in an outage: nothing is known of what is left.

    A counted call leaves units, or a time at which units come back.

    >>> is_uncounted(Limiter("1/minute", clock=ManualClock()).take("ann").verdicts[0])
    False
    """
    return outcome[ALLOWED] and not outcome[REMAINING] and not outcome[RESET_AFTER_US]


def retry_after(decision: Decision) -> int | None:
    """Returns the whole seconds after which a refused call may retry; None if it passed, or if no wait can help.

    >>> limiter = Limiter("2/minute", clock=ManualClock())
    >>> passed = limiter.take("ann", 2)
    >>> retry_after(passed), retry_after(limiter.take("ann"))
    (None, 30)
    """
    if decision.allowed or (wait := decision.retry_after) is None:
        return None
    return min(_MAX_INTEGER, max(1, ceil_seconds(round(wait * SECOND))))


def quota(limit: Limit) -> int:
    """Returns the limit's quota as header fields state it.

    >>> quota(parse("10/s burst 50"))
    50
    """
    return min(_MAX_INTEGER, limit.quota)


def per_second(limit: Limit) -> int | None:
    """Returns the units that come back in a second, if that is a whole number; otherwise None.

    >>> per_second(parse("600/minute")), per_second(parse("1/minute"))
    (10, None)
    """
    rate = limit.units_per_second
    return None if rate is None or rate.denominator > 1 else min(_MAX_INTEGER, int(rate))


class LimitFields:
    """The items of one limit in RateLimit-Policy and RateLimit: made once for a limit that decides often.

    >>> fields = LimitFields("login", parse("10/minute"))
    >>> fields.policy, fields.state(Limiter("10/minute", clock=ManualClock()).take("ann").verdicts[0])
    ('"login";q=10;w=60', '"login";r=9;t=6')
    """

    __slots__ = ("_has_window", "_name", "_quota", "policy")

    def __init__(self, name: str, limit: Limit) -> None:
        window = limit.window_seconds
        self._name, self._quota, self._has_window = _string(name), quota(limit), window is not None
        unit = "" if self._has_window else ';qu="concurrent-requests"'
        self.policy: str = f"{self._name};q={self._quota}{unit}{_parameter('w', window)}"

    def state(self, outcome: Outcome | Verdict, wait: int | None = None) -> str:
        """Returns the item of RateLimit; `wait` is the response's Retry-After."""
        remaining = outcome[REMAINING]
        if not 0 <= remaining <= self._quota:
            remaining = max(0, min(remaining, self._quota))
        if outcome[ALLOWED] and wait is None and self._has_window and outcome[RESET_AFTER_US] <= _MAX_RESET_US:
            return f"{self._name};r={remaining};t={-(-outcome[RESET_AFTER_US] // SECOND)}"
        reset = _seconds_to_reset(outcome)
        if not self._has_window or (wait is not None and reset > wait):
            return f"{self._name};r={remaining}"
        return f"{self._name};r={remaining};t={reset}"


def _draft_11(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    policies, states = [], []
    for name, verdict in zip(_names_of(verdicts), verdicts, strict=True):
        fields = _cached_fields(name, verdict.limit)
        policies.append(fields.policy)
        states.append(fields.state(verdict, wait))
    return [("RateLimit-Policy", ", ".join(policies)), ("RateLimit", ", ".join(states))]


_cached_fields = lru_cache(maxsize=1024)(LimitFields)


def _legacy(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    return _limit_remaining_reset(most_restrictive(verdicts))


def _limit_remaining_reset(verdict: Verdict) -> Fields:
    return [
        ("X-RateLimit-Limit", str(quota(verdict.limit))),
        ("X-RateLimit-Remaining", str(_remaining(verdict))),
        ("X-RateLimit-Reset", str(_seconds_to_reset(verdict))),
    ]


def _envoy(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    (name, limit), *rest = _limit_remaining_reset(most_restrictive(verdicts))
    policies = [
        f"{quota(verdict.limit)}{_parameter('w', verdict.limit.window_seconds)};name={_string(policy_name)}"
        for policy_name, verdict in zip(_names_of(verdicts), verdicts, strict=True)
    ]
    return [(name, ", ".join([limit, *policies])), *rest]


def _spring(verdicts: Sequence[Verdict], wait: int | None) -> Fields:
    verdict = most_restrictive(verdicts)
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


def _names_of(verdicts: Sequence[Verdict]) -> list[str]:
    return policy_names([(verdict.rule, verdict.limit) for verdict in verdicts])


def policy_names(limits: Sequence[tuple[str | None, Limit]]) -> list[str]:
    """Returns a name for each limit of these rules, no two alike.

    >>> policy_names([("login", parse("1/s")), ("login", parse("9/h")), (None, parse("5/s"))])
    ['login', 'login#1', '5/s']
    """
    counts: dict[str, int] = {}
    names = []
    for rule, limit in limits:
        name = rule or limit.text
        count = counts[name] = counts.get(name, -1) + 1
        names.append(f"{name}#{count}" if count else name)
    return names


def _remaining(verdict: Verdict) -> int:
    return max(0, min(verdict.remaining, quota(verdict.limit)))


def _seconds_to_reset(outcome: Outcome | Verdict) -> int:
    retry_after_us = None if outcome[ALLOWED] else outcome[RETRY_AFTER_US]
    return min(_MAX_INTEGER, ceil_seconds(outcome[RESET_AFTER_US] if retry_after_us is None else retry_after_us))


def _parameter(name: str, number: int | None) -> str:
    return "" if number is None else f";{name}={min(_MAX_INTEGER, number)}"


def _string(text: str) -> str:
    """Returns a structured field's String: quoted, and of printable ASCII alone."""
    printable = "".join(char if " " <= char <= "~" else "?" for char in text)
    return '"' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'
