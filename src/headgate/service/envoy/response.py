"""Decisions as Envoy reads them: a status for each descriptor, and what all of them mean for the call.

Status. The verdict that spoke, of one descriptor: the one that refuses longest, or the nearest to its limit.
    code                   OVER_LIMIT if it refused; a peek is refused where nothing is left. A quota that is over
                           says so, and refuses the call only if no other quota of the request has room
    current_limit          requests per unit, and the label or the name of the rule. A window is told if it is one
                           of Envoy's units. A bucket is told by its rate, in the smallest unit in which that is
                           whole: of "100/s burst 200" that is 100 per SECOND. Whatever is neither (600 in 10
                           minutes, slots) is told by its number with the unit UNKNOWN: Envoy then leaves the
                           window out. A rule whose cost its limit can never hold is told as a limit of 0
    limit_remaining        units left; all ones if there is no limit, as the reference service has it
    duration_until_reset   of a count that refused, when the same call would pass; otherwise when the count will be
                           as if never used; of a window that was never charged, its end
No rule, no current_limit. If only shadows are met, theirs is told, with the code OK: so does the reference.

Headers are those of the decision that spoke for the call, in the form that the rulebook names, with Retry-After on
refusals. They can be switched off (envoy_headers), and so can names in statuses and headers (envoy_names). A
refusing rule's body is raw_body, its content type a header; its status and redirect cannot be told: Envoy's filter
has a status of its own (rate_limited_status).

Metadata. What access logs want to know:
    rule, remaining       who spoke, and what is left
    refused_by            all rules that refused
    retry_after, why      if refused: seconds, and a sentence where it was not for the limit
    shadow                shadows and candidates that would have refused
    delay                 seconds that a queue would have held the call for: Envoy cannot, and lets it pass
    degraded              a fallback decided
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from headgate.algorithms.decision import (
    ALLOWED,
    AT_US,
    DELAY_US,
    MARK,
    REMAINING,
    RESET_AFTER_US,
    RETRY_AFTER_US,
    Decision,
    DegradedOutcome,
    Limited,
    Outcome,
)
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import SECOND, UNLIMITED, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.enforcement.call_plan import CompiledRulebook
from headgate.enforcement.rule_decision import RuleDecision
from headgate.http.headers import headers, per_second, quota, window_seconds
from headgate.rules.rule import Headers
from headgate.service.envoy.messages import RateLimitResponse
from headgate.service.envoy.request import UNITS, DescriptorCheck

OK, OVER_LIMIT = 1, 2
MAX_UINT32 = 2**32 - 1
MAX_CACHED_LIMITS = 10_000  # faces that are remembered

OptionalDecisions = Sequence[RuleDecision | None]  # None: there is no limit, and nobody was asked
DecisiveParts = Sequence[tuple[RuleDecision, Decision]]

_UNKNOWN = 0
_WORDS = {word: number for number, (word, _) in UNITS.items()}
_EXACTLY = {seconds * SECOND: number for number, (_, seconds) in UNITS.items()}
_RISING = [(number, UNITS[number][1]) for number in (1, 2, 3, 4)]  # in which rates are told


class ResponseFormat(NamedTuple):
    """How the rules of a book are told."""

    form: Headers | None = "draft-11"  # None: no header fields
    names: bool = True
    labels: dict[str, str] = {}  # noqa: RUF012 (never changed)
    closed: frozenset[str] = frozenset()  # rules that nothing passes

    def called(self, rule: str | None) -> str | None:
        """What a rule is called."""
        return self.labels.get(rule or "", rule) if self.names else None


def response_format(ruling: CompiledRulebook, fields: bool = True, names: bool = True) -> ResponseFormat:
    """How a book is told: with header fields or without, with names or without."""
    labels = {rule.name: rule.label for rule in ruling.book.rules if rule.label is not None}
    return ResponseFormat(ruling.book.headers if fields else None, names, labels, ruling.closed)


def make_response(
    response_format: ResponseFormat,
    asked: Sequence[DescriptorCheck],
    answers: OptionalDecisions,
    unlimited: Sequence[bool] = (),
    spared: Collection[int] = (),
) -> Any:
    """The answer to a request. `spared`: places of quotas of which one has room."""
    told = RateLimitResponse(overall_code=OK)
    add = told.statuses.add
    spoke: list[tuple[RuleDecision, Decision]] = []  # whose verdict is told, of each descriptor that has one
    for place, decision in enumerate(answers):
        if decision is None or not (parts := decision.parts or decision.beside):
            add(code=OK).limit_remaining = MAX_UINT32 if unlimited and unlimited[place] else 0
            continue
        part = parts[0] if len(parts) == 1 else _spoke(decision, parts)
        question = asked[place]
        status = add(code=OK)
        _fill(status, question, part, response_format)
        if not (part.facts[ALLOWED] or part.aside or question.back):
            status.code = OVER_LIMIT
            if place in spared:
                continue
            told.overall_code = OVER_LIMIT
        spoke.append((decision, part))
    if spoke:
        decision, part = spoke[0] if len(spoke) == 1 else min(spoke, key=_distance)
        if response_format.form is not None and part.rule not in response_format.closed:
            for name, value in headers(decision, response_format.form, response_format.called):
                told.response_headers_to_add.add(key=name, value=value)
        if not (part.facts[ALLOWED] or part.aside):
            _refused(told, decision, spoke)
        _metadata(told, part, spoke, response_format)
    return told


class LimitDescription:
    """What never changes of how a limit is told."""

    __slots__ = ("most", "name", "policy", "rate", "source", "timed")

    def __init__(self, part: Decision) -> None:
        limit = part.source.limit
        self.source: Limited = part.source
        self.rate: tuple[int, int] = rate(limit)
        self.most: int = quota(limit)
        self.policy: str = headers(part, "draft-11")[0][1] if part.aside is None else ""
        self.name: str = self.policy.partition(";q=")[0]
        self.timed: bool = window_seconds(limit) is not None


_faces: dict[int, LimitDescription] = {}


def _face(part: Decision) -> LimitDescription:
    """Looked up by the meter, which lives as long as its rulebook is followed."""
    face = _faces.get(id(part.source))
    if face is None or face.source is not part.source:
        if len(_faces) >= MAX_CACHED_LIMITS:
            _faces.clear()
        face = _faces[id(part.source)] = LimitDescription(part)
    return face


def _spoke(decision: RuleDecision, parts: Sequence[Decision]) -> Decision:
    if len(parts) > 1:
        for part in parts:
            if part.source is decision.source and part.rule == decision.rule:
                return part
    return parts[0]


def _fill(status: Any, question: DescriptorCheck, part: Decision, response_format: ResponseFormat) -> None:
    facts = part.facts
    if part.source.limit is UNLIMITED:  # refused for something else: a dimension was missing
        return
    told, left = status.current_limit, facts[REMAINING]
    if question.override is None:
        told.requests_per_unit, told.unit = _face(part).rate
        told.name = response_format.called(part.rule) or ""
        if part.rule in response_format.closed:
            told.requests_per_unit = 0
    else:
        told.requests_per_unit, told.unit = question.override
    if left > 0 and told.requests_per_unit:
        status.limit_remaining = left if left < MAX_UINT32 else MAX_UINT32
    wait_us = None if facts[ALLOWED] else facts[RETRY_AFTER_US]
    seconds, rest_us = divmod(reset_us(facts, part.source.limit) if wait_us is None else wait_us, SECOND)
    until = status.duration_until_reset
    until.seconds, until.nanos = seconds, rest_us * 1000


def reset_us(facts: Outcome, limit: Limit) -> int:
    """When the count will be as if never used; of a window that is, when it ends."""
    if facts[RESET_AFTER_US] or not isinstance(limit, FixedWindow):
        return facts[RESET_AFTER_US]
    return max(0, facts[MARK] - facts[AT_US])


def _refused(told: Any, decision: RuleDecision, spoke: DecisiveParts) -> None:
    refusal = decision.refusal
    if refusal is not None and refusal.body is not None:
        told.raw_body = refusal.body.encode()
        if refusal.type is not None:
            told.response_headers_to_add.add(key="Content-Type", value=refusal.type)
    refused = dict.fromkeys(part.rule for one, _ in spoke for part in one.parts if not part.allowed)
    told.dynamic_metadata.update({"refused_by": list(refused)})
    fields = told.dynamic_metadata.fields
    if decision.retry_after is not None:
        fields["retry_after"].number_value = decision.retry_after
    if decision.why is not None:
        fields["why"].string_value = decision.why


def _metadata(told: Any, spoke: Decision, made: DecisiveParts, response_format: ResponseFormat) -> None:
    fields = told.dynamic_metadata.fields
    if spoke.aside is None:
        fields["rule"].string_value = spoke.rule or ""
        fields["remaining"].number_value = 0 if spoke.rule in response_format.closed else spoke.facts[REMAINING]
    delay_us = 0
    shadows: dict[str, None] = {}
    for decision, _ in made:
        for part in decision.parts:
            facts = part.facts
            if facts[DELAY_US] > delay_us:
                delay_us = facts[DELAY_US]
            if type(facts) is DegradedOutcome:
                fields["degraded"].bool_value = True
        for part in decision.beside:
            if not part.facts[ALLOWED]:
                shadows[part.rule or ""] = None
    if delay_us and spoke.facts[ALLOWED]:
        fields["delay"].number_value = delay_us / SECOND
    if shadows:
        told.dynamic_metadata.update({"shadow": list(shadows)})


def _distance(spoke: tuple[RuleDecision, Decision]) -> tuple[int, float]:
    """Who speaks for the call: who refuses longest, or has the smallest share left; shadows last."""
    _, part = spoke
    facts = part.facts
    if part.aside is not None:
        return 2, 0
    if not facts[ALLOWED]:
        return 0, -math.inf if facts[RETRY_AFTER_US] is None else -facts[RETRY_AFTER_US]
    return 1, facts[REMAINING] / _face(part).most


def rate(limit: Limit) -> tuple[int, int]:
    """Requests per unit, and Envoy's number of the unit: 0 if it has none for this."""
    amount, unit = _rate(limit)
    return min(amount, MAX_UINT32), unit


def _rate(limit: Limit) -> tuple[int, int]:
    match limit:
        case TokenBucket():
            return _in_whole(limit, limit.amount * SECOND, limit.period_us)
        case LeakyBucket():
            return _in_whole(limit, limit.rate, 1000)
        case Smooth():
            return (each, _WORDS["second"]) if (each := per_second(limit)) else (quota(limit), _UNKNOWN)
        case FixedWindow() if limit.unit:
            return limit.amount, _WORDS[limit.unit]
        case FixedWindow() | SlidingLog():
            return limit.amount, _EXACTLY.get(limit.period_us, _UNKNOWN)
        case SlidingWindow():
            return limit.amount, _EXACTLY.get(limit.cell_us * limit.cells, _UNKNOWN)
        case _:
            return quota(limit), _UNKNOWN


def _in_whole(limit: Limit, units: int, seconds: int) -> tuple[int, int]:
    """So many units in so many seconds, in the smallest unit of time in which that is whole."""
    for number, length in _RISING:
        each, rest = divmod(units * length, seconds)
        if not rest:
            return each, number
    return quota(limit), _UNKNOWN
