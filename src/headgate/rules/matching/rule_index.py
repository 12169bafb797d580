"""The index: of a thousand rules, the few that a call may concern.

A rule that must find one of a few texts in an attribute waits under each of them; under bot- if the text is bot-*,
under .com if it is *.com. A rule that must find a path waits in a tree of segments. Of all the tests by which it
could be placed it is placed by the one that fewest others share. A place where many still wait is an index again,
by what else they ask for. What cannot be placed, such as *x*, is always a candidate.

Law: whoever is not found would not have held; whoever is found passes the test that `passed` names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from headgate.rules.condition import Test
from headgate.rules.pattern import Glob, PathPattern, segments_match

MAX_UNINDEXED = 8  # that many are looked at faster than another index is

T = TypeVar("T")

SegmentGlobs = tuple[Glob | None, ...]
PathSegments = list[str] | None  # the segments of the call's path, if it has one
Affix = tuple[
    int | None, str
]  # so many letters, from the front or (below zero) from the end; None: the whole text
IndexKey = tuple[str, Affix]  # where an entry may wait: an attribute, and what is seen of it
AffixTables = list[tuple[slice, dict[str, list[T]]]]  # by how much of a text is seen


class IndexEntry:
    """An entry of a book, and the tests by which it may be placed."""

    __slots__ = ("number", "tests")

    def __init__(self, number: int, tests: Sequence[Test]) -> None:
        self.number: int = number
        self.tests: tuple[Test, ...] = tuple(test for test in tests if (spots := _spots(test)) and all(spots))


class RuleIndex:
    """Finds the entries that a call may concern."""

    __slots__ = ("_always", "_ends", "_tree", "_whole", "passed")

    def __init__(self, waiting: Sequence[IndexEntry]) -> None:
        crowds = Counter(spot for entry in waiting for test in entry.tests for spot in set().union(*_spots(test)))
        always: list[int] = []
        tables: dict[tuple[str, int | None], dict[str, list[IndexEntry]]] = {}
        tree = _Node()
        self.passed: dict[int, Test] = {}  # the test that needs no asking once an entry is found
        for entry in waiting:
            if not entry.tests:
                always.append(entry.number)
                continue
            test = min(entry.tests, key=lambda test: (_crowd(test, crowds), not test.patterns, not test.exact))
            rest = IndexEntry(entry.number, [other for other in entry.tests if other is not test])
            if test.patterns or test.exact:
                self.passed[entry.number] = test
            for pattern in test.patterns:
                tree.place(pattern, rest)
            for attribute, (cut, text) in _chosen(test, crowds) if test.globs else ():
                tables.setdefault((attribute, cut), {}).setdefault(text, []).append(rest)
        self._always = tuple(always)
        places = [
            (attribute, cut, {text: _settled(entries) for text, entries in table.items()})
            for (attribute, cut), table in tables.items()
        ]
        self._whole = [(attribute, table) for attribute, cut, table in places if cut is None]
        self._ends = [(attribute, _slice(cut), table) for attribute, cut, table in places if cut is not None]
        self._tree = tree.settled() if tree.used else None

    def find(self, attributes: Mapping[str, str], row: PathSegments, into: list[int]) -> None:
        """Puts the numbers of the candidates into the list: in no order, and by two patterns twice."""
        into += self._always
        for attribute, table in self._whole:
            place = table.get(attributes.get(attribute))  # type: ignore[arg-type]
            if place is None:
                continue
            if type(place) is tuple:
                into += place
            else:
                place.find(attributes, row, into)  # type: ignore[union-attr]
        for attribute, seen, table in self._ends:
            place = table.get(attributes.get(attribute, "")[seen])
            if place is not None:
                _arrive(place, attributes, row, into)
        if row is not None and self._tree is not None:
            _walk(self._tree, attributes, row, into)


Bucket = tuple[int, ...] | RuleIndex


class _Node:
    """Where the paths of one beginning meet: where they go on, who ends here, and who ends at any depth below."""

    __slots__ = ("below", "deep", "deeper", "either", "ends", "globs", "here", "literal", "near", "used")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.either: _Node | None = None  # any one segment
        self.globs: dict[str, tuple[Glob, _Node]] = {}
        self.near: AffixTables[tuple[Glob, _Node]] = []
        self.here: list[IndexEntry] = []
        self.ends: Bucket = ()
        self.deeper: dict[str, tuple[SegmentGlobs, list[IndexEntry]]] = {}  # by what they end with
        self.below: Bucket = ()  # they end with anything
        self.deep: AffixTables[tuple[SegmentGlobs, Bucket]] = []  # by the last segment
        self.used = False

    def place(self, pattern: PathPattern, entry: IndexEntry) -> None:
        self.used = True
        node = self
        for step in pattern.head:
            node = node._after(step)
        if pattern.tail is None:
            node.here.append(entry)
        else:
            name = "/".join("*" if step is None else step.text for step in pattern.tail)
            node.deeper.setdefault(name, (pattern.tail, []))[1].append(entry)

    def _after(self, step: Glob | None) -> _Node:
        if step is None:
            self.either = self.either or _Node()
            return self.either
        if step.exact is not None:
            return self.literal.setdefault(step.exact, _Node())
        return self.globs.setdefault(step.text, (step, _Node()))[1]

    def settled(self) -> _Node:
        self.ends = _settled(self.here)
        self.below = _settled(self.deeper.pop("", ((), []))[1])
        self.deep = _told_apart((tail[-1], (tail, _settled(entries))) for tail, entries in self.deeper.values())
        self.near = _told_apart((glob, (glob, node)) for glob, node in self.globs.values())
        below = [*self.literal.values(), *(node for _, node in self.globs.values())]
        for node in [*below, self.either] if self.either else below:
            node.settled()
        return self


def _walk(root: _Node, attributes: Mapping[str, str], row: list[str], into: list[int]) -> None:
    length = len(row)
    ways = [(root, 0)]
    while ways:
        found, depth = ways.pop()
        node: _Node | None = found
        while node is not None:
            if node.below:
                _arrive(node.below, attributes, row, into)
            if depth == length:
                if node.ends:
                    _arrive(node.ends, attributes, row, into)
                break
            if node.deep:
                for seen, tails in node.deep:
                    for tail, ends in tails.get(row[-1][seen], ()):
                        if length - depth >= len(tail) and segments_match(tail, row[length - len(tail) :]):
                            _arrive(ends, attributes, row, into)
            segment = row[depth]
            depth += 1
            if node.either is not None:
                ways.append((node.either, depth))
            if node.near:
                for seen, globs in node.near:
                    near = globs.get(segment[seen], ())
                    ways += [(below, depth) for glob, below in near if glob.matches(segment)]
            node = node.literal.get(segment)


def _arrive(place: Bucket, attributes: Mapping[str, str], row: PathSegments, into: list[int]) -> None:
    if type(place) is tuple:
        into += place
    else:
        place.find(attributes, row, into)  # type: ignore[union-attr]


def _settled(entries: list[IndexEntry]) -> Bucket:
    if len(entries) > MAX_UNINDEXED and sum(bool(entry.tests) for entry in entries) > MAX_UNINDEXED:
        return RuleIndex(entries)
    return tuple(entry.number for entry in entries)


def _told_apart(given: Iterable[tuple[Glob | None, T]]) -> AffixTables[T]:
    """What waits for globs, each under the end that fewest share; where there is none, under no letters at all."""
    waiting = [(_ends(glob) or [(0, "")], thing) for glob, thing in given]
    crowds = Counter(end for ends, _ in waiting for end in ends)
    tables: dict[int | None, dict[str, list[T]]] = {}
    for ends, thing in waiting:
        cut, text = min(ends, key=crowds.__getitem__)
        tables.setdefault(cut, {}).setdefault(text, []).append(thing)
    return [(_slice(cut), table) for cut, table in tables.items()]


def _spots(test: Test) -> list[list[IndexKey]]:
    """For each of its texts where it may wait, the best first; for a test that is none of texts, nothing."""
    shapes: list[list[IndexKey]] = [[("path", (None, _shape(pattern)))] for pattern in test.patterns]
    return shapes or [[(test.attribute, end) for end in _ends(glob)] for glob in test.globs]


def _chosen(test: Test, crowds: Counter[IndexKey]) -> set[IndexKey]:
    return {min(spots, key=crowds.__getitem__) for spots in _spots(test)}


def _crowd(test: Test, crowds: Counter[IndexKey]) -> int:
    return max(crowds[spot] for spot in _chosen(test, crowds))


def _ends(glob: Glob | None) -> list[Affix]:
    """What a text must begin or end with; all of it, if it stands for one text only."""
    if glob is None:
        return []
    if glob.last is None:
        return [(None, glob.first)]
    return [end for end in ((len(glob.first), glob.first), (-len(glob.last), glob.last)) if end[0]]


def _slice(cut: int | None) -> slice:
    return slice(cut, None) if cut is not None and cut < 0 else slice(cut)


def _shape(pattern: PathPattern) -> str:
    """Patterns of one shape stand for the same paths, whatever they call the segments."""
    steps = [*pattern.head, *(() if pattern.tail is None else ("**", *pattern.tail))]
    return "/".join(step if isinstance(step, str) else step.text if step else "*" for step in steps)
