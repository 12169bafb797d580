"""Refuses overrides that would have no effect under the rulebook, before they are set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from headgate.algorithms.limit import Limit
from headgate.engines.overrides import validate_override
from headgate.errors import InvalidRule
from headgate.rules.attributes import Attributes
from headgate.rules.find_rule import find_rule, parse_key
from headgate.rules.rule import Rule, Rulebook


def check_override(book: Rulebook, name: str, key: str, limits: tuple[Limit, ...]) -> None:
    """Raises InvalidRule if there is no such rule, if it takes no overrides or has no such key, or if these limits
    cannot replace the rule's."""
    rule = find_rule(book, name)
    if not rule.overrides:
        raise InvalidRule(f'Rule "{rule.name}" takes no overrides: say `overrides: true` in it first.')
    if not rule.mode.enforce and not rule.mode.shadow:
        raise InvalidRule(f'Rule "{rule.name}" is off: an override would decide nothing. Set its mode first.')
    _check_limited(rule, parse_key(rule, key))
    _check_kinds(rule, limits)


def _check_limited(rule: Rule, attributes: Attributes) -> None:
    """Raises InvalidRule if the rule is unlimited for the key, as far as its attributes decide that."""
    choice = rule.limit
    decidable = all(test.attribute in attributes for test, _ in choice.cases)
    if (
        not choice.choose(attributes)
        if decidable
        else not any((choice.otherwise, *(limits for _, limits in choice.cases)))
    ):
        raise InvalidRule(f'Rule "{rule.name}" is unlimited for this key: an override would decide nothing.')


def _check_kinds(rule: Rule, limits: tuple[Limit, ...]) -> None:
    """Raises InvalidRule unless every limit can replace one of the rule's, in each of its cases."""
    cases = [case for case in (rule.limit.otherwise, *(case for _, case in rule.limit.cases)) if case]
    for replaced in cases:
        if len(limits) > len(replaced):
            raise InvalidRule(f'Rule "{rule.name}" has {len(replaced)} limits; the override has {len(limits)}.')
        for limit, new in zip(replaced, limits, strict=False):
            if limit.with_override(new) is None:
                raise InvalidRule(
                    f'"{new}" cannot take the place of "{limit}" in rule "{rule.name}": {_why(limit, new)}'
                )


def _why(limit: Limit, new: Limit) -> str:
    old_algorithm, new_algorithm = (each.algorithm.replace("_", " ") for each in (limit, new))
    if old_algorithm == new_algorithm:
        return "the rule counts in windows of one length, not by the calendar. Write a length, such as 30d."
    return f"a {new_algorithm} is no {old_algorithm}, and counts something else. Write it as one."


class _CheckedOverrides:
    """The base of both classes. Overrides of a rule that was removed can be read and unset, but no longer set."""

    def __init__(self, inner: Any, rule: str, book: Callable[[], Rulebook]) -> None:
        self._inner, self._rule, self._book = inner, rule, book

    def _check(self, key: object, limits: object, ttl: object) -> None:
        key, parsed, _ = validate_override(key, limits, ttl)
        check_override(self._book(), self._rule, key, parsed)


class RuleOverrides(_CheckedOverrides):
    """The overrides of one rule: limits of single keys."""

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        """Sets the override of a key; False if `absent` is given and the key has one already."""
        self._check(key, limits, ttl)
        done: bool = self._inner.set(key, limits, absent=absent, ttl=ttl)
        return done

    def get(self, key: str) -> str | None:
        limits: str | None = self._inner.get(key)
        return limits

    def unset(self, key: str) -> bool:
        done: bool = self._inner.unset(key)
        return done

    def list(self, limit: int | None = None) -> Iterator[tuple[str, str]]:
        entries: Iterator[tuple[str, str]] = self._inner.list(limit)
        return entries


class AsyncRuleOverrides(_CheckedOverrides):
    """The overrides of one rule, awaited."""

    async def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        self._check(key, limits, ttl)
        done: bool = await self._inner.set(key, limits, absent=absent, ttl=ttl)
        return done

    async def get(self, key: str) -> str | None:
        limits: str | None = await self._inner.get(key)
        return limits

    async def unset(self, key: str) -> bool:
        done: bool = await self._inner.unset(key)
        return done

    def list(self, limit: int | None = None) -> AsyncIterator[tuple[str, str]]:
        entries: AsyncIterator[tuple[str, str]] = self._inner.list(limit)
        return entries
