"""Compiles a rule into a function that turns the attributes of a call into a Match, or None.

    except      must not hold
    key         must be complete; a missing dimension skips the rule, denies the call, or is left blank
    mode        enforced, shadowed or off, by the key's bucket from 0 to 9999
    cost        the caller's cost (1 by default), times the rule's: a number, or an attribute's value. So a call of
                cost 3 is charged like three calls, under every rule. With a cost of 0 the rule does not apply
    limit       the first case that holds; an empty tuple is unlimited; candidate likewise

Law: the same attributes and cost make the same match, in every process and in nginx: a key's bucket is a checksum
of the rule's name and the key, and nothing is random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from zlib import crc32

from headgate.algorithms.limit import EXACT
from headgate.rules.keys import key_builder
from headgate.rules.matching.compile_condition import compile_condition
from headgate.rules.rule import Choice, Limits, Modes, Rule

BUCKET_COUNT = 10_000  # of keys, for modes in percent

AttributeMap = Mapping[str, str]


class Match(NamedTuple):
    """A rule that applies to a call."""

    rule: Rule
    key: str
    limits: Limits  # none: unlimited
    cost: int
    shadow: bool = False
    candidate: Limits | None = None
    denial_reason: str | None = None  # why the rule refuses without asking the engine

    @property
    def enforced(self) -> bool:
        """Returns whether the rule is charged and may refuse; only then does it replace others."""
        return not self.shadow and self.denial_reason is None


RuleMatcher = Callable[[AttributeMap, int], Match | None]

_new_tuple = tuple.__new__  # NamedTuple's __new__ costs more than the rest of a match


def compile_rule(rule: Rule) -> RuleMatcher:
    """Returns the rule as a function of the attributes, with captures, and the caller's cost."""
    exempts = None if rule.unless is None else compile_condition(rule.unless)
    build_key = key_builder(rule.key, blank=rule.missing == "one")
    build_blank_key = key_builder(rule.key, blank=True)
    all_keys_shadowed, shadow_of = compile_mode(rule.mode, rule.name)
    cost_of = None if rule.cost is None else compile_cost(rule.cost)
    limits, choose_limits = rule.limit.otherwise, rule.limit.choose if rule.limit.cases else None
    candidate_of = None if rule.candidate is None else rule.candidate.choose

    def match_rule(values: AttributeMap, cost: int) -> Match | None:
        if exempts is not None and exempts(values):
            return None
        denied = None
        key = build_key(values)
        if key is None:
            if rule.missing == "skip":
                return None
            key, denied = build_blank_key(values) or "", describe_missing_key(rule, values)
        shadow = all_keys_shadowed if shadow_of is None else shadow_of(key)
        if shadow is None:
            return None
        if cost_of is not None:
            rule_cost = cost_of(values)
            if rule_cost is None:
                if rule.missing == "skip":
                    return None
                if rule.missing == "deny":
                    denied = denied or describe_invalid_cost(rule, values)
                rule_cost = 1
            cost = min(cost * rule_cost, EXACT)
        if not cost:
            return None
        candidate = None if candidate_of is None else candidate_of(values)
        chosen = limits if choose_limits is None else choose_limits(values)
        return _new_tuple(Match, (rule, key, chosen, cost, shadow, candidate, denied))

    return match_rule


def bucket_of(name: str, key: str) -> int:
    """Returns the bucket of a key, from 0 to 9999, the same everywhere."""
    return crc32(f"{name}|{key}".encode()) % BUCKET_COUNT


def compile_mode(mode: Modes, name: str) -> tuple[bool | None, Callable[[str], bool | None] | None]:
    """Returns whether the rule is shadowed (True), enforced (False) or off (None): for all keys, or as a function
    of the key."""
    enforced, active = mode.enforce, mode.enforce + mode.shadow
    if active == 0 or BUCKET_COUNT in (enforced, mode.shadow):
        return None if active == 0 else enforced == 0, None
    start = crc32(f"{name}|".encode())

    def shadow_of(key: str) -> bool | None:
        bucket = crc32(key.encode(), start) % BUCKET_COUNT
        return bucket >= enforced if bucket < active else None

    return None, shadow_of


def compile_cost(choice: Choice[int | str]) -> Callable[[AttributeMap], int | None]:
    """Returns a function for the rule's cost; its result is None if the attribute is missing or invalid."""

    def cost_of(values: AttributeMap) -> int | None:
        cost = choice.choose(values)
        return cost if isinstance(cost, int) else parse_cost(values.get(cost))

    return cost_of


def parse_cost(text: str | None) -> int | None:
    """Parses a whole number of at most 2^53, written in digits only; None if it is anything else."""
    if not text or len(text) > 16 or not (text.isascii() and text.isdecimal()):
        return None
    return cost if (cost := int(text)) <= EXACT else None


def describe_missing_key(rule: Rule, values: AttributeMap) -> str:
    """Returns a text that names the dimensions that the call lacks."""
    names = [dimension.name for dimension in rule.key if key_builder([dimension], blank=False)(values) is None]
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing"


def describe_invalid_cost(rule: Rule, values: AttributeMap) -> str:
    """Returns a text that tells what is wrong with the cost attribute."""
    assert rule.cost is not None
    name = str(rule.cost.choose(values))
    text = values.get(name)
    large = text and text.isascii() and text.isdecimal()
    return f"{name}, the cost, is {'more than 2^53' if large else 'no whole number' if text else 'missing'}"
