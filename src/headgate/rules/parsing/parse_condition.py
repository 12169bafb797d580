"""Conditions as they are written: a mapping (all entries hold), a list (any holds), or the name of one.

    {method: POST, path: /login}         ATTRIBUTE: TEST; a text, a list of texts, true or false
    [internal, {user: "bot-*"}]          a name stands for a condition of the book
    {all: [...], any: [...], not: ..., is: internal}

A condition that can never hold is refused: nobody means it. Names are worked out here; what comes out knows none.

Laws (tests/rules/parsing/test_load.py): names in a circle are shown as the circle; whatever is written, a
condition that is read has at most MOST_TESTS tests in it, with names and aliases written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.rules.attributes import named
from headgate.rules.condition import All, AnyOf, Condition, Not, Test
from headgate.rules.parsing import fields
from headgate.rules.parsing.document_tree import Fault, Items, Node, Position, Scalar, Table, TooLarge, kind, quote
from headgate.rules.parsing.impossible_conditions import contradiction
from headgate.rules.parsing.problems import AlreadyReported, Problems, every, placed

MAX_TESTS = 1_000
_MOST_NAMES = 32  # that refer to each other
_FAMILIES = ("header", "argument", "cookie")
_REPLACED = {"and": "all", "or": "any", "none": "not"}


@dataclass(frozen=True, slots=True)
class ParsedCondition:
    """A condition, and all attributes that it tests with the place of each."""

    condition: Condition
    uses: tuple[tuple[str, Position], ...]


class Conditions:
    """The named conditions of a book, each read once, when it is first asked for."""

    def __init__(self, node: Node | None, problems: Problems) -> None:
        self.problems = problems
        self.nodes: dict[str, Node] = {}
        self.done: dict[str, ParsedCondition | None] = {}
        self.open: list[str] = []
        if node is None:
            return
        with problems.under(""):
            if not isinstance(node, Table):
                raise Fault(node.place, f"Conditions are a mapping of names, not {kind(node)}.")
            for key, inner in node.entries.values():
                with problems.under("conditions"):
                    fields.name(key, "the name of a condition")
                self.nodes[key.text] = inner
        for name, inner in self.nodes.items():
            with problems.under(""):
                self.named(name, inner)

    def read(self, node: Node) -> ParsedCondition:
        """A condition of a rule."""
        uses: list[tuple[str, Position]] = []
        return ParsedCondition(self._condition(node, uses), tuple(uses))

    def named(self, name: str, user: Node) -> ParsedCondition:
        if name not in self.nodes:
            raise Fault(user.place, f"No condition is called {quote(name)}.", _nearest(name, self.nodes))
        if name in self.open:
            circle = [*self.open[self.open.index(name) :], name]
            raise Fault(user.place, f"Conditions refer to each other in a circle: {' -> '.join(circle)}.")
        if len(self.open) >= _MOST_NAMES:
            raise Fault(user.place, f"More than {_MOST_NAMES} conditions refer to each other in a row.")
        if name not in self.done:
            self.done[name] = None
            self.open.append(name)
            with self.problems.under(f'condition "{name}"'):
                self.done[name] = self.read(self.nodes[name])
            self.open.pop()
        found = self.done[name]
        if found is None:
            raise AlreadyReported(user.place, "")
        return found

    def _condition(self, node: Node, uses: list[tuple[str, Position]]) -> Condition:
        if isinstance(node, Scalar):
            found = self.named(fields.text(node, "A condition"), node)
            uses.extend(found.uses)
            condition = found.condition
        elif isinstance(node, Items):
            condition = _joined(AnyOf, self._parts(node, "any", uses))
        else:
            condition = self._mapping(node, uses)
        if len(uses) > MAX_TESTS:
            raise TooLarge(node.place, f"A condition has more than {MAX_TESTS:,} tests, with names written out.")
        return condition

    def _parts(self, node: Node, word: str, uses: list[tuple[str, Position]]) -> list[Condition]:
        if not isinstance(node, Items):
            raise Fault(node.place, f"{word} is a list of conditions, not {kind(node)}.")
        if not node.nodes:
            holds = (
                "An empty list of conditions can never hold." if word == "any" else "all of nothing always holds."
            )
            raise Fault(node.place, holds, "Leave it out.")
        return every(lambda inner: self._condition(inner, uses), node.nodes)

    def _mapping(self, node: Table, uses: list[tuple[str, Position]]) -> Condition:
        if not node.entries:
            raise Fault(node.place, "An empty condition always holds.", "Leave it out.")
        found = every(lambda entry: self._entry(*entry, uses), node.entries.values())
        return _possible(_joined(All, [part for parts in found for part in parts]), node.place)

    def _entry(self, key: Scalar, node: Node, uses: list[tuple[str, Position]]) -> Sequence[Condition]:
        match key.text:
            case "all":
                return [_possible(_joined(All, self._parts(node, "all", uses)), node.place)]
            case "any":
                return [_joined(AnyOf, self._parts(node, "any", uses))]
            case "not":
                return [Not(self._condition(node, uses))]
            case "is":
                return every(lambda name: self._condition(name, uses), _some(fields.texts(node, "is"), node))
        return _tests(key, node, uses)


def _tests(key: Scalar, node: Node, uses: list[tuple[str, Position]]) -> list[Test]:
    if key.text in _FAMILIES and isinstance(node, Table):
        if not node.entries:
            raise Fault(node.place, f"{key.text} names nothing to test.", f"Write {key.text}: {{name: text}}.")

        def read_test(entry: tuple[Scalar, Node]) -> Test:
            name, inner = entry
            return _test(Scalar(name.place, f"{key.text}.{name.text}", name.quoted), inner, uses)

        return every(read_test, node.entries.values())
    return [_test(key, node, uses)]


def _test(key: Scalar, node: Node, uses: list[tuple[str, Position]]) -> Test:
    attribute = placed(key, named, fields.text(key, "An attribute"))
    if attribute in _FAMILIES:
        raise Fault(
            key.place, f"{attribute} has many names.", f"Write {attribute}.NAME, or {attribute}: {{NAME: text}}."
        )
    wanted: tuple[str, ...] | bool | None = fields.truth(node)
    if isinstance(node, Table) or (
        isinstance(node, Items) and any(not isinstance(one, Scalar) for one in node.nodes)
    ):
        other = _REPLACED.get(attribute)
        hint = f"Did you mean {other}?" if other else "Conditions are joined by all, any, not and is."
        raise Fault(
            node.place, f"{attribute} is compared with a text or a list of texts, not with {_inner(node)}.", hint
        )
    if wanted is None:
        wanted = tuple(one.text for one in fields.texts(node, attribute))
    uses.append((attribute, key.place))
    return placed(node, Test, attribute, wanted)


def _inner(node: Node) -> str:
    return (
        kind(next(one for one in node.nodes if not isinstance(one, Scalar)))
        if isinstance(node, Items)
        else kind(node)
    )


def _some(found: list[Scalar], node: Node) -> list[Scalar]:
    if not found:
        raise Fault(node.place, "is names no condition.", "Leave it out.")
    return found


def _joined(make: type[All] | type[AnyOf], parts: list[Condition]) -> Condition:
    return parts[0] if len(parts) == 1 else make(tuple(parts))


def _possible(condition: Condition, place: Position) -> Condition:
    if why := contradiction(condition):
        raise Fault(place, why)
    return condition


def _nearest(name: str, known: dict[str, Node]) -> str:
    return fields.did_you_mean(name, known) if known else "The book has no conditions."
