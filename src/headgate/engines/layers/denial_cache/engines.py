"""The denial cache: repeats a refusal in this process while it is surely still valid.

A client that floods a dry bucket sends the same request ten thousand times and gets the same answer. The first
refusal says when the same charge could pass, so until then this process can repeat it by itself, and the engine
has its time for callers that may pass.

    0.0 s   take 3 of "key"   engine   refused, retry after 0.4 s
    0.1 s   take 3, take 5    cache    refused, retry after 0.3 s
    0.1 s   take 2            engine   less than what was refused: it might fit
    0.4 s   take 3            engine   the refusal has run out

Law:
  - it never over-admits: the cache returns refusals only, and whatever passes was passed by the engine;
  - it refuses what another process has freed meanwhile for at most min(retry_after, 1 s) of the local clock;
  - a refusal applies to costs at least as large as the refused one. To a larger cost it gives the smaller one's
    retry_after, which is then the least it can be;
  - a refund, reset or change of rule in this process ends it, even a refusal that was on its way: retune, and the
    same count charged under another limit;
  - only what was refused by itself is cached: not a charge that was rolled back because of another one, not what a
    fallback decided, no peek, no reservation; slots go straight to the engine;
  - charges decided together are cached together, until the longest of their refusals ends, and answer the same
    charges only. A cached refusal of one of them does not answer for all: the other verdicts are missing;
  - a rule with a lockout always reaches the engine, because each of its refusals must be counted; only a lockout
    is repeated, which counts nothing. A shadow always reaches the engine, because it is stored by itself. So do
    charges decided together with such a one, and a preview that commits nothing;
  - an override that is changed here ends the cached refusals of its key; one that is changed elsewhere is like
    units that another process has freed;
  - it holds a fixed number of refusals. The oldest go first; dead ones go when they are looked up and, two for
    each new one, when they are the oldest. No call looks at all of them.

Time. The local clock is read before the request, so a refusal ends here early rather than late, and a clock that
steps back to before the request ends it. A repeated refusal is aged by the time that has passed since.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from headgate.algorithms.decision import ALLOWED, LockedOutcome, Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.denial_cache.denial_table import DenialTable
from headgate.engines.port import (
    AsyncEngine,
    AsyncLedger,
    AsyncMeter,
    AsyncSlotMeter,
    Engine,
    Ledger,
    Meter,
    SlotMeter,
)
from headgate.engines.stack import EngineLayer
from headgate.errors import InvalidCharge
from headgate.flow import Flow, arun, run


class _DenialCache(EngineLayer):
    """The base of both engines: the table, and the clock of its lookups."""

    def __init__(self, entries: int, clock: Clock | None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.denials: DenialTable = DenialTable(entries)
        on_fork(self.reset_after_fork)

    @property
    def hits(self) -> int:
        """How many requests the cache answered."""
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


class _CachingMeter:
    """The base of both meters: the index of their name, and what may be stored in it."""

    def __init__(self, cache: _DenialCache, limit: Limit, name: str, options: ChargeOptions | None) -> None:
        self.limit = limit
        self.name = name
        self.options = options
        self._now_us = cache.clock.now_us
        self._denials = cache.denials
        self._has_lockout = options is not None and options.lockout is not None
        self._index = cache.denials.index_for(limit, name, self._has_lockout)
        self._invalidating = cache.denials.invalidating
        self._is_shadow = options is not None and options.is_shadow
        self.always_requests: bool = self._has_lockout or self._is_shadow  # also together with others

    def _store(self, key: str, cost: int, outcome: Outcome, requested_us: int, generation: object) -> None:
        """Stores a refusal."""
        if not self._has_lockout:
            self._denials.store(self._index, key, [(self.limit, key, cost)], [outcome], requested_us, [generation])
        elif isinstance(outcome, LockedOutcome):  # whatever it costs
            self._denials.store(self._index, key, [(self.limit, key, 1)], [outcome], requested_us, [generation])


class DenialCacheEngine(_DenialCache):
    """Repeats refusals by itself, and sends every other request to the engine behind it."""

    inner: Engine

    def __init__(self, inner: Engine, *, entries: int = 10_000, clock: Clock | None = None) -> None:
        super().__init__(entries, clock)
        self.inner = inner

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> DenialCacheMeter:
        return DenialCacheMeter(self, self.inner.meter(limit, name, options), options)

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> SlotMeter:
        return self.inner.slots(limit, name, options)

    def overrides(self, rule: str) -> DenialCacheOverrides:
        return DenialCacheOverrides(self.inner.overrides(rule), self.denials)

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Ledger:
        return self.inner.quota_ledger(limit, name, ttl_us, grace_us)

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        own_charges = [(_own_meter(meter, DenialCacheMeter), key, cost) for meter, key, cost in charges]
        return run(_decide_together(self, self.inner.decide_all, own_charges, patience_us, commit))

    def shard(self, key: str) -> Hashable:
        return self.inner.shard(key)

    def close(self) -> None:
        self.inner.close()


class DenialCacheMeter(_CachingMeter):
    """A limit bound to the denial cache."""

    def __init__(self, cache: DenialCacheEngine, meter: Meter, options: ChargeOptions | None) -> None:
        super().__init__(cache, meter.limit, meter.name, options)
        self.meter = meter

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        if patience_us is not None or not cost or self._is_shadow:
            return self.meter.decide(key, cost, patience_us)
        now_us, denials, index = self._now_us(), self._denials, self._index
        if key in index and (cached := denials.lookup(index, key, (self.limit,), (cost,), now_us)):
            return cached[0]
        generation = denials.generation(key)
        outcome = self.meter.decide(key, cost)
        if not outcome[ALLOWED]:
            self._store(key, cost, outcome, now_us, generation)
        return outcome

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        with self._invalidating(key):
            return self.meter.refund(key, units, receipt, cancel)

    def retune(self, key: str) -> None:
        with self._invalidating(key):
            self.meter.retune(key)

    def reset(self, key: str) -> None:
        with self._invalidating(key):
            self.meter.reset(key)


class AsyncDenialCacheEngine(_DenialCache):
    """A DenialCacheEngine whose methods are awaited."""

    inner: AsyncEngine

    def __init__(self, inner: AsyncEngine, *, entries: int = 10_000, clock: Clock | None = None) -> None:
        super().__init__(entries, clock)
        self.inner = inner

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> AsyncDenialCacheMeter:
        return AsyncDenialCacheMeter(self, self.inner.meter(limit, name, options), options)

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> AsyncSlotMeter:
        return self.inner.slots(limit, name, options)

    def overrides(self, rule: str) -> AsyncDenialCacheOverrides:
        return AsyncDenialCacheOverrides(self.inner.overrides(rule), self.denials)

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> AsyncLedger:
        return self.inner.quota_ledger(limit, name, ttl_us, grace_us)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        own_charges = [(_own_meter(meter, AsyncDenialCacheMeter), key, cost) for meter, key, cost in charges]
        return await arun(_decide_together(self, self.inner.decide_all, own_charges, patience_us, commit))

    def shard(self, key: str) -> Hashable:
        return self.inner.shard(key)

    async def close(self) -> None:
        await self.inner.close()


class AsyncDenialCacheMeter(_CachingMeter):
    """A DenialCacheMeter whose methods are awaited."""

    def __init__(self, cache: AsyncDenialCacheEngine, meter: AsyncMeter, options: ChargeOptions | None) -> None:
        super().__init__(cache, meter.limit, meter.name, options)
        self.meter = meter

    async def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        if patience_us is not None or not cost or self._is_shadow:
            return await self.meter.decide(key, cost, patience_us)
        now_us, denials, index = self._now_us(), self._denials, self._index
        if key in index and (cached := denials.lookup(index, key, (self.limit,), (cost,), now_us)):
            return cached[0]
        generation = denials.generation(key)
        outcome = await self.meter.decide(key, cost)
        if not outcome[ALLOWED]:
            self._store(key, cost, outcome, now_us, generation)
        return outcome

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        with self._invalidating(key):
            return await self.meter.refund(key, units, receipt, cancel)

    async def retune(self, key: str) -> None:
        with self._invalidating(key):
            await self.meter.retune(key)

    async def reset(self, key: str) -> None:
        with self._invalidating(key):
            await self.meter.reset(key)


class DenialCacheOverrides:
    """The engine's overrides of one rule; a change ends the cached refusals of its key."""

    def __init__(self, inner: Any, denials: DenialTable) -> None:
        self.get: Any = inner.get
        self.list: Any = inner.list
        self._inner = inner
        self._invalidating = denials.invalidating

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        with self._invalidating(key):
            done: bool = self._inner.set(key, limits, absent=absent, ttl=ttl)
            return done

    def unset(self, key: str) -> bool:
        with self._invalidating(key):
            done: bool = self._inner.unset(key)
            return done


