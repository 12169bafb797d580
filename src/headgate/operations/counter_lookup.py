"""Which counts an operator means: those of a rule for one key, as the rulebook files them.

    login, key address=192.0.2.7      login, and login#1 for its second limit; of a case login@pro

The key is the rule's key text, user=ann|sku=7. It holds attributes, and others can be told beside it: they say
which of several limits the rule has for this key. A count is never judged by a limit that was only guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headgate.algorithms.limit import Limit
from headgate.enforcement import call_plan
from headgate.enforcement.rule_decision import CANDIDATE
from headgate.engines.charge_options import ChargeOptions
from headgate.errors import InvalidRule
from headgate.rules.attributes import Attributes
from headgate.rules.lookup import attributes_of
from headgate.rules.rule import Choice, Limits, Rule


class Count(NamedTuple):
    name: str
    limit: Limit
    terms: ChargeOptions | None


def check_counted_there(rule: Rule) -> Rule:
    """InvalidRule if a server cannot know its counts."""
    if rule.where != "cluster":
        raise InvalidRule(
            f'Rule "{rule.name}" is counted in each process (where: {rule.where}): the engine does not know.'
        )
    return rule


def of_key(rule: Rule, key: str, more: Mapping[str, Any], how: Callable[[str], str]) -> list[Count]:
    """The counts of one key; `how` says in which words an attribute that is missing can be told."""
    attributes = attributes_of(rule, key)
    attributes.update(more)
    for name in untold(rule.limit, attributes):
        raise InvalidRule(f'Rule "{rule.name}" has several limits, by {name}: say which with {how(name)}.')
    found = of_limits(rule, rule.limit.of(attributes))
    if not found:
        raise InvalidRule(f'Rule "{rule.name}" is unlimited for this key: there is nothing to count.')
    return found


def all_of_key(rule: Rule, key: str) -> list[Count]:
    """The counts of one key under every limit that the rule may choose, and its candidate's."""
    attributes_of(rule, key)
    every = [
        count
        for candidate in (False, True)
        for _, limits in call_plan.cases_of(rule, candidate)
        for count in of_limits(rule, limits, candidate)
    ]
    return list({(count.name, count.limit.algorithm): count for count in every}.values())


def of_limits(rule: Rule, limits: Limits, candidate: bool = False) -> list[Count]:
    """The counts of one of the limits that a rule, or its candidate, may choose."""
    names, terms = (
        call_plan.counter_names(rule, limits, candidate),
        call_plan.charge_options_of(rule, CANDIDATE if candidate else None),
    )
    return [Count(name, limit, terms) for name, limit in zip(names, limits, strict=True)]


def untold(choice: Choice[Limits], attributes: Attributes) -> list[str]:
    """What a limit is chosen by that is not known."""
    return sorted({test.attribute for test, _ in choice.cases} - set(attributes))
