"""The tree of a rulebook before it means anything: texts, lists and mappings, each with its place.

YAML, TOML, JSON and Python values become the same three kinds of node. A scalar keeps the text as it was written
and whether it stood in quotes; what it means is decided where it is expected. So `mode: off` is the word off,
`limit: 10/s` needs no quotes, and a plain `true` is a yes where a yes or no is asked for.

Law (tests/rules/parsing/test_document_tree.py): whatever the bytes are, reading them ends in a tree or in a Fault
with a place, in bounded time: at most MOST_BYTES are read, MOST_NODES are made (aliases count as what they stand
for) and MOST_DEPTH lie within each other. No key stands twice in a mapping. Nothing in a document is ever
executed.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import NamedTuple

MAX_BYTES = 4_000_000
MAX_NODES = 100_000
MAX_DEPTH = 32

_SHOWN = 60
_OTHER_CODES = {
    codecs.BOM_UTF32_LE: "UTF-32",  # first: it begins like UTF-16
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class Position(NamedTuple):
    """Where something stands: its line in a file, or its path in a value of Python."""

    line: int | None
    path: str = ""


START = Position(1)


@dataclass(slots=True)
class Scalar:
    place: Position
    text: str
    quoted: bool

    @property
    def empty(self) -> bool:
        return not self.quoted and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(slots=True)
class Items:
    place: Position
    nodes: list[Node]


@dataclass(slots=True)
class Table:
    place: Position
    entries: dict[str, tuple[Scalar, Node]]

    def get(self, name: str) -> Node | None:
        entry = self.entries.get(name)
        return entry[1] if entry else None

    def add(self, key: Scalar, node: Node) -> None:
        if before := self.entries.get(key.text):
            where = f" in line {first}" if (first := before[0].place.line) else ""
            raise Fault(key.place, f"{quote(key.text)} stands twice in one mapping.", f"The first one is{where}.")
        self.entries[key.text] = (key, node)


Node = Scalar | Items | Table


class Fault(Exception):
    """One thing that is wrong, where it stands, and what to write instead."""

    def __init__(self, place: Position, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.place = place
        self.sentence: str = escape_unprintable(sentence)
        self.hint: str = escape_unprintable(hint)


class Faults(Fault):
    """Several things that are wrong, each in its place."""

    def __init__(self, faults: list[Fault]) -> None:
        first = faults[0]
        super().__init__(first.place, first.sentence, first.hint)
        self.faults = faults


class TooLarge(Fault):
    """Nothing further is read: that would take too long."""


class Budget:
    """How much of a tree may still be made."""

    def __init__(self) -> None:
        self.left: int = MAX_NODES

    def spend(self, place: Position, depth: int, nodes: int = 1) -> None:
        self.left -= nodes
        if self.left < 0:
            raise Fault(
                place, f"The rulebook is too big: more than {MAX_NODES:,} values, with aliases written out."
            )
        if depth > MAX_DEPTH:
            raise Fault(place, f"The rulebook is too deep: more than {MAX_DEPTH} values lie within each other.")


def decode(data: str | bytes) -> str:
    """The text of a document, or the line in which it ceases to be one."""
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            line = error.object.count("\n", 0, error.start) + 1
            raise Fault(Position(line), "Half a character (a lone surrogate) stands here.") from None
    if len(data) > MAX_BYTES:
        raise Fault(
            START, f"The rulebook is larger than {MAX_BYTES // 1_000_000} MB.", "Split it, or make it smaller."
        )
    for mark, code in _OTHER_CODES.items():
        if data.startswith(mark):
            raise Fault(START, f"The rulebook is written in {code}.", "Save it as UTF-8.")
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


def empty_rulebook(place: Position = START) -> Fault:
    return Fault(place, "The rulebook is empty.", "One without rules is written: rules: []")


def escape_unprintable(text: str) -> str:
    """Characters that cannot be seen, spelled."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quote(text: str) -> str:
    """A text in quotes, not all of it if it is long."""
    return f'"{text}"' if len(text) <= _SHOWN else f'"{text[:_SHOWN]}..."'


def kind(node: Node) -> str:
    """What a node is, in a word that people know."""
    if isinstance(node, Items):
        return "a list"
    if isinstance(node, Table):
        return "a mapping"
    return "nothing" if node.empty else quote(node.text)
