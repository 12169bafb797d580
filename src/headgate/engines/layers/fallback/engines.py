"""The fallback engine: an answer for every call, also when the engine gives none.

    FallbackEngine(engine, fallback="local", members=Members(...))

stands around an engine. While that answers, calls go straight through, and only the last facts of each count are
remembered. When it does not, the fallback answers, with DegradedOutcome; flows.py tells how, and the laws.
Here are the two spellings: a straight way and the long one, which is a flow.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Hashable, Sequence
from typing import Any

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.clock import Clock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.fallback.degraded_slots import FallbackSlots
from headgate.engines.layers.fallback.flows import (
    DEADLINE,
    REMEMBERED,
    SETTLE_US,
    Fallback,
    has_no_fallback,
    inside,
)
from headgate.engines.layers.fallback.membership import AsyncMembership, Membership
from headgate.engines.layers.fallback.settlement import Asked
from headgate.engines.layers.fallback.shard import Shard, Tag
from headgate.engines.port import AsyncEngine, AsyncMeter, AsyncSlotMeter, Engine, Meter, Slot, SlotMeter
from headgate.engines.url_options import Instead
from headgate.errors import EngineUnavailable, InvalidCharge
from headgate.flow import arun, run


class FallbackEngine(Fallback):
    """Decides by the inner engine, and by the fallback when that does not answer.

    fallback    "allow", "deny" or "local": by this member's share of the limit; None: EngineUnavailable is raised,
                as if this engine were not there, unless a rule's terms say otherwise
    members     who else shares the limits; without it this process thinks itself alone
    settle_us   how long a call must pass both, share and engine, once that is back
    deadline    how long a question of the engine may take, in seconds
    remembered  how many counts' last facts are kept for the start of a share
    """

    members: Membership

    def __init__(
        self,
        inner: Engine,
        *,
        fallback: Instead | None = "local",
        members: Membership | None = None,
        clock: Clock | None = None,
        settle_us: int = SETTLE_US,
        deadline: float = DEADLINE,
        remembered: int = REMEMBERED,
    ) -> None:
        super().__init__(inner, fallback, members or Membership(), clock, settle_us, deadline, remembered)
        self._settlers: set[Hashable] = set()
        on_fork(self.forget)
        if fallback == "local":
            self.share_from_now_on()

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> FallbackMeter:
        return FallbackMeter(self, self.inner.meter(limit, name, terms), terms)

    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> SlotMeter:
        inner: SlotMeter = self.inner.slots(limit, name, terms)
        instead = self.instead_of(terms)
        return inner if instead is None else FallbackSlotMeter(self, inner, instead)

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        self.used()
        return run(self.deciding(_own(charges, FallbackMeter), patience_us, commit))

    def shard(self, key: str) -> Hashable:
        shard: Hashable = self.inner.shard(key)
        return shard

    def close(self) -> None:
        self.stop_settling()
        self.members.quit(self)
        self.inner.close()

    def forget(self) -> None:
        self.drop_all()
        self._settlers = set()

    def in_background(self, shard: Shard) -> None:
        if shard.name not in self._settlers:
            self._settlers.add(shard.name)
            try:
                threading.Thread(target=self._settle, args=[shard], name="headgate-settle", daemon=True).start()
            except RuntimeError:  # the process has as many as it may have: the next answer tries again
                self._settlers.discard(shard.name)

    def _settle(self, shard: Shard) -> None:
        try:
            run(self.settling(shard))
        finally:
            self._settlers.discard(shard.name)

    def used(self) -> None:
        """A member whose thread could not be started tries again."""
        self.members.try_again()

    def woken(self) -> None:
        """The members' beat was heard."""
        run(self.waking())


class AsyncFallbackEngine(Fallback):
    """The same, awaited. See FallbackEngine."""

    members: AsyncMembership

    def __init__(
        self,
        inner: AsyncEngine,
        *,
        fallback: Instead | None = "local",
        members: AsyncMembership | None = None,
        clock: Clock | None = None,
        settle_us: int = SETTLE_US,
        deadline: float = DEADLINE,
        remembered: int = REMEMBERED,
    ) -> None:
        super().__init__(inner, fallback, members or AsyncMembership(), clock, settle_us, deadline, remembered)
        self._settlers: dict[Hashable, asyncio.Task[None]] = {}
        on_fork(self.forget)
        if fallback == "local":
            self.share_from_now_on()

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> AsyncFallbackMeter:
        return AsyncFallbackMeter(self, self.inner.meter(limit, name, terms), terms)

    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> AsyncSlotMeter:
        inner: AsyncSlotMeter = self.inner.slots(limit, name, terms)
        instead = self.instead_of(terms)
        return inner if instead is None else AsyncFallbackSlotMeter(self, inner, instead)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        self.used()
        asked = _own(charges, AsyncFallbackMeter)
        if has_no_fallback(asked):
            straight: list[Outcome] = await self.inner.decide_all(inside(asked), patience_us, commit)
            return straight
        return await arun(self.deciding(asked, patience_us, commit))

    def shard(self, key: str) -> Hashable:
        shard: Hashable = self.inner.shard(key)
        return shard

    def used(self) -> None:
        """Beat on the loop where the engine is used."""
        if self.counts:
            self.members.start()

    async def close(self) -> None:
        self.stop_settling()
        loop = asyncio.get_running_loop()
        for task in tuple(self._settlers.values()):
            if task.get_loop() is loop and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self.members.quit(self)
        await self.inner.close()

    def forget(self) -> None:
        self.drop_all()
        self._settlers = {}

    def in_background(self, shard: Shard) -> None:
        settler = self._settlers.get(shard.name)
        if settler is None or settler.done() or settler.get_loop().is_closed():
            self._settlers[shard.name] = asyncio.get_running_loop().create_task(arun(self.settling(shard)))

    async def woken(self) -> None:
        await arun(self.waking())


