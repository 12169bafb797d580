"""Decides by prefetched units where they suffice, and fetches more for hot keys."""

from __future__ import annotations

from headgate.algorithms.decision import ALLOWED, REMAINING, RESET_AFTER_US, Outcome, PrefetchedOutcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.clock import nanoseconds
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.prefetch.async_background_returns import AsyncBatchReturns
from headgate.engines.layers.prefetch.async_give_back import give_back
from headgate.engines.layers.prefetch.prefetch_bounds import PrefetchHold
from headgate.engines.layers.prefetch.prefetched_batches import HotKeys
from headgate.engines.layers.prefetch.prefetched_units import (
    HOT_CALLS,
    Demand,
    PrefetchedUnits,
    PrefetchTable,
    max_prefetch,
)
from headgate.engines.port import AsyncDecide, AsyncMeter


class AsyncPrefetchMeter:
    """A limit bound to the prefetch engine."""

    def __init__(
        self,
        meter: AsyncMeter,
        options: ChargeOptions | None,
        table: PrefetchTable,
        hold: PrefetchHold,
        hot_keys: HotKeys,
        returns: AsyncBatchReturns,
    ) -> None:
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.options = options
        self.meter = meter
        self.table = table
        self._hot_keys = hot_keys
        self._returns = returns
        self._now, self._now_ns = returns.clock.now_us, nanoseconds(returns.clock)
        self._hold_us, self._max_units = hold.us, max_prefetch(meter.limit, hold.units)
        self.decide: AsyncDecide = self._bind_decide()

    def _bind_decide(self) -> AsyncDecide:
        """Returns `decide` as a closure: the outcome of prefetched units if they suffice, else a take."""
        meter, get_batch, now_ns = self.meter, self.table.batches.get, self._now_ns
        take_held, decide_slowly = self._take_held, self._decide_slowly

        async def decide(key: str, cost: int, patience_us: int | None = None) -> Outcome:
            if patience_us is None and cost:
                batch = get_batch(key)
                if batch is not None and batch.since_ns <= now_ns() < batch.until_ns and batch.meter is meter:
                    if cost == 1:
                        try:
                            return batch.ready.pop()
                        except IndexError:
                            pass  # none is prepared, or another thread was faster
                    outcome = take_held(key, cost)
                    if outcome is not None:
                        return outcome
            return await decide_slowly(key, cost, patience_us)

        return decide

    def _take_held(self, key: str, cost: int) -> Outcome | None:
        """Takes prefetched units that are not prepared as single outcomes; None if they do not suffice."""
        with self._hot_keys.lock:
            batch = self.table.batches.get(key)
            if batch is None or not self._usable(batch, self._now()):
                return None
            batch.take_back_ready()
            if batch.unready < cost:
                return None
            batch.unready -= cost
            batch.calls += 1
            outcome = PrefetchedOutcome(batch.outcome(batch.unready))
            if cost == 1:
                batch.fill_ready(self._hot_keys.marks_outcomes)
            return outcome

    async def _decide_slowly(self, key: str, cost: int, patience_us: int | None) -> Outcome:
        if patience_us is not None:
            return await self.meter.decide(key, cost, patience_us)
        if not cost:
            return await self._peek(key)
        return await self._take(key, cost)

    async def _take(self, key: str, cost: int) -> Outcome:
        """Takes units from the engine, and more than the call needs if the key is hot."""
        hot_keys, table, now_us = self._hot_keys, self.table, self._now()
        with hot_keys.lock:
            demand = table.demand(key, now_us)
            batch = table.batches.get(key)
            # Another thread may have stored a batch a moment ago.
            suffices = batch is not None and self._usable(batch, now_us) and batch.units_held >= cost
            old_batch = None if suffices else hot_keys.remove(table, key, now_us)
            demand.note(now_us, self._hold_us, cost)
        if old_batch:
            await give_back(hot_keys, old_batch)
        with hot_keys.lock:
            extra = self._extra(key, demand, cost)
            demand.in_transit += extra > 0
        if extra and not self._returns.ready():
            extra = 0
            with hot_keys.lock:
                demand.in_transit -= 1
        if not extra:
            return await self._fetch(key, cost, 0, demand)
        return await self._returns.finish(self._fetch(key, cost, extra, demand))

    async def _fetch(self, key: str, cost: int, extra: int, demand: Demand) -> Outcome:
        """Charges the engine with the cost and the extra units, and stores the extra as a batch."""
        hot_keys, table, meter = self._hot_keys, self.table, self.meter
        try:
            since_us = self._now()
            outcome = await meter.decide(key, cost + extra)
            prefetched = extra > 0 and outcome[ALLOWED]
            if extra and not prefetched:
                outcome = await meter.decide(key, cost)
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
            self._returns.watch(batch)
        return batch.outcome(extra)

    def _extra(self, key: str, demand: Demand, cost: int) -> int:
        """Returns how many units to fetch in addition to the cost."""
        calls, units = demand.recent(self._hold_us)
        if calls < HOT_CALLS or demand.in_transit or key in self.table.batches:
            return 0
        # A multiple of the cost, so that calls of one cost leave nothing behind.
        return min(self._max_units, units, demand.remaining // 2) // cost * cost

    async def _peek(self, key: str) -> Outcome:
        """Peeks at the count; prefetched units add to what remains."""
        outcome = await self.meter.decide(key, 0)
        with self._hot_keys.lock:
            batch = self.table.batches.get(key)
            if batch is None or not batch.units_held or not self._usable(batch, self._now()):
                return outcome
            return True, outcome[REMAINING] + batch.units_held, 0, *outcome[RESET_AFTER_US:]

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        """Refunds units into the batch they came from, never more than was taken from it; else into the count."""
        with self._hot_keys.lock:
            batch = self.table.batches.get(key)
            if batch is not None and not cancel and self._usable(batch, self._now()):
                batch.take_back_ready()
                units_left = batch.unready + max(0, min(units, receipt.cost - receipt.refunded_units))
                same_fetch = receipt.at_us == batch.at_us and receipt.mark == batch.mark
                if same_fetch and units_left <= min(batch.receipt.cost, self._max_units):
                    batch.unready = units_left
                    return batch.outcome(units_left)
        return await self.meter.refund(key, units, receipt, cancel)

    async def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome:
        """Charges the count; prefetched units are charged already, and stay."""
        return await self.meter.surcharge(key, units, receipt)

    async def retune(self, key: str) -> None:
        """Gives the batch of a key back, then retunes the count."""
        with self._hot_keys.lock:
            old_batch = self._hot_keys.remove(self.table, key, self._now())
        if old_batch:
            await give_back(self._hot_keys, old_batch)
        await self.meter.retune(key)

    async def pause(self, key: str, duration_us: int) -> int:
        """Pauses the key. (No limiter that can be paused is prefetched: meter_without_prefetch.py.)"""
        return await self.meter.pause(key, duration_us)

    async def reset(self, key: str) -> None:
        """Resets the count, and drops the units that were charged to it."""
        with self._hot_keys.lock:
            self._hot_keys.remove(self.table, key, self._now())
            self.table.demand_by_key.pop(key, None)
        await self.meter.reset(key)

    def _usable(self, batch: PrefetchedUnits, now_us: int) -> bool:
        """Returns whether a batch was fetched under this very limit, and is still valid."""
        return batch.meter is self.meter and batch.is_valid(now_us)
