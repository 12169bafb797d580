"""Whether a limit of a key's own would decide anything: what would not is refused before it is set."""

from __future__ import annotations

from headgate.engine.overrides import instead
from headgate.errors import InvalidRule
from headgate.model.limit import Limit
from headgate.operating.counts import attributes_of
from headgate.rules.rule import Rule


def check_override(rule: Rule, key: str, limits: tuple[Limit, ...]) -> None:
    """InvalidRule if the rule takes none, if it has no such key, or if these limits cannot stand in for its."""
    if not rule.overrides:
        raise InvalidRule(f'Rule "{rule.name}" takes no overrides: say `overrides: true` in it first.')
    attributes_of(rule, key)
    _check_kinds(rule, limits)


def _check_kinds(rule: Rule, limits: tuple[Limit, ...]) -> None:
    """Every limit must take the place of one, in each case that the rule has."""
    cases = [found for found in (rule.limit.otherwise, *(found for _, found in rule.limit.cases)) if found]
    for own in cases:
        if len(limits) > len(own):
            raise InvalidRule(f'Rule "{rule.name}" has {len(own)} limits; the override has {len(limits)}.')
        for limit, new in zip(own, limits, strict=False):
            if instead(limit, new) is None:
                raise InvalidRule(
                    f'"{new}" cannot take the place of "{limit}" in rule "{rule.name}": a {_words(new)} is no '
                    f"{_words(limit)}, and counts something else. Write it as one."
                )


def _words(limit: Limit) -> str:
    return limit.algorithm.replace("_", " ")
