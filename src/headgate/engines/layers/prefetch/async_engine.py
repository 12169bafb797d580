"""The engine of the prefetch layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from weakref import WeakValueDictionary

from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import Limit
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.prefetch.async_background_returns import AsyncBatchReturns
from headgate.engines.layers.prefetch.async_give_back import give_back_expired
from headgate.engines.layers.prefetch.async_meter import AsyncPrefetchMeter
from headgate.engines.layers.prefetch.meter_without_prefetch import ExactMeter
from headgate.engines.layers.prefetch.prefetch_bounds import HOLD_US, PrefetchHold, hold_for, prefetch_guarantees
from headgate.engines.layers.prefetch.prefetched_batches import HotKeys
from headgate.engines.port import AsyncEngine, AsyncMeter
from headgate.engines.stack import EngineLayer
from headgate.errors import InvalidCharge


class AsyncPrefetchEngine(EngineLayer):
    """A layer that hands out units of hot keys that were fetched ahead. Works from several threads or event loops.

    hold_us   how long units may be held; None: not at all, unless a rule's options allow it
    units     how many of a key at most; by default a tenth of what its limit holds at once
    """

    def __init__(
        self,
        inner: AsyncEngine,
        *,
        hold_us: int | None = HOLD_US,
        units: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.inner: AsyncEngine = inner
        self.clock: Clock = clock or SystemClock()
        self._hold = None if hold_us is None else PrefetchHold.create(hold_us, units)
        self._hot_keys = HotKeys()
        self._returns = AsyncBatchReturns(self._hot_keys, self.clock)
        self._meters: WeakValueDictionary[tuple[str, str], AsyncPrefetchMeter] = WeakValueDictionary()
        on_fork(self.reset_after_fork)

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> AsyncMeter:
        hold = hold_for(limit, options, self._hold)
        if hold is None:
            return ExactMeter(self.inner.meter(limit, name, options), options)
        with self._hot_keys.lock:
            latest = self._meters.get((limit.algorithm, name))
            if latest is None or latest.limit.text != limit.text or latest.options is not options:
                table = latest.table if latest else self._hot_keys.new_table()
                inner = self.inner.meter(limit, name, options)
                latest = AsyncPrefetchMeter(inner, options, table, hold, self._hot_keys, self._returns)
                self._meters[limit.algorithm, name] = latest
        return latest

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        inner_charges = [
            (meter.meter, key, cost)
            for meter, key, cost in charges
            if isinstance(meter, AsyncPrefetchMeter | ExactMeter)
        ]
        if len(inner_charges) != len(charges):
            raise InvalidCharge("A charge of another engine cannot be decided here.")
        return await self.inner.decide_all(inner_charges, patience_us, commit)

    async def give_back_expired(self) -> None:
        """Gives back expired batches."""
        await give_back_expired(self._hot_keys, self.clock)

    def guarantees(
        self, limit: Limit, nodes: int, options: ChargeOptions | None = None
    ) -> Iterator[tuple[str, str]]:
        return prefetch_guarantees(limit, nodes, options, self._hold)

    def mark_prefetched(self) -> None:
        self._hot_keys.marks_outcomes = True

    def measurements(self) -> Iterator[tuple[str, float | list[float]]]:
        """Yields how many prefetched units were handed out, and how many were lost."""
        yield from self.inner.measurements()
        yield "prefetched_units_total", self.prefetched
        yield "prefetch_lost_units_total", self.lost_units

    @property
    def prefetched(self) -> int:
        """Returns how many prefetched units were handed out."""
        return self._hot_keys.prefetched_total

    @property
    def lost_units(self) -> int:
        """Returns how many units could not be given back; the limit refills them by itself."""
        return self._hot_keys.lost_units

    def reset_after_fork(self) -> None:
        """Drops all batches without giving them back: in a forked child they are the parent's."""
        self._returns.reset()
        self._hot_keys.reset()

    async def close(self) -> None:
        """Gives back all batches, and closes the inner engine."""
        await self._returns.stop()
        await give_back_expired(self._hot_keys, self.clock, closing=True)
        await self.inner.close()
