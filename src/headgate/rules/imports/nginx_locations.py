"""Writes the location that nginx chooses for a call as a condition.

nginx chooses a server by its names, and in it one location: an exact one, or the longest prefix, or (unless that
prefix has ^~) the first regular expression that matches. A location has the limits that it states, or else those
of the block around it; never both. A rule here applies wherever its condition holds, so a limit that some
locations have and others do not becomes a condition that excludes the others:

    location /api           has it          {path: /api*/**, not: {path: /api/public/**}}
    location /api/public/   has it not

Law (tests/rules/imports/test_nginx_locations.py): for any prefix and exact locations, the condition of a set of
them holds for a path if and only if nginx chooses a location of the set for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headgate.rules.attributes import segments
from headgate.rules.pattern import PathPattern

Condition = dict[str, Any]

_exact = re.compile(r"\^(/[\w/-]*)\$")
_prefix = re.compile(r"\^(/[\w/-]*)")
_ending = re.compile(r"\\\.(?:(\w+)|\((?:\?:)?([\w|]+)\))\$")


@dataclass(eq=False, slots=True)
class Location:
    """A location; or the rest of a server that has no location /."""

    path: str
    exact: bool = False
    skips_regex: bool = False  # exact or ^~: regular expressions do not take precedence
    limits: frozenset[Any] = frozenset()
    inner: list[Location] = field(default_factory=list)

    @property
    def pattern(self) -> str:
        if self.exact:
            return self.path
        return f"{self.path}**" if self.path.endswith("/") else f"{self.path}*/**"


@dataclass(eq=False, slots=True)
class RegexLocation:
    """A location by a regular expression that has equivalent patterns."""

    patterns: list[str]
    limits: frozenset[Any]


HasLimit = Callable[[Location | RegexLocation], bool]


def regex_patterns(expression: str) -> list[str] | None:
    """Returns the path patterns of a simple regular expression; None if it has no equivalent."""
    if match := _exact.fullmatch(expression):
        return [match[1]]
    if match := _prefix.fullmatch(expression):
        return [Location(match[1]).pattern]
    if match := _ending.fullmatch(expression):
        return [f"/**/*.{ending}" for ending in (match[1] or match[2]).split("|") if ending]
    return None


def nest_locations(locations: list[Location], default: Location) -> Location:
    """Nests locations by prefix, and returns the root: location /, or `default` if there is none."""
    root = next((location for location in locations if location.path == "/" and not location.exact), default)
    for location in locations:
        if location is not root:
            enclosing = [other for other in locations if _within(location, other)]
            max(enclosing, key=lambda other: len(other.path), default=root).inner.append(location)
    return root


def location_conditions(root: Location, expressions: list[RegexLocation], has_limit: HasLimit) -> list[Condition]:
    """Returns conditions of which one holds for each path whose location has the limit; an empty one always holds.

    Paths that a regular expression takes from locations that differ from it are handled separately: it takes all
    but those of locations that skip regular expressions.
    """
    differing = [
        regex
        for regex in expressions
        if any(not p.skips_regex and has_limit(p) != has_limit(regex) for p in _with_nested(root))
    ]
    diverted = [pattern for regex in differing for pattern in regex.patterns]
    outermost = _outermost(root, has_limit)
    alternatives = [
        _condition(
            location,
            [
                *_regions(location, has_limit),
                *([{"path": diverted}] if diverted and not _all_skip_regex(location) else []),
            ],
        )
        for location in outermost
    ]
    for regex in differing:
        has_limit_by_regex = partial(_has_limit_by_regex, has_limit, regex)
        for location in _outermost(root, has_limit_by_regex):
            if not (_all_skip_regex(location) and location in outermost):
                alternatives += [
                    _path_and(text, _region(location, has_limit_by_regex))
                    for text in regex.patterns
                    if _may_match(text, location)
                ]
    return [{}] if {} in alternatives else alternatives


def _has_limit_by_regex(
    has_limit: HasLimit, expression: RegexLocation, location: Location | RegexLocation
) -> bool:
    """Returns whether the location has the limit for paths that the regular expression matches."""
    return has_limit(location if isinstance(location, Location) and location.skips_regex else expression)


def _all_skip_regex(location: Location) -> bool:
    return all(nested.skips_regex for nested in _with_nested(location))


def _may_match(pattern: str, location: Location) -> bool:
    """Returns whether some path of the location may match this pattern; True for every prefix."""
    return not location.exact or PathPattern(pattern).matches_segments(segments(location.path))


def _path_and(pattern: str, condition: Condition) -> Condition:
    return {"all": [{"path": pattern}, condition]} if "path" in condition else {"path": pattern, **condition}


def all_limits(root: Location) -> list[frozenset[Any]]:
    """Returns the limits of every location."""
    return [location.limits for location in _with_nested(root)]


def _with_nested(location: Location) -> list[Location]:
    return [location, *(nested for inner in location.inner for nested in _with_nested(inner))]


def _outermost(root: Location, has_limit: HasLimit) -> list[Location]:
    """Returns the outermost locations that have the limit."""
    return [root] if has_limit(root) else _opposite_locations(root, has_limit)


def _region(location: Location, has_limit: HasLimit) -> Condition:
    """Returns the condition under which the location, or a nested one that is like it, is chosen."""
    return _condition(location, _regions(location, has_limit))


def _regions(location: Location, has_limit: HasLimit) -> list[Condition]:
    return [_region(other, has_limit) for other in _opposite_locations(location, has_limit)]


def _opposite_locations(location: Location, has_limit: HasLimit) -> list[Location]:
    """Returns the outermost nested locations that differ from this one."""
    opposite = []
    for inner in location.inner:
        if has_limit(inner) is has_limit(location):
            opposite += _opposite_locations(inner, has_limit)
        else:
            opposite.append(inner)
    return opposite


def _condition(location: Location, unless: list[Condition]) -> Condition:
    path = {} if location.pattern == "/**" else {"path": location.pattern}
    return {**path, "not": any_of(unless)} if unless else path


def any_of(conditions: list[Condition]) -> Any:
    """Returns the shortest form of a condition of which one alternative must hold."""
    simple = [condition["path"] for condition in conditions if set(condition) == {"path"}]
    paths = [path for condition in simple for path in (condition if isinstance(condition, list) else [condition])]
    other_conditions = [condition for condition in conditions if set(condition) != {"path"}]
    joined = [{"path": paths if len(paths) > 1 else paths[0]}, *other_conditions] if paths else other_conditions
    return joined[0] if len(joined) == 1 else joined


def _within(location: Location, other: Location) -> bool:
    if location is other or other.exact:
        return False
    if location.exact:  # a trailing slash does not count
        return f"{location.path.rstrip('/')}/".startswith(other.path)
    return len(location.path) > len(other.path) and location.path.startswith(other.path)
