"""The engine of the fallback layer: passes calls on while the engine behind it answers; verbs do the rest."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.clock import Clock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.fallback.async_settlers import AsyncSettlers
from headgate.engines.layers.fallback.async_slot_meter import AsyncFallbackSlotMeter
from headgate.engines.layers.fallback.async_verbs import AsyncFallbackVerbs
from headgate.engines.layers.fallback.membership import AsyncMembership
from headgate.engines.layers.fallback.shard import Shard, Tag
from headgate.engines.port import AsyncEngine, AsyncMeter, AsyncSlotMeter
from headgate.engines.url_options import FALLBACK_DEADLINE_S, FallbackMode
from headgate.errors import EngineUnavailable, InvalidCharge

SETTLE_US = 1_000_000
MAX_RECENT = 10_000


class AsyncFallbackEngine(AsyncFallbackVerbs):
    """Decides by the inner engine, and by the fallback when that does not answer.

    fallback    "allow", "deny" or "local": by this member's share of the limit; None: EngineUnavailable is raised,
                as if this layer were not there, unless a rule's options choose a fallback
    members     the processes that share the limits; by default this one alone
    settle_us   how long a call must pass both, share and engine, once the engine is back
    deadline    how long a request to the engine may take, in seconds
    max_recent  how many counts' last outcomes are kept for the start of a share
    """

    members: AsyncMembership

    def __init__(
        self,
        inner: AsyncEngine,
        *,
        fallback: FallbackMode | None = "local",
        members: AsyncMembership | None = None,
        clock: Clock | None = None,
        settle_us: int = SETTLE_US,
        deadline: float = FALLBACK_DEADLINE_S,
        max_recent: int = MAX_RECENT,
    ) -> None:
        super().__init__(inner, fallback, members or AsyncMembership(), clock, settle_us, deadline, max_recent)
        self._settlers = AsyncSettlers()
        on_fork(self.reset_after_fork)
        if fallback == "local":
            self.start_sharing()

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> AsyncFallbackMeter:
        return AsyncFallbackMeter(self, self.inner.meter(limit, name, options), options)

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> AsyncSlotMeter:
        inner: AsyncSlotMeter = self.inner.slots(limit, name, options)
        fallback = self.fallback_for(options)
        return inner if fallback is None else AsyncFallbackSlotMeter(self, inner, fallback)

    def overrides(self, rule: str) -> Any:
        return self.inner.overrides(rule)

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Any:
        return self.inner.quota_ledger(limit, name, ttl_us, grace_us)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        self.on_use()
        fallback_charges = [charge for charge in charges if isinstance(charge[0], AsyncFallbackMeter)]
        if len(fallback_charges) != len(charges):
            raise InvalidCharge("A charge of another engine cannot be decided here.")
        return await self.decide_charges(fallback_charges, patience_us, commit)

    def shard(self, key: str) -> Hashable:
        shard: Hashable = self.inner.shard(key)
        return shard

    def on_use(self) -> None:
        """Makes sure that heartbeats are sent: from a thread, or on the loop where the engine is used."""
        if self.is_member:
            self.members.ensure_started()

    def settle_in_background(self, shard: Shard) -> None:
        """Settles a part of the engine without a caller that waits for it."""
        self._settlers.start(self.settle_shard, shard)

    async def close(self) -> None:
        self.stop_settling()
        await self._settlers.stop()
        await self.members.detach(self)
        await self.inner.close()

    def reset_after_fork(self) -> None:
        """Drops everything remembered in a forked child."""
        self.drop_state()
        self._settlers.reset()


class AsyncFallbackMeter:
    """A limit bound to the engine, with the share that answers in its place."""

    def __init__(self, engine: AsyncFallbackEngine, meter: AsyncMeter, options: ChargeOptions | None) -> None:
        self.meter: Any = meter
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.options = options
        self.fallback = engine.fallback_for(options)
        self.uses_share: bool = self.fallback == "local"
        self._engine = engine
        self._number = engine.number(self.limit, self.name)
        self._decide_inner = meter.decide
        self._shard_name = engine.inner.shard
        self._get_shard = engine.shards.get
        self._remember = engine.recent.put
        self._now_us = engine.clock.now_us

    def tag(self, key: str) -> Tag:
        """Returns what identifies the count of a key."""
        return key, self._number

    async def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        self._engine.on_use()  # async only
        if self.fallback is None:
            return await self._decide_inner(key, cost, patience_us)
        shard = self._get_shard(self._shard_name(key)) or self._engine.shard_of(key)
        if not shard.is_healthy:
            outcomes = await self._engine.decide_charges([(self, key, cost)], patience_us)
            return outcomes[0]
        try:
            outcome = await self._decide_inner(key, cost, patience_us)
        except EngineUnavailable as error:
            return self._engine.answer_after_failure(shard, (self, key, cost), patience_us, error)
        if self.uses_share:
            self._remember((key, self._number), (outcome, self._now_us()))
        return outcome

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return await self._engine.refund_charge(self, key, units, receipt, cancel)

    async def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome:
        return await self._engine.surcharge_count(self, key, units, receipt)

    async def retune(self, key: str) -> None:
        await self._engine.retune_count(self, key)

    async def pause(self, key: str, duration_us: int) -> int:
        """Pauses the key; raises EngineUnavailable if the engine does not answer: a pause that nobody keeps would
        be a promise broken in silence."""
        paused_us: int = await self.meter.pause(key, duration_us)
        return paused_us

    async def reset(self, key: str) -> None:
        await self._engine.reset_count(self, key)
