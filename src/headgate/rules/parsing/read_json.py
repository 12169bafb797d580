"""Reads a JSON document as a tree with line numbers.

The standard library's reader keeps no line numbers, takes the last of two equal keys and reads NaN as a number; so
this is another reader. It is strict JSON: no comments, no comma at the end.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right

from headgate.rules.parsing.document_tree import (
    Budget,
    Fault,
    ListNode,
    MappingNode,
    Node,
    Position,
    ScalarNode,
    quote,
)

_nonblank = re.compile(r"[^ \t\r\n]")
_string = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_word = re.compile(r"-?[A-Za-z_]+|.", re.S)
_surrogate = re.compile("[\ud800-\udfff]")


def read(text: str) -> Node:
    """Reads a JSON text into a tree."""
    return _JsonReader(text).document()


class _JsonReader:
    """Reads one text from left to right; `offset` is the current position."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0
        self.newlines = [newline.start() for newline in re.finditer("\n", text)]
        self.budget = Budget()

    def document(self) -> Node:
        node = self.value(1)
        if self.peek():
            raise self.unexpected("the end of the document")
        return node

    def value(self, depth: int) -> Node:
        start = self.peek()
        position = self.position()
        self.budget.spend(position, depth)
        if start and start in "{[":
            self.offset += 1
        if start == "{":
            return self.table(position, depth)
        if start == "[":
            return self.items(position, depth)
        if start == '"':
            return self.string()
        for word in ("true", "false", "null"):
            if self.text.startswith(word, self.offset):
                self.offset += len(word)
                return ScalarNode(position, word, quoted=False)
        if number := _number.match(self.text, self.offset):
            self.offset = number.end()
            return ScalarNode(position, number[0], quoted=False)
        raise self.unexpected("a value")

    def table(self, position: Position, depth: int) -> MappingNode:
        table = MappingNode(position, {})
        while self.has_next("}", bool(table.entries)):
            if self.peek() != '"':
                raise self.unexpected("a name in double quotes")
            key = self.string()
            if self.peek() != ":":
                raise self.unexpected("a colon")
            self.offset += 1
            table.add(key, self.value(depth + 1))
        return table

    def items(self, position: Position, depth: int) -> ListNode:
        items = ListNode(position, [])
        while self.has_next("]", bool(items.nodes)):
            items.nodes.append(self.value(depth + 1))
        return items

    def has_next(self, close: str, started: bool) -> bool:
        """Moves past the comma before the next entry (True), or past the closing bracket (False)."""
        if self.peek() == close:
            self.offset += 1
            return False
        if started:
            if self.peek() != ",":
                raise self.unexpected(f"a comma or {close}")
            self.offset += 1
        return True

    def string(self) -> ScalarNode:
        position = self.position()
        literal = _string.match(self.text, self.offset)
        if not literal:
            raise Fault(
                position, "This text is not JSON.", 'It ends with " in its line; \\n is a line break, \\\\ a \\.'
            )
        self.offset = literal.end()
        text = json.loads(literal[0])
        if _surrogate.search(text):
            raise Fault(position, f"{quote(text)} holds half a character (a lone surrogate).")
        return ScalarNode(position, text, quoted=True)

    def peek(self) -> str:
        """Returns the next character that is not blank; an empty text at the end."""
        nonblank = _nonblank.search(self.text, self.offset)
        self.offset = nonblank.start() if nonblank else len(self.text)
        return self.text[self.offset : self.offset + 1]

    def position(self) -> Position:
        return Position(bisect_right(self.newlines, self.offset) + 1)

    def unexpected(self, expected: str) -> Fault:
        token = _word.match(self.text, self.offset)
        actual = f"but there is {quote(token[0])}" if token else "but the document ends"
        return Fault(self.position(), f"This is not JSON: {expected} was expected, {actual}.")
