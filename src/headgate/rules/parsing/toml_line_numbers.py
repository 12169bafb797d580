"""Finds the line of each value in a TOML text.

It scans keys, strings, brackets and comments, and nothing else. It assumes that the text is TOML: where it is not,
the scan ends, and tomllib reports why. It refuses one thing itself: a text that is deeper or bigger than a
rulebook may be, because tomllib takes very long for it.

Law: for every table and value of a valid text it finds the line of the key; for an item of a list, where it
begins.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from contextlib import suppress

from headgate.rules.parsing.document_tree import MAX_DEPTH, Budget, Fault, Position
from headgate.rules.parsing.read_python_values import Path

_blanks = re.compile(r"[ \t]*+")
_whitespace_and_comments = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_bare_key = re.compile(r"[A-Za-z0-9_-]++")
_strings = (
    re.compile(r'"""(?:[^"\\]++|\\.|"(?!""))*+"{3,5}', re.S),
    re.compile(r"'''(?:[^']++|'(?!''))*+'{3,5}", re.S),
    re.compile(r'"(?:[^"\\\n]++|\\[^\n])*+"'),
    re.compile(r"'[^'\n]*+'"),
)
_bare_value = re.compile(r"[^\s,\]}#]++(?: [0-9][^\s,\]}#]*+)?")  # a number, a word, a date (perhaps with a time)


class _NotToml(Exception):
    """The text is not TOML from here on."""


def line_numbers(text: str) -> dict[Path, int]:
    """Returns the line of every table, value and item, by its path."""
    scanner = _Scanner(text)
    with suppress(_NotToml):
        scanner.document()
    return scanner.lines


class _Scanner:
    """Scans a TOML text once, and records the line of each path."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0
        self.newlines = [newline.start() for newline in re.finditer("\n", text)]
        self.lines: dict[Path, int] = {(): 1}
        self.budget = Budget()
        self.counts: dict[Path, int] = {}  # the index of the last item of [[a.b]]

    def document(self) -> None:
        table: Path = ()
        while self.skip(_whitespace_and_comments) < len(self.text):
            self.budget.spend(Position(self.line()), 1)
            if self.next("[["):
                path = self.table_path(self.keys())
                count = self.counts[path] = self.counts.get(path, -1) + 1
                table = (*path, count)
                self.expect("]]")
                self.record(path, table)
            elif self.next("["):
                table = self.table_path(self.keys())
                self.expect("]")
                self.record(table)
            else:
                self.pair(table, 1)
            self.skip(_blanks)

    def pair(self, table: Path, depth: int) -> None:
        path = (*table, *self.keys())
        self.record(*(path[:end] for end in range(len(table) + 1, len(path) + 1)))
        self.expect("=")
        self.value(path, depth)

    def value(self, path: Path, depth: int) -> None:
        self.skip(_blanks)
        self.budget.spend(Position(self.line()), depth)
        if self.next("["):
            count = 0
            while self.has_next("]", count):
                self.record((*path, count))
                self.value((*path, count), depth + 1)
                count += 1
        elif self.next("{"):
            count = 0
            while self.has_next("}", count):
                self.pair(path, depth + 1)
                count += 1
        elif not self.string():
            self.match(_bare_value)

    def has_next(self, close: str, count: int) -> bool:
        self.skip(_whitespace_and_comments)
        if self.next(close):
            return False
        if count:
            self.expect(",")
            self.skip(_whitespace_and_comments)
            return not self.next(close)
        return True

    def keys(self) -> tuple[str, ...]:
        parts = [self.key()]
        while self.next("."):
            parts.append(self.key())
            if len(parts) > MAX_DEPTH:
                raise Fault(Position(self.line()), f"A key has more than {MAX_DEPTH} parts.")
        return tuple(parts)

    def key(self) -> str:
        self.skip(_blanks)
        text = self.string() or self.match(_bare_key)
        self.skip(_blanks)
        if text.startswith("'"):
            return text[1:-1]
        if text.startswith('"'):
            try:
                return str(tomllib.loads(f"key = {text}")["key"])
            except ValueError:
                raise _NotToml from None
        return text

    def table_path(self, keys: tuple[str, ...]) -> Path:
        """Returns the path of a table header: [rules.refuse] belongs to the last item of [[rules]]."""
        path: Path = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            if number < len(keys) - 1 and path in self.counts:
                path = (*path, self.counts[path])
        return path

    def string(self) -> str:
        for pattern in _strings:
            if match := pattern.match(self.text, self.offset):
                self.offset = match.end()
                return match[0]
        return ""

    def next(self, mark: str) -> bool:
        if not self.text.startswith(mark, self.offset):
            return False
        self.offset += len(mark)
        return True

    def expect(self, mark: str) -> None:
        self.skip(_blanks)
        if not self.next(mark):
            raise _NotToml

    def match(self, pattern: re.Pattern[str]) -> str:
        match_found = pattern.match(self.text, self.offset)
        if not match_found:
            raise _NotToml
        self.offset = match_found.end()
        return match_found[0]

    def skip(self, pattern: re.Pattern[str]) -> int:
        self.match(pattern)
        return self.offset

    def record(self, *paths: Path) -> None:
        for path in paths:
            self.lines.setdefault(path, self.line())

    def line(self) -> int:
        return bisect_right(self.newlines, self.offset - 1) + 1