class _Hand:
    """What both meters have: what stands in for the engine's hand on one limit."""

    def __init__(self, engine: Fallback, meter: Any, terms: ChargeOptions | None) -> None:
        self.meter = meter
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.terms = terms
        self.instead = engine.instead_of(terms)
        self.shares: bool = self.instead == "local"
        self._number = engine.number(self.limit, self.name)
        self._ask = meter.decide
        self._shard = engine.inner.shard
        self._known = engine.shards.get
        self._keep = engine.recent.keep
        self._now_us = engine.clock.now_us

    def tag(self, key: str) -> Tag:
        return key, self._number


class FallbackMeter(_Hand):
    """The engine's hand on one limit, and the share that stands in for it."""

    def __init__(self, engine: FallbackEngine, meter: Meter, terms: ChargeOptions | None) -> None:
        super().__init__(engine, meter, terms)
        self._engine = engine

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        if self.instead is None:
            straight: Outcome = self._ask(key, cost, patience_us)
            return straight
        engine = self._engine
        shard = self._known(self._shard(key)) or engine.shard_of(key)
        if not shard.straight:
            return run(engine.deciding([(self, key, cost)], patience_us))[0]
        try:
            facts: Outcome = self._ask(key, cost, patience_us)
        except EngineUnavailable as why:
            return engine.unanswered(shard, (self, key, cost), patience_us, why)
        if self.shares:
            self._keep((key, self._number), (facts, self._now_us()))
        return facts

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return run(self._engine.refunding(self, key, units, receipt, cancel))

    def retune(self, key: str) -> None:
        run(self._engine.retuning(self, key))

    def reset(self, key: str) -> None:
        run(self._engine.resetting(self, key))


class AsyncFallbackMeter(_Hand):
    """The same hand, awaited."""

    def __init__(self, engine: AsyncFallbackEngine, meter: AsyncMeter, terms: ChargeOptions | None) -> None:
        super().__init__(engine, meter, terms)
        self._engine = engine

    async def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        engine = self._engine
        engine.used()
        if self.instead is None:
            straight: Outcome = await self._ask(key, cost, patience_us)
            return straight
        shard = self._known(self._shard(key)) or engine.shard_of(key)
        if not shard.straight:
            return (await arun(engine.deciding([(self, key, cost)], patience_us)))[0]
        try:
            facts: Outcome = await self._ask(key, cost, patience_us)
        except EngineUnavailable as why:
            return engine.unanswered(shard, (self, key, cost), patience_us, why)
        if self.shares:
            self._keep((key, self._number), (facts, self._now_us()))
        return facts

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return await arun(self._engine.refunding(self, key, units, receipt, cancel))

    async def retune(self, key: str) -> None:
        await arun(self._engine.retuning(self, key))

    async def reset(self, key: str) -> None:
        await arun(self._engine.resetting(self, key))


class FallbackSlotMeter(FallbackSlots):
    """The engine's hand on the slots of one limit, and the share that stands in for it."""

    def free(self, key: str) -> Outcome:
        return run(self.freeing(key))

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return run(self.acquiring(key, ticket, wait))

    def renew(self, key: str, fence: int) -> int | None:
        return run(self.renewing(key, fence))

    def release(self, key: str, fence: int) -> bool:
        return run(self.releasing(key, fence))

    def leave(self, key: str, ticket: int) -> None:
        run(self.leaving(key, ticket))

    def reset(self, key: str) -> None:
        run(self.resetting(key))


class AsyncFallbackSlotMeter(FallbackSlots):
    """The same, awaited."""

    async def free(self, key: str) -> Outcome:
        return await arun(self.freeing(key))

    async def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return await arun(self.acquiring(key, ticket, wait))

    async def renew(self, key: str, fence: int) -> int | None:
        return await arun(self.renewing(key, fence))

    async def release(self, key: str, fence: int) -> bool:
        return await arun(self.releasing(key, fence))

    async def leave(self, key: str, ticket: int) -> None:
        await arun(self.leaving(key, ticket))

    async def reset(self, key: str) -> None:
        await arun(self.resetting(key))


def _own(charges: Sequence[tuple[Any, str, int]], kind: type) -> list[Asked]:
    own = [charge for charge in charges if isinstance(charge[0], kind)]
    if len(own) != len(charges):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return own
