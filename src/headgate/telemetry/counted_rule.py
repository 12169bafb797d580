"""The counts of one rule inside Counts: keys that are not yet counted, the rings, and what is to be shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from headgate.algorithms.decision import (
    ALLOWED,
    DELAY_US,
    REMAINING,
    AdaptiveOutcome,
    CachedOutcome,
    DegradedOutcome,
    Outcome,
    PrefetchedOutcome,
    ShedOutcome,
)
from headgate.algorithms.limit import Limit
from headgate.telemetry.decision_counts import FIELDS, DecisionCounts
from headgate.telemetry.key_estimates import KeyEstimates, UnsharedKeys
from headgate.telemetry.time_rings import CountRing

SECONDS_KEPT: Final = 120
MINUTES_KEPT: Final = 25 * 60
NEAR_LIMIT_SHARE: Final = 5  # an allowed call is near the limit if less than a fifth is left

_COLUMN: Final = {field: column for column, field in enumerate(FIELDS)}

# The counts that a verdict raises, such as ("allowed", "delayed").
CountedAs = tuple[str, ...]


class UnsharedRule(NamedTuple):
    """The counts of one rule that are not yet written to Redis."""

    rule: str
    seconds: dict[int, DecisionCounts]
    minutes: dict[int, DecisionCounts]
    keys: UnsharedKeys


class CountedRule:
    """The counts of one rule, and the keys that are not yet counted."""

    __slots__ = (
        "_current",
        "_minutes",
        "_seconds",
        "_unshared_minutes",
        "_unshared_seconds",
        "estimates",
        "keys",
        "shared",
        "total",
    )

    def __init__(self, shared: bool) -> None:
        self.shared: bool = shared
        self._unshared_seconds: dict[int, DecisionCounts] = {}
        self._unshared_minutes: dict[int, DecisionCounts] = {}
        self.estimates: KeyEstimates = KeyEstimates(shared)
        self.keys: dict[CountedAs, list[str]] = {}
        self.total: list[int] = [0] * len(FIELDS)
        self._current: list[int] = [0] * len(FIELDS)  # of this second
        self._seconds = CountRing(SECONDS_KEPT)
        self._minutes = CountRing(MINUTES_KEPT)

    def keys_counted_as(self, fields: CountedAs) -> list[str]:
        """Returns the list of keys that raises these counts. It is emptied in place, and never replaced."""
        keys = self.keys.get(fields)
        return self.keys.setdefault(fields, []) if keys is None else keys

    def empty(self, second: int) -> None:
        """Counts the keys in all lists. Calls may append meanwhile: they are counted now or next time."""
        for fields, keys in [*self.keys.items()]:
            number = len(keys)
            if number:
                batch = keys[:number]
                del keys[:number]
                for field in fields:
                    self._current[_COLUMN[field]] += number
                if batch[0]:  # a key is never empty; calls without a rule have none
                    self.estimates.add(second, fields[0], batch)

    def file_counts(self, second: int) -> None:
        """Moves the counts of a second to the rings and the total."""
        if any(self._current):
            self._seconds.add(second, self._current)
            self._minutes.add(second // 60, self._current)
            self.total = [*map(int.__add__, self.total, self._current)]
            if self.shared:
                _add_to(self._unshared_seconds, second, self._current, SECONDS_KEPT)
                _add_to(self._unshared_minutes, second // 60, self._current, MINUTES_KEPT)
            self._current = [0] * len(FIELDS)

    def take_unshared(self, name: str, at_once: bool) -> UnsharedRule:
        """Returns what is to be shared, and begins anew."""
        unshared = UnsharedRule(
            name, self._unshared_seconds, self._unshared_minutes, self.estimates.take_unshared(at_once)
        )
        self._unshared_seconds, self._unshared_minutes = {}, {}
        return unshared

    def ring(self, unit: str) -> CountRing:
        return self._minutes if unit == "minutes" else self._seconds


class CountedMeter:
    """The lists of the rule that a meter belongs to; and what is left, if the rule counts all calls together."""

    __slots__ = (
        "_shadow_kind",
        "allowed",
        "is_global",
        "limit",
        "live_rule",
        "near",
        "near_limit",
        "refused",
        "remaining",
        "rule",
    )

    def __init__(
        self, rule: CountedRule, name: str | None, shadow_kind: str | None, limit: Limit, is_global: bool
    ) -> None:
        self.rule: CountedRule = rule
        self.live_rule: str | None = name if shadow_kind is None else None
        self.limit: Limit = limit
        self.is_global: bool = is_global and self.live_rule is not None
        self.remaining: int | None = None
        self._shadow_kind = shadow_kind
        verdict = "" if shadow_kind is None else f"{shadow_kind}_"
        self.near_limit: int = -(-limit.quota // NEAR_LIMIT_SHARE)
        self.allowed: list[str] = rule.keys_counted_as((f"{verdict}allowed",))
        self.refused: list[str] = rule.keys_counted_as((f"{verdict}refused",))
        near_fields = ("allowed", "near_limit") if shadow_kind is None else (f"{verdict}allowed",)
        self.near: list[str] = rule.keys_counted_as(near_fields)

    def keys_of(self, outcome: Outcome) -> list[str]:
        """Returns the list for an outcome that a layer decided, or that is delayed."""
        if self._shadow_kind is not None:
            return self.allowed if outcome[ALLOWED] else self.refused
        return self.rule.keys_counted_as((*self._verdict(outcome), *_layers(outcome)))

    def _verdict(self, outcome: Outcome) -> Iterator[str]:
        if isinstance(outcome, ShedOutcome):
            yield "shed"
            return
        yield "allowed" if outcome[ALLOWED] else "refused"
        if outcome[ALLOWED] and outcome[DELAY_US]:
            yield "delayed"
        if outcome[ALLOWED] and outcome[REMAINING] < self._near_limit_of(outcome):
            yield "near_limit"

    def _near_limit_of(self, outcome: Outcome) -> int:
        """Returns below how many units left a call is near the limit; that of an adaptive limit moves."""
        if not isinstance(outcome, AdaptiveOutcome):
            return self.near_limit
        limit: Any = self.limit  # an AdaptiveLimit
        return -(-int(limit.units_at(outcome.current)) // NEAR_LIMIT_SHARE)


def _add_to(unshared: dict[int, DecisionCounts], unit: int, counts: Sequence[int], kept: int) -> None:
    """Adds counts that are to be shared, and drops those that are too old to be read."""
    unshared[unit] = unshared.get(unit, DecisionCounts()).plus(counts)
    if len(unshared) > kept:
        for each in [each for each in unshared if not unit - kept < each <= unit]:
            del unshared[each]


def _layers(outcome: Outcome) -> CountedAs:
    """Returns the count of the layer that decided; none for the engine."""
    if isinstance(outcome, CachedOutcome):
        return ("by_denial_cache",)
    if isinstance(outcome, PrefetchedOutcome):
        return ("by_prefetch",)
    return ("by_fallback",) if isinstance(outcome, DegradedOutcome) else ()


def outweighs(outcome: Outcome, other: Outcome) -> bool:
    """Returns whether a charge decides its rule rather than the other: a refusal, or the longer delay."""
    return (not outcome[ALLOWED], outcome[DELAY_US]) > (not other[ALLOWED], other[DELAY_US])


def limiter_name(meter: Any) -> str:
    """Returns the name of a limiter without rules. Several limits of one limiter are name#0, name#1."""
    name: str = meter.name
    base, mark, position = name.rpartition("#")
    return base if mark and position.isdigit() else name
