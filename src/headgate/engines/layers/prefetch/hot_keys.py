"""Fetches units of hot keys ahead, hands them out and gives them back: the flows of the prefetch layer.

engines.py has the story and the law. This file knows no engine: it yields each request as a step, so the sync and
the async engine drive the same flows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakSet

from headgate.algorithms.decision import ALLOWED, REMAINING, RESET_AFTER_US, Outcome, Receipt
from headgate.algorithms.limit import check_whole
from headgate.clock import Clock, nanoseconds
from headgate.engines.layers.prefetch.prefetched_units import (
    HOT_CALLS,
    Demand,
    PrefetchedUnits,
    PrefetchTable,
    max_prefetch,
)
from headgate.errors import CorruptState, EngineUnavailable
from headgate.flow import Flow


class HotKeys:
    """All batches of prefetched units that one engine holds, in the order in which they expire."""

    def __init__(self) -> None:
        self._tables: WeakSet[PrefetchTable] = WeakSet()
        self._sequence = count()  # makes every expiry unique
        self.reset()

    def reset(self) -> None:
        """Drops all batches and demand, and makes a new lock."""
        self.lock: Lock = Lock()
        self._handed_out = 0
        self.lost_units: int = 0
        self._expiries: list[tuple[int, int, PrefetchedUnits]] = []
        for table in self._tables:
            table.batches.clear()
            table.demand_by_key.clear()

    def new_table(self) -> PrefetchTable:
        """Returns a new table for the keys of one name."""
        table = PrefetchTable()
        self._tables.add(table)
        return table

    def put(self, batch: PrefetchedUnits, since_us: int, hold_us: int) -> bool:
        """Stores a batch until it expires; returns whether it was stored. The caller holds the lock."""
        if batch.table.demand_by_key.get(batch.key) is not batch.demand:
            # The key was reset meanwhile, before or after this charge: that is unknown.
            self.lost_units += batch.extra
            return False
        batch.set_lifetime(since_us, since_us + min(hold_us, batch.receipt.reset_after_us))
        batch.table.batches[batch.key] = batch
        heapq.heappush(self._expiries, (batch.until_us, next(self._sequence), batch))
        return True

    @property
    def pending_count(self) -> int:
        """How many batches have not expired yet, including those that were used up before."""
        return len(self._expiries)

    def next_is(self, batch: PrefetchedUnits) -> bool:
        """Returns whether this batch expires next."""
        return bool(self._expiries) and self._expiries[0][-1] is batch

    def remove(self, table: PrefetchTable, key: str, now_us: int) -> PrefetchedUnits | None:
        """Removes the batch of a key; returns it if there is anything to give back. The caller holds the lock."""
        batch = table.batches.pop(key, None)
        if batch is None:
            return None
        batch.take_back_ready()
        used = max(0, batch.extra - batch.unready)
        self._handed_out += used
        batch.demand.add(batch.calls, used, min(now_us, batch.until_us))
        if not batch.unready or now_us >= batch.since_us + batch.receipt.reset_after_us:
            return None  # nothing is left, or it expired with the count that it was charged to
        batch.demand.in_transit += 1
        return batch

    def remove_expired(self, now_us: int, *, closing: bool = False) -> list[PrefetchedUnits]:
        """Removes and returns the batches to give back now: the expired ones, or all of them."""
        expired, expiries = [], self._expiries
        with self.lock:
            while expiries and (closing or not expiries[0][-1].is_valid(now_us)):
                batch = heapq.heappop(expiries)[-1]
                if batch.is_held and self.remove(batch.table, batch.key, now_us):
                    expired.append(batch)
        return expired

    def give_back(self, batch: PrefetchedUnits) -> Flow[None]:
        """Gives back what is left of a removed batch. No answer is no caller's error: the limit refills by
        itself."""
        try:
            yield partial(batch.meter.refund, batch.key, batch.unready, batch.receipt)
        except BaseException as error:
            with self.lock:
                self.lost_units += batch.unready
            if not isinstance(error, CorruptState | EngineUnavailable):
                raise
        finally:
            with self.lock:
                batch.demand.in_transit -= 1

    def due_us(self, now_us: int) -> int | None:
        """Returns how long until the next batch expires, if there is one."""
        with self.lock:
            if not self._expiries:
                return None
            until_us, _, batch = self._expiries[0]
            return min(until_us - batch.since_us, max(0, until_us - now_us))  # the clock may have stepped back

    @property
    def prefetched_total(self) -> int:
        """How many prefetched units were handed out."""
        with self.lock:
            held = [batch for *_, batch in self._expiries if batch.is_held]
            return self._handed_out + sum(max(0, batch.extra - batch.units_held) for batch in held)


class PrefetchHold(NamedTuple):
    """How long units may be held, and how many at most; by default a tenth of what the limit holds at once."""

    us: int
    units: int | None

    @classmethod
    def create(cls, us: int, units: int | None) -> PrefetchHold:
        """Returns a Hold, or raises InvalidRule."""
        check_whole("The time that prefetched units are held, in microseconds,", us)
        return cls(us, None if units is None else check_whole("The number of prefetched units", units))


class PrefetchFlows:
    """Hands out the units of one limit.

    The engine passes the clock and three functions: `ready` returns whether a batch can be given back in time,
    `watch` sees to that for one batch, and `to_completion` drives a flow to its end, even if the caller is
    cancelled meanwhile.
    """

    def __init__(
        self,
        hot_keys: HotKeys,
        table: PrefetchTable,
        meter: Any,
        hold: PrefetchHold,
        clock: Clock,
        ready: Callable[[], bool],
        watch: Callable[[PrefetchedUnits], Any],
        to_completion: Callable[[Flow[Outcome]], Any],
    ) -> None:
        self.hot_keys: HotKeys = hot_keys
        self.table: PrefetchTable = table
        self.meter: Any = meter
        self._now, self._now_ns = clock.now_us, nanoseconds(clock)
        self._ready, self._watch, self._to_completion = ready, watch, to_completion
        self._hold_us, self._max_units = hold.us, max_prefetch(meter.limit, hold.units)

    def fast_decide(self, slow_decide: Callable[[str, int, int | None], Any]) -> Callable[..., Any]:
        """Returns the hot path as a closure: the outcome of prefetched units if they suffice, else
        `slow_decide`."""
        meter, get_batch, now_ns, take_held = self.meter, self.table.batches.get, self._now_ns, self._take_held

        def decide(key: str, cost: int, patience_us: int | None = None) -> Any:
            if patience_us is None and cost:
                batch = get_batch(key)
                if batch is not None and batch.since_ns <= now_ns() < batch.until_ns and batch.meter is meter:
                    if cost == 1 and batch.ready:
                        try:
                            return batch.ready.pop()
                        except IndexError:
                            pass  # another thread was faster
                    outcome = take_held(key, cost)
                    if outcome is not None:
                        return outcome
            return slow_decide(key, cost, patience_us)

        return decide

    def _take_held(self, key: str, cost: int) -> Outcome | None:
        """Takes prefetched units that are not prepared as single outcomes; None if they do not suffice."""
        with self.hot_keys.lock:
            batch = self.table.batches.get(key)
            if batch is None or not self._usable(batch, self._now()):
                return None
            batch.take_back_ready()
            if batch.unready < cost:
                return None
            batch.unready -= cost
            batch.calls += 1
            outcome = batch.outcome(batch.unready)
            if cost == 1:
                batch.fill_ready()
            return outcome

    def take(self, key: str, cost: int) -> Flow[Outcome]:
        """Takes units from the engine, and more than the call needs if the key is hot."""
        hot_keys, table, now_us = self.hot_keys, self.table, self._now()
        with hot_keys.lock:
            demand = table.demand(key, now_us)
            batch = table.batches.get(key)
            # Another thread may have stored a batch a moment ago.
            suffices = batch is not None and self._usable(batch, now_us) and batch.units_held >= cost
            old_batch = None if suffices else hot_keys.remove(table, key, now_us)
            demand.note(now_us, self._hold_us, cost)
        if old_batch:
            yield from hot_keys.give_back(old_batch)
        with hot_keys.lock:
            extra = self._extra(key, demand, cost)
            demand.in_transit += extra > 0
        if extra and not self._ready():
            extra = 0
            with hot_keys.lock:
                demand.in_transit -= 1
        if not extra:
            return (yield from self._fetch(key, cost, 0, demand))
        outcome: Outcome = yield partial(self._to_completion, self._fetch(key, cost, extra, demand))
        return outcome

    def _fetch(self, key: str, cost: int, extra: int, demand: Demand) -> Flow[Outcome]:
        """Charges the engine with the cost and the extra units, and stores the extra as a batch."""
        hot_keys, table, meter = self.hot_keys, self.table, self.meter
        try:
            since_us = self._now()
            outcome: Outcome = yield partial(meter.decide, key, cost + extra)
            prefetched = extra > 0 and outcome[ALLOWED]
            if extra and not prefetched:
                outcome = yield partial(meter.decide, key, cost)
        except BaseException:
            with hot_keys.lock:
                demand.in_transit -= extra > 0
            raise
        with hot_keys.lock:
            demand.in_transit -= extra > 0
            demand.remaining = outcome[REMAINING]
            if not prefetched:
                return outcome
            batch = PrefetchedUnits(meter, key, outcome, cost, extra, table, demand)
            is_stored = hot_keys.put(batch, since_us, self._hold_us)
        if is_stored:
            yield partial(self._watch, batch)
        return batch.outcome(extra)

    def _extra(self, key: str, demand: Demand, cost: int) -> int:
        """Returns how many units to fetch beside the cost."""
        calls, units = demand.recent(self._hold_us)
        if calls < HOT_CALLS or demand.in_transit or key in self.table.batches:
            return 0
        # A multiple of the cost, so that calls of one cost leave nothing behind.
        return min(self._max_units, units, demand.remaining // 2) // cost * cost

    def peek(self, key: str) -> Flow[Outcome]:
        """Peeks at the count; prefetched units add to what remains."""
        outcome: Outcome = yield partial(self.meter.decide, key, 0)
        with self.hot_keys.lock:
            batch = self.table.batches.get(key)
            if batch is None or not batch.units_held or not self._usable(batch, self._now()):
                return outcome
            return True, outcome[REMAINING] + batch.units_held, 0, *outcome[RESET_AFTER_US:]

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool) -> Flow[Outcome]:
        """Refunds units into the batch they came from, never more than was taken from it; else into the count."""
        with self.hot_keys.lock:
            batch = self.table.batches.get(key)
            if batch is not None and not cancel and self._usable(batch, self._now()):
                batch.take_back_ready()
                units_left = batch.unready + max(0, min(units, receipt.cost - receipt.refunded_units))
                same_fetch = receipt.at_us == batch.at_us and receipt.mark == batch.mark
                if same_fetch and units_left <= min(batch.receipt.cost, self._max_units):
                    batch.unready = units_left
                    return batch.outcome(units_left)
        outcome: Outcome = yield partial(self.meter.refund, key, units, receipt, cancel)
        return outcome

    def retune(self, key: str) -> Flow[None]:
        """Gives the batch of a key back, then retunes the count."""
        with self.hot_keys.lock:
            old_batch = self.hot_keys.remove(self.table, key, self._now())
        if old_batch:
            yield from self.hot_keys.give_back(old_batch)
        yield partial(self.meter.retune, key)

    def reset(self, key: str) -> Flow[None]:
        """Resets the count, and drops the units that were charged to it."""
        with self.hot_keys.lock:
            self.hot_keys.remove(self.table, key, self._now())
            self.table.demand_by_key.pop(key, None)
        yield partial(self.meter.reset, key)

    def _usable(self, batch: PrefetchedUnits, now_us: int) -> bool:
        """Returns whether a batch was fetched under this very limit, and is still valid."""
        return batch.meter is self.meter and batch.is_valid(now_us)
