"""Cancelled places in queues that could not be given back yet, because later ones were built on them.

A cancelled reservation gives back what no later one was built on. So of several that are cancelled, only the last
one in the queue gives its place back at once, unless they are cancelled in the order from the last to the first;
and clients that hang up keep no order. Hence a place that gave nothing back is remembered, and tried again as soon
as one behind it was given back: from the last to the first, as long as there is something to give.

LAW: when all callers of one event loop, or all threads of one engine, that hold the last places of a queue have
left, in any order, all of these places are given back. (Each process knows its own places only: between two
processes the order counts.) No place is given back twice: one that gave anything is never tried again. Memory is
bounded; a place that is evicted, or whose time has come, is lost as if its process had died.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

from headgate.algorithms.decision import Receipt
from headgate.algorithms.limit import EXACT

MAX_PLACES = 10_000


class QueuePlace(NamedTuple):
    """A cancelled place in a queue: the key of its count, and when it would be served. Of several at one instant
    the last is the one whose charge ends last."""

    key: Hashable
    served_us: int
    order: tuple[int, int] = (0, 0)

    @classmethod
    def from_receipt(cls, key: Hashable, receipt: Receipt) -> QueuePlace:
        # A token bucket's mark is what its reset was rounded up for: none is the last of the microsecond.
        return cls(key, receipt.served_us, (receipt.at_us + receipt.reset_after_us, receipt.mark or EXACT))


class Cancellation(Protocol):
    """A cancellation that can be tried again; `place` is None if it is not of a reservation."""

    @property
    def queue_place(self) -> QueuePlace | None: ...


C = TypeVar("C", bound=Cancellation)


class PendingCancellations(Generic[C]):
    """Cancellations that gave nothing back, by count, in the order of their places."""

    def __init__(self, max_places: int = MAX_PLACES) -> None:
        self._max_places = max_places
        self._by_count: OrderedDict[Hashable, list[C]] = OrderedDict()  # the most recent count last
        self._size = 0
        self._retrying: dict[Hashable, bool] = {}  # counts that are being retried; whether to start over

    def __len__(self) -> int:
        return self._size

    def note(self, cancellation: C, now_us: int) -> None:
        """Remembers a cancellation that gave nothing back, unless its time has come."""
        place = cancellation.queue_place
        if place is not None and place.served_us > now_us:
            insort(self._by_count.setdefault(place.key, []), cancellation, key=_place_order)
            self._by_count.move_to_end(place.key)
            self._size += 1
            while self._size > self._max_places:
                self._size -= len(self._by_count.popitem(last=False)[1])

    def pop_last(self, count: Hashable, limit: int) -> list[C]:
        """Removes and returns up to `limit` cancellations of a count, the last place first."""
        pending = self._by_count.get(count, [])
        taken = pending[-limit:][::-1]
        del pending[-limit:]
        self._size -= len(taken)
        if not pending:
            self._by_count.pop(count, None)
        return taken

    def drop(self, count: Hashable) -> None:
        """Drops all cancellations of a count."""
        self._size -= len(self._by_count.pop(count, ()))

    def start_retry(self, count: Hashable) -> bool:
        """Returns whether the caller should retry the places of a count. One caller does, and starts over for
        those that come meanwhile."""
        if count not in self._by_count and count not in self._retrying:
            return False
        first = count not in self._retrying
        self._retrying[count] = True
        return first

    def continue_retry(self, count: Hashable) -> bool:
        """Returns whether the retrying caller should start (over)."""
        if self._retrying[count]:
            self._retrying[count] = False
            return True
        del self._retrying[count]
        return False


def _place_order(cancellation: Cancellation) -> tuple[int, tuple[int, int]]:
    place = cancellation.queue_place
    return (place.served_us, place.order) if place is not None else (0, (0, 0))
