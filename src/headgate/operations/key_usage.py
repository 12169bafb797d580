"""What is counted, by rule, and whose counts are fullest.

Busiest means: the most used of its limit. The limit is the rule's, if a rulebook is known, and for counts
without a rule it is their name, which is a limit's text unless somebody gave another one. Where no limit is
known, those that expire last come first, after all others: more cannot be told from outside.

A walk takes long and works hard, so it is not a flow: it blocks, and an event loop has it done in a thread.
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
from headgate.enforcement.call_plan import cases_of
from headgate.engines.layers.fallback.limit_share import fresh, held
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.memory.key_scan import MemoryKeyScan
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse
from headgate.operations.counter_lookup import of_limits, untold
from headgate.rules.attributes import Attributes
from headgate.rules.lookup import NoSuchRule, attributes_of, rule_of
from headgate.rules.rule import Limits, Rule, Rulebook

SCAN_LIMIT = 100_000  # counts that are looked at, unless more are asked for
_AT_ONCE = 1000


class Counted(Protocol):
    """One count, as a survey tells it."""

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
    def told(self) -> bool: ...


class Standing(NamedTuple):
    """One count, and how it stands under its limit, if that is known."""

    which: Counted
    limit: Limit | None = None
    facts: Outcome | None = None

    @property
    def used(self) -> int | None:
        return None if self.limit is None or self.facts is None else held(self.limit, self.facts)

    @property
    def share(self) -> float | None:
        return None if self.limit is None or self.used is None else self.used / fresh(self.limit)

    @property
    def order(self) -> tuple[float, int]:
        return (-1.0 if self.share is None else self.share, self.which.ttl_ms or 0)

    @property
    def of(self) -> int | None:
        return None if self.limit is None else fresh(self.limit)


class Tally:
    """How many counts there are under one name, and how large they are."""

    def __init__(self) -> None:
        self.counts = self.bytes = 0


class Surveyed(NamedTuple):
    """What was found. `complete`: nothing was left out."""

    tallies: dict[str, Tally]
    busiest: list[Standing]
    complete: bool

    @property
    def names(self) -> list[str]:
        """Those with the most counts first."""
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
            "keys": [_document(standing) for standing in self.busiest],
        }


class Walk(Protocol):
    """A survey. Whoever says that it has `stopped`, from any thread, ends it soon."""

    stopped: bool

    def __iter__(self) -> Iterator[Any]: ...
    def peek(self, counts: Any) -> list[Outcome | None]: ...
    def close(self) -> None: ...


def walk(engine: Any, rule: str | None, most: int = SCAN_LIMIT) -> Walk:
    """A walk through the counts of a rule, or of all; `most` are looked at."""
    if isinstance(engine, MemoryEngine):
        return MemoryKeyScan(engine, rule or "", most)
    from headgate.engines.redis.key_scan import RedisKeyScan

    return RedisKeyScan(engine, rule or "", most)


def surveyed(engine: Any, survey: Walk, book: Rulebook | None, rule: str | None, top: int) -> Surveyed:
    """Walk, and tell the `top` of what was found."""
    try:
        tallies: dict[str, Tally] = {}
        found = _standing(survey, _of(rule, survey, tallies), book)
        busiest = [_exact(engine, each, book) for each in nlargest(top, found, key=lambda one: one.order)]
    finally:
        survey.close()
    return Surveyed(tallies, busiest, not survey.stopped)


def check_rule(found: Surveyed, book: Rulebook | None, rule: str | None) -> None:
    """NoSuchRule if nothing is counted under this name and the book has no such rule. Counts of a rule that was
    removed from the book are there until they expire, and those of a limit by itself are of no rule."""
    if rule is None or book is None or found.counts or not found.complete:
        return
    try:
        rule_of(book, _rule(rule)[0])
    except NoSuchRule as error:
        raise NoSuchRule(f"{error} Nothing is counted under that name either.") from None


def _of(rule: str | None, survey: Iterable[Counted], tallies: dict[str, Tally]) -> Iterator[Counted]:
    """The counts of the rule, each counted in passing."""
    for count in survey:
        if rule is None or count.name == rule or _rule(count.name)[0] == rule:
            tally = tallies.setdefault(count.name, Tally())
            tally.counts += 1
            tally.bytes += count.size or 0
            yield count


def _standing(survey: Walk, counts: Iterable[Counted], book: Rulebook | None) -> Iterator[Standing]:
    """The same with their limits, and how they stand: a thousand at a time."""
    counts = iter(counts)
    while some := [(count, _limit(count, book)) for count in islice(counts, _AT_ONCE)]:
        known = [(count, limit) for count, limit in some if limit is not None]
        yield from (Standing(count) for count, limit in some if limit is None)
        for (count, limit), facts in zip(known, survey.peek(known), strict=True):
            yield Standing(count, limit, facts)


def _rule(name: str) -> tuple[str, bool, int, str]:
    """Of a count's name: the rule's, whether it is its candidate's, which of its limits, and in which case."""
    head, _, case = name.partition("@")
    first, _, place = head.partition("#")
    return first.removesuffix("~"), first.endswith("~"), int(place) if place.isdecimal() else 0, case


