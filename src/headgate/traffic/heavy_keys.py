"""Sets heavy keys apart: the few that need far larger bursts than all others.

Keys are ordered by their smallest burst at one rate. Where the next key needs at least MIN_GAP times as much as
the one before, all above it are heavy, if they are few. The rate with the largest gap decides, and the search is
repeated, because a scanner may hide behind a worse one.

Among few keys a gap means little: the busiest of 60 visitors often needs twice as much as the next, and another
log has others like it. So below SURE_GAP, more than HARMLESS_SHARE of the keys are set apart only if chance
hardly makes such a gap. If bursts beyond x become rarer as x^-a (a is Hill's estimate from the keys below the
gap), then the k largest are g times as large as the next with the chance g^(-k a).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, log, sqrt
from typing import NamedTuple

from headgate.traffic.call_table import UNKNOWN, CallTable
from headgate.traffic.rate_burst_frontier import MINUTE

MIN_GAP, SURE_GAP = 2.0, 4.0  # keys above a sure gap are set apart whatever chance says
MAX_HEAVY_SHARE = 0.1  # of the keys
HARMLESS_SHARE = 0.005  # of the keys: so few are set apart whatever chance says
MAX_CHANCE = 0.05
_TAIL_SHARE, _MIN_TAIL_KEYS = 0.1, 5  # of the keys below a gap: those that show how rare large bursts are
MIN_ORDINARY_KEYS = 10
_SMALL_BURST = 5  # below this a gap means nothing

_SCANNER_ERRORS, _FEW_ERRORS = 0.3, 0.1
_BROAD, _NARROW = 0.4, 0.1  # distinct paths per call
_REGULAR = 0.6  # deviation of the time between calls, divided by its mean
_MANY_AGENTS, _MANY_PATHS = 5, 50


class KeyEvidence(NamedTuple):
    """The evidence on a heavy key, and a cautious word for what it looks like."""

    key: str
    calls: int
    per_minute: int  # at its peak
    burst: int  # the smallest that would refuse it nothing, at the rate that was chosen
    paths: int  # distinct
    agents: int  # distinct user agents
    errors: float | None  # the share of responses from 400 on; None: the log has no statuses
    irregularity: float  # deviation of the time between calls, divided by its mean
    looks_like: str  # crawler, scanner, proxy with many people, customer, unknown


class _Row(NamedTuple):
    """The heaviest keys at one rate, the heaviest first: their bursts, and which keys they are."""

    bursts: Sequence[int]
    indexes: Sequence[int]

    def without(self, heavy: set[int]) -> _Row:
        left = [position for position, index in enumerate(self.indexes) if index not in heavy]
        return _Row([self.bursts[each] for each in left], [self.indexes[each] for each in left])


def find_heavy_keys(bursts_by_rate: Iterable[Sequence[int]]) -> set[int]:
    """Returns the indexes of the keys that are far above all others; for each rate there is the burst of each key.

    >>> find_heavy_keys([[9] * 40 + [900]])
    {40}
    """
    rows, keys = [], 0
    for bursts in bursts_by_rate:
        keys = len(bursts)
        rows.append(_heaviest(bursts))
    at_most = min(int(keys * MAX_HEAVY_SHARE), keys - MIN_ORDINARY_KEYS)
    heavy: set[int] = set()
    while len(heavy) < at_most:
        harmless = int(keys * HARMLESS_SHARE) - len(heavy)
        gaps = (
            _largest_gap(row.without(heavy), keys - len(heavy), at_most - len(heavy), harmless) for row in rows
        )
        gap, above = max(gaps, default=(0.0, []))
        if gap < MIN_GAP:
            break
        heavy.update(above)
    return heavy


def _heaviest(bursts: Sequence[int]) -> _Row:
    """Returns the keys that may be set apart, and those below them that show how rare large bursts are."""
    order = sorted(range(len(bursts)), key=bursts.__getitem__, reverse=True)
    share = 1 - (1 - MAX_HEAVY_SHARE) * (1 - _TAIL_SHARE)
    del order[int(len(order) * share) + 2 * _MIN_TAIL_KEYS :]
    return _Row(array("q", (max(bursts[index], _SMALL_BURST) for index in order)), array("q", order))


def _largest_gap(row: _Row, keys: int, at_most: int, harmless: int) -> tuple[float, list[int]]:
    """Returns the largest ratio between neighbours that means something, and the keys above it."""
    gaps = sorted(
        ((upper / lower, count) for count, (upper, lower) in enumerate(pairwise(row.bursts[: at_most + 1]), 1)),
        key=lambda gap: -gap[0],
    )
    for gap, count in gaps:
        if gap < MIN_GAP:
            break
        sure = gap >= SURE_GAP or count <= harmless
        if sure or _chance(gap, count, row.bursts[count:], keys - count) <= MAX_CHANCE:
            return gap, list(row.indexes[:count])
    return 0.0, []


def _chance(gap: float, count: int, below: Sequence[int], keys_below: int) -> float:
    """Returns the chance that the `count` largest bursts are so far above the others, if all are of one kind."""
    tail = max(_MIN_TAIL_KEYS, int(keys_below * _TAIL_SHARE))
    excess = sum(log(burst / below[tail]) for burst in below[:tail])
    return exp(-count * tail / excess * log(gap)) if excess else 0.0


def describe_heavy_keys(table: CallTable, heavy: Collection[int], bursts: Mapping[int, int]) -> list[KeyEvidence]:
    """Returns the evidence on heavy keys, the heaviest first."""
    calls = {number: array("q") for number in heavy}
    for index, number in enumerate(table.numbers):
        if number in calls:
            calls[number].append(index)
    names = {number: key for key, number in table.keys.items() if number in calls}
    evidence = [_describe(table, names[number], indexes, bursts[number]) for number, indexes in calls.items()]
    return sorted(evidence, key=lambda each: -each.burst)


def _describe(table: CallTable, key: str, indexes: Sequence[int], burst: int) -> KeyEvidence:
    times_us = [table.times_us[index] for index in indexes]
    statuses = [table.statuses[index] for index in indexes if table.statuses[index] != UNKNOWN]
    paths = len({table.paths[index] for index in indexes} - {UNKNOWN})
    agents = len({table.agents[index] for index in indexes} - {UNKNOWN})
    errors = sum(status >= 400 for status in statuses) / len(statuses) if statuses else None
    irregularity = _irregularity(times_us)
    word = _looks_like(len(indexes), paths, agents, errors, irregularity)
    return KeyEvidence(key, len(indexes), peak(times_us, MINUTE), burst, paths, agents, errors, irregularity, word)


def _looks_like(calls: int, paths: int, agents: int, errors: float | None, irregularity: float) -> str:
    """Returns a cautious word. Without statuses or paths there is nothing to go by."""
    if errors is None or not paths:
        return "unknown"
    if errors >= _SCANNER_ERRORS or (errors >= _FEW_ERRORS and paths >= _MANY_PATHS):
        return "scanner"
    if errors >= _FEW_ERRORS:
        return "unknown"
    if agents >= _MANY_AGENTS:
        return "proxy with many people"
    if paths / calls >= _BROAD:
        return "crawler"
    if paths / calls <= _NARROW and irregularity <= _REGULAR:
        return "customer"
    return "unknown"


def _irregularity(times_us: Sequence[int]) -> float:
    gaps = [after - before for before, after in pairwise(times_us)]
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    return sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean if mean else 0.0


def peak(times_us: Sequence[int], window_us: int, costs: Sequence[int] | None = None) -> int:
    """Returns the most calls in one window that is cut on the epoch, or the largest sum of their costs.

    >>> peak([0, 1, 60_000_000], 60_000_000), peak([0, 1, 60_000_000], 60_000_000, [10, 20, 50])
    (2, 50)
    """
    if costs is not None:
        sums: dict[int, int] = {}
        for time_us, cost in zip(times_us, costs, strict=True):
            sums[time_us // window_us] = sums.get(time_us // window_us, 0) + cost
        return max(sums.values(), default=0)
    most = count = 0
    current = None
    for time_us in times_us:
        window = time_us // window_us
        if window != current:
            current, count = window, 0
        count += 1
        if count > most:
            most = count
    return most
