"""What a rule whose `when` holds makes of a call: nothing, or a Match.

    except      must not hold
    key         must be formed; a missing dimension skips the rule, denies the call, or is left blank
    mode        enforced, shadowed or off, by the key's number from 0 to 9999
    cost        what the caller says (1 unless said), times what the rule says: a number, or an attribute's. So a
                call of cost 3 is charged what three calls are, under every rule. 0 is as good as off
    limit       the first case that holds; none at all is unlimited; candidate likewise

Law: the same attributes and cost make the same match, in every process and in nginx: a key's number is a checksum
of the rule's name and the key, and nothing is drawn by lot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from zlib import crc32

from headgate.algorithms.limit import EXACT
from headgate.rules.keys import key_builder
from headgate.rules.matching.compile_condition import compile_condition
from headgate.rules.rule import Choice, Limits, Modes, Rule, T

BUCKET_COUNT = 10_000

AttributeMap = Mapping[str, str]


class Match(NamedTuple):
    """A rule that applies to a call."""

    rule: Rule
    key: str
    limits: Limits  # none: unlimited
    cost: int
    shadow: bool = False
    candidate: Limits | None = None
    denied: str | None = None  # why the rule refuses without asking anybody

    @property
    def earnest(self) -> bool:
        """Whether it counts and may refuse; only then does the rule replace others."""
        return not self.shadow and self.denied is None


RuleMatcher = Callable[[AttributeMap, int], Match | None]

_new = tuple.__new__  # NamedTuple's own costs more than the rest of a match


def compile_rule(rule: Rule) -> RuleMatcher:
    """The rule as a function of attributes, with what its paths captured, and the caller's cost."""
    simple = rule.unless is None and rule.mode == Modes() and rule.cost is None and rule.candidate is None
    return _plain(rule) if simple and not rule.limit.cases else _full(rule)


def _plain(rule: Rule) -> RuleMatcher:
    """Most rules have a key and a limit, and that is all."""
    form = key_builder(rule.key, blank=rule.missing == "one")
    limits = rule.limit.otherwise
    other = _full(rule)

    def judged(seen: AttributeMap, cost: int) -> Match | None:
        key = form(seen)
        if key is None or not cost:
            return other(seen, cost)
        return _new(Match, (rule, key, limits, cost, False, None, None))

    return judged


def _full(rule: Rule) -> RuleMatcher:
    unless = None if rule.unless is None else compile_condition(rule.unless)
    form = key_builder(rule.key, blank=rule.missing == "one")
    form_blank = key_builder(rule.key, blank=True)
    mode = compile_mode(rule)
    cost_of = None if rule.cost is None else compile_cost(rule.cost)
    limits_of = compile_choice(rule.limit)
    candidate_of = None if rule.candidate is None else compile_choice(rule.candidate)

    def judged(seen: AttributeMap, cost: int) -> Match | None:
        if unless is not None and unless(seen):
            return None
        denied = None
        key = form(seen)
        if key is None:
            if rule.missing == "skip":
                return None
            key, denied = form_blank(seen) or "", describe_missing_key(rule, seen)
        shadow = mode(key)
        if shadow is None:
            return None
        if cost_of is not None:
            found = cost_of(seen)
            if found is None:
                if rule.missing == "skip":
                    return None
                if rule.missing == "deny":
                    denied = denied or describe_invalid_cost(rule, seen)
                found = 1
            cost = min(cost * found, EXACT)
        if not cost:
            return None
        candidate = None if candidate_of is None else candidate_of(seen)
        return Match(rule, key, limits_of(seen), cost, shadow, candidate, denied)

    return judged


def bucket_of(name: str, key: str) -> int:
    """Where a key stands among all: from 0 to 9999, the same everywhere."""
    return crc32(f"{name}|{key}".encode()) % BUCKET_COUNT


def compile_mode(rule: Rule) -> Callable[[str], bool | None]:
    """For a key: whether the rule is only shadowed, or None if it is off."""
    enforced, on = rule.mode.enforce, rule.mode.enforce + rule.mode.shadow
    if on == 0 or BUCKET_COUNT in (enforced, rule.mode.shadow):
        all_keys = None if on == 0 else enforced == 0
        return lambda key: all_keys
    start = crc32(f"{rule.name}|".encode())

    def mode(key: str) -> bool | None:
        place = crc32(key.encode(), start) % BUCKET_COUNT
        return place >= enforced if place < on else None

    return mode


def compile_cost(choice: Choice[int | str]) -> Callable[[AttributeMap], int | None]:
    """The cost of a call; None if an attribute should say it and does not."""
    said = compile_choice(choice)

    def cost_of(seen: AttributeMap) -> int | None:
        cost = said(seen)
        return cost if isinstance(cost, int) else parse_cost(seen.get(cost))

    return cost_of


def parse_cost(text: str | None) -> int | None:
    """A whole number of at most 2^53, in digits and nothing else."""
    if not text or len(text) > 16 or not (text.isascii() and text.isdecimal()):
        return None
    return found if (found := int(text)) <= EXACT else None


def compile_choice(choice: Choice[T]) -> Callable[[AttributeMap], T]:
    return choice.of if choice.cases else lambda seen: choice.otherwise


def describe_missing_key(rule: Rule, seen: AttributeMap) -> str:
    """Which dimensions the call does not have."""
    names = [dimension.name for dimension in rule.key if key_builder([dimension], blank=False)(seen) is None]
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing"


def describe_invalid_cost(rule: Rule, seen: AttributeMap) -> str:
    assert rule.cost is not None
    name = str(rule.cost.of(seen))
    text = seen.get(name)
    large = text and text.isascii() and text.isdecimal()
    return f"{name}, the cost, is {'more than 2^53' if large else 'no whole number' if text else 'missing'}"
