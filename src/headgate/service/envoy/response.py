"""Writes decisions as Envoy's RateLimitResponse: a status for each descriptor, and one decision for the call.

Status. Of one descriptor, the decisive verdict: the one that refuses longest, or the nearest to its limit.
    code                   OVER_LIMIT if it refused; a peek is refused where nothing is left. A quota that is used
                           up has this code, and refuses the call only if no other quota of the request has units
    current_limit          requests per unit, and the label or the name of the rule. A window is shown if it is one
                           of Envoy's units. A bucket is shown by its rate, in the smallest unit in which that is
                           whole: of "100/s burst 200" that is 100 per SECOND. Whatever is neither (600 in 10
                           minutes, slots) is shown by its number with the unit UNKNOWN: Envoy then leaves the
                           window out. A rule whose cost its limit can never hold is shown as a limit of 0
    limit_remaining        units left; all ones if there is no limit, as in the reference service
    duration_until_reset   of a limit that refused, when the same call would pass; otherwise when the counter will
                           be as if never used; of a window that was never charged, its end
No rule, no current_limit. If only shadow rules match, theirs is shown, with the code OK: so does the reference.

Headers are those of the decisive decision, in the rulebook's format, with Retry-After on refusals. They can be
switched off (envoy_headers), and so can names in statuses and headers (envoy_names). A refusing rule's body is
raw_body, its content type a header; its status and redirect cannot be sent: Envoy's filter has a status of its own
(rate_limited_status).

Metadata, for access logs:
    rule, remaining       the decisive rule, and what is left
    refused_by            all rules that refused
    retry_after, why      if refused: seconds, and a sentence where it was not for the limit
    shadow                shadow rules and candidates that would have refused
    delay                 seconds that a queue would have held the call for: Envoy cannot, and lets it pass
    degraded              a fallback decided
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from headgate.algorithms.decision import (
    ALLOWED,
    DELAY_US,
    REMAINING,
    RETRY_AFTER_US,
    Decision,
    DegradedOutcome,
    restriction,
)
from headgate.algorithms.limit import SECOND, UNLIMITED, Limit
from headgate.enforcement.call_plan import CompiledRulebook
from headgate.enforcement.rule_decision import RuleDecision
from headgate.http.headers import headers
from headgate.rules.rule import Headers
from headgate.service.envoy.messages import RateLimitResponse
from headgate.service.envoy.request import UNITS, DescriptorCheck

OK, OVER_LIMIT = 1, 2
MAX_UINT32 = 2**32 - 1
MAX_CACHED_LIMITS = 10_000

OptionalDecisions = Sequence[RuleDecision | None]  # None: there is no limit, and no engine was called
DecisiveParts = Sequence[tuple[RuleDecision, Decision]]

_UNKNOWN_UNIT = 0
_UNIT_BY_NAME = {unit_name: number for number, (unit_name, _) in UNITS.items()}


class ResponseFormat(NamedTuple):
    """The form in which responses show the rules of a rulebook."""

    header_format: Headers | None = "draft-11"  # None: no header fields
    with_names: bool = True
    labels: dict[str, str] = {}  # noqa: RUF012 (never changed)
    closed_rules: frozenset[str] = frozenset()  # rules that no call passes

    def rule_name(self, rule: str | None) -> str | None:
        """Returns the name of a rule in responses."""
        return self.labels.get(rule or "", rule) if self.with_names else None


def response_format(
    rulebook: CompiledRulebook, with_headers: bool = True, with_names: bool = True
) -> ResponseFormat:
    """Returns the format for a rulebook: with or without header fields, with or without names."""
    labels = {rule.name: rule.label for rule in rulebook.book.rules if rule.label is not None}
    return ResponseFormat(
        rulebook.book.headers if with_headers else None, with_names, labels, rulebook.never_allowed
    )


def make_response(
    response_format: ResponseFormat,
    checks: Sequence[DescriptorCheck],
    decisions: OptionalDecisions,
    unlimited: Sequence[bool] = (),
    spared: Collection[int] = (),
) -> Any:
    """Returns the response to a request. `spared`: indexes of quotas of which one has units left."""
    response = RateLimitResponse(overall_code=OK)
    add = response.statuses.add
    decisive: list[tuple[RuleDecision, Decision]] = []  # of each descriptor that has one
    for index, decision in enumerate(decisions):
        if decision is None or not (parts := decision.counter_decisions or decision.shadow_decisions):
            add(code=OK).limit_remaining = MAX_UINT32 if unlimited and unlimited[index] else 0
            continue
        part = parts[0] if len(parts) == 1 else _decisive_part(decision, parts)
        check = checks[index]
        status = add(code=OK)
        _fill_status(status, check, part, response_format)
        if not (part.outcome[ALLOWED] or part.shadow_kind or check.is_refund):
            status.code = OVER_LIMIT
            if index in spared:
                continue
            response.overall_code = OVER_LIMIT
        decisive.append((decision, part))
    if decisive:
        decision, part = decisive[0] if len(decisive) == 1 else min(decisive, key=_restriction)
        if response_format.header_format is not None and part.rule not in response_format.closed_rules:
            for name, value in headers(decision, response_format.header_format, response_format.rule_name):
                response.response_headers_to_add.add(key=name, value=value)
        if not (part.outcome[ALLOWED] or part.shadow_kind):
            _add_refusal(response, decision, decisive)
        _add_metadata(response, part, decisive, response_format)
    return response


def _decisive_part(decision: RuleDecision, parts: Sequence[Decision]) -> Decision:
    if len(parts) > 1:
        for part in parts:
            if part.source is decision.source and part.rule == decision.rule:
                return part
    return parts[0]


def _fill_status(status: Any, check: DescriptorCheck, part: Decision, response_format: ResponseFormat) -> None:
    outcome = part.outcome
    if part.source.limit is UNLIMITED:  # refused without a limit: a dimension was missing
        return
    current_limit, remaining = status.current_limit, outcome[REMAINING]
    if check.override is None:
        current_limit.requests_per_unit, current_limit.unit = rate(part.source.limit)
        current_limit.name = response_format.rule_name(part.rule) or ""
        if part.rule in response_format.closed_rules:
            current_limit.requests_per_unit = 0
    else:
        current_limit.requests_per_unit, current_limit.unit = check.override
    if remaining > 0 and current_limit.requests_per_unit:
        status.limit_remaining = remaining if remaining < MAX_UINT32 else MAX_UINT32
    wait_us = None if outcome[ALLOWED] else outcome[RETRY_AFTER_US]
    seconds, rest_us = divmod(part.source.limit.reset_after_us(outcome) if wait_us is None else wait_us, SECOND)
    reset = status.duration_until_reset
    reset.seconds, reset.nanos = seconds, rest_us * 1000


def _add_refusal(response: Any, decision: RuleDecision, decisive: DecisiveParts) -> None:
    refusal = decision.refusal
    if refusal is not None and refusal.body is not None:
        response.raw_body = refusal.body.encode()
        if refusal.type is not None:
            response.response_headers_to_add.add(key="Content-Type", value=refusal.type)
    refusing_rules = dict.fromkeys(
        part.rule for other, _ in decisive for part in other.counter_decisions if not part.allowed
    )
    response.dynamic_metadata.update({"refused_by": list(refusing_rules)})
    fields = response.dynamic_metadata.fields
    if decision.retry_after is not None:
        fields["retry_after"].number_value = decision.retry_after
    if decision.why is not None:
        fields["why"].string_value = decision.why


def _add_metadata(
    response: Any, deciding: Decision, decisive: DecisiveParts, response_format: ResponseFormat
) -> None:
    fields = response.dynamic_metadata.fields
    if deciding.shadow_kind is None:
        fields["rule"].string_value = deciding.rule or ""
        fields["remaining"].number_value = (
            0 if deciding.rule in response_format.closed_rules else deciding.outcome[REMAINING]
        )
    delay_us = 0
    shadows: dict[str, None] = {}
    for decision, _ in decisive:
        for part in decision.counter_decisions:
            outcome = part.outcome
            if outcome[DELAY_US] > delay_us:
                delay_us = outcome[DELAY_US]
            if type(outcome) is DegradedOutcome:
                fields["degraded"].bool_value = True
        for part in decision.shadow_decisions:
            if not part.outcome[ALLOWED]:
                shadows[part.rule or ""] = None
    if delay_us and deciding.outcome[ALLOWED]:
        fields["delay"].number_value = delay_us / SECOND
    if shadows:
        response.dynamic_metadata.update({"shadow": list(shadows)})


def _restriction(decisive: tuple[RuleDecision, Decision]) -> tuple[bool, bool, float]:
    """Returns a sort key: the most restrictive part first, shadow verdicts last."""
    _, part = decisive
    return part.shadow_kind is not None, *restriction(part)


@lru_cache(MAX_CACHED_LIMITS)
def rate(limit: Limit) -> tuple[int, int]:
    """Returns requests per unit, and Envoy's number of the unit: 0 if it has none for this."""
    amount, unit = limit.per_unit()
    return min(amount, MAX_UINT32), _UNKNOWN_UNIT if unit is None else _UNIT_BY_NAME[unit]
