"""Counts: an observer that counts decisions by rule, in seconds for two minutes and in minutes for 25 hours.

    counts = Counts()
    limiter = Limiter.from_rules("rules.yaml", observers=[counts])
    counts.last(seconds=60)["login"].refused            by rule: the last minute
    counts.series("login", minutes=30)                  one DecisionCounts for each minute, the oldest first
    counts.totals()                                     by rule: since this object was made

A limiter without rules is counted under its name, or under the text of its limit. Calls that no rule applied to,
and calls that could not be decided, are counted under NO_RULE.

How it stays cheap: a decision appends its key to a list that belongs to the rule and to what was decided.
Appending is atomic, so no call waits for a lock. When the list has BATCH_SIZE keys, when the second ends, and
before anybody reads, the list is emptied: its length is the count, and its keys go to the estimates of hot and
distinct keys.

At most `max_rules` names are counted apart; what comes later is counted together, under OTHER_RULES.

Laws (tests/telemetry/test_counts.py):
  - each decision is counted once for each rule that decided it, whatever the number of threads;
  - a second's counts are readable for 120 s, a minute's for 25 hours, whatever the clock does meanwhile;
  - the memory is bounded by max_rules, not by keys or time;
  - a forked child starts with no counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any, Final

from headgate.algorithms.decision import (
    ALLOWED,
    DELAY_US,
    REMAINING,
    CachedOutcome,
    Decision,
    DegradedOutcome,
    JointDecision,
    Outcome,
    PrefetchedOutcome,
)
from headgate.clock import Clock, check_clock, nanoseconds
from headgate.engines.fork_reset import on_fork
from headgate.errors import InvalidRule
from headgate.observer import Observer
from headgate.telemetry.decision_counts import FIELDS, NO_RULE, OTHER_RULES, DecisionCounts
from headgate.telemetry.time_rings import CountRing

SECONDS_KEPT: Final = 120
MINUTES_KEPT: Final = 25 * 60
BATCH_SIZE: Final = 2048  # keys that a list holds before it is emptied
MAX_METERS: Final = 4096  # meters whose rule is remembered: rulebooks come and go
NEAR_LIMIT_SHARE: Final = 5  # an allowed call is near the limit if less than a fifth is left

_NS: Final = 1_000_000_000
_COLUMN: Final = {field: column for column, field in enumerate(FIELDS)}

# The counts that a verdict raises, such as ("allowed", "delayed").
CountedAs = tuple[str, ...]


class Counts(Observer):
    """Counts the decisions of one or more limiters by rule. Thread-safe.

    clock      reads the time; the machine's unless given
    max_rules  how many rules are counted apart

    >>> counts = Counts()
    >>> limiter = Limiter("2/minute", name="login", observers=[counts])
    >>> [limiter.take("ann").allowed for _ in range(3)]
    [True, True, False]
    >>> counts.last(seconds=60)["login"].calls, counts.totals()["login"].refused
    (3, 1)
    """

    def __init__(self, *, clock: Clock | None = None, max_rules: int = 256) -> None:
        if type(max_rules) is not int or max_rules < 1:
            raise InvalidRule(f"max_rules is a whole number of at least 1, not {max_rules!r}.")
        self._now_ns = nanoseconds(check_clock(clock))
        self._max_rules = max_rules
        self._start_empty()
        on_fork(self._start_empty)

    def _start_empty(self) -> None:
        """Forgets all counts: a forked child counts its own calls only."""
        self._lock = Lock()
        self._rules: dict[str, _CountedRule] = {}
        self._meters: dict[Any, _CountedMeter] = {}
        self._start_ns = self._now_ns() // _NS * _NS  # of the second that is being counted
        self._end_ns = self._start_ns + _NS

    # The observer: called for every decision.

    def decided(self, decision: Decision, latency_us: int, response_follows: bool) -> None:
        """Counts a decision."""
        if not self._start_ns <= self._now_ns() < self._end_ns:
            self._begin_second()
        if decision.__class__ is Decision:
            self._count(decision.source, (None, None), decision.key, decision.outcome)
            return
        if decision.__class__ is JointDecision:
            self._count_joint(decision)
            return
        by_rules: Any = decision  # a RuleDecision; its module is not needed here
        labels = by_rules.labels
        if len(labels) == 1 and not by_rules.denied_matches:
            meter, key, _ = by_rules.charges[0]
            self._count(meter, labels[0], key, by_rules.outcomes[0])
        else:
            self._count_several(by_rules)

    def failed(self, error: Exception, latency_us: int) -> None:
        """Counts a call that could not be decided."""
        self._counted_rule(NO_RULE).keys_counted_as(("errors",)).append("")

    def _count(self, meter: Any, label: tuple[str | None, str | None], key: str, outcome: Outcome | None) -> None:
        """Counts the verdict of a rule that made one charge."""
        counted = self._meters.get(meter)
        if counted is None:
            counted = self._add_meter(meter, label)
        if outcome is None:  # not decided, because another rule had refused already
            return
        if outcome.__class__ is not tuple or outcome[DELAY_US]:
            keys = counted.keys_of(outcome)
        elif not outcome[ALLOWED]:
            keys = counted.refused
        else:
            keys = counted.allowed if outcome[REMAINING] >= counted.near_limit else counted.near
        keys.append(key)
        if len(keys) >= BATCH_SIZE:
            self._empty(counted.rule)

    def _count_several(self, decision: Any) -> None:
        """Counts a decision of several charges: one verdict for each rule, by the charge that decides it."""
        for _, match in decision.denied_matches:
            verdict = "shadow_refused" if match.shadow else "refused"
            self._counted_rule(match.rule.name).keys_counted_as((verdict,)).append(match.key)
        decisive: dict[tuple[str, str | None], tuple[Any, str, Outcome]] = {}
        for label, (meter, key, _), outcome in zip(
            decision.labels, decision.charges, decision.outcomes, strict=True
        ):
            if outcome is not None and (label not in decisive or _outweighs(outcome, decisive[label][2])):
                decisive[label] = meter, key, outcome
        for label, (meter, key, outcome) in decisive.items():
            self._count(meter, label, key, outcome)
        if not decision.labels and not decision.denied_matches:
            self._counted_rule(NO_RULE).keys_counted_as(("allowed",)).append("")

    def _count_joint(self, decision: Decision) -> None:
        """Counts a decision of several limits without rules: one verdict for each name."""
        decisive: dict[str, Decision] = {}
        for part in decision.counter_decisions:
            name = _limiter_name(part.source)
            if name not in decisive or _outweighs(part.outcome, decisive[name].outcome):
                decisive[name] = part
        for part in decisive.values():
            self._count(part.source, (None, None), part.key, part.outcome)

    # Filling and emptying the lists.

    def _add_meter(self, meter: Any, label: tuple[str | None, str | None]) -> _CountedMeter:
        """Remembers which rule a meter belongs to."""
        rule, shadow_kind = label
        counted_rule = self._counted_rule(_limiter_name(meter) if rule is None else rule)
        counted = _CountedMeter(counted_rule, shadow_kind, meter.limit.quota)
        with self._lock:
            if len(self._meters) >= MAX_METERS:
                self._meters.clear()
            self._meters[meter] = counted
        return counted

    def _counted_rule(self, name: str) -> _CountedRule:
        counted = self._rules.get(name)
        if counted is None:
            with self._lock:
                if name not in self._rules and len(self._rules) >= self._max_rules and name != NO_RULE:
                    name = OTHER_RULES
                counted = self._rules.setdefault(name, _CountedRule())
        return counted

    def _empty(self, rule: _CountedRule) -> None:
        with self._lock:
            rule.empty()

    def _begin_second(self) -> None:
        """Files the counts of the second that has ended."""
        with self._lock:
            self._file_counts()
            self._start_ns = self._now_ns() // _NS * _NS
            self._end_ns = self._start_ns + _NS

    def _file_counts(self) -> None:
        second = self._start_ns // _NS
        for rule in self._rules.values():
            rule.empty()
            rule.file_counts(second)

    # Reading.

    def last(self, *, seconds: int | None = None, minutes: int | None = None) -> dict[str, DecisionCounts]:
        """Returns the counts of each rule over the last seconds (at most 120) or minutes (at most 1500), of which
        the last is the current one; rules without any are left out.

        >>> Counts().last(minutes=5)
        {}
        """
        first, last, unit = self._units(seconds, minutes)
        with self._lock:
            self._file_counts()
            sums = {name: rule.ring(unit).sum(first, last) for name, rule in self._rules.items()}
        return {name: counts for name, counts in sums.items() if any(counts)}

    def series(self, rule: str, *, seconds: int | None = None, minutes: int | None = None) -> list[DecisionCounts]:
        """Returns the counts of one rule in each of the last seconds or minutes, the oldest first.

        >>> counts = Counts(clock=ManualClock())
        >>> limiter = Limiter("2/minute", name="login", observers=[counts])
        >>> limiter.take("ann").allowed
        True
        >>> [each.allowed for each in counts.series("login", seconds=3)]
        [0, 0, 1]
        """
        first, last, unit = self._units(seconds, minutes)
        with self._lock:
            self._file_counts()
            counted = self._rules.get(rule) or _CountedRule()
            return counted.ring(unit).rows(first, last)

    def totals(self) -> dict[str, DecisionCounts]:
        """Returns the counts of each rule since this object was made.

        >>> Counts().totals()
        {}
        """
        with self._lock:
            self._file_counts()
            return {name: DecisionCounts(*rule.total) for name, rule in self._rules.items()}

    def _units(self, seconds: int | None, minutes: int | None) -> tuple[int, int, str]:
        """Returns the first and last second or minute of a span, and which of the two."""
        unit, number, kept = check_span(seconds, minutes)
        if not self._start_ns <= self._now_ns() < self._end_ns:
            self._begin_second()
        last = self._start_ns // _NS // (60 if unit == "minutes" else 1)
        return last - min(number, kept) + 1, last, unit


def check_span(seconds: int | None, minutes: int | None) -> tuple[str, int, int]:
    """Returns which unit a span has, how many of them, and how many are kept; raises InvalidRule."""
    given = [("seconds", seconds, SECONDS_KEPT), ("minutes", minutes, MINUTES_KEPT)]
    chosen = [(unit, number, kept) for unit, number, kept in given if number is not None]
    if len(chosen) != 1 or type(chosen[0][1]) is not int or chosen[0][1] < 1:
        raise InvalidRule("A span is given by seconds= (1 to 120) or by minutes= (1 to 1500).")
    return chosen[0]


class _CountedRule:
    """The counts of one rule, and the keys that are not yet counted."""

    __slots__ = ("_current", "_minutes", "_seconds", "keys", "total")

    def __init__(self) -> None:
        self.keys: dict[CountedAs, list[str]] = {}
        self.total: list[int] = [0] * len(FIELDS)
        self._current: list[int] = [0] * len(FIELDS)  # of this second
        self._seconds = CountRing(SECONDS_KEPT)
        self._minutes = CountRing(MINUTES_KEPT)

    def keys_counted_as(self, fields: CountedAs) -> list[str]:
        """Returns the list of keys that raises these counts. It is emptied in place, and never replaced."""
        keys = self.keys.get(fields)
        return self.keys.setdefault(fields, []) if keys is None else keys

    def empty(self) -> None:
        """Counts the keys in all lists. Calls may append meanwhile: they are counted now or next time."""
        for fields, keys in [*self.keys.items()]:
            number = len(keys)
            if number:
                del keys[:number]
                for field in fields:
                    self._current[_COLUMN[field]] += number

    def file_counts(self, second: int) -> None:
        """Moves the counts of a second to the rings and the total."""
        if any(self._current):
            self._seconds.add(second, self._current)
            self._minutes.add(second // 60, self._current)
            self.total = [*map(int.__add__, self.total, self._current)]
            self._current = [0] * len(FIELDS)

    def ring(self, unit: str) -> CountRing:
        return self._minutes if unit == "minutes" else self._seconds


class _CountedMeter:
    """The lists of the rule that a meter belongs to."""

    __slots__ = ("_shadow_kind", "allowed", "near", "near_limit", "refused", "rule")

    def __init__(self, rule: _CountedRule, shadow_kind: str | None, quota: int) -> None:
        self.rule = rule
        self._shadow_kind = shadow_kind
        verdict = "" if shadow_kind is None else f"{shadow_kind}_"
        self.near_limit: int = -(-quota // NEAR_LIMIT_SHARE)
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
        yield "allowed" if outcome[ALLOWED] else "refused"
        if outcome[ALLOWED] and outcome[DELAY_US]:
            yield "delayed"
        if outcome[ALLOWED] and outcome[REMAINING] < self.near_limit:
            yield "near_limit"


def _layers(outcome: Outcome) -> CountedAs:
    """Returns the count of the layer that decided; none for the engine."""
    if isinstance(outcome, CachedOutcome):
        return ("by_denial_cache",)
    if isinstance(outcome, PrefetchedOutcome):
        return ("by_prefetch",)
    return ("by_fallback",) if isinstance(outcome, DegradedOutcome) else ()


def _outweighs(outcome: Outcome, other: Outcome) -> bool:
    """Whether a charge decides its rule rather than the other: a refusal, or the longer delay."""
    return (not outcome[ALLOWED], outcome[DELAY_US]) > (not other[ALLOWED], other[DELAY_US])


def _limiter_name(meter: Any) -> str:
    """Returns the name of a limiter without rules. Several limits of one limiter are name#0, name#1."""
    name: str = meter.name
    base, mark, position = name.rpartition("#")
    return base if mark and position.isdigit() else name
