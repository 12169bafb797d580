"""A book told for one call: of every rule, whether it applies, and if not, why.

    login    applies: key address=192.0.2.7
    items    path is /login, not /items/{sku}
    cap      replaced by login

It takes no short cuts: no index, no compiled condition. Law: the rules that it says apply are those that `match`
finds.
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
from headgate.rules.matching.replaced_rules import Replacing
from headgate.rules.rule import Rule, Rulebook

MAX_VALUE_LENGTH = 80  # characters of a value that are told

AttributeMap = Mapping[str, str]


class Told(NamedTuple):
    """One rule, and what it has to do with the call."""

    rule: Rule
    match: Match | None  # None: it does not apply
    why: str

    @property
    def applies(self) -> bool:
        return self.match is not None


def explain_rules(book: Rulebook, replacing: Replacing, seen: AttributeMap, cost: int) -> list[Told]:
    """Every rule of the book, in its order."""
    told = [_told(rule, seen, cost) for rule in book.rules]
    out = replacing.taken_out(rule.name for rule, match, _ in told if match is not None and match.earnest)
    return [
        Told(one.rule, None, f"replaced by {out[one.rule.name]}")
        if one.match is not None and one.rule.name in out
        else one
        for one in told
    ]


def _told(rule: Rule, seen: AttributeMap, cost: int) -> Told:
    bound = seen if rule.when is None else rule.when.bound(seen)
    if bound is None:
        assert rule.when is not None
        return Told(rule, None, describe_failure(rule.when, seen))
    if rule.unless is not None and rule.unless.holds(bound):
        return Told(rule, None, f"exempt: {rule.unless}")
    match = compile_rule(rule)(bound, cost)
    return Told(rule, match, _silent(rule, bound) if match is None else _spoken(match))


def _silent(rule: Rule, seen: AttributeMap) -> str:
    """Why a rule that concerns the call says nothing."""
    key = key_builder(rule.key, blank=rule.missing == "one")(seen)
    if key is None and rule.missing == "skip":
        return f"{describe_missing_key(rule, seen)}, so the rule is skipped"
    key = key or key_builder(rule.key, blank=True)(seen) or ""
    on = rule.mode.enforce + rule.mode.shadow
    place = bucket_of(rule.name, key)
    if place >= on:
        return (
            f"off for {shown(key)}, which is number {place} of {BUCKET_COUNT}: on below {on}"
            if on
            else "mode is off"
        )
    if rule.cost is not None and compile_cost(rule.cost)(seen) is None:
        return f"{describe_invalid_cost(rule, seen)}, so the rule is skipped"
    return "its cost is 0"


def _spoken(match: Match) -> str:
    words = [f"applies: key {shown(match.key)}"]
    if match.cost != 1:
        words.append(f"cost {match.cost}")
    words.append("; ".join(map(str, match.limits)) or "unlimited")
    if match.candidate is not None:
        words.append(f"candidate {'; '.join(map(str, match.candidate)) or 'unlimited'}")
    if match.shadow:
        words.append("as a shadow")
    if match.denied is not None:
        words.append(f"denied: {match.denied}")
    return ", ".join(words)


def describe_failure(condition: Condition, seen: AttributeMap) -> str:
    """Why a condition does not hold."""
    if isinstance(condition, Test):
        value = seen.get(condition.attribute)
        wanted = condition.wanted
        if isinstance(wanted, bool):
            return f"{condition.attribute} is {shown(value)}, not {'present' if wanted else 'absent'}"
        return f"{condition.attribute} is {shown(value)}, not {' or '.join(wanted)}"
    if isinstance(condition, Not):
        return f"{condition.part}, and must not be"
    if isinstance(condition, AnyOf):
        return (
            "; ".join(describe_failure(part, seen) for part in condition.parts) or "none of no conditions can hold"
        )
    return _failing_part(condition, seen)


def _failing_part(condition: All, seen: AttributeMap) -> str:
    *parts, last = condition.in_order
    for part in parts:
        after = part.bound(seen)
        if after is None:
            return describe_failure(part, seen)
        seen = after
    return describe_failure(last, seen)


def shown(value: str | None) -> str:
    """A value in a sentence: what cannot be printed is escaped, and what is long is cut."""
    if not value:
        return "absent"
    if len(value) > MAX_VALUE_LENGTH:
        value = f"{value[:MAX_VALUE_LENGTH]}... ({len(value)} characters)"
    return value if value.isprintable() else repr(value)[1:-1]
