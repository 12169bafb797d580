"""Explains for one call whether each rule of a book applies, and if not, why.

    login    applies: key address=192.0.2.7
    items    path is /login, not /items/{sku}
    cap      replaced by login

It uses no index and no compiled conditions. Law: it reports the same rules as applying that `match` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.rules.condition import All, AnyOf, Condition, Not, Test
from headgate.rules.keys import key_builder
from headgate.rules.matching.compile_rule import (
    BUCKET_COUNT,
    Match,
    bucket_of,
    compile_cost,
    compile_rule,
    describe_invalid_cost,
    describe_missing_key,
)
from headgate.rules.matching.replaced_rules import Replacements
from headgate.rules.rule import Rule, Rulebook

MAX_VALUE_LENGTH = 80  # characters of a value in a message

AttributeMap = Mapping[str, str]


class RuleExplanation(NamedTuple):
    """A rule, and why it applies to the call or not."""

    rule: Rule
    match: Match | None  # None: the rule does not apply
    why: str

    @property
    def applies(self) -> bool:
        return self.match is not None


def explain_rules(
    book: Rulebook, replacements: Replacements, values: AttributeMap, cost: int
) -> list[RuleExplanation]:
    """Explains every rule of the book, in its order."""
    explanations = [_explain_rule(rule, values, cost) for rule in book.rules]
    replaced = replacements.find_replaced(
        rule.name for rule, match, _ in explanations if match is not None and match.enforced
    )
    return [
        RuleExplanation(explanation.rule, None, f"replaced by {replaced[explanation.rule.name]}")
        if explanation.match is not None and explanation.rule.name in replaced
        else explanation
        for explanation in explanations
    ]


def _explain_rule(rule: Rule, values: AttributeMap, cost: int) -> RuleExplanation:
    bound = values if rule.when is None else rule.when.bind(values)
    if bound is None:
        assert rule.when is not None
        return RuleExplanation(rule, None, describe_failure(rule.when, values))
    if rule.unless is not None and rule.unless.holds(bound):
        return RuleExplanation(rule, None, f"exempt: {rule.unless}")
    match = compile_rule(rule)(bound, cost)
    return RuleExplanation(rule, match, _why_no_match(rule, bound) if match is None else _describe_match(match))


def _why_no_match(rule: Rule, values: AttributeMap) -> str:
    """Tells why a rule whose conditions hold does not apply."""
    key = key_builder(rule.key, blank=rule.missing == "one")(values)
    if key is None and rule.missing == "skip":
        return f"{describe_missing_key(rule, values)}, so the rule is skipped"
    key = key or key_builder(rule.key, blank=True)(values) or ""
    active = rule.mode.enforce + rule.mode.shadow
    bucket = bucket_of(rule.name, key)
    if bucket >= active:
        return (
            f"off for {display_value(key)}, which is number {bucket} of {BUCKET_COUNT}: on below {active}"
            if active
            else "mode is off"
        )
    if rule.cost is not None and compile_cost(rule.cost)(values) is None:
        return f"{describe_invalid_cost(rule, values)}, so the rule is skipped"
    return "its cost is 0"


def _describe_match(match: Match) -> str:
    details = [f"applies: key {display_value(match.key)}"]
    if match.cost != 1:
        details.append(f"cost {match.cost}")
    details.append("; ".join(map(str, match.limits)) or "unlimited")
    if match.candidate is not None:
        details.append(f"candidate {'; '.join(map(str, match.candidate)) or 'unlimited'}")
    if match.shadow:
        details.append("as a shadow")
    if match.denial_reason is not None:
        details.append(f"denied: {match.denial_reason}")
    return ", ".join(details)


def describe_failure(condition: Condition, values: AttributeMap) -> str:
    """Tells why a condition does not hold."""
    if isinstance(condition, Test):
        value = values.get(condition.attribute)
        expected = condition.expected
        if isinstance(expected, bool):
            return f"{condition.attribute} is {display_value(value)}, not {'present' if expected else 'absent'}"
        return f"{condition.attribute} is {display_value(value)}, not {' or '.join(expected)}"
    if isinstance(condition, Not):
        return f"{condition.part}, and must not be"
    if isinstance(condition, AnyOf):
        return (
            "; ".join(describe_failure(part, values) for part in condition.parts)
            or "none of no conditions can hold"
        )
    return _describe_failing_part(condition, values)


def _describe_failing_part(condition: All, values: AttributeMap) -> str:
    *parts, last = condition.in_order
    for part in parts:
        values_after = part.bind(values)
        if values_after is None:
            return describe_failure(part, values)
        values = values_after
    return describe_failure(last, values)


def display_value(value: str | None) -> str:
    """Returns a value for a message: escaped if unprintable, cut if long."""
    if not value:
        return "absent"
    if len(value) > MAX_VALUE_LENGTH:
        value = f"{value[:MAX_VALUE_LENGTH]}... ({len(value)} characters)"
    return value if value.isprintable() else repr(value)[1:-1]
