"""In which line of a TOML text each value stands.

A walk over the text that knows keys, strings, brackets and comments, and nothing else. It takes for granted that
the text is TOML: where it is not, the walk ends, and tomllib says why. It refuses one thing itself: what is deeper
or bigger than a rulebook may be, because tomllib takes very long for it.

Law: of every table and value of a valid text the line of its key is found; of an item of a list, where it begins.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from contextlib import suppress

from headgate.rules.parsing.document_tree import MAX_DEPTH, Budget, Fault, Position
from headgate.rules.parsing.read_python import Path

_blank = re.compile(r"[ \t]*+")
_gap = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_bare = re.compile(r"[A-Za-z0-9_-]++")
_strings = (
    re.compile(r'"""(?:[^"\\]++|\\.|"(?!""))*+"{3,5}', re.S),
    re.compile(r"'''(?:[^']++|'(?!''))*+'{3,5}", re.S),
    re.compile(r'"(?:[^"\\\n]++|\\[^\n])*+"'),
    re.compile(r"'[^'\n]*+'"),
)
_other = re.compile(r"[^\s,\]}#]++(?: [0-9][^\s,\]}#]*+)?")  # a number, a word, a date (perhaps with a time)


class _Lost(Exception):
    """The text is not TOML from here on."""


def line_numbers(text: str) -> dict[Path, int]:
    walk = _Walk(text)
    with suppress(_Lost):
        walk.document()
    return walk.lines


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.breaks = [found.start() for found in re.finditer("\n", text)]
        self.lines: dict[Path, int] = {(): 1}
        self.budget = Budget()
        self.counts: dict[Path, int] = {}  # how many items [[a.b]] has begun

    def document(self) -> None:
        table: Path = ()
        while self.skip(_gap) < len(self.text):
            self.budget.spend(Position(self.line()), 1)
            if self.next("[["):
                path = self.inside(self.keys())
                count = self.counts[path] = self.counts.get(path, -1) + 1
                table = (*path, count)
                self.expect("]]")
                self.note(path, table)
            elif self.next("["):
                table = self.inside(self.keys())
                self.expect("]")
                self.note(table)
            else:
                self.pair(table, 1)
            self.skip(_blank)

    def pair(self, table: Path, depth: int) -> None:
        path = (*table, *self.keys())
        self.note(*(path[:end] for end in range(len(table) + 1, len(path) + 1)))
        self.expect("=")
        self.value(path, depth)

    def value(self, path: Path, depth: int) -> None:
        self.skip(_blank)
        self.budget.spend(Position(self.line()), depth)
        if self.next("["):
            count = 0
            while self.another("]", count):
                self.note((*path, count))
                self.value((*path, count), depth + 1)
                count += 1
        elif self.next("{"):
            count = 0
            while self.another("}", count):
                self.pair(path, depth + 1)
                count += 1
        elif not self.string():
            self.match(_other)

    def another(self, close: str, count: int) -> bool:
        self.skip(_gap)
        if self.next(close):
            return False
        if count:
            self.expect(",")
            self.skip(_gap)
            return not self.next(close)
        return True

    def keys(self) -> tuple[str, ...]:
        found = [self.key()]
        while self.next("."):
            found.append(self.key())
            if len(found) > MAX_DEPTH:
                raise Fault(Position(self.line()), f"A key has more than {MAX_DEPTH} parts.")
        return tuple(found)

    def key(self) -> str:
        self.skip(_blank)
        text = self.string() or self.match(_bare)
        self.skip(_blank)
        if text.startswith("'"):
            return text[1:-1]
        if text.startswith('"'):
            try:
                return str(tomllib.loads(f"key = {text}")["key"])
            except ValueError:
                raise _Lost from None
        return text

    def inside(self, keys: tuple[str, ...]) -> Path:
        """[rules.refuse] is in the last of [[rules]]."""
        path: Path = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            if number < len(keys) - 1 and path in self.counts:
                path = (*path, self.counts[path])
        return path

    def string(self) -> str:
        for pattern in _strings:
            if found := pattern.match(self.text, self.at):
                self.at = found.end()
                return found[0]
        return ""

    def next(self, mark: str) -> bool:
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def expect(self, mark: str) -> None:
        self.skip(_blank)
        if not self.next(mark):
            raise _Lost

    def match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if not found:
            raise _Lost
        self.at = found.end()
        return found[0]

    def skip(self, pattern: re.Pattern[str]) -> int:
        self.match(pattern)
        return self.at

    def note(self, *paths: Path) -> None:
        for path in paths:
            self.lines.setdefault(path, self.line())

    def line(self) -> int:
        return bisect_right(self.breaks, self.at - 1) + 1
