"""headgate keys: what is counted, by rule, and whose counts are fullest.

Busiest means: the most used of its limit. The limit is the rule's, if a rulebook is known, and for counts
without a rule it is their name, which is a limit's text unless somebody gave another one. Where no limit is
known, those that expire last come first, after all others: more cannot be told from outside.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from functools import lru_cache
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from headgate.cli.answer import Answer, seconds, warn
from headgate.cli.book import add_book, known_book
from headgate.cli.counts import attributes_of, of_limits, untold
from headgate.cli.engine import add_engine, server
from headgate.cli.parser import Commands, command, whole
from headgate.cli.table import Table, Value
from headgate.engine.fallback.share import fresh, held
from headgate.errors import InvalidRule
from headgate.explain import long
from headgate.model.decision import REMAINING, RESET_AFTER_US, Facts, OverriddenFacts
from headgate.model.limit import Limit
from headgate.model.slots import Slots
from headgate.ruled.ruling import cases_of
from headgate.rules.attributes import Attributes
from headgate.rules.rule import Limits, Rule, Rulebook
from headgate.text import parse

if TYPE_CHECKING:
    from headgate.engine.redis.blocking import RedisEngine
    from headgate.engine.redis.survey import Counted, Survey

_AT_ONCE = 1000


class Standing(NamedTuple):
    """One count, and how it stands under its limit, if that is known."""

    which: Counted
    limit: Limit | None = None
    facts: Facts | None = None

    @property
    def used(self) -> int | None:
        return None if self.limit is None or self.facts is None else held(self.limit, self.facts)

    @property
    def share(self) -> float | None:
        return None if self.limit is None or self.used is None else self.used / fresh(self.limit)

    @property
    def order(self) -> tuple[float, int]:
        return (-1.0 if self.share is None else self.share, self.which.ttl_ms or 0)


class Tally:
    """How many counts there are under one name, and how large they are."""

    def __init__(self) -> None:
        self.counts = self.bytes = 0


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "keys",
        run,
        "what is counted, busiest first",
        "headgate keys --engine redis://host:6379/0 --top 10",
        "headgate keys --rule login --rules rules.yaml --json",
        more="Found by SCAN, a thousand keys at a time, so that nobody else waits. Nothing is changed.",
    )
    parser.add_argument("--rule", metavar="RULE", help="only the counts of this rule, or of this name")
    parser.add_argument("--top", type=whole(1), default=20, metavar="N", help="how many keys are shown (20)")
    parser.add_argument(
        "--scan-limit", type=whole(1), default=100_000, metavar="N", help="stop after so many counts (100,000)"
    )
    add_book(parser)
    add_engine(parser)


def run(args: argparse.Namespace) -> Answer:
    with server(args, "nothing is counted there between two commands") as engine:
        from headgate.engine.redis.survey import Survey

        book = known_book(args, engine)
        survey = Survey(engine, args.rule or "", args.scan_limit)
        try:
            tallies: dict[str, Tally] = {}
            found = _standing(survey, _of(args.rule, survey, tallies), book)
            busiest = [_exact(engine, each, book) for each in nlargest(args.top, found, key=lambda one: one.order)]
        finally:
            survey.close()
    if survey.stopped:
        told = f"Stopped at {args.scan_limit:,}; there are more. Raise --scan-limit to see all of them."
        warn(told, as_json=args.json)
    return _answer(tallies, busiest, complete=not survey.stopped)


def _of(rule: str | None, survey: Survey, tallies: dict[str, Tally]) -> Iterator[Counted]:
    """The counts of the rule, each counted in passing."""
    for count in survey:
        if rule is None or count.name == rule or _rule(count.name)[0] == rule:
            tally = tallies.setdefault(count.name, Tally())
            tally.counts += 1
            tally.bytes += count.size or 0
            yield count


def _standing(survey: Survey, counts: Iterable[Counted], book: Rulebook | None) -> Iterator[Standing]:
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


def _exact(engine: RedisEngine, standing: Standing, book: Rulebook | None) -> Standing:
    """Those that are shown are asked once more, where the key may have a limit of its own."""
    count, limit, facts = standing
    name, candidate, place, case = _rule(count.name)
    rule = None if book is None else book.rule(name)
    if rule is None or candidate or not rule.overrides or not count.told or not _rate(limit):
        return standing
    counts = of_limits(rule, _limits(rule, candidate, case, count.key))
    asked = [(engine.meter(one.limit, one.name, one.terms), count.key, 0) for one in counts]
    facts = engine.decide_all(asked, commit=False)[place]  # by position, so the rule's are asked together
    return Standing(count, facts.limit if isinstance(facts, OverriddenFacts) else limit, facts)


def _answer(tallies: dict[str, Tally], busiest: list[Standing], *, complete: bool) -> Answer:
    names = sorted(tallies, key=lambda name: (-tallies[name].counts, name))
    total = sum(tally.counts for tally in tallies.values())
    document = {
        "counts": total,
        "complete": complete,
        "rules": [{"name": name, "counts": tallies[name].counts, "bytes": tallies[name].bytes} for name in names],
        "keys": [_document(standing) for standing in busiest],
    }
    if not total:
        return Answer(document, ["Nothing is counted."])
    rules = [(name, tallies[name].counts, tallies[name].bytes) for name in names]
    titles = ("rule", "key", "used", "of", "remaining", "reset", "limit")
    rows = [_row(standing) for standing in busiest]
    right = ("used", "of", "remaining", "reset", "counts", "bytes")
    return Answer(document, [Table(("rule", "counts", "bytes"), rules, right), "", Table(titles, rows, right)])


def _document(standing: Standing) -> dict[str, object]:
    count, limit, facts = standing
    return {
        "name": count.name,
        "key": count.key,
        "algorithm": count.algorithm,
        "limit": None if limit is None else limit.text,
        "used": standing.used,
        "of": None if limit is None else fresh(limit),
        "remaining": None if facts is None else facts[REMAINING],
        "reset_after": None if facts is None else seconds(facts[RESET_AFTER_US]),
        "expires_after": None if count.ttl_ms is None else count.ttl_ms / 1000,
        "bytes": count.size,
    }


def _row(standing: Standing) -> tuple[Value, ...]:
    count, limit, facts = standing
    shown = count.key if count.told else f"{count.key[:14]}…"
    reset_us = (count.ttl_ms or 0) * 1000 if facts is None else facts[RESET_AFTER_US]
    return (
        count.name,
        shown,
        standing.used,
        None if limit is None else fresh(limit),
        None if facts is None else facts[REMAINING],
        long(reset_us) if reset_us else None,
        None if limit is None else limit.text,
    )
