"""Chooses the callers that try again once a refusal has ended: as many as may pass, and one to learn if none may.

While a refusal lasts, all callers of its key are answered here. When it ends, 64 of them may come in one turn of
the loop, and one unit is free: 63 questions would be for nothing. So one caller asks, and the others wait for what
it learns.

    it is refused          the new refusal answers all who wait, also if it has run out by then
    it passes, 0 remain    the next one asks
    it passes, n remain    n may ask at once; one more each time that no fewer remain than before
    it fails, or leaves    all who wait ask by themselves

So the engine is asked at most twice for each unit that passes. A caller that was not woken after MAX_WAIT_S asks
by itself: a slow engine holds up nobody. Which caller asks decides nothing: the engine does.

async_waiter and sync_waiter say how a caller waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from headgate.algorithms.decision import ALLOWED, REMAINING, Outcome
from headgate.algorithms.limit import EXACT

if TYPE_CHECKING:
    from headgate.engines.layers.denial_cache.denial_table import Denial

MAX_WAIT_S = 0.05


class Wakeable(Protocol):
    """A caller that waits for its turn."""

    def wake(self) -> None: ...


class Recheck:
    """The callers of one key since its refusal has ended."""

    __slots__ = ("_asking", "_free", "_key", "_lock", "_refills", "_room", "_table", "_waiting", "refusal")

    def __init__(self, table: RecheckTable, key: Hashable) -> None:
        self._table, self._key, self._lock = table, key, Lock()
        self.refusal: Denial | None = None  # what the last who asked learned
        self._asking = 0
        self._free = 1  # how many may ask at once
        self._room = EXACT  # calls that still fit, after the last that passed
        self._refills = 0  # passes in a row after which no fewer fitted: units come as fast as callers ask
        self._waiting: deque[Wakeable] = deque()

    @classmethod
    def of(cls, table: RecheckTable, key: Hashable) -> Recheck:
        """Returns the callers of a key, which are none if this is the first since its refusal has ended."""
        return table.get(key) or table.setdefault(key, cls(table, key))

    def begin(self, waiter: Wakeable) -> bool:
        """Returns whether the caller may ask now; if not, its waiter is woken later."""
        with self._lock:
            if self._asking < self._free:
                self._asking += 1
                return True
            self._waiting.append(waiter)
            return False

    def begin_late(self) -> None:
        """Lets a caller ask that was not woken in time, and all others: whoever asks is slow, or gone."""
        self._dissolve()

    def leave(self, waiter: Wakeable) -> None:
        """Removes a caller that is gone. If it was woken already, its turn is the next one's."""
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            woken = self._pop_waiters()
        for each in woken:
            each.wake()

    def end(self, outcomes: Sequence[Outcome], costs: Sequence[int], refusal: Denial | None) -> None:
        """Reports what the engine answered to a caller, nothing if it did not, and the refusal that was cached.
        Wakes those whom the answer concerns."""
        if not outcomes or not all(outcome[ALLOWED] for outcome in outcomes):
            self.refusal = refusal if outcomes else None
            self._dissolve()
            return
        with self._lock:
            self._asking -= 1
            if self._free != EXACT:
                room = min(outcome[REMAINING] // cost for outcome, cost in zip(outcomes, costs, strict=True))
                self._refills = self._refills + 1 if room >= self._room else 0
                self._room, self._free = room, max(1, room + self._refills)
            woken = self._pop_waiters()
            if not (self._asking or self._waiting or woken):
                self._drop()
        for waiter in woken:
            waiter.wake()

    def _dissolve(self) -> None:
        """Wakes all, who find the new refusal or ask by themselves."""
        with self._lock:
            self._free = EXACT
            woken = self._pop_waiters()
            self._drop()
        for waiter in woken:
            waiter.wake()

    def _drop(self) -> None:
        if self._table.get(self._key) is self:
            del self._table[self._key]

    def _pop_waiters(self) -> list[Wakeable]:
        """Returns those whose turn it is."""
        count = min(len(self._waiting), max(0, self._free - self._asking))
        return [self._waiting.popleft() for _ in range(count)]


RecheckTable = dict[Hashable, Recheck]
