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
from collections.abc import Sequence
from typing import Any

from headgate.engine.redis.trouble import Trouble
from headgate.engine.redis.wire import Question, gave
from headgate.model.decision import AT_US

MAX_PLACES = 10_000  # that are remembered


class StuckPlaces:
    """Cancellations that gave nothing, count by count, in the order of their places."""

    def __init__(self, most: int = MAX_PLACES) -> None:
        self._most = most
        self._counts: OrderedDict[bytes, list[Question]] = OrderedDict()  # the latest count last
        self._places = 0
        self._trying: dict[bytes, bool] = {}  # counts that are being tried again; whether to begin anew

    def __len__(self) -> int:
        return self._places

    def given(self, question: Question, reply: Any) -> bool:
        """Note what became of a cancellation: whether it gave something back."""
        place = question.place
        if place is None or isinstance(reply, Trouble):
            return False
        if gave(reply):
            return True
        if len(reply) > AT_US and place.served_us > reply[AT_US]:
            insort(self._counts.setdefault(place.key, []), question, key=_served_us)
            self._counts.move_to_end(place.key)
            self._places += 1
            while self._places > self._most:
                self._places -= len(self._counts.popitem(last=False)[1])
        return False

    def last(self, count: bytes, many: int) -> list[Question]:
        """Take so many out, the last place first."""
        places = self._counts.get(count, [])
        taken = places[-many:][::-1]
        del places[-many:]
        self._places -= len(taken)
        if not places:
            self._counts.pop(count, None)
        return taken

    def begin(self, count: bytes) -> bool:
        """Whether to try the places of a count again: one does, and begins anew for whoever comes meanwhile."""
        if count not in self._counts and count not in self._trying:
            return False
        first = count not in self._trying
        self._trying[count] = True
        return first

    def again(self, count: bytes) -> bool:
        """Whether whoever tries is to begin (anew)."""
        if self._trying[count]:
            self._trying[count] = False
            return True
        del self._trying[count]
        return False

    def all_given(self, questions: Sequence[Question], replies: Sequence[Any]) -> bool:
        """The same as `given`, of several."""
        given = [self.given(*each) for each in zip(questions, replies, strict=True)]
        return all(given)


def _served_us(question: Question) -> int:
    return question.place.served_us if question.place is not None else 0
