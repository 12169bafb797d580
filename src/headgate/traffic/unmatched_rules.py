"""Finds rules that decided none of the calls, and attributes of rules that the calls do not have."""

from __future__ import annotations

from collections.abc import Collection

from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.rule import Rule, Rulebook


def describe_unmatched_rules(
    book: Rulebook, decided: Collection[str], attributes: Collection[str] | None
) -> str | None:
    """Returns a sentence about rules that are not in `decided`, or use an attribute that is not `known`.

    `known` is None if the calls may have any attribute. Rules that are off or unlimited decide nothing anyway.
    """
    unmatched = [rule for rule in book.rules if rule.name not in decided and _can_decide(rule)]
    lacking = [rule for rule in book.rules if rule not in unmatched and _missing_dimensions(rule, attributes)]
    parts = []
    if unmatched:
        listed = ", ".join(f'"{rule.name}"{_reason(_unknown(rule, attributes))}' for rule in unmatched)
        one = len(unmatched) == 1
        parts.append(f"the rule{'' if one else 's'} {listed} appl{'ies' if one else 'y'} to no call")
    if lacking:
        listed = ", ".join(f'"{rule.name}"{_reason(_missing_dimensions(rule, attributes))}' for rule in lacking)
        parts.append(f"no call has a whole key of {listed}")
    return f"{'; '.join(parts)}." if parts else None


def _can_decide(rule: Rule) -> bool:
    limits = [rule.limit.otherwise, *(limit for _, limit in rule.limit.cases)]
    return bool(rule.mode.enforce + rule.mode.shadow) and any(limits)


def _unknown(rule: Rule, attributes: Collection[str] | None) -> list[str]:
    """Returns the attributes of the rule that no call has."""
    captured = rule.when.captures if rule.when is not None else ()
    names = dict.fromkeys(used_attributes(rule))
    return (
        []
        if attributes is None
        else [name for name in names if name not in captured and not _has(attributes, name)]
    )


def _missing_dimensions(rule: Rule, attributes: Collection[str] | None) -> list[str]:
    names = {dimension.name for dimension in rule.key}
    return [name for name in _unknown(rule, attributes) if name in names] if _can_decide(rule) else []


def _has(attributes: Collection[str], name: str) -> bool:
    return name in attributes or (name.startswith("argument.") and "path" in attributes)


def _reason(names: list[str]) -> str:
    return f" (calls have no {' and no '.join(names)})" if names else ""
