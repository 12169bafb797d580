"""The tree of a rulebook before it is interpreted: texts, lists and mappings, each with its position.

YAML, TOML, JSON and Python values become the same three kinds of node. A scalar keeps its original text and
whether it was in quotes; the field that it is for decides what it means. So `mode: off` is the word off,
`limit: 10/s` needs no quotes, and a plain `true` is a flag where a flag is expected.

Law (tests/rules/parsing/test_document_tree.py): whatever the bytes are, reading them ends in a tree or in a Fault
with a position, in bounded time: at most MAX_BYTES are read, MAX_NODES are made (an alias counts as a copy) and
they are nested at most MAX_DEPTH deep. No mapping has a key twice. Nothing in a document is ever executed.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import NamedTuple

MAX_BYTES = 4_000_000
MAX_NODES = 100_000
MAX_DEPTH = 32

_MAX_QUOTED_LENGTH = 60
_OTHER_ENCODINGS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # first: it begins like UTF-16
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class Position(NamedTuple):
    """A line in a file, or a path in Python values."""

    line: int | None
    path: str = ""


START = Position(1)


@dataclass(slots=True)
class ScalarNode:
    """A text, number or other plain value, as it was written."""

    position: Position
    text: str
    quoted: bool

    @property
    def empty(self) -> bool:
        return not self.quoted and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(slots=True)
class ListNode:
    """A list."""

    position: Position
    nodes: list[Node]


@dataclass(slots=True)
class MappingNode:
    """A mapping."""

    position: Position
    entries: dict[str, tuple[ScalarNode, Node]]

    def get(self, name: str) -> Node | None:
        entry = self.entries.get(name)
        return entry[1] if entry else None

    def add(self, key: ScalarNode, node: Node) -> None:
        if existing := self.entries.get(key.text):
            where = f" in line {first_line}" if (first_line := existing[0].position.line) else ""
            raise Fault(
                key.position, f"{quote(key.text)} appears twice in one mapping.", f"The first one is{where}."
            )
        self.entries[key.text] = (key, node)


Node = ScalarNode | ListNode | MappingNode


class Fault(Exception):
    """One problem, its position, and a hint on what to write instead."""

    def __init__(self, place: Position, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.position = place
        self.sentence: str = escape_unprintable(sentence)
        self.hint: str = escape_unprintable(hint)


class Faults(Fault):
    """Several faults, raised together."""

    def __init__(self, faults: list[Fault]) -> None:
        first = faults[0]
        super().__init__(first.position, first.sentence, first.hint)
        self.faults = faults


class TooLarge(Fault):
    """A fault that ends reading: going on would take too long."""


class Budget:
    """Limits the number and depth of the nodes of a tree."""

    def __init__(self) -> None:
        self.remaining: int = MAX_NODES

    def spend(self, position: Position, depth: int, nodes: int = 1) -> None:
        self.remaining -= nodes
        if self.remaining < 0:
            raise Fault(
                position, f"The rulebook is too big: more than {MAX_NODES:,} values, with aliases written out."
            )
        if depth > MAX_DEPTH:
            raise Fault(position, f"The rulebook is too deep: more than {MAX_DEPTH} levels of nesting.")


def decode(data: str | bytes) -> str:
    """Returns the text of a document; raises Fault with the line that is not UTF-8."""
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            line = error.object.count("\n", 0, error.start) + 1
            raise Fault(Position(line), "There is half a character (a lone surrogate) here.") from None
    if len(data) > MAX_BYTES:
        raise Fault(
            START, f"The rulebook is larger than {MAX_BYTES // 1_000_000} MB.", "Split it, or make it smaller."
        )
    for bom, encoding in _OTHER_ENCODINGS.items():
        if data.startswith(bom):
            raise Fault(START, f"The rulebook is written in {encoding}.", "Save it as UTF-8.")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise Fault(
            Position(line), f"The byte 0x{byte:02x} here is not UTF-8.", "Save the file as UTF-8."
        ) from None
    if not text.strip():
        raise empty_rulebook()
    return text


def empty_rulebook(position: Position = START) -> Fault:
    """Returns the fault of an empty document."""
    return Fault(position, "The rulebook is empty.", "One without rules is written: rules: []")


def escape_unprintable(text: str) -> str:
    """Escapes unprintable characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quote(text: str) -> str:
    """Returns a text in quotes, shortened if it is long."""
    return f'"{text}"' if len(text) <= _MAX_QUOTED_LENGTH else f'"{text[:_MAX_QUOTED_LENGTH]}..."'


def describe_node(node: Node) -> str:
    """Describes a node for a message."""
    if isinstance(node, ListNode):
        return "a list" if node.nodes else "an empty list"
    if isinstance(node, MappingNode):
        return "a mapping" if node.entries else "an empty mapping"
    return "nothing" if node.empty else quote(node.text)
