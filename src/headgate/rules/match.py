"""Matches a call against a rulebook: which rules apply, under which key, with which limits, at which cost.

A Matcher is a compiled rulebook. The index finds the entries that may apply to a call: a rule is one entry, or one
for each alternative of an `any` at the top of its `when`. Closures test the remaining conditions and turn the rule
into a Match (compile_rule.py). At the end, rules that replace others remove them (replaced_rules.py).

Laws: matches come in the order of the book; matching asks no engine and stores nothing; and `explain`, which
evaluates the conditions of every rule without index or closures (explain_match.py), agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.rules.attributes import AttributeReader, Attributes
from headgate.rules.condition import All, AnyOf, Condition, Predicate, Test
from headgate.rules.matching.compile_condition import compile_all
from headgate.rules.matching.compile_rule import Match, RuleMatcher, compile_rule
from headgate.rules.matching.explain_match import RuleExplanation, explain_rules
from headgate.rules.matching.replaced_rules import Replacements
from headgate.rules.matching.rule_index import IndexEntry, PathSegments, RuleIndex
from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.rule import Rulebook

__all__ = ["Match", "Matcher", "RuleExplanation"]

AttributeMap = Mapping[str, str]

# An entry of the index: a rule, or one alternative of the `any` at the top of its `when`. The rule's index in the
# book; the names and indexes of captured path segments; the test that remains, or in its place a function that
# captures, where that depends on which pattern matches. A plain tuple, because a named one takes longer to unpack.
_Entry = tuple[
    int,
    tuple[tuple[str, int], ...] | None,
    Predicate | None,
    Callable[[AttributeMap], AttributeMap | None] | None,
    RuleMatcher,
]


class Matcher:
    """A compiled rulebook: finds the rules that apply to a call."""

    __slots__ = ("_entries", "_index", "_replacements", "book", "read", "used_attributes")

    def __init__(self, book: Rulebook) -> None:
        self.book: Rulebook = book
        self._replacements = Replacements(book.rules)
        self.used_attributes: frozenset[str] = frozenset(
            name for rule in book.rules for name in used_attributes(rule)
        )
        self.read: AttributeReader = AttributeReader(self.used_attributes)
        alternatives = [
            (order, rule, alternative)
            for order, rule in enumerate(book.rules)
            for alternative in _alternatives(rule.when)
        ]
        self._index = RuleIndex(
            [
                IndexEntry(number, _indexable_tests(alternative))
                for number, (_, _, alternative) in enumerate(alternatives)
            ]
        )
        matchers = [compile_rule(rule) for rule in book.rules]
        self._entries = [
            _entry(order, matchers[order], alternative, self._index.implied_tests.get(number))
            for number, (order, _, alternative) in enumerate(alternatives)
        ]

    def match(self, attributes: Mapping[str, Any], cost: int | None = None) -> Sequence[Match]:
        """Returns the rules that apply to a call, in the order of the book. `cost` multiplies each rule's cost."""
        return self.match_values(attributes if type(attributes) is Attributes else self.read(attributes), cost)

    def match_values(self, values: AttributeMap, cost: int | None = None) -> Sequence[Match]:
        """Does the same with attributes in normal form."""
        if cost is None:
            cost = 1
        path = values.get("path")
        path_segments: PathSegments = None if not path else path[1:].split("/") if len(path) > 1 else []
        numbers: list[int] = []
        self._index.find(values, path_segments, numbers)
        if len(numbers) > 1:
            numbers.sort()
        entries = self._entries
        matches: list[Match] = []
        last_order = -1
        for number in numbers:
            order, captures, test, bind, match_rule = entries[number]
            if order == last_order:  # the rule matched already, by another pattern or alternative
                continue
            bound_values: Any = values
            if captures is not None:
                bound_values = {**values}
                for name, index in captures:
                    bound_values[name] = path_segments[index]  # type: ignore[index]
            if test is not None:
                if not test(bound_values):
                    continue
            elif bind is not None:
                bound_values = bind(bound_values)
                if bound_values is None:
                    continue
            last_order = order
            result = match_rule(bound_values, cost)
            if result is not None:
                matches.append(result)
        return self._without_replaced(matches) if len(matches) > 1 and self._replacements else matches

    def explain(self, attributes: Mapping[str, Any], cost: int | None = None) -> list[RuleExplanation]:
        """Explains for every rule of the book whether it applies to the call, and if not, why."""
        values = attributes if type(attributes) is Attributes else self.read(attributes)
        return explain_rules(self.book, self._replacements, values, 1 if cost is None else cost)

    def _without_replaced(self, matches: list[Match]) -> list[Match]:
        replaced = self._replacements.find_replaced(match.rule.name for match in matches if match.enforced)
        return [match for match in matches if match.rule.name not in replaced] if replaced else matches


def _entry(order: int, match_rule: RuleMatcher, part: All, implied: Test | None) -> _Entry:
    remaining = [condition for condition in part.in_order if condition is not implied]
    if any(condition.captures for condition in remaining) or (
        implied and implied.captures and len(implied.patterns) > 1
    ):
        return order, None, None, part.bind, match_rule
    captures = tuple(implied.patterns[0].captures.items()) if implied and implied.captures else None
    return order, captures, compile_all(remaining) if remaining else None, None, match_rule


def _alternatives(when: Condition | None) -> list[All]:
    """Splits a `when` into alternatives of which one must hold; the first that holds captures."""
    if when is None:
        return [All(())]
    match All((when,)).in_order:
        case [AnyOf(alternatives)]:
            return [All((alternative,)) for alternative in alternatives]
        case alternatives:
            return [All(tuple(alternatives))]


def _indexable_tests(alternative: All) -> list[Test]:
    """Returns the tests that must hold in any case and that use no captured segment."""
    captured = alternative.captures
    return [test for test in alternative.in_order if isinstance(test, Test) and test.attribute not in captured]
