"""Overrides of a limiter that follows a rulebook: what would decide nothing is refused before it is set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from headgate.algorithms.limit import Limit
from headgate.engines.overrides import checked, instead
from headgate.errors import InvalidRule
from headgate.rules.attributes import Attributes
from headgate.rules.lookup import attributes_of, rule_of
from headgate.rules.rule import Rule, Rulebook


def check_override(book: Rulebook, name: str, key: str, limits: tuple[Limit, ...]) -> None:
    """InvalidRule if there is no such rule, if it takes none or has no such key, or if these limits cannot stand
    in for its own."""
    rule = rule_of(book, name)
    if not rule.overrides:
        raise InvalidRule(f'Rule "{rule.name}" takes no overrides: say `overrides: true` in it first.')
    if not rule.mode.enforce and not rule.mode.shadow:
        raise InvalidRule(f'Rule "{rule.name}" is off: an override would decide nothing. Set its mode first.')
    _check_limited(rule, attributes_of(rule, key))
    _check_kinds(rule, limits)


def _check_limited(rule: Rule, attributes: Attributes) -> None:
    """The override takes the place of a limit, so the key must have one, as far as it alone can tell."""
    choice = rule.limit
    told = all(test.attribute in attributes for test, _ in choice.cases)
    if not choice.of(attributes) if told else not any((choice.otherwise, *(found for _, found in choice.cases))):
        raise InvalidRule(f'Rule "{rule.name}" is unlimited for this key: an override would decide nothing.')


def _check_kinds(rule: Rule, limits: tuple[Limit, ...]) -> None:
    """Every limit must take the place of one, in each case that the rule has."""
    cases = [found for found in (rule.limit.otherwise, *(found for _, found in rule.limit.cases)) if found]
    for own in cases:
        if len(limits) > len(own):
            raise InvalidRule(f'Rule "{rule.name}" has {len(own)} limits; the override has {len(limits)}.')
        for limit, new in zip(own, limits, strict=False):
            if instead(limit, new) is None:
                raise InvalidRule(
                    f'"{new}" cannot take the place of "{limit}" in rule "{rule.name}": {_why(limit, new)}'
                )


def _why(limit: Limit, new: Limit) -> str:
    was, is_now = (one.algorithm.replace("_", " ") for one in (limit, new))
    if was == is_now:
        return "the rule counts in windows of one length, not by the calendar. Write a length, such as 30d."
    return f"a {is_now} is no {was}, and counts something else. Write it as one."


class _Checked:
    """What both have. A rule that is gone keeps its overrides: they can be read and unset, and no more be set."""

    def __init__(self, inner: Any, rule: str, book: Callable[[], Rulebook]) -> None:
        self._inner, self._rule, self._book = inner, rule, book

    def _check(self, key: object, limits: object, ttl: object) -> None:
        key, found, _ = checked(key, limits, ttl)
        check_override(self._book(), self._rule, key, found)


class RuleOverrides(_Checked):
    """The limits that single keys of one rule have of their own."""

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        """Give a key limits of its own; False if it has some already and `absent` was said."""
        self._check(key, limits, ttl)
        done: bool = self._inner.set(key, limits, absent=absent, ttl=ttl)
        return done

    def get(self, key: str) -> str | None:
        found: str | None = self._inner.get(key)
        return found

    def unset(self, key: str) -> bool:
        done: bool = self._inner.unset(key)
        return done

    def list(self, limit: int | None = None) -> Iterator[tuple[str, str]]:
        found: Iterator[tuple[str, str]] = self._inner.list(limit)
        return found


class AsyncRuleOverrides(_Checked):
    """The same, awaited."""

    async def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        self._check(key, limits, ttl)
        done: bool = await self._inner.set(key, limits, absent=absent, ttl=ttl)
        return done

    async def get(self, key: str) -> str | None:
        found: str | None = await self._inner.get(key)
        return found

    async def unset(self, key: str) -> bool:
        done: bool = await self._inner.unset(key)
        return done

    def list(self, limit: int | None = None) -> AsyncIterator[tuple[str, str]]:
        found: AsyncIterator[tuple[str, str]] = self._inner.list(limit)
        return found
