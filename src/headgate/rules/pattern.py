"""Patterns: paths as templates, everything else as globs. No regular expressions, here and in nginx alike.

A path is a row of segments; empty ones do not count, so /api//items/ is /api/items. Of a pattern

    /api/items      is that path
    /items/{sku}    has one segment there, whatever it is, and calls it sku
    /img/*.png      has one segment there that ends so; * stands for any text without a slash
    /api/**         has any number of segments there, none too; once in a pattern

A glob is a text in which * stands for any text, also none. Case matters in both, unless the caller folds it.

Law: no pattern takes longer than its length times the text's, whatever the text is.
"""

from __future__ import annotations

import re

from headgate.errors import InvalidRule
from headgate.rules.attributes import WELL_KNOWN, segments

ANY_DEPTH = "**"

_capture = re.compile(r"\{([a-z][a-z0-9_]*)\}")


class Glob:
    """A text with stars in it."""

    __slots__ = ("first", "last", "middle", "text")

    def __init__(self, text: str) -> None:
        if not text:
            raise InvalidRule("An empty text counts as absent: write false for an attribute that is not there.")
        self.text: str = text
        first, *rest = text.split("*")
        self.first: str = first
        self.last: str | None = rest.pop() if rest else None
        self.middle: list[str] = [part for part in rest if part]

    @property
    def exact(self) -> str | None:
        """The only text it stands for, if there is just one."""
        return self.first if self.last is None else None

    def matches(self, text: str) -> bool:
        if self.last is None:
            return text == self.first
        if not text.startswith(self.first) or not text.endswith(self.last):
            return False
        at, end = len(self.first), len(text) - len(self.last)
        for part in self.middle:  # the leftmost place of each leaves the most room for the others
            at = text.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return at <= end


class PathPattern:
    """A path with names and stars in it.

    `head` are the segments before **, `tail` those after it; without ** there is no tail (None), and the path is
    as long as the head. `captures` says where each name stands: counted from the front, or behind ** from the end
    (-1 is the last).
    """

    __slots__ = ("captures", "head", "tail", "text")

    def __init__(self, text: str) -> None:
        if not text.startswith("/"):
            raise InvalidRule(f'"{text}" is no path: a path begins with a slash, such as "/{text}".')
        parts = segments(text)
        if parts.count(ANY_DEPTH) > 1:
            raise InvalidRule(f'"{text}" has ** twice: once is enough for any depth.')
        self.text: str = text
        deep = parts.index(ANY_DEPTH) if ANY_DEPTH in parts else len(parts)
        self.captures: dict[str, int] = {}
        for place, part in enumerate(parts):
            name = _name(text, part)
            if name in self.captures:
                raise InvalidRule(f'"{text}" has two segments called {name}: give each a name of its own.')
            if name is not None:
                self.captures[name] = place if place < deep else place - len(parts)
        steps = [None if _capture.fullmatch(part) or part == "*" else Glob(part) for part in parts]
        self.head: tuple[Glob | None, ...] = tuple(steps[:deep])
        self.tail: tuple[Glob | None, ...] | None = tuple(steps[deep + 1 :]) if ANY_DEPTH in parts else None

    @property
    def literal(self) -> str | None:
        """What it begins with up to **, if that is one path and no other."""
        steps = [None if step is None else step.exact for step in self.head]
        return None if None in steps else "/" + "/".join(steps)  # type: ignore[arg-type]

    def match(self, path: list[str]) -> dict[str, str] | None:
        """What its names stand for in this path, if the path is one of those meant."""
        if not self.fits(path):
            return None
        return {name: path[place] for name, place in self.captures.items()}

    def fits(self, path: list[str]) -> bool:
        """Whether the path, as segments, is one of those meant."""
        if self.tail is None:
            return len(path) == len(self.head) and segments_match(self.head, path)
        if len(path) < len(self.head) + len(self.tail):
            return False
        return segments_match(self.head, path) and segments_match(self.tail, path[len(path) - len(self.tail) :])


def segments_match(steps: tuple[Glob | None, ...], path: list[str]) -> bool:
    """Whether each step stands for its segment; None stands for any. There are enough segments."""
    return all(step is None or step.matches(path[place]) for place, step in enumerate(steps))


def _name(pattern: str, segment: str) -> str | None:
    found = _capture.fullmatch(segment)
    if found is not None:
        if found[1] in WELL_KNOWN:
            raise InvalidRule(
                f'"{pattern}": {found[1]} is the name of something else of the call; take another, such as '
                f"{{the_{found[1]}}}."
            )
        return found[1]
    if "{" in segment or "}" in segment:
        raise InvalidRule(
            f'"{segment}" in "{pattern}": a name stands for a whole segment, in small letters, such as {{sku}}.'
        )
    if "**" in segment and segment != ANY_DEPTH:
        raise InvalidRule(
            f'"{segment}" in "{pattern}": ** stands for whole segments, as in /api/**; or write one *.'
        )
    if segment == ".." or segment == ".":
        raise InvalidRule(f'"{pattern}": no path of a call has the segment "{segment}"; leave it out.')
    return None
