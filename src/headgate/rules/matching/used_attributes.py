"""Which attributes a rule looks at."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.rules.condition import Condition, Not, Test
from headgate.rules.rule import Rule


def used(rule: Rule) -> Iterator[str]:
    """The names of all attributes that can make a difference to the rule; some more than once."""
    for condition in (rule.when, rule.unless):
        if condition is not None:
            yield from tested_attributes(condition)
    for dimension in rule.key:
        yield dimension.name
    for choice in (rule.limit, rule.candidate, rule.cost):
        if choice is not None:
            yield from (test.attribute for test, _ in choice.cases)
    if rule.cost is not None:
        said = [rule.cost.otherwise, *(value for _, value in rule.cost.cases)]
        yield from (value for value in said if isinstance(value, str))


def tested_attributes(condition: Condition) -> Iterator[str]:
    """The names of the attributes that a condition tests."""
    if isinstance(condition, Test):
        yield condition.attribute
        return
    for part in (condition.part,) if isinstance(condition, Not) else condition.parts:
        yield from tested_attributes(part)
