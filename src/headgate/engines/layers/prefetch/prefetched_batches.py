"""All batches of prefetched units that one engine holds. It knows no engine: async_meter has the requests."""

from __future__ import annotations

import heapq
from itertools import count
from threading import Lock
from weakref import WeakSet

from headgate.engines.layers.prefetch.prefetched_units import (
    PrefetchedUnits,
    PrefetchTable,
)


class HotKeys:
    """All batches of prefetched units that one engine holds, in the order in which they expire."""

    def __init__(self) -> None:
        self._tables: WeakSet[PrefetchTable] = WeakSet()
        self._sequence = count()  # makes every expiry unique
        self.marks_outcomes: bool = False  # whether outcomes of prefetched units are marked, for observers
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
        """Returns how many batches have not expired yet, including those that were used up before."""
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

    def due_us(self, now_us: int) -> int | None:
        """Returns how long until the next batch expires, if there is one."""
        with self.lock:
            if not self._expiries:
                return None
            until_us, _, batch = self._expiries[0]
            return min(until_us - batch.since_us, max(0, until_us - now_us))  # the clock may have stepped back

    @property
    def prefetched_total(self) -> int:
        """Returns how many prefetched units were handed out."""
        with self.lock:
            held = [batch for *_, batch in self._expiries if batch.is_held]
            return self._handed_out + sum(max(0, batch.extra - batch.units_held) for batch in held)
