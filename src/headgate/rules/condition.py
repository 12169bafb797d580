"""Conditions: tests on a call's attributes, joined by all, any and not.

    Test("method", ("GET", "HEAD"))     equals one of these
    Test("header.x-plan", True)         is present and not empty
    All, AnyOf, Not                     of other conditions

The attribute decides how a text is compared: `path` with path patterns, `address` with networks, `method` and
`host` without case, everything else with globs. Captured path segments are visible to the tests beside and below
the path test, and to all other fields of the rule. Of the patterns of one test the first that matches captures, of
`any` the first part that holds; `not` captures nothing.

Laws: conditions are values; attributes come in normal form (attributes.py); an absent or empty attribute passes no
test but False; and `bind` is None exactly where `holds` is False.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.errors import InvalidRule
from headgate.rules.attributes import ascii_lower, ascii_upper, segments
from headgate.rules.ip_networks import Networks
from headgate.rules.pattern import Glob, PathPattern

Attributes = Mapping[str, str]
Predicate = Callable[[Attributes], bool]


@dataclass(frozen=True, slots=True)
class Test:
    """A test of one attribute: it matches one of some texts, is present (True) or absent (False)."""

    __test__ = False  # keeps pytest from collecting it

    attribute: str
    expected: tuple[str, ...] | bool
    patterns: tuple[PathPattern, ...] = field(init=False, compare=False, repr=False, default=())
    globs: tuple[Glob, ...] = field(init=False, compare=False, repr=False, default=())
    exact: frozenset[str] | None = field(init=False, compare=False, repr=False, default=None)
    holds: Predicate = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.expected, bool):
            self._set("holds", _presence_predicate(self.attribute, self.expected))
        elif not self.expected:
            raise InvalidRule(f"{self.attribute} is compared with an empty list: write what it may be, or false.")
        elif self.attribute == "path":
            patterns = tuple(PathPattern(text) for text in self.expected)
            self._set("patterns", patterns)
            self._set("holds", _path_predicate(patterns))
        elif self.attribute == "address":
            networks = Networks(self.expected)
            self._set("holds", lambda attributes: attributes.get("address", "") in networks)
        else:
            globs = tuple(Glob(_CASE_FOLDING.get(self.attribute, str)(text)) for text in self.expected)
            self._set("globs", globs)
            exact = frozenset(glob.prefix for glob in globs if glob.exact is not None)
            self._set(
                "holds", _text_predicate(self.attribute, exact, [glob for glob in globs if glob.exact is None])
            )
            if all(glob.exact is not None for glob in globs):
                self._set("exact", exact)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Test, (self.attribute, self.expected)

    @property
    def captures(self) -> frozenset[str]:
        """Returns the names that its patterns may capture."""
        return frozenset(name for pattern in self.patterns for name in pattern.captures)

    def bind(self, attributes: Attributes) -> Attributes | None:
        """Returns the attributes together with the captured segments; None if the test does not hold."""
        if not self.captures:
            return attributes if self.holds(attributes) else None
        path = segments(attributes.get("path", ""))
        for pattern in self.patterns if attributes.get("path") else ():
            captured = pattern.match(path)
            if captured is not None:
                return {**attributes, **captured}
        return None

    def __str__(self) -> str:
        return self.describe("is")

    def describe(self, verb: str) -> str:
        if isinstance(self.expected, bool):
            return f"{self.attribute} is {'present' if self.expected is (verb == 'is') else 'absent'}"
        return f"{self.attribute} {verb} {' or '.join(self.expected)}"


@dataclass(frozen=True, slots=True)
class All:
    """Holds if every part holds; without parts, always."""

    parts: tuple[Condition, ...]

    @property
    def captures(self) -> frozenset[str]:
        return frozenset().union(*(part.captures for part in self.parts))

    @property
    def in_order(self) -> list[Condition]:
        """Returns the parts, nested All flattened. Those that capture come first, so that the others see it."""
        return sorted(_flatten(self), key=lambda part: not part.captures)

    def holds(self, attributes: Attributes) -> bool:
        return self.bind(attributes) is not None

    def bind(self, attributes: Attributes) -> Attributes | None:
        for part in self.in_order:
            attributes_after = part.bind(attributes)
            if attributes_after is None:
                return None
            attributes = attributes_after
        return attributes

    def __str__(self) -> str:
        return " and ".join(_parenthesized(part) for part in self.parts) or "always"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds if at least one part holds; without parts, never."""

    parts: tuple[Condition, ...]

    @property
    def captures(self) -> frozenset[str]:
        return frozenset().union(*(part.captures for part in self.parts))

    def holds(self, attributes: Attributes) -> bool:
        return any(part.holds(attributes) for part in self.parts)

    def bind(self, attributes: Attributes) -> Attributes | None:
        for part in self.parts:
            attributes_after = part.bind(attributes)
            if attributes_after is not None:
                return attributes_after
        return None

    def __str__(self) -> str:
        return " or ".join(_parenthesized(part) for part in self.parts) or "never"


@dataclass(frozen=True, slots=True)
class Not:
    """Holds if its part does not. It captures nothing."""

    part: Condition

    @property
    def captures(self) -> frozenset[str]:
        return frozenset()

    def holds(self, attributes: Attributes) -> bool:
        return not self.part.holds(attributes)

    def bind(self, attributes: Attributes) -> Attributes | None:
        return None if self.part.holds(attributes) else attributes

    def __str__(self) -> str:
        if isinstance(self.part, Test):
            return self.part.describe("is not")
        return f"not ({self.part})"


Condition = Test | All | AnyOf | Not

_CASE_FOLDING: dict[str, Callable[[str], str]] = {"method": ascii_upper, "host": ascii_lower}


def _flatten(condition: Condition) -> list[Condition]:
    if isinstance(condition, All):
        return [inner for part in condition.parts for inner in _flatten(part)]
    return [condition]


def _parenthesized(part: Condition) -> str:
    """Puts parentheses around a part where the text would be ambiguous."""
    return f"({part})" if isinstance(part, All | AnyOf) and len(part.parts) > 1 else str(part)


def _presence_predicate(attribute: str, present: bool) -> Predicate:
    if present:
        return lambda attributes: bool(attributes.get(attribute))
    return lambda attributes: not attributes.get(attribute)


def _path_predicate(patterns: tuple[PathPattern, ...]) -> Predicate:
    """Compiles path patterns. Most are a literal path or a prefix: those need no segments."""
    exact = frozenset(pattern.literal for pattern in patterns if pattern.tail is None)
    prefixes = tuple(
        f"{pattern.literal}/".replace("//", "/") for pattern in patterns if pattern.literal and pattern.tail == ()
    )
    other_patterns = [pattern for pattern in patterns if pattern.literal is None or pattern.tail]

    def holds(attributes: Attributes) -> bool:
        path = attributes.get("path")
        if not path:
            return False
        if path in exact or f"{path}/".startswith(prefixes):
            return True
        return bool(other_patterns) and any(
            pattern.matches_segments(path_segments)
            for path_segments in (segments(path),)
            for pattern in other_patterns
        )

    return holds


def _text_predicate(attribute: str, exact: frozenset[str], globs: list[Glob]) -> Predicate:
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
