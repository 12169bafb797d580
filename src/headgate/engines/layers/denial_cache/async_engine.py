"""The engine of the denial cache."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from time import monotonic
from typing import Any

from headgate.algorithms.decision import ALLOWED, LockedOutcome, Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.denial_cache.async_waiter import AsyncWaiter
from headgate.engines.layers.denial_cache.denial_table import DenialIndex, DenialTable
from headgate.engines.layers.denial_cache.recheck import MAX_WAIT_S, Recheck
from headgate.engines.port import AsyncEngine, AsyncMeter
from headgate.engines.stack import EngineLayer
from headgate.errors import InvalidCharge


class AsyncDenialCacheEngine(EngineLayer):
    """Repeats refusals by itself, and sends every other request to the engine behind it."""

    def __init__(self, inner: AsyncEngine, *, entries: int = 10_000, clock: Clock | None = None) -> None:
        self.inner: AsyncEngine = inner
        self.clock: Clock = clock or SystemClock()
        self.denials: DenialTable = DenialTable(entries)
        on_fork(self.reset_after_fork)

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> AsyncDenialCacheMeter:
        return AsyncDenialCacheMeter(self, self.inner.meter(limit, name, options), options)

    def overrides(self, rule: str) -> AsyncDenialCacheOverrides:
        return AsyncDenialCacheOverrides(self.inner.overrides(rule), self.denials)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        """Decides charges together: looked up together, or requested and stored together."""
        cached_charges = [(_denial_cache_meter(meter), key, cost) for meter, key, cost in charges]
        inner_charges = [(meter.meter, key, cost) for meter, key, cost in cached_charges]
        costs = tuple(cost for _, _, cost in charges)
        if (
            patience_us is not None
            or not commit
            or not all(costs)
            or any(meter.always_requests for meter, _, _ in cached_charges)
        ):
            return await self.inner.decide_all(inner_charges, patience_us, commit)
        denials, index, recheck = self.denials, self.denials.combined, None
        index_key = tuple((meter.limit.algorithm, meter.name, key) for meter, key, _ in cached_charges)
        if index_key in index or index_key in index.rechecks:
            limits = tuple(meter.limit for meter, _, _ in cached_charges)
            cached, recheck = await self.repeat(index, index_key, limits, costs)
            if cached is not None:
                return cached
        now_us = self.clock.now_us()
        limit_charges = [(meter.limit, key, cost) for meter, key, cost in cached_charges]
        generations = [denials.generation(key) for _, key, _ in cached_charges]
        outcomes: list[Outcome] = []
        try:
            outcomes = await self.inner.decide_all(inner_charges)
            denials.store(index, index_key, limit_charges, outcomes, now_us, generations)
            return outcomes
        finally:
            if recheck is not None:
                recheck.end(outcomes, costs, index.get(index_key))

    async def repeat(
        self, index: DenialIndex, index_key: Hashable, limits: tuple[Limit, ...], costs: tuple[int, ...]
    ) -> tuple[list[Outcome] | None, Recheck | None]:
        """Repeats a cached refusal. If it has ended, waits until this caller may ask, and returns what is to be
        told of the answer; or until another one was refused."""
        wait_until = monotonic() + MAX_WAIT_S
        while True:
            cached = self.denials.lookup(index, index_key, limits, costs, self.clock.now_us())
            if cached is not None or index_key in index:  # in the index without an answer: of a larger cost
                return cached, None
            recheck, waiter = Recheck.of(index.rechecks, index_key), AsyncWaiter()
            if recheck.begin(waiter):
                return None, recheck
            try:
                woken = await waiter.wait(wait_until - monotonic())
            except BaseException:
                recheck.leave(waiter)
                raise
            if not woken:
                recheck.begin_late()
                return None, recheck
            if recheck.refusal is not None and recheck.refusal.limits == limits:
                cached = self.denials.repeat(recheck.refusal, costs, self.clock.now_us())
                if cached is not None:
                    return cached, None

    @property
    def hits(self) -> int:
        """Returns how many requests the cache answered."""
        return self.denials.hits

    def guarantees(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        yield (
            "denial cache",
            "a refusal is repeated here for at most min(retry_after, 1 s): never more than the limit is "
            "admitted, and units that another process frees meanwhile are refused for at most that long",
        )

    def reset_after_fork(self) -> None:
        """Drops all cached refusals in a forked child."""
        self.denials.reset()

    async def close(self) -> None:
        await self.inner.close()


class AsyncDenialCacheMeter:
    """A limit bound to the denial cache: the index of its name, and what may be stored in it."""

    def __init__(self, cache: AsyncDenialCacheEngine, meter: AsyncMeter, options: ChargeOptions | None) -> None:
        self.meter = meter
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.options = options
        self._now_us = cache.clock.now_us
        self._repeat = cache.repeat
        self._denials = cache.denials
        self._has_lockout = options is not None and options.lockout is not None
        self._index = cache.denials.index_for(meter.limit, meter.name, self._has_lockout)
        self._invalidating = cache.denials.invalidating
        # A shadow refuses nobody; and a caller must learn that its key is paused.
        self._never_stores = options is not None and (options.is_shadow or options.pauses is not None)
        self.always_requests: bool = self._has_lockout or self._never_stores  # also together with others

    async def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        if patience_us is not None or not cost or self._never_stores:
            return await self.meter.decide(key, cost, patience_us)
        index, recheck = self._index, None
        if key in index or key in index.rechecks:
            cached, recheck = await self._repeat(index, key, (self.limit,), (cost,))
            if cached is not None:
                return cached[0]
        now_us, generation = self._now_us(), self._denials.generation(key)
        outcomes: list[Outcome] = []
        try:
            outcome = await self.meter.decide(key, cost)
            if not outcome[ALLOWED]:
                self._store(key, cost, outcome, now_us, generation)
            outcomes = [outcome]
            return outcome
        finally:
            if recheck is not None:
                recheck.end(outcomes, (cost,), index.get(key))

    def _store(self, key: str, cost: int, outcome: Outcome, requested_us: int, generation: object) -> None:
        """Stores a refusal."""
        if not self._has_lockout:
            self._denials.store(self._index, key, [(self.limit, key, cost)], [outcome], requested_us, [generation])
        elif isinstance(outcome, LockedOutcome):  # whatever it costs
            self._denials.store(self._index, key, [(self.limit, key, 1)], [outcome], requested_us, [generation])

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        with self._invalidating(key):
            return await self.meter.refund(key, units, receipt, cancel)

    async def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome:
        """Charges the engine. Cached refusals stay: a surcharge frees nothing."""
        return await self.meter.surcharge(key, units, receipt)

    async def retune(self, key: str) -> None:
        with self._invalidating(key):
            await self.meter.retune(key)

    async def pause(self, key: str, duration_us: int) -> int:
        """Pauses the key. Cached refusals stay: a pause frees nothing."""
        return await self.meter.pause(key, duration_us)

    async def reset(self, key: str) -> None:
        with self._invalidating(key):
            await self.meter.reset(key)


class AsyncDenialCacheOverrides:
    """The engine's overrides of one rule; a change ends the cached refusals of its key."""

    def __init__(self, inner: Any, denials: DenialTable) -> None:
        self.get: Any = inner.get
        self.list: Any = inner.list
        self._inner = inner
        self._invalidating = denials.invalidating

    async def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        with self._invalidating(key):
            done: bool = await self._inner.set(key, limits, absent=absent, ttl=ttl)
            return done

    async def unset(self, key: str) -> bool:
        with self._invalidating(key):
            done: bool = await self._inner.unset(key)
            return done


def _denial_cache_meter(meter: object) -> AsyncDenialCacheMeter:
    """Returns the meter; InvalidCharge if it is another engine's."""
    if not isinstance(meter, AsyncDenialCacheMeter):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return meter
