"""Finds the counters of a rule and a key, by the names that the rulebook stores them under.

    login, key address=192.0.2.7      login, and login#1 for its second limit; of a case login@pro

The key is the rule's key text, user=ann|sku=7. It holds attributes, and more can be passed: they decide which of
several limits the rule has for this key. A counter is never decided by a limit that was only guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headgate.adaptive.adaptive_limit import AdaptiveLimit
from headgate.algorithms.limit import Limit
from headgate.enforcement import call_plan
from headgate.enforcement.rule_decision import CANDIDATE
from headgate.engines.charge_options import ChargeOptions
from headgate.errors import InvalidRule
from headgate.rules.attributes import Attributes
from headgate.rules.find_rule import parse_key
from headgate.rules.rule import Choice, Limits, Rule, adaptive_limit_of


class CounterRef(NamedTuple):
    """One counter: its name, its limit, and the charge options of its rule."""

    name: str
    limit: Limit
    options: ChargeOptions | None


def check_counted_on_server(rule: Rule) -> Rule:
    """Raises InvalidRule if the rule's counters are not on the server."""
    if adaptive_limit_of(rule) is not None:
        raise InvalidRule(
            f'Rule "{rule.name}" is adaptive: its calls are in flight in each process, and the engine counts none.'
        )
    if rule.where != "cluster":
        raise InvalidRule(
            f'Rule "{rule.name}" is counted in each process (where: {rule.where}): the engine does not know.'
        )
    return rule


def counters_of_key(
    rule: Rule, key: str, more: Mapping[str, Any], describe_option: Callable[[str], str]
) -> list[CounterRef]:
    """Returns the counters of one key; `describe_option` tells the user how to pass a missing attribute."""
    attributes = parse_key(rule, key)
    attributes.update(more)
    for name in missing_attributes(rule.limit, attributes):
        raise InvalidRule(
            f'Rule "{rule.name}" has several limits, by {name}: say which with {describe_option(name)}.'
        )
    counters = counters_of_limits(rule, rule.limit.choose(attributes))
    if not counters:
        raise InvalidRule(f'Rule "{rule.name}" is unlimited for this key: there is nothing to count.')
    return counters


def all_counters_of_key(rule: Rule, key: str) -> list[CounterRef]:
    """Returns the counters of one key under every limit that the rule, or its candidate, may choose."""
    parse_key(rule, key)
    counters = [
        counter
        for candidate in (False, True)
        for _, limits in call_plan.limit_cases(rule, candidate)
        for counter in counters_of_limits(rule, limits, candidate)
    ]
    return list({(counter.name, counter.limit.algorithm): counter for counter in counters}.values())


def pausable_counters_of_key(rule: Rule, key: str) -> tuple[list[CounterRef], int]:
    """Returns the counters of a key that a pause holds up, and the longest pause; raises InvalidRule if there is
    none."""
    parse_key(rule, key)
    if rule.max_pause_us is None:
        raise InvalidRule(f'Rule "{rule.name}" cannot be paused: say `pausable: true` in it first.')
    counters = [
        counter for _, limits in call_plan.limit_cases(rule) for counter in counters_of_limits(rule, limits)
    ]
    if not counters:
        raise InvalidRule(f'Rule "{rule.name}" is unlimited: a pause would hold nothing up.')
    return counters, rule.max_pause_us


def counters_of_limits(rule: Rule, limits: Limits, candidate: bool = False) -> list[CounterRef]:
    """Returns the counters of one of the limits that a rule, or its candidate, may choose."""
    if any(isinstance(limit, AdaptiveLimit) for limit in limits):
        return []
    names, charge_options = (
        call_plan.counter_names(rule, limits, candidate),
        call_plan.charge_options_of(rule, CANDIDATE if candidate else None),
    )
    return [CounterRef(name, limit, charge_options) for name, limit in zip(names, limits, strict=True)]


def missing_attributes(choice: Choice[Limits], attributes: Attributes) -> list[str]:
    """Returns the attributes that the choice of a limit needs and that are missing."""
    return sorted({test.attribute for test, _ in choice.cases} - set(attributes))
