"""One part of an engine, as its fallback sees it: its breaker, and the counts that were kept here instead.

A part of an engine (a cluster's node; a single server is one part) fails by itself and comes back by itself. While
it is gone, each count that is asked for gets a share of its limit here. A count knows what it owes: the units that
were admitted on the share's word alone, of which the engine has not been told yet. Telling takes what the share
still holds of them off the books, once, whether or not an answer comes: if it was lost, the engine may have been
told all the same. A count whose telling got no answer is kept until it has run out by itself, so that a second
outage does not begin with a new share.

Bounded as the embedded engine is: each new count makes the part look at the two oldest and drop those that have
run out.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any, Generic, TypeVar

from headgate.algorithms.decision import AT_US, RESET_AFTER_US, Outcome
from headgate.algorithms.limit import SECOND
from headgate.engines.layers.fallback.breaker import CLOSED, OPEN, SETTLING, Breaker, Phase, Way
from headgate.engines.layers.fallback.limit_share import held
from headgate.engines.memory.engine import MemoryMeter

_LOOKED_AT = 2  # old counts examined for each new one
_UNJUDGED_US = SECOND  # that a new count lives at least: others may be made before it is judged with them

_log = logging.getLogger("headgate")

T = TypeVar("T")
Tag = tuple[Hashable, ...]  # of a count: its key and a number for its algorithm and name


class Recent(Generic[T]):
    """The last things kept, each under its tag; about `most` of them, those not kept again for longest go first.

    Two generations: one store for each thing kept; when the young are half of all, they become the old.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._young: dict[Tag, T] = {}
        self._old: dict[Tag, T] = {}

    def keep(self, tag: Tag, thing: T) -> None:
        young = self._young
        young[tag] = thing
        if len(young) >= self._half:
            self._old, self._young = young, {}

    def find(self, tag: Tag) -> T | None:
        found = self._young.get(tag)
        return self._old.get(tag) if found is None else found

    def drop(self, tag: Tag) -> None:
        self._young.pop(tag, None)
        self._old.pop(tag, None)

    def clear(self) -> None:
        self._young, self._old = {}, {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())


class Count:
    """A share of one count, kept here. `asked` is the meter that asks the engine for it."""

    __slots__ = ("asked", "key", "meter", "owed", "since_us", "told", "until_us")

    def __init__(self, asked: Any, key: str, meter: MemoryMeter, now_us: int) -> None:
        self.asked: Any = asked
        self.key: str = key
        self.meter: MemoryMeter = meter
        self.since_us: int = now_us
        self.until_us: int = now_us + _UNJUDGED_US
        self.owed: int = 0
        self.told: bool = True  # nothing that the engine does not know

    def judged(self, facts: Outcome) -> None:
        self.until_us = max(self.until_us, facts[AT_US] + facts[RESET_AFTER_US])

    def take_owed(self) -> int:
        """What the engine is to be told now, and never again."""
        owed, self.owed = self.owed, 0
        return min(owed, held(self.meter.limit, self.meter.decide(self.key, 0))) if owed else 0


