"""A YAML document as a tree that knows its lines. PyYAML takes it apart; what it means is not PyYAML's to say.

Only events are asked for, one after the other, and the tree is made here: so nothing is constructed, tags mean
nothing, a plain `off` or `1_000` stays what the writer sees, and a document that nests or repeats itself without
end is left at the first step too many. Aliases are the node they stand for, and count as a copy of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from headgate.extras import require
from headgate.rules.parsing.document_tree import (
    Budget,
    Fault,
    Items,
    Node,
    Position,
    Scalar,
    Table,
    empty_rulebook,
    kind,
    quote,
)

_unprintable = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_WORDS = {  # of PyYAML's complaints those that people meet, in ours
    "mapping values are not allowed": (
        "A colon stands where none can be.",
        "Look at the blanks before it and in the line above, or put the text in quotes.",
    ),
    "did not find expected '-' indicator": (
        "A line of a list does not stand below the others.",
        "Indent it alike.",
    ),
    "did not find expected key": ("A line of a mapping does not stand below the others.", "Indent it alike."),
    "could not find expected ':'": ("A name without a colon stands here.", "Write name: value."),
    "did not find expected ',' or": (
        "A bracket is not closed, or a comma is missing.",
        "Close the one that was opened in line {}.",
    ),
    "did not find expected node content": ("A value was expected here.", "Look for a bracket that is not closed."),
    "found unexpected end of stream": ("A text in quotes does not end.", "Close it with the quote it began with."),
    "found unknown escape character": ("A backslash is followed by what it cannot be.", "Use 'single quotes'."),
}
_WHERE_IT_BEGAN = ("found unexpected end of stream", "could not find expected ':'")
_TAB = ("A tab stands where blanks are expected.", "YAML is indented by blanks only.")


def read(text: str) -> Node:
    if found := _unprintable.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise Fault(Position(line), f"The character U+{ord(found[0]):04X} cannot stand in YAML.", "Take it out.")
    yaml, loader = _pyyaml()
    tree = _Tree()
    try:
        for event in yaml.parse(text, Loader=loader):
            tree.take(event)
    except yaml.MarkedYAMLError as error:
        raise _complaint(text, error) from None
    if tree.root is None:
        raise empty_rulebook()
    return tree.root


def _pyyaml() -> tuple[Any, Any]:
    require("A rulebook in YAML", "yaml", "yaml", hint=" TOML and JSON are read without it.")
    import yaml

    return yaml, getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not come."""

    node: Items | Table
    anchor: str | None
    before: int  # what was left of the budget
    key: Scalar | None = None
    height: int = 1


@dataclass(slots=True)
class _Known:
    """What an alias stands for; nothing as long as it is not complete."""

    node: Node
    size: int
    height: int


@dataclass(slots=True)
class _Tree:
    root: Node | None = None
    budget: Budget = field(default_factory=Budget)
    open: list[_Open] = field(default_factory=list)
    known: dict[str, _Known | None] = field(default_factory=dict)

    def take(self, event: Any) -> None:
        what = type(event).__name__
        place = Position(event.start_mark.line + 1)
        if what == "AliasEvent":
            self.alias(event.anchor, place)
        elif what == "ScalarEvent":
            self.begin(event, place)
            # Tag and style say whether it was written plainly.
            scalar = Scalar(place, event.value, quoted=bool(event.style))
            self.keep(event.anchor, scalar, 1, 1)
            self.put(scalar, 1)
        elif what in ("SequenceStartEvent", "MappingStartEvent"):
            self.begin(event, place)
            node = Items(place, []) if what == "SequenceStartEvent" else Table(place, {})
            if event.anchor:
                self.known[event.anchor] = None
            self.open.append(_Open(node, event.anchor, self.budget.left))
        elif what in ("SequenceEndEvent", "MappingEndEvent"):
            done = self.open.pop()
            self.keep(done.anchor, done.node, 1 + done.before - self.budget.left, done.height)
            self.put(done.node, done.height)

    def begin(self, event: Any, place: Position) -> None:
        if event.tag is not None:
            raise Fault(
                place, f"The tag {quote(event.tag)} means nothing here.", "Leave tags out: no ! before a value."
            )
        self.budget.spend(place, len(self.open) + 1)

    def alias(self, name: str, place: Position) -> None:
        if name not in self.known:
            raise Fault(
                place, f"*{name} refers to nothing.", f"Write &{name} before the value that is meant, further up."
            )
        known = self.known[name]
        if known is None:
            raise Fault(place, f"*{name} stands within the value that it refers to.")
        self.budget.spend(place, len(self.open) + known.height, known.size)
        self.put(known.node, known.height)

    def keep(self, anchor: str | None, node: Node, size: int, height: int) -> None:
        if anchor:
            self.known[anchor] = _Known(node, size, height)

    def put(self, node: Node, height: int) -> None:
        """Where it belongs: at the top, in a list, as a name, or as the value of the last name."""
        if not self.open:
            if self.root is not None:
                raise Fault(
                    node.place, "A second document begins here.", "A rulebook is one: leave out the --- before it."
                )
            self.root = node
            return
        top = self.open[-1]
        top.height = max(top.height, height + 1)
        if isinstance(top.node, Items):
            top.node.nodes.append(node)
        elif top.key is None:
            top.key = _name(node)
        else:
            top.node.add(top.key, node)
            top.key = None


def _name(node: Node) -> Scalar:
    if not isinstance(node, Scalar) or node.empty:
        raise Fault(node.place, f"A name in a mapping is a text, not {kind(node)}.")
    if node.text == "<<" and not node.quoted:
        raise Fault(node.place, "<< is not read here.", "What rules have in common stands once, under defaults.")
    return node


def _complaint(text: str, error: Any) -> Fault:
    """In our words where we have any."""
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    lines = text.splitlines()
    before = lines[line][: mark.column + 1] if mark and line < len(lines) else ""
    problem = str(error.problem or error.context)
    if before.endswith("\t") or "tab character" in problem:
        return Fault(Position(line + 1), *_TAB)
    for theirs, ours in _WORDS.items():
        if problem.startswith(theirs):
            begun = error.context_mark.line if error.context_mark else line
            at = begun if theirs in _WHERE_IT_BEGAN else min(line, len(lines) - 1)
            return Fault(Position(at + 1), ours[0], ours[1].format(begun + 1))
    if "cannot start any token" in problem:
        return Fault(
            Position(line + 1), f"No plain value begins with {quote(before[-1:])}.", "Put the text in quotes."
        )
    return Fault(Position(line + 1), f"This is not YAML: {problem}.")