class AsyncDenialCacheOverrides:
    """DenialCacheOverrides whose methods are awaited."""

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


M = TypeVar("M", DenialCacheMeter, AsyncDenialCacheMeter)


def _own_meter(meter: object, kind: type[M]) -> M:
    """Returns the meter; InvalidCharge if it is another engine's."""
    if not isinstance(meter, kind):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return meter


def _decide_together(
    cache: _DenialCache,
    decide_all: Callable[..., Any],
    charges: Sequence[tuple[M, str, int]],
    patience_us: int | None,
    commit: bool,
) -> Flow[list[Outcome]]:
    """Decides charges together: looked up together, or requested and stored together."""
    request = partial(decide_all, [(meter.meter, key, cost) for meter, key, cost in charges], patience_us, commit)
    costs = tuple(cost for _, _, cost in charges)
    outcomes: list[Outcome]
    if (
        patience_us is not None
        or not commit
        or not all(costs)
        or any(meter.always_requests for meter, _, _ in charges)
    ):
        outcomes = yield request
        return outcomes
    now_us, denials, index = cache.clock.now_us(), cache.denials, cache.denials.combined
    index_key = tuple((meter.limit.algorithm, meter.name, key) for meter, key, _ in charges)
    cached = denials.lookup(index, index_key, tuple(meter.limit for meter, _, _ in charges), costs, now_us)
    if cached is not None:
        return cached
    limit_charges = [(meter.limit, key, cost) for meter, key, cost in charges]
    generations = [denials.generation(key) for _, key, _ in charges]
    outcomes = yield request
    denials.store(index, index_key, limit_charges, outcomes, now_us, generations)
    return outcomes
