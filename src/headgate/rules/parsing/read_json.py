"""A JSON document as a tree that knows its lines.

The standard library's reader forgets where things stood, keeps the last of two equal keys and takes NaN for a
number; so this is one of our own. It is strict JSON: no comments, no comma at the end.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right

from headgate.rules.parsing.document_tree import Budget, Fault, Items, Node, Position, Scalar, Table, quote

_seen = re.compile(r"[^ \t\r\n]")
_string = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_word = re.compile(r"-?[A-Za-z_]+|.", re.S)
_surrogate = re.compile("[\ud800-\udfff]")


def read(text: str) -> Node:
    return _Reader(text).document()


class _Reader:
    """One text, read from left to right; `at` is where it is."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.breaks = [found.start() for found in re.finditer("\n", text)]
        self.budget = Budget()

    def document(self) -> Node:
        node = self.value(1)
        if self.peek():
            raise self.unexpected("the end of the document")
        return node

    def value(self, depth: int) -> Node:
        start = self.peek()
        place = self.place()
        self.budget.spend(place, depth)
        if start and start in "{[":
            self.at += 1
        if start == "{":
            return self.table(place, depth)
        if start == "[":
            return self.items(place, depth)
        if start == '"':
            return self.string()
        for word in ("true", "false", "null"):
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return Scalar(place, word, quoted=False)
        if found := _number.match(self.text, self.at):
            self.at = found.end()
            return Scalar(place, found[0], quoted=False)
        raise self.unexpected("a value")

    def table(self, place: Position, depth: int) -> Table:
        table = Table(place, {})
        while self.another("}", bool(table.entries)):
            if self.peek() != '"':
                raise self.unexpected("a name in double quotes")
            key = self.string()
            if self.peek() != ":":
                raise self.unexpected("a colon")
            self.at += 1
            table.add(key, self.value(depth + 1))
        return table

    def items(self, place: Position, depth: int) -> Items:
        items = Items(place, [])
        while self.another("]", bool(items.nodes)):
            items.nodes.append(self.value(depth + 1))
        return items

    def another(self, close: str, begun: bool) -> bool:
        """Past the comma before the next entry, or past the end."""
        if self.peek() == close:
            self.at += 1
            return False
        if begun:
            if self.peek() != ",":
                raise self.unexpected(f"a comma or {close}")
            self.at += 1
        return True

    def string(self) -> Scalar:
        place = self.place()
        found = _string.match(self.text, self.at)
        if not found:
            raise Fault(
                place, "This text is not JSON.", 'It ends with " in its line; \\n is a line break, \\\\ a \\.'
            )
        self.at = found.end()
        text = json.loads(found[0])
        if _surrogate.search(text):
            raise Fault(place, f"{quote(text)} holds half a character (a lone surrogate).")
        return Scalar(place, text, quoted=True)

    def peek(self) -> str:
        """The next character that is not blank; nothing at the end."""
        found = _seen.search(self.text, self.at)
        self.at = found.start() if found else len(self.text)
        return self.text[self.at : self.at + 1]

    def place(self) -> Position:
        return Position(bisect_right(self.breaks, self.at) + 1)

    def unexpected(self, wanted: str) -> Fault:
        found = _word.match(self.text, self.at)
        instead = f"but there is {quote(found[0])}" if found else "but the document ends"
        return Fault(self.place(), f"This is not JSON: {wanted} was expected, {instead}.")
