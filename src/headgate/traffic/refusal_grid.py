"""Counts whom the limits near the frontier would refuse: for each rate some bursts, in a summary of bounded size.

A point of the grid is one token bucket, enforced on the whole log: how many keys it refuses, and how many of their
calls; ordinary keys, and heavy ones that the suggestion has set apart, by themselves. Some keys are named, with
what each point refuses of theirs.

The bursts of a rate are those of its frontier, with headroom and without, and round numbers around them. Each
burst costs as much work as the keys that it refuses have calls, so a long log gets fewer of them: the bursts of
the frontier first, then round numbers, those nearest to it first.

Laws (tests/traffic/test_refusal_grid.py): a point refuses what `count_refusals` says of its limit; of one rate a
larger burst refuses no more keys; however long the log is, the size has a bound.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import log
from typing import Any, NamedTuple

from headgate.traffic.call_table import CallTable, KeyedTimes
from headgate.traffic.rate_burst_frontier import MINUTE, FrontierPoint, Rate, count_refused, smallest_burst
from headgate.traffic.suggestion import Suggestion, with_headroom

MIN_BURSTS, MAX_BURSTS = 3, 24  # of a rate
MAX_NAMED_KEYS = 15  # heavy ones, and as many ordinary ones
MAX_STEPS = 6_000_000  # calls that are looked at to count the refusals of one rate
_ROUND = (1, 1.5, 2.5, 4, 6)  # times a power of ten
_ABOVE_FRONTIER = 10  # times the burst that refuses no ordinary key


class GridPoint(NamedTuple):
    """The refusals of one limit on the whole log."""

    burst: int
    keys: int  # ordinary ones
    calls: int  # of them
    heavy_keys: int
    heavy_calls: int
    named: list[int]  # refused calls of each named key


class GridRow(NamedTuple):
    """A rate, and the limits of this rate, the smallest burst first."""

    rate: Rate
    frontier: FrontierPoint
    points: list[GridPoint]


class NamedKey(NamedTuple):
    """A key that is shown by its name."""

    key: str
    calls: int
    heavy: bool


class RefusalGrid(NamedTuple):
    """All limits near the frontier, and the totals that their refusals are shares of."""

    rows: list[GridRow]
    named: list[NamedKey]
    keys: int  # ordinary ones
    calls: int  # of them
    heavy_keys: int
    heavy_calls: int

    def document(self) -> dict[str, Any]:
        """Returns the grid as a document, its points as lists in the order of GridPoint."""
        return {
            "rows": [
                {
                    "rate": str(row.rate),
                    "per_minute": row.rate.units_in(MINUTE),
                    "frontier": list(row.frontier[1:]),
                    "points": [list(point) for point in row.points],
                }
                for row in self.rows
            ],
            "named": [list(each) for each in self.named],
            "totals": [self.keys, self.calls, self.heavy_keys, self.heavy_calls],
        }


def refusal_grid(
    table: CallTable, suggestion: Suggestion, on_progress: Callable[[float | None], None] | None = None
) -> RefusalGrid:
    """Counts whom each limit near a suggestion's frontier would refuse.

    `table` has the calls that the suggestion was made from. `on_progress` is called with the share of the rates
    that are counted.
    """
    return _GridCounter(table, suggestion).count(on_progress or (lambda share: None))


def round_bursts(smallest: int, largest: int) -> Iterator[int]:
    """Yields round numbers in a range.

    >>> list(round_bursts(3, 70))
    [4, 6, 10, 15, 25, 40, 60]
    """
    power = 1
    while power <= largest:
        for digit in _ROUND:
            burst = round(digit * power)
            if smallest <= burst <= largest and burst == digit * power:
                yield burst
        power *= 10


class _GridCounter:
    def __init__(self, table: CallTable, suggestion: Suggestion) -> None:
        self._table, self._suggestion = table, suggestion
        self._keyed: KeyedTimes = table.by_key()
        self._counts = table.counts()
        heavy = [table.keys[each.key] for each in suggestion.heavy_keys]
        self._heavy = set(heavy)
        needs = self._needs(suggestion.rate)
        ordinary = sorted(
            (number for number in range(len(needs)) if number not in self._heavy), key=lambda each: -needs[each]
        )
        self._named = [*heavy[:MAX_NAMED_KEYS], *ordinary[:MAX_NAMED_KEYS]]

    def count(self, report: Callable[[float | None], None]) -> RefusalGrid:
        names = {number: key for key, number in self._table.keys.items() if number in set(self._named)}
        named = [NamedKey(names[each], self._counts[each], each in self._heavy) for each in self._named]
        heavy_calls = sum(self._counts[number] for number in self._heavy)
        frontier, rows = self._suggestion.frontier, []
        for number, point in enumerate(frontier):
            report(number / len(frontier))
            rows.append(self._row(point))
        return RefusalGrid(
            rows,
            named,
            len(self._counts) - len(self._heavy),
            len(self._table) - heavy_calls,
            len(self._heavy),
            heavy_calls,
        )

    def _needs(self, rate: Rate) -> array[int]:
        """Returns the smallest burst that refuses nothing to each key."""
        needs = array("q", bytes(8 * len(self._counts)))
        for number, times_us, costs in self._keyed:
            needs[number] = smallest_burst(rate, times_us, costs)
        return needs

    def _row(self, point: FrontierPoint) -> GridRow:
        needs = self._needs(point.rate)
        order = sorted(range(len(needs)), key=lambda number: -needs[number])
        bursts = self._chosen_bursts(point, [-needs[number] for number in order], order)
        points = [self._point(point.rate, burst, needs, order) for burst in bursts]
        return GridRow(point.rate, point, points)

    def _chosen_bursts(self, point: FrontierPoint, falling: Sequence[int], order: Sequence[int]) -> list[int]:
        """Returns the bursts of a rate that the work of counting allows, and MIN_BURSTS at least."""
        steps = [0, *accumulate(self._counts[number] for number in order)]
        chosen: list[int] = []
        left = MAX_STEPS
        for burst in dict.fromkeys(self._wanted_bursts(point)):
            work = steps[bisect_right(falling, -burst - 1)]  # the calls of keys that need more
            if work > left and len(chosen) >= MIN_BURSTS:
                continue
            left -= work
            chosen.append(burst)
            if len(chosen) == MAX_BURSTS:
                break
        return sorted(chosen)

    def _wanted_bursts(self, point: FrontierPoint) -> Iterator[int]:
        """Yields the bursts to count at a rate, the most important ones first. A burst may come twice."""
        middle = max(1, point.all_keys)
        if point.rate == self._suggestion.rate:
            yield self._suggestion.burst
        yield from (with_headroom(middle), middle, point.p999, point.p99, point.p90, point.p50)
        rounded = round_bursts(point.p50, _ABOVE_FRONTIER * middle)
        yield from sorted(rounded, key=lambda burst: abs(log(burst / middle)))

    def _point(self, rate: Rate, burst: int, needs: Sequence[int], order: Sequence[int]) -> GridPoint:
        keys = calls = heavy_keys = heavy_calls = 0
        refused_calls: dict[int, int] = {}
        for number in order:
            if needs[number] <= burst:
                break
            refused = refused_calls[number] = count_refused(rate, burst, *self._keyed.of_key(number))
            if number in self._heavy:
                heavy_keys += 1
                heavy_calls += refused
            else:
                keys += 1
                calls += refused
        return GridPoint(
            burst, keys, calls, heavy_keys, heavy_calls, [refused_calls.get(each, 0) for each in self._named]
        )
