"""The attributes that a rule uses."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.rules.condition import Condition, Not, Test
from headgate.rules.rule import Rule


def used_attributes(rule: Rule) -> Iterator[str]:
    """Yields the names of all attributes that the rule uses, some more than once."""
    for condition in (rule.when, rule.unless):
        if condition is not None:
            yield from tested_attributes(condition)
    for dimension in rule.key:
        yield dimension.name
    for choice in (rule.limit, rule.candidate, rule.cost):
        if choice is not None:
            yield from (test.attribute for test, _ in choice.cases)
    if rule.cost is not None:
        costs = [rule.cost.otherwise, *(value for _, value in rule.cost.cases)]
        yield from (value for value in costs if isinstance(value, str))


def tested_attributes(condition: Condition) -> Iterator[str]:
    """Yields the names of the attributes that a condition tests."""
    if isinstance(condition, Test):
        yield condition.attribute
        return
    for part in (condition.part,) if isinstance(condition, Not) else condition.parts:
        yield from tested_attributes(part)
