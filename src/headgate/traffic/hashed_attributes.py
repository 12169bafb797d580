"""Checks whether a rulebook can be replayed on a decision log whose keys are hashed.

A hash can be counted, but not compared: a rule that tests a hashed attribute would decide otherwise. So would a
rule that enforces a part of its keys, and one that counts addresses by a wider network than was hashed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headgate.errors import InvalidLog
from headgate.rules.matching.used_attributes import tested_attributes
from headgate.rules.rule import Rule, Rulebook


def check_hashed_attributes(book: Rulebook, hashed: Collection[str]) -> None:
    """Raises InvalidLog if a rule needs the value of a hashed attribute."""
    for rule in book.rules:
        for name in _tested(rule):
            if name in hashed:
                raise InvalidLog(
                    f'In this decision log {name} is hashed, and the rule "{rule.name}" tests its value: a replay '
                    "would decide otherwise. Record a log without a salt."
                )
        if any(dimension.name in hashed for dimension in rule.key):
            if rule.mode.enforce and rule.mode.shadow:
                raise InvalidLog(
                    f'In this decision log keys are hashed, and the rule "{rule.name}" enforces a part of its '
                    "keys: a replay would choose others. Record a log without a salt."
                )
            wider = [each for each in rule.key if each.v4 is not None and (each.v4, each.v6) != _narrowest(book)]
            if wider:
                raise InvalidLog(
                    f'In this decision log addresses are hashed, and the rule "{rule.name}" counts them by '
                    "another network than other rules: a replay would count otherwise. "
                    "Record a log without a salt."
                )


def _tested(rule: Rule) -> Iterator[str]:
    """Yields the attributes whose values a rule tests or reads."""
    for condition in (rule.when, rule.unless):
        if condition is not None:
            yield from tested_attributes(condition)
    for choice in (rule.limit, rule.candidate, rule.cost):
        if choice is not None:
            yield from (test.attribute for test, _ in choice.cases)
    if rule.cost is not None:
        costs = [rule.cost.otherwise, *(value for _, value in rule.cost.cases)]
        yield from (value for value in costs if isinstance(value, str))


def _narrowest(book: Rulebook) -> tuple[int, int]:
    addresses = [each for rule in book.rules for each in rule.key if each.v4 is not None]
    return max(each.v4 or 0 for each in addresses), max(each.v6 or 0 for each in addresses)
