"""Reads a YAML document as a tree with line numbers. PyYAML only splits it into events.

The tree is made here, event by event: so nothing is constructed, tags mean nothing, a plain `off` or `1_000` stays
as it is written, and a document that nests or repeats itself without end stops at the first node too many. An
alias is the node that it refers to, and counts as a copy of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from headgate.extras import require
from headgate.rules.parsing.document_tree import (
    Budget,
    Fault,
    ListNode,
    MappingNode,
    Node,
    Position,
    ScalarNode,
    describe_node,
    empty_rulebook,
    quote,
)

_unprintable = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_MESSAGES = {  # PyYAML's common error messages, and ours for them
    "mapping values are not allowed": (
        "A colon is not allowed here.",
        "Look at the blanks before it and in the line above, or put the text in quotes.",
    ),
    "did not find expected '-' indicator": (
        "An item of a list is not indented like the others.",
        "Indent it alike.",
    ),
    "did not find expected key": ("A line of a mapping is not indented like the others.", "Indent it alike."),
    "could not find expected ':'": ("A name here has no colon.", "Write name: value."),
    "did not find expected ',' or": (
        "A bracket is not closed, or a comma is missing.",
        "Close the one that was opened in line {}.",
    ),
    "did not find expected node content": ("A value was expected here.", "Look for a bracket that is not closed."),
    "found unexpected end of stream": ("A text in quotes does not end.", "Close it with the quote it began with."),
    "found unknown escape character": ("A backslash is followed by what it cannot be.", "Use 'single quotes'."),
}
_REPORTED_AT_START = ("found unexpected end of stream", "could not find expected ':'")
_TAB_MESSAGE = ("A tab is used where blanks are expected.", "YAML is indented by blanks only.")


def read(text: str) -> Node:
    """Reads a YAML text into a tree."""
    if unprintable := _unprintable.search(text):
        line = text.count("\n", 0, unprintable.start()) + 1
        raise Fault(
            Position(line), f"The character U+{ord(unprintable[0]):04X} is not allowed in YAML.", "Take it out."
        )
    yaml, loader = _pyyaml()
    tree = _TreeBuilder()
    try:
        for event in yaml.parse(text, Loader=loader):
            tree.handle(event)
    except yaml.MarkedYAMLError as error:
        raise _syntax_fault(text, error) from None
    if tree.root is None:
        raise empty_rulebook()
    return tree.root


def _pyyaml() -> tuple[Any, Any]:
    require("A rulebook in YAML", "yaml", "yaml", hint=" TOML and JSON are read without it.")
    import yaml

    return yaml, getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class _OpenNode:
    """A list or mapping whose end has not been reached."""

    node: ListNode | MappingNode
    anchor: str | None
    budget_before: int  # the remaining budget when it began
    key: ScalarNode | None = None
    height: int = 1


@dataclass(slots=True)
class _Anchor:
    """The node that an alias refers to; None in `anchors` while it is not complete."""

    node: Node
    size: int
    height: int


@dataclass(slots=True)
class _TreeBuilder:
    """Builds the tree from PyYAML's events."""

    root: Node | None = None
    budget: Budget = field(default_factory=Budget)
    open_nodes: list[_OpenNode] = field(default_factory=list)
    anchors: dict[str, _Anchor | None] = field(default_factory=dict)

    def handle(self, event: Any) -> None:
        event_type = type(event).__name__
        position = Position(event.start_mark.line + 1)
        if event_type == "AliasEvent":
            self.alias(event.anchor, position)
        elif event_type == "ScalarEvent":
            self.start_node(event, position)
            # A plain scalar has no style.
            scalar = ScalarNode(position, event.value, quoted=bool(event.style))
            self.set_anchor(event.anchor, scalar, 1, 1)
            self.attach(scalar, 1)
        elif event_type in ("SequenceStartEvent", "MappingStartEvent"):
            self.start_node(event, position)
            node = ListNode(position, []) if event_type == "SequenceStartEvent" else MappingNode(position, {})
            if event.anchor:
                self.anchors[event.anchor] = None
            self.open_nodes.append(_OpenNode(node, event.anchor, self.budget.remaining))
        elif event_type in ("SequenceEndEvent", "MappingEndEvent"):
            closed = self.open_nodes.pop()
            self.set_anchor(
                closed.anchor, closed.node, 1 + closed.budget_before - self.budget.remaining, closed.height
            )
            self.attach(closed.node, closed.height)

    def start_node(self, event: Any, position: Position) -> None:
        if event.tag is not None:
            raise Fault(
                position, f"The tag {quote(event.tag)} means nothing here.", "Leave tags out: no ! before a value."
            )
        self.budget.spend(position, len(self.open_nodes) + 1)

    def alias(self, name: str, position: Position) -> None:
        if name not in self.anchors:
            raise Fault(
                position,
                f"*{name} refers to nothing.",
                f"Write &{name} before the value that is meant, further up.",
            )
        anchor = self.anchors[name]
        if anchor is None:
            raise Fault(position, f"*{name} is inside the value that it refers to.")
        self.budget.spend(position, len(self.open_nodes) + anchor.height, anchor.size)
        self.attach(anchor.node, anchor.height)

    def set_anchor(self, anchor: str | None, node: Node, size: int, height: int) -> None:
        if anchor:
            self.anchors[anchor] = _Anchor(node, size, height)

    def attach(self, node: Node, height: int) -> None:
        """Adds a finished node: as the root, to a list, as a key, or as the value of the last key."""
        if not self.open_nodes:
            if self.root is not None:
                raise Fault(
                    node.position,
                    "A second document begins here.",
                    "A rulebook is one: leave out the --- before it.",
                )
            self.root = node
            return
        top = self.open_nodes[-1]
        top.height = max(top.height, height + 1)
        if isinstance(top.node, ListNode):
            top.node.nodes.append(node)
        elif top.key is None:
            top.key = _check_key(node)
        else:
            top.node.add(top.key, node)
            top.key = None


def _check_key(node: Node) -> ScalarNode:
    if not isinstance(node, ScalarNode) or node.empty:
        raise Fault(node.position, f"A name in a mapping is a text, not {describe_node(node)}.")
    if node.text == "<<" and not node.quoted:
        raise Fault(node.position, "<< is not read here.", "Write what rules have in common once, under defaults.")
    return node


def _syntax_fault(text: str, error: Any) -> Fault:
    """Turns an error of PyYAML into a fault, in our words where there are any."""
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    lines = text.splitlines()
    line_start = lines[line][: mark.column + 1] if mark and line < len(lines) else ""
    problem = str(error.problem or error.context)
    if line_start.endswith("\t") or "tab character" in problem:
        return Fault(Position(line + 1), *_TAB_MESSAGE)
    for prefix, message in _MESSAGES.items():
        if problem.startswith(prefix):
            start_line = error.context_mark.line if error.context_mark else line
            reported_line = start_line if prefix in _REPORTED_AT_START else min(line, len(lines) - 1)
            return Fault(Position(reported_line + 1), message[0], message[1].format(start_line + 1))
    if "cannot start any token" in problem:
        return Fault(
            Position(line + 1), f"No plain value begins with {quote(line_start[-1:])}.", "Put the text in quotes."
        )
    return Fault(Position(line + 1), f"This is not YAML: {problem}.")
