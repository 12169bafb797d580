"""Scans the counters: how many each rule has, and which keys use most of their limit.

The busiest key uses the largest share of its limit. The limit is the rule's, if there is a rulebook. For counters
without a rule it is their name, which is a limit's text unless another name was given. Keys whose limit is unknown
come after all others, those that expire last first: nothing more is known of them.

A scan takes long and needs much CPU, so it is not a flow: it blocks, and an event loop runs it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from heapq import nlargest
from itertools import islice
from typing import Any, NamedTuple, Protocol

from headgate.algorithms.decision import REMAINING, RESET_AFTER_US, Outcome, OverriddenOutcome
from headgate.algorithms.limit import SECOND, Limit
from headgate.algorithms.slots import Slots
from headgate.enforcement.call_plan import limit_cases
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.memory.key_scan import MemoryKeyScan
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse
from headgate.operations.find_counters import counters_of_limits, missing_attributes
from headgate.rules.attributes import Attributes
from headgate.rules.find_rule import NoSuchRule, find_rule, parse_key
from headgate.rules.rule import Limits, Rule, Rulebook

SCAN_LIMIT = 100_000  # counters that are scanned by default
BATCH_SIZE = 1000  # counters that are peeked at in one go


class ScannedKey(Protocol):
    """One counter, as a scan yields it."""

    @property
    def algorithm(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def ttl_ms(self) -> int | None: ...
    @property
    def size(self) -> int | None: ...
    @property
    def is_readable(self) -> bool: ...


class KeyUsage(NamedTuple):
    """One counter, with its limit and its outcome if the limit is known."""

    scanned: ScannedKey
    limit: Limit | None = None
    outcome: Outcome | None = None

    @property
    def used(self) -> int | None:
        return None if self.limit is None or self.outcome is None else self.limit.units_in_use(self.outcome)

    @property
    def share(self) -> float | None:
        return None if self.limit is None or self.used is None else self.used / self.limit.units_at_once

    @property
    def order(self) -> tuple[float, int]:
        return (-1.0 if self.share is None else self.share, self.scanned.ttl_ms or 0)

    @property
    def capacity(self) -> int | None:
        return None if self.limit is None else self.limit.units_at_once


class CounterTally:
    """The number of counters under one name, and their size."""

    def __init__(self) -> None:
        self.counts = self.bytes = 0


class PausedKey(NamedTuple):
    """A key that is paused, under the name of its limiter, and for how many microseconds still."""

    name: str
    key: str
    left_us: int


class UsageReport(NamedTuple):
    """The result of a scan. `complete`: no counter was left out. `pauses`: the longest first."""

    tallies: dict[str, CounterTally]
    busiest: list[KeyUsage]
    complete: bool
    pauses: list[PausedKey]

    @property
    def names(self) -> list[str]:
        """The names, those with the most counters first."""
        return sorted(self.tallies, key=lambda name: (-self.tallies[name].counts, name))

    @property
    def counts(self) -> int:
        return sum(tally.counts for tally in self.tallies.values())

    def document(self) -> dict[str, Any]:
        tallies = [(name, self.tallies[name]) for name in self.names]
        return {
            "counts": self.counts,
            "complete": self.complete,
            "rules": [{"name": name, "counts": tally.counts, "bytes": tally.bytes} for name, tally in tallies],
            "keys": [_document(usage) for usage in self.busiest],
            "pauses": [
                {"name": name, "key": key, "paused_for": left_us / SECOND} for name, key, left_us in self.pauses
            ],
        }


class KeyScan(Protocol):
    """A scan of the counters. Setting `stopped`, from any thread, ends it soon."""

    stopped: bool
    pauses: list[tuple[str, str, int]]

    def __iter__(self) -> Iterator[Any]: ...
    def peek(self, counts: Any) -> list[Outcome | None]: ...
    def close(self) -> None: ...


def scan_keys(engine: Any, rule: str | None, max_keys: int = SCAN_LIMIT) -> KeyScan:
    """Opens a scan of the counters of a rule, or of all; it ends after `max_keys`."""
    if isinstance(engine, MemoryEngine):
        return MemoryKeyScan(engine, rule or "", max_keys)
    from headgate.engines.redis.key_scan import RedisKeyScan

    return RedisKeyScan(engine, rule or "", max_keys)


def report_usage(engine: Any, scan: KeyScan, book: Rulebook | None, rule: str | None, top: int) -> UsageReport:
    """Runs a scan, and reports the `top` busiest keys."""
    try:
        tallies: dict[str, CounterTally] = {}
        usages = _usages(scan, _keys_of_rule(rule, scan, tallies), book)
        busiest = [
            _with_override(engine, usage, book) for usage in nlargest(top, usages, key=lambda usage: usage.order)
        ]
    finally:
        scan.close()
    paused = (PausedKey(*each) for each in scan.pauses if rule is None or each[0] == rule)
    pauses = nlargest(top, paused, key=lambda paused: paused.left_us)
    return UsageReport(tallies, busiest, not scan.stopped, pauses)


def check_rule(report: UsageReport, book: Rulebook | None, rule: str | None) -> None:
    """Raises NoSuchRule if there are neither counters of this name nor such a rule. Counters of a rule that was
    removed exist until they expire, and those of a plain limit belong to no rule."""
    if rule is None or book is None or report.counts or not report.complete:
        return
    try:
        find_rule(book, _split_name(rule)[0])
    except NoSuchRule as error:
        raise NoSuchRule(f"{error} Nothing is counted under that name either.") from None


def _keys_of_rule(
    rule: str | None, scan: Iterable[ScannedKey], tallies: dict[str, CounterTally]
) -> Iterator[ScannedKey]:
    """Yields the counters of the rule, and adds each to its tally."""
    for scanned in scan:
        if rule is None or scanned.name == rule or _split_name(scanned.name)[0] == rule:
            tally = tallies.setdefault(scanned.name, CounterTally())
            tally.counts += 1
            tally.bytes += scanned.size or 0
            yield scanned


def _usages(scan: KeyScan, scanned_keys: Iterable[ScannedKey], book: Rulebook | None) -> Iterator[KeyUsage]:
    """Adds the limit and the outcome to each counter, BATCH_SIZE at a time."""
    scanned_keys = iter(scanned_keys)
    while batch := [(scanned, _limit(scanned, book)) for scanned in islice(scanned_keys, BATCH_SIZE)]:
        limited = [(scanned, limit) for scanned, limit in batch if limit is not None]
        yield from (KeyUsage(scanned) for scanned, limit in batch if limit is None)
        for (scanned, limit), outcome in zip(limited, scan.peek(limited), strict=True):
            yield KeyUsage(scanned, limit, outcome)


def _split_name(name: str) -> tuple[str, bool, int, str]:
    """Splits a counter's name: the rule, whether it is the candidate's, the position of the limit, the case."""
    base, _, case = name.partition("@")
    rule_part, _, position = base.partition("#")
    return rule_part.removesuffix("~"), rule_part.endswith("~"), int(position) if position.isdecimal() else 0, case


def _limits_of_case(rule: Rule, candidate: bool, case: str, key: str) -> Limits:
    """Returns the limits that decide counters of this name; none if that is not known."""
    matching = [limits for case_name, limits in limit_cases(rule, candidate) if case_name == case]
    if len(matching) <= 1:
        return matching[0] if matching else ()
    choice, attributes = rule.candidate if candidate else rule.limit, _key_attributes(rule, key)
    return () if choice is None or missing_attributes(choice, attributes) else choice.choose(attributes)


def _limit(scanned: ScannedKey, book: Rulebook | None) -> Limit | None:
    name, candidate, position, case = _split_name(scanned.name)
    rule = None if book is None else book.rule(name)
    if rule is None:
        limit = _parse_name(scanned.name)
        return limit if limit is not None and limit.algorithm == scanned.algorithm else None
    limits = _limits_of_case(rule, candidate, case, scanned.key)
    fits = position < len(limits) and limits[position].algorithm == scanned.algorithm
    return limits[position] if fits else None


def _key_attributes(rule: Rule, key: str) -> Attributes:
    """Returns the attributes in the key; none if the key is hashed or has an older form."""
    try:
        return parse_key(rule, key)
    except InvalidRule:
        return Attributes()


@lru_cache(maxsize=1024)
def _parse_name(name: str) -> Limit | None:
    try:
        return parse(name)
    except InvalidRule:
        return None


def _is_rate(limit: Limit | None) -> bool:
    return limit is not None and not isinstance(limit, Slots)


def _with_override(engine: Any, usage: KeyUsage, book: Rulebook | None) -> KeyUsage:
    """Peeks at a key again that may have an override: only at keys that are shown."""
    scanned, limit, outcome = usage
    name, candidate, position, case = _split_name(scanned.name)
    rule = None if book is None else book.rule(name)
    if rule is None or candidate or not rule.overrides or not scanned.is_readable or not _is_rate(limit):
        return usage
    counters = counters_of_limits(rule, _limits_of_case(rule, candidate, case, scanned.key))
    charges = [
        (engine.meter(counter.limit, counter.name, counter.options), scanned.key, 0) for counter in counters
    ]
    outcome = engine.decide_all(charges, commit=False)[
        position
    ]  # overrides go by position, so all of the rule's limits are needed
    return KeyUsage(scanned, outcome.limit if isinstance(outcome, OverriddenOutcome) else limit, outcome)


def _document(usage: KeyUsage) -> dict[str, object]:
    scanned, limit, outcome = usage
    return {
        "name": scanned.name,
        "key": scanned.key,
        "algorithm": scanned.algorithm,
        "limit": None if limit is None else limit.text,
        "used": usage.used,
        "of": usage.capacity,
        "remaining": None if outcome is None else outcome[REMAINING],
        "reset_after": None if outcome is None else outcome[RESET_AFTER_US] / SECOND,
        "expires_after": None if scanned.ttl_ms is None else scanned.ttl_ms / 1000,
        "bytes": scanned.size,
    }
