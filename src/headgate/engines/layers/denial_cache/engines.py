"""The denial cache: a refusal is repeated here, without asking again, while it surely still stands.

Whoever floods a dry bucket asks the same question ten thousand times and gets the same answer. The first refusal
says when the same charge could pass, so until then this process can repeat it by itself, and the engine behind
has its time for those who may pass.

    0.0 s   take 3 of "key"   asked    refused, retry after 0.4 s
    0.1 s   take 3, take 5    memory   refused, retry after 0.3 s
    0.1 s   take 2            asked    less than what was refused: it might fit
    0.4 s   take 3            asked    the refusal has run out

Law:
  - it never over-admits: from memory come refusals only, whatever passes was passed by the engine;
  - it refuses what another process has freed meanwhile for at most min(retry_after, 1 s) of the local clock;
  - a refusal holds for costs at least as large as the refused one. To a larger cost it gives the smaller one's
    retry_after, which is then the least it can be;
  - this process's own refund, reset and change of rule end it, even for a refusal that was on its way: retune,
    and the same count asked under another limit;
  - only what was refused by itself is remembered: not a charge that was rolled back because of another one, not
    what a fallback decided, no peek, no reservation; slots go straight through;
  - charges decided together are remembered together, until the longest of their refusals ends, and answer the
    same charges only. What is known of one of them alone does not answer for all: the other verdicts are missing;
  - a rule with a lockout is always asked, because each of its refusals must be counted; only that it is locked out
    is repeated, which counts nothing. What is decided aside is always asked, because it is kept by itself. Charges
    decided together with such a one are asked too, and so is a question that commits nothing;
  - an override that is changed here ends what is remembered of its key; one that is changed elsewhere is like
    what another process has freed;
  - it holds a fixed number of refusals. The oldest go first; dead ones go when they are met and, two for each new
    one, when they are the oldest. No call looks at all of them.

Time. The local clock is read before asking, so a refusal ends here early rather than late, and a clock that
steps back to before the question ends it. What is repeated is aged by the time that has passed since.
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
from headgate.engines.deadlines import set_deadline
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
from headgate.errors import InvalidCharge
from headgate.flow import Flow, arun, run


class _DenialCache:
    """What both engines have: the table, and the clock it is asked by."""

    inner: Any

    def __init__(self, entries: int, clock: Clock | None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.denials: DenialTable = DenialTable(entries)
        on_fork(self.forget)

    @property
    def answered(self) -> int:
        """How many questions were answered from memory."""
        return self.denials.answered

    def laws(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        yield (
            "denial cache",
            "a refusal is repeated here for at most min(retry_after, 1 s): never more is admitted, and what "
            "another process has freed meanwhile is refused for as long",
        )

    def set_deadline(self, seconds: float) -> None:
        set_deadline(self.inner, seconds)

    def forget(self) -> None:
        """Drop what this process remembers; a forked child does."""
        self.denials.forget()


class _Hand:
    """What both meters have: the drawer of their name, and what may be kept in it."""

    def __init__(self, memo: _DenialCache, limit: Limit, name: str, terms: ChargeOptions | None) -> None:
        self.limit = limit
        self.name = name
        self.terms = terms
        self._now_us = memo.clock.now_us
        self._denials = memo.denials
        self._locks = terms is not None and terms.lockout is not None
        self._drawer = memo.denials.drawer(limit, name, self._locks)
        self._ends = memo.denials.ends
        self._aside = terms is not None and terms.aside
        self.through: bool = self._locks or self._aside  # together with others it is always asked

    def _remember(self, key: str, cost: int, facts: Outcome, asked_us: int, era: object) -> None:
        """Keep a refusal."""
        if not self._locks:
            self._denials.remember(self._drawer, key, [(self.limit, key, cost)], [facts], asked_us, [era])
        elif isinstance(facts, LockedOutcome):  # whatever it costs
            self._denials.remember(self._drawer, key, [(self.limit, key, 1)], [facts], asked_us, [era])


class DenialCacheEngine(_DenialCache):
    """Repeats refusals by itself, and asks the engine behind it everything else."""

    inner: Engine

    def __init__(self, inner: Engine, *, entries: int = 10_000, clock: Clock | None = None) -> None:
        super().__init__(entries, clock)
        self.inner = inner

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> DenialCacheMeter:
        return DenialCacheMeter(self, self.inner.meter(limit, name, terms), terms)

    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> SlotMeter:
        return self.inner.slots(limit, name, terms)

    def overrides(self, rule: str) -> DenialCacheOverrides:
        return DenialCacheOverrides(self.inner.overrides(rule), self.denials)

    def assignments(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Ledger:
        return self.inner.assignments(limit, name, ttl_us, grace_us)

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        own = [(_own(meter, DenialCacheMeter), key, cost) for meter, key, cost in charges]
        return run(_together(self, self.inner.decide_all, own, patience_us, commit))

    def shard(self, key: str) -> Hashable:
        return self.inner.shard(key)

    def close(self) -> None:
        self.inner.close()


class DenialCacheMeter(_Hand):
    """The denial cache's hand on one limit."""

    def __init__(self, memo: DenialCacheEngine, meter: Meter, terms: ChargeOptions | None) -> None:
        super().__init__(memo, meter.limit, meter.name, terms)
        self.meter = meter

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        if patience_us is not None or not cost or self._aside:
            return self.meter.decide(key, cost, patience_us)
        now_us, denials, drawer = self._now_us(), self._denials, self._drawer
        if key in drawer and (known := denials.recall(drawer, key, (self.limit,), (cost,), now_us)):
            return known[0]
        era = denials.era(key)
        facts = self.meter.decide(key, cost)
        if not facts[ALLOWED]:
            self._remember(key, cost, facts, now_us, era)
        return facts

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        with self._ends(key):
            return self.meter.refund(key, units, receipt, cancel)

    def retune(self, key: str) -> None:
        with self._ends(key):
            self.meter.retune(key)

    def reset(self, key: str) -> None:
        with self._ends(key):
            self.meter.reset(key)


