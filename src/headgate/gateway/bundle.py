"""Compiles a rulebook into a bundle: the JSON a gateway reads, with everything worked out that only Python can.

It is the rulebook's own document, and in addition:

    limits     each limit text in the rules: its algorithm, its numbers as the scripts read them, its header
               values, how many units pass at once and how they come back, and of a smooth one the time of a unit
    zones      the time zones of calendar windows, each as the instants at which its offset from UTC changes
    charge_options
               each rule's charge options, in microseconds; the names that its cases are counted under; and their
               order, as lists: a mapping in JSON has none; of an adaptive limit the text of each class
    scripts    the SHA1 of every script that the rulebook can need; their texts are stored separately
    warnings   what looks wrong in the rulebook, as sentences with its file and line: gateways log them

Numbers are texts, as they cross the wire: JSON has one kind of number, and a rate of Guava's has 17 digits. A
zone is known from two years back to thirty years ahead, by whole years: so the same rulebook has the same bundle
for a year, byte by byte, unless its zones' governments decide otherwise.

Laws (tests/gateway/test_bundle.py):
  - the bundle without the additions is the rulebook;
  - there is an entry for every limit and candidate in it, and its numbers are those the Redis engine sends;
  - whatever rules a call meets, the script that the Redis engine would call is among the scripts, up to three
    algorithms at once; beyond that the one with all of them is;
  - at every second of its span a zone has the offset that zoneinfo returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import combinations
from typing import Any

from headgate.algorithms.limit import SECOND, Limit
from headgate.calendar import time_zone
from headgate.enforcement.call_plan import limit_cases
from headgate.engines.redis.protocol import limit_args
from headgate.engines.redis.script_assembly import (
    Script,
    algorithm_script,
    fits_one_string,
    mixed_script,
    standalone_script,
)
from headgate.http.headers import per_second, quota
from headgate.rules import serialization
from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.rule import Choice, Rule, Rulebook, adaptive_limit_of

Bundle = dict[str, Any]

_PAUSED = "_paused"  # ends the name of a script on keys that can be paused
MAX_COMBINED_ALGORITHMS = 3  # calls with up to so many have a script with just theirs
YEARS_BACK, YEARS_AHEAD = 2, 30

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEP_S = 86_400  # no zone changes its offset twice within a day


def compile_bundle(book: Rulebook, now_us: int) -> Bundle:
    """Returns all that a gateway needs to follow the rulebook, except the scripts' texts."""
    limits = {limit.text: limit for rule in book.rules for limit in limits_of(rule)}
    zones = {limit.zone for limit in limits.values() if limit.zone is not None}
    algorithms = {limit.algorithm for limit in limits.values()} - {"adaptive"}  # nginx decides these itself
    options = {"lockout": any(rule.lockout for rule in book.rules)}
    options["pause"] = any(rule.max_pause_us is not None for rule in book.rules)
    year = (_EPOCH + timedelta(seconds=now_us // SECOND)).year
    return serialization.document(book) | {
        "headers": book.headers,
        "limits": {text: dict(limit_entry(limit)) for text, limit in limits.items()},
        "zones": {zone: [list(entry) for entry in _offsets(zone, year)] for zone in sorted(zones)},
        "charge_options": {rule.name: dict(_charge_options(rule)) for rule in book.rules},
        "scripts": {name: _script(name).sha for name in _script_names(algorithms, options)},
        "warnings": [*book.located_warnings, *_adaptive_warnings(book)],
        "used_attributes": _used_attributes(book),
    }


def _adaptive_warnings(book: Rulebook) -> Iterator[str]:
    """Yields a sentence for each adaptive rule on which processes should agree: nginx does not take part."""
    for rule in book.rules:
        if adaptive_limit_of(rule) is not None and rule.where == "cluster":
            yield (
                f'Rule "{rule.name}" is adaptive, with where: cluster. An nginx has one limit for all its '
                "workers, and agrees with no other process."
            )


def _used_attributes(book: Rulebook) -> list[str]:
    """Returns the attributes that rules use, without those that they capture from the path."""
    return sorted(
        {
            name
            for rule in book.rules
            for name in used_attributes(rule)
            if rule.when is None or name not in rule.when.captures
        }
    )


def script_texts(bundle: Bundle) -> dict[str, str]:
    """Returns the texts of a bundle's scripts, by their SHA1."""
    scripts = map(_script, bundle["scripts"])
    return {script.sha: script.text for script in scripts}


def limits_of(rule: Rule) -> Iterator[Limit]:
    """Yields every limit that can decide the rule, its candidate's too."""
    for candidate in (False, True):
        for _, limits in limit_cases(rule, candidate):
            yield from limits


def limit_entry(limit: Limit) -> Iterator[tuple[str, Any]]:
    """Yields what a gateway needs to know of a limit, by name."""
    yield "algorithm", limit.algorithm
    yield "numbers", [str(number) for number in limit_args(limit, "")]
    yield "quota", quota(limit)
    if (window := limit.window_seconds) is not None:
        yield "window", window
    if (rate := per_second(limit)) is not None:
        yield "per_second", rate
    yield "fresh", limit.units_at_once
    if limit.prefetchable:
        yield "drain", list(limit.unit_drain)
    if limit.refill and (rate_per_second := limit.units_per_second) is not None:
        yield "flow", {"shape": limit.refill, "period_us": float(limit.units_at_once * SECOND / rate_per_second)}
    yield from limit.gateway_fields()


def _charge_options(rule: Rule) -> Iterator[tuple[str, Any]]:
    for name, candidate in (("names", False), ("candidate_names", True)):
        cases = [case for case, _ in limit_cases(rule, candidate)[:-1]]  # the last is `otherwise`
        if cases:
            yield name, cases
    if adaptive_limit_of(rule) is not None:
        choice = rule.limit
        classes = [limit.text for _, limits in choice.cases for limit in limits]
        yield "adaptive", classes or [limit.text for limit in choice.otherwise]
    if orders := case_orders(rule):
        yield "cases", orders
    if rule.lockout is not None:
        yield "lockout", list(rule.lockout)
    if rule.deadline is not None:
        yield "deadline", rule.deadline
    if rule.prefetch is not None:
        units = {} if rule.prefetch.units is None else {"units": rule.prefetch.units}
        yield "prefetch", {"hold_us": rule.prefetch.hold_us} | units


def case_orders(rule: Rule) -> dict[str, list[Any]]:
    """Returns the cases of the rule's limit, candidate and cost, each in their order."""
    choices: dict[str, Choice[Any] | None] = {"limit": rule.limit, "candidate": rule.candidate, "cost": rule.cost}
    return {
        name: serialization.case_texts(choice)
        for name, choice in choices.items()
        if choice is not None and choice.cases
    }


def _script_names(algorithms: set[str], options: Mapping[str, bool]) -> Iterator[str]:
    """Yields the name of every script that the rulebook can need: its command, and the algorithms in it.

    options: whether rules have a lockout, and whether they can be paused.
    """
    counted = sorted(algorithms - {"slots"})
    more = [name for name, is_used in options.items() if is_used]
    additions = [each for size in range(len(more) + 1) for each in combinations(more, size)]
    for name in counted:
        yield f"take {name}"
        yield f"take_together {name}"
        if fits_one_string(name):
            yield f"take_calls {name}"
        yield f"refund {name}"
        if options["pause"]:
            yield f"refund_paused {name}"
    if "slots" in algorithms:
        yield "slots"
        if options["pause"]:
            yield "slots_paused"
    yield "membership"
    yield "write_counts"
    yield "recent_records"
    sizes = {*range(1, min(MAX_COMBINED_ALGORITHMS, len(counted)) + 1), len(counted)} - {0}
    for size in sorted(sizes):
        for subset in combinations(counted, size):
            for added in additions:
                yield " ".join(["take_all", *sorted([*subset, *added])])


def _script(name: str) -> Script:
    command, *algorithms = name.split()
    if command == "take_all":
        return mixed_script(command, algorithms)
    pausable = command.endswith(_PAUSED)
    command = command.removesuffix(_PAUSED)
    if algorithms:
        return algorithm_script(command, *algorithms, pausable)
    return standalone_script(command, "slots" if command == "slots" else None, pausable)


@lru_cache(maxsize=256)
def _offsets(zone: str, year: int) -> list[tuple[int, int]]:
    """Returns pairs of epoch second and offset from UTC that holds from then on; the first holds before, too."""
    tz = time_zone(zone)

    def offset(second: int) -> int:
        utc_offset = (_EPOCH + timedelta(seconds=second)).astimezone(tz).utcoffset()
        assert utc_offset is not None, "a time zone knows its offset"
        return int(utc_offset.total_seconds())

    start, end = _new_year(year - YEARS_BACK), _new_year(year + YEARS_AHEAD + 1)
    changes = [(0, offset(start))]
    for before in range(start, end, _STEP_S):
        after = before + _STEP_S
        if offset(after) != changes[-1][1]:
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (middle, after) if offset(middle) == changes[-1][1] else (before, middle)
            changes.append((after, offset(after)))
    return changes


def _new_year(year: int) -> int:
    return int((datetime(year, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
