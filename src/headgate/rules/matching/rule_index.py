"""Finds, among a thousand rules, the few that may apply to a call.

A rule that compares an attribute with a few texts is listed under each of these texts. The pattern bot-* is listed
under its prefix bot-, and *.com under its suffix .com. A rule with path patterns is listed in a tree of path
segments. If a rule can be listed by several of its tests, the index uses the test with the smallest bucket. A
bucket that is still large becomes a nested index over the remaining tests. A rule that cannot be listed, because
it has only patterns such as *x*, is always a candidate.

Law: if an entry is not found, its conditions do not hold; if it is found, it passes its test in `implied_tests`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from headgate.rules.condition import Test
from headgate.rules.pattern import Glob, PathPattern, segments_match

MAX_UNINDEXED = 8  # entries of a bucket; testing this many is faster than a nested index

T = TypeVar("T")

SegmentGlobs = tuple[Glob | None, ...]
PathSegments = list[str] | None  # the segments of the call's path, if it has one
Affix = tuple[int | None, str]  # a prefix, or (length below zero) a suffix; None: the whole text
IndexKey = tuple[str, Affix]  # an attribute, and the affix of its value under which an entry is listed
AffixTables = list[tuple[slice, dict[str, list[T]]]]  # one table for each length of an affix


class IndexEntry:
    """An entry of a rulebook, and the tests by which it can be listed."""

    __slots__ = ("number", "tests")

    def __init__(self, number: int, tests: Sequence[Test]) -> None:
        self.number: int = number
        self.tests: tuple[Test, ...] = tuple(test for test in tests if (keys := _index_keys(test)) and all(keys))


class RuleIndex:
    """Finds the entries that may apply to a call."""

    __slots__ = ("_affix_tables", "_always", "_exact_tables", "_tree", "implied_tests")

    def __init__(self, entries: Sequence[IndexEntry]) -> None:
        sizes = Counter(
            spot for entry in entries for test in entry.tests for spot in set().union(*_index_keys(test))
        )
        always: list[int] = []
        tables: dict[tuple[str, int | None], dict[str, list[IndexEntry]]] = {}
        tree = _PathNode()
        self.implied_tests: dict[int, Test] = {}  # the test that an entry passes if it is found
        for entry in entries:
            if not entry.tests:
                always.append(entry.number)
                continue
            test = min(
                entry.tests, key=lambda test: (_largest_bucket(test, sizes), not test.patterns, not test.exact)
            )
            remainder = IndexEntry(entry.number, [other for other in entry.tests if other is not test])
            if test.patterns or test.exact:
                self.implied_tests[entry.number] = test
            for pattern in test.patterns:
                tree.insert(pattern, remainder)
            for attribute, (length, text) in _smallest_keys(test, sizes) if test.globs else ():
                tables.setdefault((attribute, length), {}).setdefault(text, []).append(remainder)
        self._always = tuple(always)
        frozen = [
            (attribute, length, {text: _freeze(bucket_entries) for text, bucket_entries in table.items()})
            for (attribute, length), table in tables.items()
        ]
        self._exact_tables = [(attribute, table) for attribute, length, table in frozen if length is None]
        self._affix_tables = [
            (attribute, _affix_slice(length), table) for attribute, length, table in frozen if length is not None
        ]
        self._tree = tree.freeze() if tree.used else None

    def find(self, attributes: Mapping[str, str], path_segments: PathSegments, numbers: list[int]) -> None:
        """Adds the numbers of the candidates to the list, unordered; two matching patterns add a number twice."""
        numbers += self._always
        for attribute, table in self._exact_tables:
            bucket = table.get(attributes.get(attribute))  # type: ignore[arg-type]
            if bucket is None:
                continue
            if type(bucket) is tuple:
                numbers += bucket
            else:
                bucket.find(attributes, path_segments, numbers)  # type: ignore[union-attr]
        for attribute, cut, table in self._affix_tables:
            bucket = table.get(attributes.get(attribute, "")[cut])
            if bucket is not None:
                _collect(bucket, attributes, path_segments, numbers)
        if path_segments is not None and self._tree is not None:
            _walk(self._tree, attributes, path_segments, numbers)


Bucket = tuple[int, ...] | RuleIndex


class _PathNode:
    """A node of the path tree: its children, the patterns that end here, and those that end below (**)."""

    __slots__ = (
        "any_segment",
        "any_tail_bucket",
        "bucket",
        "entries",
        "glob_tables",
        "globs",
        "literal",
        "tail_tables",
        "tails",
        "used",
    )

    def __init__(self) -> None:
        self.literal: dict[str, _PathNode] = {}
        self.any_segment: _PathNode | None = None
        self.globs: dict[str, tuple[Glob, _PathNode]] = {}
        self.glob_tables: AffixTables[tuple[Glob, _PathNode]] = []
        self.entries: list[IndexEntry] = []
        self.bucket: Bucket = ()
        self.tails: dict[str, tuple[SegmentGlobs, list[IndexEntry]]] = {}  # by the pattern after **
        self.any_tail_bucket: Bucket = ()  # patterns that end with **
        self.tail_tables: AffixTables[tuple[SegmentGlobs, Bucket]] = []  # by an affix of the last segment
        self.used = False

    def insert(self, pattern: PathPattern, entry: IndexEntry) -> None:
        self.used = True
        node = self
        for step in pattern.head:
            node = node._child(step)
        if pattern.tail is None:
            node.entries.append(entry)
        else:
            name = "/".join("*" if step is None else step.text for step in pattern.tail)
            node.tails.setdefault(name, (pattern.tail, []))[1].append(entry)

    def _child(self, step: Glob | None) -> _PathNode:
        if step is None:
            self.any_segment = self.any_segment or _PathNode()
            return self.any_segment
        if step.exact is not None:
            return self.literal.setdefault(step.exact, _PathNode())
        return self.globs.setdefault(step.text, (step, _PathNode()))[1]

    def freeze(self) -> _PathNode:
        self.bucket = _freeze(self.entries)
        self.any_tail_bucket = _freeze(self.tails.pop("", ((), []))[1])
        self.tail_tables = _tables_by_affix(
            (tail[-1], (tail, _freeze(entries))) for tail, entries in self.tails.values()
        )
        self.glob_tables = _tables_by_affix((glob, (glob, node)) for glob, node in self.globs.values())
        children = [*self.literal.values(), *(node for _, node in self.globs.values())]
        for node in [*children, self.any_segment] if self.any_segment else children:
            node.freeze()
        return self


def _walk(root: _PathNode, attributes: Mapping[str, str], path_segments: list[str], numbers: list[int]) -> None:
    length = len(path_segments)
    pending = [(root, 0)]
    while pending:
        start, depth = pending.pop()
        node: _PathNode | None = start
        while node is not None:
            if node.any_tail_bucket:
                _collect(node.any_tail_bucket, attributes, path_segments, numbers)
            if depth == length:
                if node.bucket:
                    _collect(node.bucket, attributes, path_segments, numbers)
                break
            if node.tail_tables:
                for cut, tails in node.tail_tables:
                    for tail, bucket in tails.get(path_segments[-1][cut], ()):
                        if length - depth >= len(tail) and segments_match(
                            tail, path_segments[length - len(tail) :]
                        ):
                            _collect(bucket, attributes, path_segments, numbers)
            segment = path_segments[depth]
            depth += 1
            if node.any_segment is not None:
                pending.append((node.any_segment, depth))
            if node.glob_tables:
                for cut, globs in node.glob_tables:
                    candidates = globs.get(segment[cut], ())
                    pending += [(child, depth) for glob, child in candidates if glob.matches(segment)]
            node = node.literal.get(segment)


def _collect(
    bucket: Bucket, attributes: Mapping[str, str], path_segments: PathSegments, numbers: list[int]
) -> None:
    if type(bucket) is tuple:
        numbers += bucket
    else:
        bucket.find(attributes, path_segments, numbers)  # type: ignore[union-attr]


def _freeze(entries: list[IndexEntry]) -> Bucket:
    if len(entries) > MAX_UNINDEXED and sum(bool(entry.tests) for entry in entries) > MAX_UNINDEXED:
        return RuleIndex(entries)
    return tuple(entry.number for entry in entries)


def _tables_by_affix(globs: Iterable[tuple[Glob | None, T]]) -> AffixTables[T]:
    """Lists each glob under the affix that the fewest others share; under the empty text if it has none."""
    by_affixes = [(_affixes(glob) or [(0, "")], item) for glob, item in globs]
    sizes = Counter(affix for affixes, _ in by_affixes for affix in affixes)
    tables: dict[int | None, dict[str, list[T]]] = {}
    for affixes, item in by_affixes:
        length, text = min(affixes, key=sizes.__getitem__)
        tables.setdefault(length, {}).setdefault(text, []).append(item)
    return [(_affix_slice(length), table) for length, table in tables.items()]


def _index_keys(test: Test) -> list[list[IndexKey]]:
    """Returns the keys under which each text of a test can be listed; nothing for a test of presence."""
    shapes: list[list[IndexKey]] = [[("path", (None, _shape(pattern)))] for pattern in test.patterns]
    return shapes or [[(test.attribute, affix) for affix in _affixes(glob)] for glob in test.globs]


def _smallest_keys(test: Test, sizes: Counter[IndexKey]) -> set[IndexKey]:
    return {min(keys, key=sizes.__getitem__) for keys in _index_keys(test)}


def _largest_bucket(test: Test, sizes: Counter[IndexKey]) -> int:
    return max(sizes[key] for key in _smallest_keys(test, sizes))


def _affixes(glob: Glob | None) -> list[Affix]:
    """Returns the prefix and suffix that a matching text must have; the whole text if there are no wildcards."""
    if glob is None:
        return []
    if glob.suffix is None:
        return [(None, glob.prefix)]
    return [affix for affix in ((len(glob.prefix), glob.prefix), (-len(glob.suffix), glob.suffix)) if affix[0]]


def _affix_slice(length: int | None) -> slice:
    return slice(length, None) if length is not None and length < 0 else slice(length)


def _shape(pattern: PathPattern) -> str:
    """Returns the pattern without its capture names: patterns of one shape match the same paths."""
    segments = [*pattern.head, *(() if pattern.tail is None else ("**", *pattern.tail))]
    return "/".join(
        segment if isinstance(segment, str) else segment.text if segment else "*" for segment in segments
    )
