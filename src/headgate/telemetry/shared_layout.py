"""The layout of shared counts in Redis. It is an API (docs/reference/storage.md): nginx writes it, too.

Every key begins with hg2:{counts}: (the prefix, and the hash tag that puts all of them into one slot), then:

    s:<second / 10>:<rule>        a hash: field <second % 10><letter>, value a count; lives for 4 minutes
    m:<minute / 10>:<rule>        the same by minutes; lives for 26 hours
    d:<hour>:<kind>:<rule>        a HyperLogLog of distinct keys; lives for 26 hours
    h:<second / 10>:<kind>:<rule> a sorted set of hot keys, their counts as scores; lives for 90 s
    r:<hour>:<kind>:<rule>        a sorted set of the keys that were refused most; lives for 26 hours
    g:<second / 10>               a sorted set of processes whose fallback decided, and their calls; lives for 90 s
    l:<second / 600>              a sorted set of changes of adaptive limits, their seconds as scores; 20 minutes
    rules, writers                sorted sets of rules and writers, by the second of their last write
    w:<writer>                    a hash: seq, name, at_s of the writer's last write

Seconds, minutes and hours are numbers since 1970. A field such as 7a is the seventh second and "allowed".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from headgate.engines.redis.counts_store import CountsPart
from headgate.observer import LimitChange
from headgate.telemetry.counted_rule import UnsharedRule
from headgate.telemetry.decision_counts import FIELDS, DecisionCounts
from headgate.telemetry.hot_keys import SLICE_S
from headgate.telemetry.key_estimates import CALLS, CANDIDATE_REFUSED, REFUSED, SHADOW_REFUSED, TRIED
from headgate.telemetry.recent_limit_changes import SLICE_S as CHANGES_SLICE_S
from headgate.telemetry.recent_limit_changes import TTL_S as CHANGES_TTL_S
from headgate.telemetry.recent_limit_changes import RecentLimitChange, changes_key, written

LETTERS: Final = dict(zip(FIELDS, "arxdnsScCDPFE", strict=True))
KIND_LETTERS: Final = {CALLS: "k", REFUSED: "r", SHADOW_REFUSED: "S", CANDIDATE_REFUSED: "C", TRIED: "t"}
SECONDS_TTL_S: Final = 240
MINUTES_TTL_S: Final = 26 * 3600
HOT_TTL_S: Final = 90
RULES: Final = "rules"
WRITERS: Final = "writers"
BLOCK: Final = 10  # seconds or minutes in one hash

_FIELD_BY_LETTER: Final = {letter: field for field, letter in LETTERS.items()}


def block_key(unit: str, block: int, rule: str) -> str:
    """Returns the key of a hash of ten seconds or minutes."""
    return f"{unit[0]}:{block}:{rule}"


def distinct_key(hour: int, kind: str, rule: str) -> str:
    """Returns the key of the distinct keys of an hour."""
    return f"d:{hour}:{KIND_LETTERS[kind]}:{rule}"


def hot_key(slice_number: int, kind: str, rule: str) -> str:
    """Returns the key of the hot keys of ten seconds."""
    return f"h:{slice_number}:{KIND_LETTERS[kind]}:{rule}"


def most_refused_key(hour: int, kind: str, rule: str) -> str:
    """Returns the Redis key under which the most refused keys of an hour are stored."""
    return f"r:{hour}:{KIND_LETTERS[kind]}:{rule}"


def degraded_key(block: int) -> str:
    """Returns the key of the processes whose fallback decided calls in these ten seconds."""
    return f"g:{block}"


def parts_of(unshared: UnsharedRule, process: str) -> list[CountsPart]:
    """Returns what a process writes to Redis for a rule: a key and its additions, for each kind of counts."""
    rule = unshared.rule
    parts = [*_blocks("seconds", unshared.seconds, rule, SECONDS_TTL_S)]
    parts += _blocks("minutes", unshared.minutes, rule, MINUTES_TTL_S)
    parts += _degraded(unshared.seconds, process)
    for kind, slice_number, keys in unshared.keys.hot:
        members = [each for hot in keys for each in hot]
        parts.append(CountsPart(hot_key(slice_number, kind, rule), HOT_TTL_S, "z", members))
        if kind != CALLS:
            hour = slice_number * SLICE_S // 3600
            parts.append(CountsPart(most_refused_key(hour, kind, rule), MINUTES_TTL_S, "z", members))
    for kind, hour, new in unshared.keys.distinct:
        parts.append(CountsPart(distinct_key(hour, kind, rule), MINUTES_TTL_S, "p", new))
    return parts


def parts_of_changes(
    changes: Sequence[tuple[int, LimitChange]], process: str
) -> Iterator[tuple[str, list[CountsPart]]]:
    """Yields what changes of adaptive limits add to which keys, with the rule of each."""
    for at_us, change in changes:
        at_s = at_us // 1_000_000
        text = written(RecentLimitChange(at_us, process, change))
        part = CountsPart(changes_key(at_s // CHANGES_SLICE_S), CHANGES_TTL_S, "z", [text, at_s])
        yield change.name, [part]


def _degraded(seconds: Mapping[int, DecisionCounts], process: str) -> Iterator[CountsPart]:
    calls: dict[int, int] = {}
    for second, counted in seconds.items():
        if counted.degraded:
            calls[second // BLOCK] = calls.get(second // BLOCK, 0) + counted.degraded
    for block, number in calls.items():
        yield CountsPart(degraded_key(block), HOT_TTL_S, "z", [process, number])


def _blocks(unit: str, counts: Mapping[int, DecisionCounts], rule: str, ttl_s: int) -> Iterator[CountsPart]:
    by_block: dict[int, list[str | int]] = {}
    for number, counted in counts.items():
        block, digit = divmod(number, BLOCK)
        fields = by_block.setdefault(block, [])
        for field, count in zip(FIELDS, counted, strict=True):
            if count:
                fields += [f"{digit}{LETTERS[field]}", count]
    for block, arguments in by_block.items():
        yield CountsPart(block_key(unit, block, rule), ttl_s, "h", arguments)


def rows_of(block: int, fields: Mapping[str, int]) -> dict[int, DecisionCounts]:
    """Returns the counts of each second or minute in a hash. Unknown letters belong to a newer version, and are
    left out."""
    rows: dict[int, dict[str, int]] = {}
    for name, count in fields.items():
        field = _FIELD_BY_LETTER.get(name[1:])
        if field is not None and name[0].isdigit():
            rows.setdefault(block * BLOCK + int(name[0]), {})[field] = count
    return {number: DecisionCounts(**row) for number, row in rows.items()}
