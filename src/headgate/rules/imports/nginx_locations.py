"""Where a call ends up in nginx, and what that is as a condition.

A server is chosen by its names, and in it one location: an exact one, or the longest prefix, or (unless that
prefix says ^~) the first regular expression that matches. A place has the limits that it states, or else those of
the level around it; never both. A rule of ours applies wherever its condition holds, so a limit that some places
have and others have not becomes a condition that leaves the others out:

    location /api      has it         {path: /api*/**, not: {path: /api/public/**}}
    location /api/public/   has not

Law (tests/rules/imports/test_nginx_locations.py): for any prefix and exact locations, the condition of a set of
them holds for a path just if nginx's choice for that path is one of the set.
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
    """A location, or for a server without a location / the rest of it."""

    path: str
    exact: bool = False
    firm: bool = False  # regular expressions do not come before it
    limits: frozenset[Any] = frozenset()
    inner: list[Location] = field(default_factory=list)

    @property
    def pattern(self) -> str:
        if self.exact:
            return self.path
        return f"{self.path}**" if self.path.endswith("/") else f"{self.path}*/**"


@dataclass(eq=False, slots=True)
class RegexLocation:
    """A location by a regular expression that can be said in patterns."""

    patterns: list[str]
    limits: frozenset[Any]


HasLimit = Callable[[Location | RegexLocation], bool]


def regex_patterns(expression: str) -> list[str] | None:
    """The paths that a simple regular expression means; None if it is not one of the few that can be said."""
    if found := _exact.fullmatch(expression):
        return [found[1]]
    if found := _prefix.fullmatch(expression):
        return [Location(found[1]).pattern]
    if found := _ending.fullmatch(expression):
        return [f"/**/*.{ending}" for ending in (found[1] or found[2]).split("|") if ending]
    return None


def nest_locations(places: list[Location], rest: Location) -> Location:
    """The places by what lies within what; `rest` is what no location is for."""
    root = next((place for place in places if place.path == "/" and not place.exact), rest)
    for place in places:
        if place is not root:
            around = [other for other in places if _within(place, other)]
            max(around, key=lambda other: len(other.path), default=root).inner.append(place)
    return root


def location_conditions(root: Location, expressions: list[RegexLocation], has: HasLimit) -> list[Condition]:
    """Conditions of which one holds for every path whose place has it; an empty one always holds.

    Paths that an expression takes away from places of the other kind are looked at apart: what it takes is all but
    what a firm place keeps.
    """
    apart = [one for one in expressions if any(not p.firm and has(p) != has(one) for p in _all(root))]
    away = [pattern for one in apart for pattern in one.patterns]
    tops = _tops(root, has)
    found = [
        _condition(place, [*_regions(place, has), *([{"path": away}] if away and not _keeps_all(place) else [])])
        for place in tops
    ]
    for one in apart:
        taken = partial(_taken, has, one)
        for place in _tops(root, taken):
            if not (_keeps_all(place) and place in tops):
                found += [_both(text, _region(place, taken)) for text in one.patterns if _may_be(text, place)]
    return [{}] if {} in found else found


def _taken(has: HasLimit, expression: RegexLocation, place: Location | RegexLocation) -> bool:
    """Whether the place has it for paths that the expression matches."""
    return has(place if isinstance(place, Location) and place.firm else expression)


def _keeps_all(place: Location) -> bool:
    return all(one.firm for one in _all(place))


def _may_be(pattern: str, place: Location) -> bool:
    """Whether some path of the place has this pattern; of a prefix it is not asked."""
    return not place.exact or PathPattern(pattern).fits(segments(place.path))


def _both(pattern: str, condition: Condition) -> Condition:
    return {"all": [{"path": pattern}, condition]} if "path" in condition else {"path": pattern, **condition}


def all_limits(root: Location) -> list[frozenset[Any]]:
    """The limits of every place."""
    return [place.limits for place in _all(root)]


def _all(place: Location) -> list[Location]:
    return [place, *(one for inner in place.inner for one in _all(inner))]


def _tops(root: Location, has: HasLimit) -> list[Location]:
    """The outermost places that have it."""
    return [root] if has(root) else _others(root, has)


def _region(place: Location, has: HasLimit) -> Condition:
    """Where the place and those inside which are like it are chosen."""
    return _condition(place, _regions(place, has))


def _regions(place: Location, has: HasLimit) -> list[Condition]:
    return [_region(other, has) for other in _others(place, has)]


def _others(place: Location, has: HasLimit) -> list[Location]:
    """The places inside which are of the other kind, not looking into those."""
    found = []
    for inner in place.inner:
        if has(inner) is has(place):
            found += _others(inner, has)
        else:
            found.append(inner)
    return found


def _condition(place: Location, unless: list[Condition]) -> Condition:
    path = {} if place.pattern == "/**" else {"path": place.pattern}
    return {**path, "not": any_of(unless)} if unless else path


def any_of(conditions: list[Condition]) -> Any:
    """One of several conditions, as short as it can be written."""
    simple = [one["path"] for one in conditions if set(one) == {"path"}]
    paths = [path for one in simple for path in (one if isinstance(one, list) else [one])]
    rest = [one for one in conditions if set(one) != {"path"}]
    joined = [{"path": paths if len(paths) > 1 else paths[0]}, *rest] if paths else rest
    return joined[0] if len(joined) == 1 else joined


def _within(place: Location, other: Location) -> bool:
    if place is other or other.exact:
        return False
    if place.exact:  # a slash at its end does not count
        return f"{place.path.rstrip('/')}/".startswith(other.path)
    return len(place.path) > len(other.path) and place.path.startswith(other.path)
