"""Places in queues that could not be given back yet, because later ones were built on them.

A cancelled reservation gives back what nobody built on. So of several that are cancelled, only the last one in the
queue gives its place back at once, unless they are cancelled in the order from the last to the first; and clients
that hang up keep no order. Hence a place that gave nothing is remembered, and tried again as soon as one behind it
was given back: from the last to the first, as long as there is something to give.

LAW: when all callers of one event loop, or all threads of one engine, who hold the last places of a queue have
left, in any order, all of these places are given back. (Each process knows its own places only: between two of
them the order counts.) No place is given back twice: one that gave anything is never tried again. What is
remembered is bounded; a place that is forgotten, or whose time has come, is lost as if its process had died.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

from headgate.algorithms.decision import Receipt
from headgate.algorithms.limit import EXACT

MAX_PLACES = 10_000  # that are remembered


class QueuePlace(NamedTuple):
    """A place in a queue that is cancelled: under which key it is counted, and when it would be served. Of several
    at one instant the last is the one whose charge ends last."""

    key: Hashable
    served_us: int
    ends: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, key: Hashable, receipt: Receipt) -> QueuePlace:
        # A token bucket's mark is what its reset was rounded up for: none is the last of the microsecond.
        return cls(key, receipt.served_us, (receipt.at_us + receipt.reset_after_us, receipt.mark or EXACT))


class Cancellation(Protocol):
    """A cancellation that can be tried again; without a place it is of something else."""

    @property
    def place(self) -> QueuePlace | None: ...


C = TypeVar("C", bound=Cancellation)


class PendingCancellations(Generic[C]):
    """Cancellations that gave nothing, count by count, in the order of their places."""

    def __init__(self, most: int = MAX_PLACES) -> None:
        self._most = most
        self._counts: OrderedDict[Hashable, list[C]] = OrderedDict()  # the latest count last
        self._places = 0
        self._trying: dict[Hashable, bool] = {}  # counts that are being tried again; whether to begin anew

    def __len__(self) -> int:
        return self._places

    def note(self, cancellation: C, now_us: int) -> None:
        """Remember one that gave nothing, unless its time has come."""
        place = cancellation.place
        if place is not None and place.served_us > now_us:
            insort(self._counts.setdefault(place.key, []), cancellation, key=_order)
            self._counts.move_to_end(place.key)
            self._places += 1
            while self._places > self._most:
                self._places -= len(self._counts.popitem(last=False)[1])

    def last(self, count: Hashable, many: int) -> list[C]:
        """Take so many out, the last place first."""
        places = self._counts.get(count, [])
        taken = places[-many:][::-1]
        del places[-many:]
        self._places -= len(taken)
        if not places:
            self._counts.pop(count, None)
        return taken

    def forget(self, count: Hashable) -> None:
        """Try none of a count again."""
        self._places -= len(self._counts.pop(count, ()))

    def begin(self, count: Hashable) -> bool:
        """Whether to try the places of a count again: one does, and begins anew for whoever comes meanwhile."""
        if count not in self._counts and count not in self._trying:
            return False
        first = count not in self._trying
        self._trying[count] = True
        return first

    def again(self, count: Hashable) -> bool:
        """Whether whoever tries is to begin (anew)."""
        if self._trying[count]:
            self._trying[count] = False
            return True
        del self._trying[count]
        return False


def _order(cancellation: Cancellation) -> tuple[int, tuple[int, int]]:
    place = cancellation.place
    return (place.served_us, place.ends) if place is not None else (0, (0, 0))
