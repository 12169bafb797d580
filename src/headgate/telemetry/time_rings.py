"""Rings of counts by second and by minute: a bounded past, at a fixed cost.

A ring has blocks of 60 units of time, each an array of 60 rows with a column for each count. A block exists only
if something was counted in it, and is dropped when it is too old. So an idle rule costs nothing, and a busy one at
most 3 blocks of seconds and 26 of minutes, 3 KB each.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from headgate.telemetry.decision_counts import FIELDS, DecisionCounts

BLOCK: Final = 60  # units of time in a block
_COLUMNS: Final = len(FIELDS)
_MAX_COUNT: Final = 2**32 - 1  # an unsigned column of four bytes


class CountRing:
    """Counts in units of time: numbers of seconds or of minutes since 1970.

    >>> ring = CountRing(kept=120)
    >>> ring.add(1000, DecisionCounts(allowed=2))
    >>> ring.sum(995, 1000).allowed, [row.allowed for row in ring.rows(999, 1001)]
    (2, [0, 2, 0])
    """

    __slots__ = ("_blocks", "_kept")

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._blocks: dict[int, array[int]] = {}

    def add(self, unit: int, counts: Sequence[int]) -> None:
        """Adds counts to a unit of time, and drops blocks that are further away from it than the ring keeps."""
        number, row = divmod(unit, BLOCK)
        block = self._blocks.get(number)
        if block is None:
            self._drop_far_from(unit)
            block = self._blocks[number] = array("I", bytes(4 * BLOCK * _COLUMNS))
        start = row * _COLUMNS
        for column, count in enumerate(counts, start):
            if count:
                block[column] = min(block[column] + count, _MAX_COUNT)

    def _drop_far_from(self, unit: int) -> None:
        """Drops blocks of long ago; and of the future, if the clock was set back."""
        for number in [*self._blocks]:
            first = number * BLOCK
            if first + BLOCK <= unit - self._kept or first > unit + self._kept:
                del self._blocks[number]

    def sum(self, first: int, last: int) -> DecisionCounts:
        """Returns the sum over units of time, both ends included."""
        sums = [0] * _COLUMNS
        for number, block in [*self._blocks.items()]:
            begin, end = max(first - number * BLOCK, 0), min(last - number * BLOCK + 1, BLOCK)
            if begin < end:
                part = block[begin * _COLUMNS : end * _COLUMNS]
                for column in range(_COLUMNS):
                    sums[column] += sum(part[column::_COLUMNS])
        return DecisionCounts(*sums)

    def has_any(self, first: int, last: int) -> bool:
        """Returns whether anything was counted in units of time, both ends included."""
        for number, block in [*self._blocks.items()]:
            begin, end = max(first - number * BLOCK, 0), min(last - number * BLOCK + 1, BLOCK)
            if begin < end and any(block[begin * _COLUMNS : end * _COLUMNS]):
                return True
        return False

    def rows(self, first: int, last: int) -> list[DecisionCounts]:
        """Returns the counts of each unit of time, both ends included, the oldest first."""
        return [self._row(unit) for unit in range(first, last + 1)]

    def _row(self, unit: int) -> DecisionCounts:
        number, row = divmod(unit, BLOCK)
        block = self._blocks.get(number)
        return DecisionCounts() if block is None else DecisionCounts(*block[row * _COLUMNS : (row + 1) * _COLUMNS])
