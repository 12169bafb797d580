"""Patterns: path templates, and globs for all other texts. No regular expressions, here and in nginx alike.

A path is a list of segments; empty ones do not count, so /api//items/ is /api/items. Patterns match

    /api/items      that path
    /items/{sku}    any one segment there, and capture it as sku
    /img/*.png      one segment there with that ending; * matches any text without a slash
    /api/**         any number of segments there, also none; once in a pattern

In a glob, * matches any text, also none. Both are case-sensitive, unless the caller folds the case.

Law: matching takes at most time proportional to the length of the pattern times that of the text.
"""

from __future__ import annotations

import re

from headgate.errors import InvalidRule
from headgate.rules.attributes import STANDARD_ATTRIBUTES, segments

ANY_DEPTH = "**"

_capture = re.compile(r"\{([a-z][a-z0-9_]*)\}")


class Glob:
    """A text in which * matches any text."""

    __slots__ = ("infixes", "prefix", "suffix", "text")

    def __init__(self, text: str) -> None:
        if not text:
            raise InvalidRule("An empty text counts as absent: write false for an attribute that is not there.")
        self.text: str = text
        prefix, *others = text.split("*")
        self.prefix: str = prefix
        self.suffix: str | None = others.pop() if others else None
        self.infixes: list[str] = [part for part in others if part]

    @property
    def exact(self) -> str | None:
        """Returns the only text that it matches, or None if there are several."""
        return self.prefix if self.suffix is None else None

    def matches(self, text: str) -> bool:
        if self.suffix is None:
            return text == self.prefix
        if not text.startswith(self.prefix) or not text.endswith(self.suffix):
            return False
        start, end = len(self.prefix), len(text) - len(self.suffix)
        for infix in self.infixes:  # the leftmost match of each leaves the most text for the others
            start = text.find(infix, start, end)
            if start < 0:
                return False
            start += len(infix)
        return start <= end


class PathPattern:
    """A path template with captures and wildcards.

    `head` are the segments before **, `tail` those after it; without ** the tail is None, and the path is as long
    as the head. `captures` maps each name to its index: from the front, or after ** from the end (-1 is the last).
    """

    __slots__ = ("captures", "head", "tail", "text")

    def __init__(self, text: str) -> None:
        if not text.startswith("/"):
            raise InvalidRule(f'"{text}" is no path: a path begins with a slash, such as "/{text}".')
        path_segments = segments(text)
        if path_segments.count(ANY_DEPTH) > 1:
            raise InvalidRule(f'"{text}" has ** twice: once is enough for any depth.')
        self.text: str = text
        wildcard_index = path_segments.index(ANY_DEPTH) if ANY_DEPTH in path_segments else len(path_segments)
        self.captures: dict[str, int] = {}
        for index, segment in enumerate(path_segments):
            name = _capture_name(text, segment)
            if name in self.captures:
                raise InvalidRule(f'"{text}" has two segments called {name}: give each a name of its own.')
            if name is not None:
                self.captures[name] = index if index < wildcard_index else index - len(path_segments)
        globs = [
            None if _capture.fullmatch(segment) or segment == "*" else Glob(segment) for segment in path_segments
        ]
        self.head: tuple[Glob | None, ...] = tuple(globs[:wildcard_index])
        self.tail: tuple[Glob | None, ...] | None = (
            tuple(globs[wildcard_index + 1 :]) if ANY_DEPTH in path_segments else None
        )

    @property
    def literal(self) -> str | None:
        """Returns the path before **, or None if it has captures or wildcards."""
        texts = [None if glob is None else glob.exact for glob in self.head]
        return None if None in texts else "/" + "/".join(texts)  # type: ignore[arg-type]

    def match(self, path: list[str]) -> dict[str, str] | None:
        """Returns the captured segments, or None if the path does not match."""
        if not self.matches_segments(path):
            return None
        return {name: path[index] for name, index in self.captures.items()}

    def matches_segments(self, path: list[str]) -> bool:
        """Returns whether a path, as segments, matches."""
        if self.tail is None:
            return len(path) == len(self.head) and segments_match(self.head, path)
        if len(path) < len(self.head) + len(self.tail):
            return False
        return segments_match(self.head, path) and segments_match(self.tail, path[len(path) - len(self.tail) :])


def segments_match(globs: tuple[Glob | None, ...], path: list[str]) -> bool:
    """Returns whether each glob matches its segment; None matches any. There must be enough segments."""
    return all(glob is None or glob.matches(path[index]) for index, glob in enumerate(globs))


def _capture_name(pattern: str, segment: str) -> str | None:
    capture = _capture.fullmatch(segment)
    if capture is not None:
        if capture[1] in STANDARD_ATTRIBUTES:
            raise InvalidRule(
                f'"{pattern}": {capture[1]} is the name of something else of the call; take another, such as '
                f"{{the_{capture[1]}}}."
            )
        return capture[1]
    if "{" in segment or "}" in segment:
        raise InvalidRule(
            f'"{segment}" in "{pattern}": a capture is a whole segment, in small letters, such as {{sku}}.'
        )
    if "**" in segment and segment != ANY_DEPTH:
        raise InvalidRule(f'"{segment}" in "{pattern}": ** matches whole segments, as in /api/**; or write one *.')
    if segment == ".." or segment == ".":
        raise InvalidRule(f'"{pattern}": no path of a call has the segment "{segment}"; leave it out.')
    return None
