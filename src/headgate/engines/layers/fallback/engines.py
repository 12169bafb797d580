"""The fallback engine: answers every call, also when the engine does not.

    FallbackEngine(engine, fallback="local", members=Membership(...))

is a layer around an engine. While the engine answers, calls go straight to it, and only the last outcome of each
count is remembered. When it does not, the fallback answers, with DegradedOutcome; flows.py has the steps and the
laws. This file has the sync and the async engine: a fast path, and flows for the rest.
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
from headgate.engines.layers.fallback.flows import (
    DEADLINE_S,
    MAX_RECENT,
    SETTLE_US,
    Fallback,
    has_no_fallback,
    inner_charges,
)
from headgate.engines.layers.fallback.membership import AsyncMembership, Membership
from headgate.engines.layers.fallback.settlement import MeterCharge
from headgate.engines.layers.fallback.shard import Shard, Tag
from headgate.engines.layers.fallback.slots_in_outage import FallbackSlots
from headgate.engines.port import AsyncEngine, AsyncMeter, AsyncSlotMeter, Engine, Meter, Slot, SlotMeter
from headgate.engines.url_options import FallbackMode
from headgate.errors import EngineUnavailable, InvalidCharge
from headgate.flow import arun, run


class FallbackEngine(Fallback):
    """Decides by the inner engine, and by the fallback when that does not answer.

    fallback    "allow", "deny" or "local": by this member's share of the limit; None: EngineUnavailable is raised,
                as if this layer were not there, unless a rule's options choose a fallback
    members     the processes that share the limits; by default this one alone
    settle_us   how long a call must pass both, share and engine, once the engine is back
    deadline    how long a request to the engine may take, in seconds
    max_recent  how many counts' last outcomes are kept for the start of a share
    """

    members: Membership

    def __init__(
        self,
        inner: Engine,
        *,
        fallback: FallbackMode | None = "local",
        members: Membership | None = None,
        clock: Clock | None = None,
        settle_us: int = SETTLE_US,
        deadline: float = DEADLINE_S,
        max_recent: int = MAX_RECENT,
    ) -> None:
        super().__init__(inner, fallback, members or Membership(), clock, settle_us, deadline, max_recent)
        self._settlers: set[Hashable] = set()
        on_fork(self.reset_after_fork)
        if fallback == "local":
            self.start_sharing()

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> FallbackMeter:
        return FallbackMeter(self, self.inner.meter(limit, name, options), options)

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> SlotMeter:
        inner: SlotMeter = self.inner.slots(limit, name, options)
        fallback = self.fallback_for(options)
        return inner if fallback is None else FallbackSlotMeter(self, inner, fallback)

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        self.on_use()
        return run(self.decide_flow(_own_charges(charges, FallbackMeter), patience_us, commit))

    def shard(self, key: str) -> Hashable:
        shard: Hashable = self.inner.shard(key)
        return shard

    def close(self) -> None:
        self.stop_settling()
        self.members.detach(self)
        self.inner.close()

    def reset_after_fork(self) -> None:
        """Drops everything remembered in a forked child."""
        self.drop_state()
        self._settlers = set()

    def settle_in_background(self, shard: Shard) -> None:
        if shard.name not in self._settlers:
            self._settlers.add(shard.name)
            try:
                threading.Thread(target=self._settle, args=[shard], name="headgate-settle", daemon=True).start()
            except RuntimeError:  # the process has as many threads as it may have: the next answer tries again
                self._settlers.discard(shard.name)

    def _settle(self, shard: Shard) -> None:
        try:
            run(self.settle_shard(shard))
        finally:
            self._settlers.discard(shard.name)

    def on_use(self) -> None:
        """Starts the heartbeat thread if it could not be started before."""
        self.members.retry_start()

    def on_heartbeat(self) -> None:
        """Settles accounts after a successful heartbeat."""
        run(self.heartbeat_flow())


class AsyncFallbackEngine(Fallback):
    """A FallbackEngine whose methods are awaited."""

    members: AsyncMembership

    def __init__(
        self,
        inner: AsyncEngine,
        *,
        fallback: FallbackMode | None = "local",
        members: AsyncMembership | None = None,
        clock: Clock | None = None,
        settle_us: int = SETTLE_US,
        deadline: float = DEADLINE_S,
        max_recent: int = MAX_RECENT,
    ) -> None:
        super().__init__(inner, fallback, members or AsyncMembership(), clock, settle_us, deadline, max_recent)
        self._settlers: dict[Hashable, asyncio.Task[None]] = {}
        on_fork(self.reset_after_fork)
        if fallback == "local":
            self.start_sharing()

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> AsyncFallbackMeter:
        return AsyncFallbackMeter(self, self.inner.meter(limit, name, options), options)

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> AsyncSlotMeter:
        inner: AsyncSlotMeter = self.inner.slots(limit, name, options)
        fallback = self.fallback_for(options)
        return inner if fallback is None else AsyncFallbackSlotMeter(self, inner, fallback)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        self.on_use()
        own_charges = _own_charges(charges, AsyncFallbackMeter)
        if has_no_fallback(own_charges):
            outcome: list[Outcome] = await self.inner.decide_all(inner_charges(own_charges), patience_us, commit)
            return outcome
        return await arun(self.decide_flow(own_charges, patience_us, commit))

    def shard(self, key: str) -> Hashable:
        shard: Hashable = self.inner.shard(key)
        return shard

    def on_use(self) -> None:
        """Starts heartbeats on the loop where the engine is used."""
        if self.is_member:
            self.members.start()

    async def close(self) -> None:
        self.stop_settling()
        loop = asyncio.get_running_loop()
        for task in tuple(self._settlers.values()):
            if task.get_loop() is loop and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self.members.detach(self)
        await self.inner.close()

    def reset_after_fork(self) -> None:
        """Drops everything remembered in a forked child."""
        self.drop_state()
        self._settlers = {}

    def settle_in_background(self, shard: Shard) -> None:
        settler = self._settlers.get(shard.name)
        if settler is None or settler.done() or settler.get_loop().is_closed():
            self._settlers[shard.name] = asyncio.get_running_loop().create_task(arun(self.settle_shard(shard)))

    async def on_heartbeat(self) -> None:
        """Settles accounts after a successful heartbeat."""
        await arun(self.heartbeat_flow())


class _FallbackMeterBase:
    """The base of the sync and the async meter."""

    def __init__(self, engine: Fallback, meter: Any, options: ChargeOptions | None) -> None:
        self.meter = meter
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.options = options
        self.fallback = engine.fallback_for(options)
        self.uses_share: bool = self.fallback == "local"
        self._number = engine.number(self.limit, self.name)
        self._decide_inner = meter.decide
        self._shard_name = engine.inner.shard
        self._get_shard = engine.shards.get
        self._remember = engine.recent.put
        self._now_us = engine.clock.now_us

    def tag(self, key: str) -> Tag:
        """Returns what identifies the count of a key."""
        return key, self._number


class FallbackMeter(_FallbackMeterBase):
    """A limit bound to the engine, with the share that answers in its place."""

    def __init__(self, engine: FallbackEngine, meter: Meter, options: ChargeOptions | None) -> None:
        super().__init__(engine, meter, options)
        self._engine = engine

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        if self.fallback is None:
            outcome: Outcome = self._decide_inner(key, cost, patience_us)
            return outcome
        engine = self._engine
        shard = self._get_shard(self._shard_name(key)) or engine.shard_of(key)
        if not shard.is_healthy:
            return run(engine.decide_flow([(self, key, cost)], patience_us))[0]
        try:
            outcome = self._decide_inner(key, cost, patience_us)
        except EngineUnavailable as error:
            return engine.answer_after_failure(shard, (self, key, cost), patience_us, error)
        if self.uses_share:
            self._remember((key, self._number), (outcome, self._now_us()))
        return outcome

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return run(self._engine.refund_flow(self, key, units, receipt, cancel))

    def retune(self, key: str) -> None:
        run(self._engine.retune_flow(self, key))

    def reset(self, key: str) -> None:
        run(self._engine.reset_flow(self, key))


class AsyncFallbackMeter(_FallbackMeterBase):
    """A FallbackMeter whose methods are awaited."""

    def __init__(self, engine: AsyncFallbackEngine, meter: AsyncMeter, options: ChargeOptions | None) -> None:
        super().__init__(engine, meter, options)
        self._engine = engine

    async def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        engine = self._engine
        engine.on_use()
        if self.fallback is None:
            outcome: Outcome = await self._decide_inner(key, cost, patience_us)
            return outcome
        shard = self._get_shard(self._shard_name(key)) or engine.shard_of(key)
        if not shard.is_healthy:
            return (await arun(engine.decide_flow([(self, key, cost)], patience_us)))[0]
        try:
            outcome = await self._decide_inner(key, cost, patience_us)
        except EngineUnavailable as error:
            return engine.answer_after_failure(shard, (self, key, cost), patience_us, error)
        if self.uses_share:
            self._remember((key, self._number), (outcome, self._now_us()))
        return outcome

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return await arun(self._engine.refund_flow(self, key, units, receipt, cancel))

    async def retune(self, key: str) -> None:
        await arun(self._engine.retune_flow(self, key))

    async def reset(self, key: str) -> None:
        await arun(self._engine.reset_flow(self, key))


class FallbackSlotMeter(FallbackSlots):
    """The slots of one limit bound to the engine, with the share that answers in its place."""

    def free(self, key: str) -> Outcome:
        return run(self.free_flow(key))

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return run(self.acquire_flow(key, ticket, wait))

    def renew(self, key: str, fence: int) -> int | None:
        return run(self.renew_flow(key, fence))

    def release(self, key: str, fence: int) -> bool:
        return run(self.release_flow(key, fence))

    def leave(self, key: str, ticket: int) -> None:
        run(self.leave_flow(key, ticket))

    def reset(self, key: str) -> None:
        run(self.reset_flow(key))


class AsyncFallbackSlotMeter(FallbackSlots):
    """A FallbackSlotMeter whose methods are awaited."""

    async def free(self, key: str) -> Outcome:
        return await arun(self.free_flow(key))

    async def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return await arun(self.acquire_flow(key, ticket, wait))

    async def renew(self, key: str, fence: int) -> int | None:
        return await arun(self.renew_flow(key, fence))

    async def release(self, key: str, fence: int) -> bool:
        return await arun(self.release_flow(key, fence))

    async def leave(self, key: str, ticket: int) -> None:
        await arun(self.leave_flow(key, ticket))

    async def reset(self, key: str) -> None:
        await arun(self.reset_flow(key))


def _own_charges(charges: Sequence[tuple[Any, str, int]], kind: type) -> list[MeterCharge]:
    """Returns the charges; InvalidCharge if one is another engine's."""
    own_charges = [charge for charge in charges if isinstance(charge[0], kind)]
    if len(own_charges) != len(charges):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return own_charges
