"""A rule: a named limit, when it applies, and how its key is formed. A rulebook: all of them.

Both are values: the loader makes them once, nothing changes them, and a new rulebook replaces the old one as a
whole. This file has the fields of a rule; match.py applies a rule to a call, load.py reads it.

Order and precedence. Every rule whose `when` holds and whose `except` does not applies to the call, wherever it is
in the book, and all that apply are decided together: the call passes all of them or is charged to none. So order
never decides whether a call passes. It decides two things only: verdicts are reported in the order of the book,
and of two rules with the same retry time the first one is named. A rule that `replaces` others removes them where
it is enforced itself: in mode enforce for this key, with a key that could be formed. A rule that was replaced
replaces nothing. Within a rule, the first case that holds is taken, and `otherwise` if none does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar, get_args

from headgate.adaptive.adaptive_limit import AdaptiveLimit
from headgate.algorithms.limit import Limit
from headgate.algorithms.lockout import Lockout
from headgate.errors import InvalidRulebook
from headgate.rules.condition import Condition, Test
from headgate.rules.keys import Dimension

T = TypeVar("T")

Limits = tuple[Limit, ...]  # decided together; none at all: unlimited
Missing = Literal["skip", "deny", "one"]
Where = Literal["cluster", "node", "split"]
Fallback = Literal["allow", "deny", "local"]
Headers = Literal["draft-11", "legacy", "envoy", "spring", "off"]

MISSING: tuple[Missing, ...] = get_args(Missing)
WHERE: tuple[Where, ...] = get_args(Where)
FALLBACKS: tuple[Fallback, ...] = get_args(Fallback)
HEADERS: tuple[Headers, ...] = get_args(Headers)

ENFORCE, SHADOW, OFF = "enforce", "shadow", "off"
MODES = (ENFORCE, SHADOW, OFF)


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value, or one of several chosen by an attribute: the first case that holds."""

    otherwise: T
    cases: tuple[tuple[Test, T], ...] = ()

    def choose(self, attributes: Mapping[str, str]) -> T:
        for test, value in self.cases:
            if test.holds(attributes):
                return value
        return self.otherwise


@dataclass(frozen=True, slots=True)
class Modes:
    """The shares of keys, in hundredths of a percent, that a rule enforces or shadows; it is off for the rest."""

    enforce: int = 10_000
    shadow: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The HTTP response to a call that the rule refuses."""

    status: int = 429
    body: str | None = None
    type: str | None = None
    redirect: str | None = None


OVERLOAD_REFUSAL: Final = Refusal(503)  # of an adaptive limit, unless its rule says otherwise


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Units of a hot key that are fetched ahead: how long they are held, and how many at most."""

    hold_us: int
    units: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named limit, when it applies, and how its key is formed. docs/reference/rulebook.md has every field.

    >>> [rule] = Limiter.from_rules(RULES).rulebook.rules
    >>> rule.name, rule.missing
    ('login', 'deny')
    """

    name: str
    limit: Choice[Limits]
    label: str | None = None  # the name that Envoy receives instead
    when: Condition | None = None  # None: always
    unless: Condition | None = None  # `except` in the rulebook
    key: tuple[Dimension, ...] = ()  # empty: one counter for all calls
    missing: Missing = "deny"
    cost: Choice[int | str] | None = None  # a number, or the attribute that holds it; None: the caller's cost
    mode: Modes = Modes()
    quota_mode: bool = False  # of several such rules in one Envoy request, one that allows is enough
    candidate: Choice[Limits] | None = None
    refuse: Refusal = Refusal()
    replaces: tuple[str, ...] = ()
    where: Where = "cluster"
    nodes: int | None = None  # of `split`, if configured
    prefetch: Prefetch | None = None
    fallback: Fallback | None = None
    deadline: float | None = None  # seconds
    initial_share: int = 0  # of the limit, in hundredths of a percent
    lockout: Lockout | None = None
    overrides: bool = False
    max_pause_us: int | None = None  # the longest pause of a key; None: keys cannot be paused
    line: int | None = field(default=None, compare=False)  # its line in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Rulebook:
    """A named list of rules, with the settings of the whole book.

    >>> [rule.name for rule in Limiter.from_rules(RULES).rulebook.rules]
    ['login']
    """

    rules: tuple[Rule, ...] = ()
    name: str | None = None
    headers: Headers = "draft-11"
    attributes: tuple[str, ...] | None = None  # that the caller supplies, if the book lists them
    source: str | None = field(default=None, compare=False)  # its file, for messages
    text: str | None = field(default=None, compare=False)  # the original text
    version: int | None = field(default=None, compare=False)  # its number, if it was published
    warnings: tuple[tuple[int | None, str], ...] = field(default=(), compare=False)  # line and message of each

    def rule(self, name: str) -> Rule | None:
        """Finds a rule by its name; None if there is none.

        >>> Rulebook().rule("login") is None
        True
        """
        return next((rule for rule in self.rules if rule.name == name), None)

    @property
    def located_warnings(self) -> tuple[str, ...]:
        """Returns the warnings, each with its file and line."""
        return InvalidRulebook(self.warnings, self.source).messages if self.warnings else ()

    def strict(self) -> Rulebook:
        """Returns the book itself; raises InvalidRulebook if there are warnings.

        >>> Limiter.from_rules(RULES).rulebook.strict().warnings
        ()
        """
        if self.warnings:
            raise InvalidRulebook(self.warnings, self.source)
        return self

    def __len__(self) -> int:
        return len(self.rules)


def adaptive_limit_of(rule: Rule) -> AdaptiveLimit | None:
    """Returns the adaptive limit of a rule, that of its least important class; None if it has another limit."""
    limits = rule.limit.otherwise
    return limits[0] if len(limits) == 1 and isinstance(limits[0], AdaptiveLimit) else None
