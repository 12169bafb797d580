"""One part of an engine, as its fallback sees it: its breaker, and the counts that this process keeps in its
place.

A part of an engine (a cluster's node; a single server is one part) fails by itself and comes back by itself. While
it is gone, each count that is used gets a share of its limit here. A count knows its unsettled units: those that
the share alone admitted, and the engine has not been charged with yet. Settling clears what the share still holds
of them, once, whether or not an answer comes: if the reply was lost, the engine may have been charged all the
same. A count whose settlement got no answer is kept until it has run out by itself, so that a second outage does
not begin with a new share.

Bounded as the in-memory engine is: each new count makes the part examine the two oldest and drop those that have
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
from headgate.engines.layers.fallback.breaker import CLOSED, OPEN, SETTLING, Breaker, BreakerRoute, BreakerState
from headgate.engines.memory.engine import MemoryMeter

_SWEEP_SIZE = 2  # old counts examined for each new one
_MIN_LIFE_US = SECOND  # of a new count: others may be added before it is decided with them

_log = logging.getLogger("headgate")

T = TypeVar("T")
Tag = tuple[Hashable, ...]  # identifies a count: its key and a number for its algorithm and name


class RecentEntries(Generic[T]):
    """The most recent values by tag; about `max_entries` of them, those not put again for longest go first.

    Two generations: one store for each value put; when the young are half of all, they become the old.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, max_entries: int) -> None:
        self._half = max(1, max_entries // 2)
        self._young: dict[Tag, T] = {}
        self._old: dict[Tag, T] = {}

    def put(self, tag: Tag, value: T) -> None:
        young = self._young
        young[tag] = value
        if len(young) >= self._half:
            self._old, self._young = young, {}

    def get(self, tag: Tag) -> T | None:
        value = self._young.get(tag)
        return self._old.get(tag) if value is None else value

    def drop(self, tag: Tag) -> None:
        self._young.pop(tag, None)
        self._old.pop(tag, None)

    def clear(self) -> None:
        self._young, self._old = {}, {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())


class LocalCount:
    """A share of one count, kept here. `engine_meter` is the meter that reaches the engine for it."""

    __slots__ = ("engine_meter", "is_settled", "key", "meter", "since_us", "unsettled_units", "until_us")

    def __init__(self, engine_meter: Any, key: str, meter: MemoryMeter, now_us: int) -> None:
        self.engine_meter: Any = engine_meter
        self.key: str = key
        self.meter: MemoryMeter = meter
        self.since_us: int = now_us
        self.until_us: int = now_us + _MIN_LIFE_US
        self.unsettled_units: int = 0
        self.is_settled: bool = True  # the engine knows of all its units

    def extend_life(self, outcome: Outcome) -> None:
        """Keeps the count alive until it has run out by itself."""
        self.until_us = max(self.until_us, outcome[AT_US] + outcome[RESET_AFTER_US])

    def take_unsettled(self) -> int:
        """Returns the units to charge the engine with, now and never again."""
        unsettled_units, self.unsettled_units = self.unsettled_units, 0
        return (
            min(unsettled_units, self.meter.limit.units_in_use(self.meter.decide(self.key, 0)))
            if unsettled_units
            else 0
        )


class Shard:
    """A part of the engine. A caller that touches more than `is_healthy` holds the lock."""

    def __init__(self, name: Hashable, settle_us: int, text: str = "The engine") -> None:
        self.name = name
        self.text = text  # in messages: "Redis at 10.0.0.5:6379"
        self.lock: Lock = Lock()
        self.breaker: Breaker = Breaker()
        self.is_healthy: bool = True  # it answers, and nothing is unsettled
        self.counts: OrderedDict[Tag, LocalCount] = OrderedDict()
        self.unsettled: dict[Tag, LocalCount] = {}
        self.tallies: Counter[str] = Counter()
        self.settle_us = settle_us
        self._down_since_us: int | None = None
        self._recovered_us = 0
        self._consequence = ""  # of an outage, once it is over: "decided locally"
        self._degraded_before = 0  # decisions by the fallback before the first failure in a row

    def tally(self, name: str) -> None:
        """Counts an event under its name."""
        with self.lock:
            self.tallies[name] += 1

    def choose_route(self, now_us: int) -> BreakerRoute:
        """Returns what a call that comes now should do."""
        with self.lock:
            route, after = self.breaker.choose_route(now_us)
            self._transition(after, now_us)
            self._update_health()
            return route

    def on_success(self, route: BreakerRoute, now_us: int) -> None:
        with self.lock:
            self._transition(self.breaker.on_success(route, now_us, self.settle_us), now_us)

    def on_failure(
        self, route: BreakerRoute, now_us: int, error: BaseException, consequence: str, past_consequence: str
    ) -> None:
        with self.lock:
            self._consequence = past_consequence
            if not self.breaker.failures:
                self._degraded_before = self.tallies["degraded"]
            self._transition(self.breaker.on_failure(route, now_us), now_us, f"{error} {consequence}")

    def on_withdrawal(self, route: BreakerRoute, now_us: int) -> None:
        with self.lock:
            self._transition(self.breaker.on_withdrawal(route, now_us), now_us)

    def on_contact(self, now_us: int) -> None:
        with self.lock:
            self._transition(self.breaker.on_contact(now_us), now_us)

    def phase(self, now_us: int) -> BreakerState:
        """Returns the current phase, without changing it."""
        breaker = self.breaker
        if breaker.phase is SETTLING and not breaker.since_us <= now_us < breaker.until_us:
            return CLOSED
        return breaker.phase

    def add_unsettled(self, tag: Tag, count: LocalCount, units: int) -> None:
        """Adds units that the share alone admitted."""
        with self.lock:
            count.unsettled_units += units
            count.is_settled = False
            self.counts[tag] = self.unsettled[tag] = count
            self.is_healthy = False

    def take_unsettled(self, tag: Tag) -> int:
        """Removes and returns the unsettled units of a count."""
        with self.lock:
            count = self.unsettled.pop(tag, None)
            self._update_health()
            return 0 if count is None else count.take_unsettled()

    def mark_settled(self, tag: Tag, count: LocalCount) -> None:
        """Marks a count as settled: the engine was charged with all that it held."""
        with self.lock:
            count.is_settled = not count.unsettled_units
            if count.is_settled and self.breaker.phase is CLOSED:
                self.counts.pop(tag, None)

    def count(self, tag: Tag) -> LocalCount | None:
        """Returns the local count. Of a settled one the engine knows more while it answers."""
        count = self.counts.get(tag)
        return None if count is None or (count.is_settled and self.breaker.phase is CLOSED) else count

    def add(self, tag: Tag, count: LocalCount, now_us: int) -> LocalCount:
        """Adds a count; returns it, or the one that another thread was faster to add."""
        with self.lock:
            for _ in range(min(_SWEEP_SIZE, len(self.counts))):
                oldest = next(iter(self.counts))
                if self.counts[oldest].until_us <= now_us:
                    del self.counts[oldest]
                    self.unsettled.pop(oldest, None)
                else:
                    self.counts.move_to_end(oldest)
            self.counts[tag] = added = self.count(tag) or count
            return added

    def move_count(self, tag: Tag, target: Shard) -> None:
        """Moves a count, with its unsettled units, to the part that answers for its key now."""
        with self.lock:
            count, unsettled = self.counts.pop(tag, None), self.unsettled.pop(tag, None)
            self._update_health()
        if count is not None:
            with target.lock:
                stored = target.counts.setdefault(tag, count)
                if unsettled is stored:
                    target.unsettled[tag] = stored
                target._update_health()

    def _transition(self, after: Breaker, now_us: int, reason: str = "") -> None:
        """Replaces the breaker; logs and tidies up where the phase changes."""
        before, self.breaker = self.breaker, after
        if after is before:
            return
        if after.phase is OPEN and before.phase in (CLOSED, SETTLING):
            self.tallies["opened"] += 1
            if before.phase is CLOSED:
                self._drop_settled()  # they began with what was known in the last outage
            if self._down_since_us is None:
                self._down_since_us = now_us
                _log.warning("headgate: %s until it answers.", reason)
        elif after.phase is not before.phase and after.phase in (CLOSED, SETTLING):
            self._recovered_us = now_us if before.phase is not SETTLING else self._recovered_us
            if after.phase is CLOSED:
                self._recover()
        self._update_health()

    def _recover(self) -> None:
        """Drops settled counts, and logs that the engine is back."""
        self._drop_settled()
        if self._down_since_us is not None:
            decided = self.tallies["degraded"] - self._degraded_before
            calls = "1 call was" if decided == 1 else f"{decided} calls were"
            outage_s = (self._recovered_us - self._down_since_us) / SECOND
            text = "headgate: %s answers again after %.1f s; %s %s."
            _log.warning(text, self.text, outage_s, calls, self._consequence)
        self._down_since_us = None

    def _drop_settled(self) -> None:
        for tag in [tag for tag, count in self.counts.items() if count.is_settled]:
            del self.counts[tag]

    def _update_health(self) -> None:
        self.is_healthy = self.breaker.phase is CLOSED and not self.breaker.failures and not self.unsettled