class AsyncDenialCacheEngine(_DenialCache):
    """The same, awaited."""

    inner: AsyncEngine

    def __init__(self, inner: AsyncEngine, *, entries: int = 10_000, clock: Clock | None = None) -> None:
        super().__init__(entries, clock)
        self.inner = inner

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> AsyncDenialCacheMeter:
        return AsyncDenialCacheMeter(self, self.inner.meter(limit, name, terms), terms)

    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> AsyncSlotMeter:
        return self.inner.slots(limit, name, terms)

    def overrides(self, rule: str) -> AsyncDenialCacheOverrides:
        return AsyncDenialCacheOverrides(self.inner.overrides(rule), self.denials)

    def assignments(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> AsyncLedger:
        return self.inner.assignments(limit, name, ttl_us, grace_us)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        own = [(_own(meter, AsyncDenialCacheMeter), key, cost) for meter, key, cost in charges]
        return await arun(_together(self, self.inner.decide_all, own, patience_us, commit))

    def shard(self, key: str) -> Hashable:
        return self.inner.shard(key)

    async def close(self) -> None:
        await self.inner.close()


class AsyncDenialCacheMeter(_Hand):
    """The same hand, awaited."""

    def __init__(self, memo: AsyncDenialCacheEngine, meter: AsyncMeter, terms: ChargeOptions | None) -> None:
        super().__init__(memo, meter.limit, meter.name, terms)
        self.meter = meter

    async def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        if patience_us is not None or not cost or self._aside:
            return await self.meter.decide(key, cost, patience_us)
        now_us, denials, drawer = self._now_us(), self._denials, self._drawer
        if key in drawer and (known := denials.recall(drawer, key, (self.limit,), (cost,), now_us)):
            return known[0]
        era = denials.era(key)
        facts = await self.meter.decide(key, cost)
        if not facts[ALLOWED]:
            self._remember(key, cost, facts, now_us, era)
        return facts

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        with self._ends(key):
            return await self.meter.refund(key, units, receipt, cancel)

    async def retune(self, key: str) -> None:
        with self._ends(key):
            await self.meter.retune(key)

    async def reset(self, key: str) -> None:
        with self._ends(key):
            await self.meter.reset(key)


class DenialCacheOverrides:
    """The engine's overrides of one rule; what is changed ends what is remembered of its key."""

    def __init__(self, inner: Any, denials: DenialTable) -> None:
        self.get: Any = inner.get
        self.list: Any = inner.list
        self._inner = inner
        self._ends = denials.ends

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        with self._ends(key):
            done: bool = self._inner.set(key, limits, absent=absent, ttl=ttl)
            return done

    def unset(self, key: str) -> bool:
        with self._ends(key):
            done: bool = self._inner.unset(key)
            return done


class AsyncDenialCacheOverrides:
    """The same, awaited."""

    def __init__(self, inner: Any, denials: DenialTable) -> None:
        self.get: Any = inner.get
        self.list: Any = inner.list
        self._inner = inner
        self._ends = denials.ends

    async def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        with self._ends(key):
            done: bool = await self._inner.set(key, limits, absent=absent, ttl=ttl)
            return done

    async def unset(self, key: str) -> bool:
        with self._ends(key):
            done: bool = await self._inner.unset(key)
            return done


M = TypeVar("M", DenialCacheMeter, AsyncDenialCacheMeter)


def _own(meter: object, kind: type[M]) -> M:
    if not isinstance(meter, kind):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return meter


def _together(
    memo: _DenialCache,
    decide_all: Callable[..., Any],
    charges: Sequence[tuple[M, str, int]],
    patience_us: int | None,
    commit: bool,
) -> Flow[list[Outcome]]:
    """Charges decided together: recalled together, or asked together and remembered together."""
    ask = partial(decide_all, [(meter.meter, key, cost) for meter, key, cost in charges], patience_us, commit)
    costs = tuple(cost for _, _, cost in charges)
    facts: list[Outcome]
    if patience_us is not None or not commit or not all(costs) or any(meter.through for meter, _, _ in charges):
        facts = yield ask
        return facts
    now_us, denials, drawer = memo.clock.now_us(), memo.denials, memo.denials.together
    place = tuple((meter.limit.algorithm, meter.name, key) for meter, key, _ in charges)
    known = denials.recall(drawer, place, tuple(meter.limit for meter, _, _ in charges), costs, now_us)
    if known is not None:
        return known
    asked = [(meter.limit, key, cost) for meter, key, cost in charges]
    eras = [denials.era(key) for _, key, _ in charges]
    facts = yield ask
    denials.remember(drawer, place, asked, facts, now_us, eras)
    return facts
