"""Parses conditions: a mapping (all entries hold), a list (any holds), or the name of a condition.

    {method: POST, path: /login}         ATTRIBUTE: TEST; a text, a list of texts, true or false
    [internal, {user: "bot-*"}]          internal is a condition of the book
    {all: [...], any: [...], not: ..., is: internal}

A condition that can never hold is a fault: it is a mistake. Names are resolved here; the result has none.

Laws (tests/rules/parsing/test_load.py): a cycle of names is reported as the cycle; whatever is written, a parsed
condition has at most MAX_TESTS tests, with names and aliases resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.rules.attributes import parse_attribute_name
from headgate.rules.condition import All, AnyOf, Condition, Not, Test
from headgate.rules.parsing import fields
from headgate.rules.parsing.document_tree import (
    Fault,
    ListNode,
    MappingNode,
    Node,
    Position,
    ScalarNode,
    TooLarge,
    describe_node,
    quote,
)
from headgate.rules.parsing.impossible_conditions import contradiction
from headgate.rules.parsing.problems import AlreadyReported, Problems, at_node, read_all

MAX_TESTS = 1_000
_MAX_NESTED_NAMES = 32  # of conditions that refer to each other
_PREFIXED = ("header", "argument", "cookie")
_OPERATOR_HINTS = {"and": "all", "or": "any", "none": "not"}


@dataclass(frozen=True, slots=True)
class ParsedCondition:
    """A condition, and all attributes that it tests, each with its position."""

    condition: Condition
    uses: tuple[tuple[str, Position], ...]


class Conditions:
    """The named conditions of a book, each parsed once, when it is first used."""

    def __init__(self, node: Node | None, problems: Problems) -> None:
        self.problems = problems
        self.nodes: dict[str, Node] = {}
        self.parsed: dict[str, ParsedCondition | None] = {}
        self.in_progress: list[str] = []
        if node is None:
            return
        with problems.under(""):
            if not isinstance(node, MappingNode):
                raise Fault(node.position, f"Conditions are a mapping of names, not {describe_node(node)}.")
            for key, inner in node.entries.values():
                with problems.under("conditions"):
                    fields.name(key, "the name of a condition")
                self.nodes[key.text] = inner
        for name, inner in self.nodes.items():
            with problems.under(""):
                self.resolve(name, inner)

    def read(self, node: Node) -> ParsedCondition:
        """Parses a condition of a rule."""
        uses: list[tuple[str, Position]] = []
        return ParsedCondition(self._condition(node, uses), tuple(uses))

    def resolve(self, name: str, user: Node) -> ParsedCondition:
        if name not in self.nodes:
            raise Fault(user.position, f"No condition is called {quote(name)}.", _suggest_name(name, self.nodes))
        if name in self.in_progress:
            cycle = [*self.in_progress[self.in_progress.index(name) :], name]
            raise Fault(user.position, f"Conditions refer to each other in a circle: {' -> '.join(cycle)}.")
        if len(self.in_progress) >= _MAX_NESTED_NAMES:
            raise Fault(user.position, f"More than {_MAX_NESTED_NAMES} conditions refer to each other in a row.")
        if name not in self.parsed:
            self.parsed[name] = None
            self.in_progress.append(name)
            with self.problems.under(f'condition "{name}"'):
                self.parsed[name] = self.read(self.nodes[name])
            self.in_progress.pop()
        parsed = self.parsed[name]
        if parsed is None:
            raise AlreadyReported(user.position, "")
        return parsed

    def _condition(self, node: Node, uses: list[tuple[str, Position]]) -> Condition:
        if isinstance(node, ScalarNode):
            parsed = self.resolve(fields.text(node, "A condition"), node)
            uses.extend(parsed.uses)
            condition = parsed.condition
        elif isinstance(node, ListNode):
            condition = _join(AnyOf, self._read_parts(node, "any", uses))
        else:
            condition = self._mapping(node, uses)
        if len(uses) > MAX_TESTS:
            raise TooLarge(
                node.position, f"A condition has more than {MAX_TESTS:,} tests, with names written out."
            )
        return condition

    def _read_parts(self, node: Node, word: str, uses: list[tuple[str, Position]]) -> list[Condition]:
        if not isinstance(node, ListNode):
            raise Fault(node.position, f"{word} is a list of conditions, not {describe_node(node)}.")
        if not node.nodes:
            holds = (
                "An empty list of conditions can never hold." if word == "any" else "all of nothing always holds."
            )
            raise Fault(node.position, holds, "Leave it out.")
        return read_all(lambda inner: self._condition(inner, uses), node.nodes)

    def _mapping(self, node: MappingNode, uses: list[tuple[str, Position]]) -> Condition:
        if not node.entries:
            raise Fault(node.position, "An empty condition always holds.", "Leave it out.")
        entry_parts = read_all(lambda entry: self._entry(*entry, uses), node.entries.values())
        return _check_possible(_join(All, [part for parts in entry_parts for part in parts]), node.position)

    def _entry(self, key: ScalarNode, node: Node, uses: list[tuple[str, Position]]) -> Sequence[Condition]:
        match key.text:
            case "all":
                return [_check_possible(_join(All, self._read_parts(node, "all", uses)), node.position)]
            case "any":
                return [_join(AnyOf, self._read_parts(node, "any", uses))]
            case "not":
                return [Not(self._condition(node, uses))]
            case "is":
                return read_all(
                    lambda name: self._condition(name, uses), _not_empty(fields.texts(node, "is"), node)
                )
        return _tests(key, node, uses)


def _tests(key: ScalarNode, node: Node, uses: list[tuple[str, Position]]) -> list[Test]:
    if key.text in _PREFIXED and isinstance(node, MappingNode):
        if not node.entries:
            raise Fault(node.position, f"{key.text} names nothing to test.", f"Write {key.text}: {{name: text}}.")

        def read_test(entry: tuple[ScalarNode, Node]) -> Test:
            name, inner = entry
            return _test(ScalarNode(name.position, f"{key.text}.{name.text}", name.quoted), inner, uses)

        return read_all(read_test, node.entries.values())
    return [_test(key, node, uses)]


def _test(key: ScalarNode, node: Node, uses: list[tuple[str, Position]]) -> Test:
    attribute = at_node(key, parse_attribute_name, fields.text(key, "An attribute"))
    if attribute in _PREFIXED:
        raise Fault(
            key.position,
            f"{attribute} has many names.",
            f"Write {attribute}.NAME, or {attribute}: {{NAME: text}}.",
        )
    expected: tuple[str, ...] | bool | None = fields.plain_flag(node)
    if isinstance(node, MappingNode) or (
        isinstance(node, ListNode) and any(not isinstance(item, ScalarNode) for item in node.nodes)
    ):
        operator = _OPERATOR_HINTS.get(attribute)
        hint = f"Did you mean {operator}?" if operator else "Conditions are joined by all, any, not and is."
        raise Fault(
            node.position,
            f"{attribute} is compared with a text or a list of texts, not with {_describe_value(node)}.",
            hint,
        )
    if expected is None:
        expected = tuple(item.text for item in fields.texts(node, attribute))
    uses.append((attribute, key.position))
    return at_node(node, Test, attribute, expected)


def _describe_value(node: Node) -> str:
    return (
        describe_node(next(item for item in node.nodes if not isinstance(item, ScalarNode)))
        if isinstance(node, ListNode)
        else describe_node(node)
    )


def _not_empty(names: list[ScalarNode], node: Node) -> list[ScalarNode]:
    if not names:
        raise Fault(node.position, "is names no condition.", "Leave it out.")
    return names


def _join(make: type[All] | type[AnyOf], parts: list[Condition]) -> Condition:
    return parts[0] if len(parts) == 1 else make(tuple(parts))


def _check_possible(condition: Condition, position: Position) -> Condition:
    if contradiction_found := contradiction(condition):
        raise Fault(position, contradiction_found)
    return condition


def _suggest_name(name: str, nodes: dict[str, Node]) -> str:
    return fields.did_you_mean(name, nodes) if nodes else "The book has no conditions."