def _limits(rule: Rule, candidate: bool, case: str, key: str) -> Limits:
    """What counts of this name are decided by; nothing if that cannot be told."""
    found = [limits for word, limits in cases_of(rule, candidate) if word == case]
    if len(found) <= 1:
        return found[0] if found else ()
    choice, attributes = rule.candidate if candidate else rule.limit, _seen(rule, key)
    return () if choice is None or untold(choice, attributes) else choice.of(attributes)


def _limit(count: Counted, book: Rulebook | None) -> Limit | None:
    name, candidate, place, case = _rule(count.name)
    rule = None if book is None else book.rule(name)
    if rule is None:
        limit = _parsed(count.name)
        return limit if limit is not None and limit.algorithm == count.algorithm else None
    limits = _limits(rule, candidate, case, count.key)
    fits = place < len(limits) and limits[place].algorithm == count.algorithm
    return limits[place] if fits else None


def _seen(rule: Rule, key: str) -> Attributes:
    """What the key says; of a hashed one, and of one of an older form, nothing is known."""
    try:
        return attributes_of(rule, key)
    except InvalidRule:
        return Attributes()


@lru_cache(maxsize=1024)
def _parsed(name: str) -> Limit | None:
    try:
        return parse(name)
    except InvalidRule:
        return None


def _rate(limit: Limit | None) -> bool:
    return limit is not None and not isinstance(limit, Slots)


def _exact(engine: Any, standing: Standing, book: Rulebook | None) -> Standing:
    """Those that are shown are asked once more, where the key may have a limit of its own."""
    count, limit, facts = standing
    name, candidate, place, case = _rule(count.name)
    rule = None if book is None else book.rule(name)
    if rule is None or candidate or not rule.overrides or not count.told or not _rate(limit):
        return standing
    counts = of_limits(rule, _limits(rule, candidate, case, count.key))
    asked = [(engine.meter(one.limit, one.name, one.terms), count.key, 0) for one in counts]
    facts = engine.decide_all(asked, commit=False)[place]  # by position, so the rule's are asked together
    return Standing(count, facts.limit if isinstance(facts, OverriddenOutcome) else limit, facts)


def _document(standing: Standing) -> dict[str, object]:
    count, limit, facts = standing
    return {
        "name": count.name,
        "key": count.key,
        "algorithm": count.algorithm,
        "limit": None if limit is None else limit.text,
        "used": standing.used,
        "of": standing.of,
        "remaining": None if facts is None else facts[REMAINING],
        "reset_after": None if facts is None else facts[RESET_AFTER_US] / SECOND,
        "expires_after": None if count.ttl_ms is None else count.ttl_ms / 1000,
        "bytes": count.size,
    }
