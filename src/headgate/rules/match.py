"""Matching: which rules of a book a call meets, under which key, by which limits, at which cost.

A Matcher is a book compiled. The index finds the entries that a call may concern: a rule is one entry, or one for
each part of the `any` that its `when` is. What is left to be tested then is a closure, and so is what the rule
makes of the call (judging.py). At last, rules that replace others take them out (replacing.py).

Laws: what is matched comes in the order of the book; no engine is asked and nothing is kept; and `explain`, which
goes through every rule by the plain meaning of its conditions (narrate.py), agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.rules.attributes import AttributeReader, Attributes
from headgate.rules.condition import All, AnyOf, Condition, Predicate, Test
from headgate.rules.matching.compile_condition import compile_all
from headgate.rules.matching.compile_rule import Match, RuleMatcher, compile_rule
from headgate.rules.matching.explain_match import Told, explain_rules
from headgate.rules.matching.replaced_rules import Replacing
from headgate.rules.matching.rule_index import IndexEntry, PathSegments, RuleIndex
from headgate.rules.matching.used_attributes import used
from headgate.rules.rule import Rulebook

__all__ = ["Match", "Matcher", "Told"]

AttributeMap = Mapping[str, str]


class Matcher:
    """A rulebook, compiled."""

    __slots__ = ("_entries", "_index", "_reading", "_replacing", "book")

    def __init__(self, book: Rulebook) -> None:
        self.book: Rulebook = book
        self._replacing = Replacing(book.rules)
        self._reading = AttributeReader(name for rule in book.rules for name in used(rule))
        parts = [(order, rule, part) for order, rule in enumerate(book.rules) for part in _parts(rule.when)]
        self._index = RuleIndex(
            [IndexEntry(number, _placeable(part)) for number, (_, _, part) in enumerate(parts)]
        )
        judges = [compile_rule(rule) for rule in book.rules]
        self._entries = [
            _entry(order, judges[order], part, self._index.passed.get(number))
            for number, (order, _, part) in enumerate(parts)
        ]

    def match(self, attributes: Mapping[str, Any], cost: int | None = None) -> Sequence[Match]:
        """The rules that apply to a call, in the order of the book. Each is charged the cost times its own."""
        seen: AttributeMap = attributes if type(attributes) is Attributes else self._reading(attributes)
        if cost is None:
            cost = 1
        path = seen.get("path")
        row: PathSegments = None if not path else path[1:].split("/") if len(path) > 1 else []
        numbers: list[int] = []
        self._index.find(seen, row, numbers)
        if len(numbers) > 1:
            numbers.sort()
        entries = self._entries
        found: list[Match] = []
        done = -1
        for number in numbers:
            order, captures, test, bound, judged = entries[number]
            if order == done:  # by another pattern, or an earlier part of its `any`
                continue
            known: Any = seen
            if captures is not None:
                known = {**seen}
                for name, place in captures:
                    known[name] = row[place]  # type: ignore[index]
            if test is not None:
                if not test(known):
                    continue
            elif bound is not None:
                known = bound(known)
                if known is None:
                    continue
            done = order
            match = judged(known, cost)
            if match is not None:
                found.append(match)
        return self._left(found) if self._replacing and len(found) > 1 else found

    def explain(self, attributes: Mapping[str, Any], cost: int | None = None) -> list[Told]:
        """For every rule of the book, whether it applies to the call, and if not, why."""
        seen = attributes if type(attributes) is Attributes else self._reading(attributes)
        return explain_rules(self.book, self._replacing, seen, 1 if cost is None else cost)

    def _left(self, found: list[Match]) -> list[Match]:
        out = self._replacing.taken_out(match.rule.name for match in found if match.earnest)
        return [match for match in found if match.rule.name not in out] if out else found


class _Entry(NamedTuple):
    """A rule, or a part of the `any` that its `when` is, once the index has found it."""

    order: int  # the rule's place in the book
    captures: tuple[tuple[str, int], ...] | None  # where in the path
    test: Predicate | None
    bound: (
        Callable[[AttributeMap], AttributeMap | None] | None
    )  # in place of the test, where it must say what it captured
    judged: RuleMatcher


def _entry(order: int, judged: RuleMatcher, part: All, passed: Test | None) -> _Entry:
    rest = [condition for condition in part.in_order if condition is not passed]
    if any(condition.captures for condition in rest) or (passed and passed.captures and len(passed.patterns) > 1):
        return _Entry(order, None, None, part.bound, judged)
    captures = tuple(passed.patterns[0].captures.items()) if passed and passed.captures else None
    return _Entry(order, captures, compile_all(rest) if rest else None, None, judged)


def _parts(when: Condition | None) -> list[All]:
    """A `when` as parts of which one must hold: the first that does captures."""
    if when is None:
        return [All(())]
    match All((when,)).in_order:
        case [AnyOf(parts)]:
            return [All((part,)) for part in parts]
        case parts:
            return [All(tuple(parts))]


def _placeable(part: All) -> list[Test]:
    """The tests that must hold whatever else does, and that look at nothing captured."""
    captured = part.captures
    return [test for test in part.in_order if isinstance(test, Test) and test.attribute not in captured]
