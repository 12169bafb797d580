"""Rules that take other rules out.

A rule that `replaces` others takes them out where it applies in earnest: enforced for this key, with a key that
could be formed. One that was taken out takes nobody out; so they are worked out replacers first, and the order of
the book does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

from headgate.errors import InvalidRule
from headgate.rules.rule import Rule


class Replacing:
    """Who takes out whom in one book."""

    __slots__ = ("_turns",)

    def __init__(self, rules: Sequence[Rule]) -> None:
        names = {rule.name for rule in rules}
        before: dict[str, set[str]] = {rule.name: set() for rule in rules}
        for rule in rules:
            for other in rule.replaces:
                if other not in names:
                    raise InvalidRule(f'Rule "{rule.name}" replaces "{other}", and there is no such rule.')
                before[other].add(rule.name)
        replaces = {rule.name: rule.replaces for rule in rules}
        try:
            order = list(TopologicalSorter(before).static_order())
        except CycleError as error:
            circle = " replaces ".join(f'"{name}"' for name in error.args[1])
            raise InvalidRule(f"Rules replace each other in a circle: {circle}.") from None
        self._turns = [(name, replaces[name]) for name in order if replaces[name]]

    def __bool__(self) -> bool:
        return bool(self._turns)

    def taken_out(self, earnest: Iterable[str]) -> dict[str, str]:
        """Who is taken out, and by whom, if these apply in earnest."""
        present = set(earnest)
        out: dict[str, str] = {}
        for name, others in self._turns:
            if name in present and name not in out:
                for other in others:
                    out.setdefault(other, name)
        return out
