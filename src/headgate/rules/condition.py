"""Conditions: tests on a call's attributes, joined by all, any and not.

    Test("method", ("GET", "HEAD"))     one of these
    Test("header.x-plan", True)         is there, and is not empty
    All, AnyOf, Not                     of other conditions

How a text is meant depends on the attribute: a path pattern for `path`, a network for `address`, without case for
`method` and `host`, a glob for everything else. What a path captures is seen by the tests beside it and below it,
and by all that the rule says afterwards: of the patterns of one test the first that fits captures, of `any` the
first part that holds, and under `not` nothing is captured.

Laws: conditions are values; attributes come in normal form (attributes.py); an absent or empty attribute passes no
test but False; and `bound` is None exactly where `holds` is False.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.errors import InvalidRule
from headgate.rules.attributes import lower, segments, upper
from headgate.rules.ip_networks import Networks
from headgate.rules.pattern import Glob, PathPattern

Attributes = Mapping[str, str]
Predicate = Callable[[Attributes], bool]


@dataclass(frozen=True, slots=True)
class Test:
    """One attribute, and what it must be: one of some texts, present (True) or absent (False)."""

    __test__ = False  # pytest would collect it by its name

    attribute: str
    wanted: tuple[str, ...] | bool
    patterns: tuple[PathPattern, ...] = field(init=False, compare=False, repr=False, default=())
    globs: tuple[Glob, ...] = field(init=False, compare=False, repr=False, default=())
    exact: frozenset[str] | None = field(init=False, compare=False, repr=False, default=None)
    holds: Predicate = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.wanted, bool):
            self._set("holds", _presence(self.attribute, self.wanted))
        elif not self.wanted:
            raise InvalidRule(f"{self.attribute} is compared with an empty list: write what it may be, or false.")
        elif self.attribute == "path":
            patterns = tuple(PathPattern(text) for text in self.wanted)
            self._set("patterns", patterns)
            self._set("holds", _path(patterns))
        elif self.attribute == "address":
            networks = Networks(self.wanted)
            self._set("holds", lambda attributes: attributes.get("address", "") in networks)
        else:
            globs = tuple(Glob(_FOLDS.get(self.attribute, str)(text)) for text in self.wanted)
            self._set("globs", globs)
            exact = frozenset(glob.first for glob in globs if glob.exact is not None)
            self._set("holds", _texts(self.attribute, exact, [glob for glob in globs if glob.exact is None]))
            if all(glob.exact is not None for glob in globs):
                self._set("exact", exact)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Test, (self.attribute, self.wanted)

    @property
    def captures(self) -> frozenset[str]:
        """The names that it may give to parts of the path."""
        return frozenset(name for pattern in self.patterns for name in pattern.captures)

    def bound(self, attributes: Attributes) -> Attributes | None:
        """The attributes, with what is captured laid over them; None if it does not hold."""
        if not self.captures:
            return attributes if self.holds(attributes) else None
        path = segments(attributes.get("path", ""))
        for pattern in self.patterns if attributes.get("path") else ():
            captured = pattern.match(path)
            if captured is not None:
                return {**attributes, **captured}
        return None

    def __str__(self) -> str:
        return self.told("is")

    def told(self, verb: str) -> str:
        if isinstance(self.wanted, bool):
            return f"{self.attribute} is {'present' if self.wanted is (verb == 'is') else 'absent'}"
        return f"{self.attribute} {verb} {' or '.join(self.wanted)}"


@dataclass(frozen=True, slots=True)
class All:
    """Every part must hold; none at all always does."""

    parts: tuple[Condition, ...]

    @property
    def captures(self) -> frozenset[str]:
        return frozenset().union(*(part.captures for part in self.parts))

    @property
    def in_order(self) -> list[Condition]:
        """Its parts, and those of every All among them. What captures comes first, so that the others see it."""
        return sorted(_flat(self), key=lambda part: not part.captures)

    def holds(self, attributes: Attributes) -> bool:
        return self.bound(attributes) is not None

    def bound(self, attributes: Attributes) -> Attributes | None:
        for part in self.in_order:
            after = part.bound(attributes)
            if after is None:
                return None
            attributes = after
        return attributes

    def __str__(self) -> str:
        return " and ".join(_inside(part) for part in self.parts) or "always"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of its parts must hold; of none at all none does."""

    parts: tuple[Condition, ...]

    @property
    def captures(self) -> frozenset[str]:
        return frozenset().union(*(part.captures for part in self.parts))

    def holds(self, attributes: Attributes) -> bool:
        return any(part.holds(attributes) for part in self.parts)

    def bound(self, attributes: Attributes) -> Attributes | None:
        for part in self.parts:
            after = part.bound(attributes)
            if after is not None:
                return after
        return None

    def __str__(self) -> str:
        return " or ".join(_inside(part) for part in self.parts) or "never"


@dataclass(frozen=True, slots=True)
class Not:
    """Its part must not hold. It captures nothing: what was not there has no name."""

    part: Condition

    @property
    def captures(self) -> frozenset[str]:
        return frozenset()

    def holds(self, attributes: Attributes) -> bool:
        return not self.part.holds(attributes)

    def bound(self, attributes: Attributes) -> Attributes | None:
        return None if self.part.holds(attributes) else attributes

    def __str__(self) -> str:
        if isinstance(self.part, Test):
            return self.part.told("is not")
        return f"not ({self.part})"


Condition = Test | All | AnyOf | Not

_FOLDS: dict[str, Callable[[str], str]] = {"method": upper, "host": lower}


def _flat(condition: Condition) -> list[Condition]:
    if isinstance(condition, All):
        return [inner for part in condition.parts for inner in _flat(part)]
    return [condition]


def _inside(part: Condition) -> str:
    """In brackets where it would run together with its neighbours."""
    return f"({part})" if isinstance(part, All | AnyOf) and len(part.parts) > 1 else str(part)


def _presence(attribute: str, wanted: bool) -> Predicate:
    if wanted:
        return lambda attributes: bool(attributes.get(attribute))
    return lambda attributes: not attributes.get(attribute)


def _path(patterns: tuple[PathPattern, ...]) -> Predicate:
    """Most patterns are a path, or all that begins with one: those need no segments."""
    exact = frozenset(pattern.literal for pattern in patterns if pattern.tail is None)
    below = tuple(
        f"{pattern.literal}/".replace("//", "/") for pattern in patterns if pattern.literal and pattern.tail == ()
    )
    others = [pattern for pattern in patterns if pattern.literal is None or pattern.tail]

    def holds(attributes: Attributes) -> bool:
        path = attributes.get("path")
        if not path:
            return False
        if path in exact or f"{path}/".startswith(below):
            return True
        return bool(others) and any(pattern.fits(row) for row in (segments(path),) for pattern in others)

    return holds


def _texts(attribute: str, exact: frozenset[str], globs: list[Glob]) -> Predicate:
    if not globs:
        return lambda attributes: attributes.get(attribute) in exact
    if len(globs) == 1 and not exact:
        matches = globs[0].matches
        return lambda attributes: (
            (value := attributes.get(attribute)) is not None and value != "" and matches(value)
        )

    def holds(attributes: Attributes) -> bool:
        value = attributes.get(attribute)
        if not value:
            return False
        return value in exact or any(glob.matches(value) for glob in globs)

    return holds