class Shard:
    """A part of the engine. Whoever touches more than `straight` holds the lock."""

    def __init__(self, name: Hashable, settle_us: int) -> None:
        self.name = name
        self.lock: Lock = Lock()
        self.breaker: Breaker = Breaker()
        self.straight: bool = True  # answers, and nothing is owed to it
        self.counts: OrderedDict[Tag, Count] = OrderedDict()
        self.owing: dict[Tag, Count] = {}
        self.tallies: Counter[str] = Counter()
        self.settle_us = settle_us
        self._gone_us: int | None = None
        self._back_us = 0
        self._degraded = 0  # decisions by the fallback before the first failure in a row

    def tally(self, what: str) -> None:
        with self.lock:
            self.tallies[what] += 1

    def asked(self, now_us: int) -> Way:
        with self.lock:
            way, after = self.breaker.asked(now_us)
            self._become(after, now_us)
            self._look()
            return way

    def succeeded(self, way: Way, now_us: int) -> None:
        with self.lock:
            self._become(self.breaker.succeeded(way, now_us, self.settle_us), now_us)

    def failed(self, way: Way, now_us: int, why: BaseException, instead: str) -> None:
        with self.lock:
            if not self.breaker.failures:
                self._degraded = self.tallies["degraded"]
            self._become(self.breaker.failed(way, now_us), now_us, f"{why} {instead}")

    def withdrawn(self, way: Way, now_us: int) -> None:
        with self.lock:
            self._become(self.breaker.withdrawn(way, now_us), now_us)

    def heard(self, now_us: int) -> None:
        with self.lock:
            self._become(self.breaker.heard(now_us), now_us)

    def phase(self, now_us: int) -> Phase:
        """The phase as it is now, without asking anybody anything."""
        breaker = self.breaker
        if breaker.phase is SETTLING and not breaker.since_us <= now_us < breaker.until_us:
            return CLOSED
        return breaker.phase

    def owe(self, tag: Tag, count: Count, units: int) -> None:
        """Units were admitted by the share alone."""
        with self.lock:
            count.owed += units
            count.told = False
            self.counts[tag] = self.owing[tag] = count
            self.straight = False

    def take_owed(self, tag: Tag) -> int:
        """What a count owes; from here on it does not."""
        with self.lock:
            count = self.owing.pop(tag, None)
            self._look()
            return 0 if count is None else count.take_owed()

    def told(self, tag: Tag, count: Count) -> None:
        """The engine has heard of all that the count held."""
        with self.lock:
            count.told = not count.owed
            if count.told and self.breaker.phase is CLOSED:
                self.counts.pop(tag, None)

    def count(self, tag: Tag) -> Count | None:
        """The count as it is kept here. What the engine was told, it knows better while it answers."""
        count = self.counts.get(tag)
        return None if count is None or (count.told and self.breaker.phase is CLOSED) else count

    def add(self, tag: Tag, count: Count, now_us: int) -> Count:
        """A new count, or the one that another thread was faster to add."""
        with self.lock:
            for _ in range(min(_LOOKED_AT, len(self.counts))):
                oldest = next(iter(self.counts))
                if self.counts[oldest].until_us <= now_us:
                    del self.counts[oldest]
                    self.owing.pop(oldest, None)
                else:
                    self.counts.move_to_end(oldest)
            self.counts[tag] = added = self.count(tag) or count
            return added

    def hand_over(self, tag: Tag, to: Shard) -> None:
        """Another part answers for the key of this count: the count goes there, with what it owes."""
        with self.lock:
            count, owing = self.counts.pop(tag, None), self.owing.pop(tag, None)
            self._look()
        if count is not None:
            with to.lock:
                kept = to.counts.setdefault(tag, count)
                if owing is kept:
                    to.owing[tag] = kept
                to._look()

    def _become(self, after: Breaker, now_us: int, why: str = "") -> None:
        before, self.breaker = self.breaker, after
        if after is before:
            return
        if after.phase is OPEN and before.phase in (CLOSED, SETTLING):
            self.tallies["opened"] += 1
            if before.phase is CLOSED:
                self._drop_told()  # they began with what was known then
            if self._gone_us is None:
                self._gone_us = now_us
                _log.warning("headgate: %s until it answers.", why)
        elif after.phase is not before.phase and after.phase in (CLOSED, SETTLING):
            self._back_us = now_us if before.phase is not SETTLING else self._back_us
            if after.phase is CLOSED:
                self._back()
        self._look()

    def _back(self) -> None:
        """All accounts are settled, as far as they can be."""
        self._drop_told()
        if self._gone_us is not None:
            text = "headgate: the engine (part %s) answers again, after %.1f s and %d decisions by the fallback."
            decided = self.tallies["degraded"] - self._degraded
            _log.warning(text, self.name, (self._back_us - self._gone_us) / SECOND, decided)
        self._gone_us = None

    def _drop_told(self) -> None:
        for tag in [tag for tag, count in self.counts.items() if count.told]:
            del self.counts[tag]

    def _look(self) -> None:
        self.straight = self.breaker.phase is CLOSED and not self.breaker.failures and not self.owing
