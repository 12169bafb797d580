"""Rules that replace other rules.

A rule that `replaces` others removes them where it is enforced: in mode enforce for this key, with a key that
could be formed. A rule that was replaced replaces nothing; so replacers come first in a topological order, and the
order of the book does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

from headgate.errors import InvalidRule
from headgate.rules.rule import Rule


class Replacements:
    """The `replaces` of one book, in topological order."""

    __slots__ = ("_replacers",)

    def __init__(self, rules: Sequence[Rule]) -> None:
        names = {rule.name for rule in rules}
        replacers: dict[str, set[str]] = {rule.name: set() for rule in rules}
        for rule in rules:
            for replaced_name in rule.replaces:
                if replaced_name not in names:
                    raise InvalidRule(f'Rule "{rule.name}" replaces "{replaced_name}", and there is no such rule.')
                replacers[replaced_name].add(rule.name)
        replaces = {rule.name: rule.replaces for rule in rules}
        try:
            order = list(TopologicalSorter(replacers).static_order())
        except CycleError as error:
            cycle = " replaces ".join(f'"{name}"' for name in error.args[1])
            raise InvalidRule(f"Rules replace each other in a circle: {cycle}.") from None
        self._replacers = [(name, replaces[name]) for name in order if replaces[name]]

    def __bool__(self) -> bool:
        return bool(self._replacers)

    def find_replaced(self, enforced: Iterable[str]) -> dict[str, str]:
        """Returns the replaced rules, each with the rule that replaces it, if these rules are enforced."""
        present = set(enforced)
        replaced: dict[str, str] = {}
        for name, names in self._replacers:
            if name in present and name not in replaced:
                for replaced_name in names:
                    replaced.setdefault(replaced_name, name)
        return replaced
