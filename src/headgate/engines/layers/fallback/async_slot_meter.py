"""Slots when the engine does not answer: what a holder gets.

A lease belongs to the engine or the share that gave it, and only the giver can prolong it. While the giver is not
there, the lease lasts for as long as it was given and no longer: renewing it returns the end that it had, and once
that may have passed by the local clock, None. So no caller believes it holds a slot that another may hold.

    allow   gives its own leases, with the clock's microseconds for fences, and renews them at any time
    deny    gives none; a waiting caller may ask again
    local   gives leases of this member's share of the slots. When the engine is back, renewing such a lease takes
            a slot of the engine for it; the holder keeps its fence. If there is none, it lasts to its end.

In the second of settling, a slot must be free in the share and in the engine.

Laws (tests/engines/layers/test_fallback_slots.py): as stated; fences of a fallback grow and never repeat.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from headgate.algorithms.decision import ALLOWED, AT_US, MARK, DegradedOutcome, Outcome
from headgate.algorithms.slots import Slots, renewed_us
from headgate.engines.layers.fallback.async_verbs import AsyncFallbackVerbs
from headgate.engines.layers.fallback.breaker import CLOSED, SETTLING
from headgate.engines.layers.fallback.limit_share import share
from headgate.engines.memory.engine import MemorySlotMeter
from headgate.engines.port import Slot
from headgate.engines.url_options import FallbackMode


class AsyncFallbackSlotMeter:
    """The slots of one limit bound to the engine, with the share that answers in its place."""

    def __init__(self, engine: AsyncFallbackVerbs, meter: Any, fallback: FallbackMode) -> None:
        self.meter = meter
        self.fallback = fallback
        self.limit: Slots = meter.limit
        self.name: str = meter.name
        self._engine = engine
        self._number = engine.number(self.limit, self.name)
        self._now_us = engine.clock.now_us

    async def free(self, key: str) -> Outcome:
        """Peeks at the slots of a key."""
        self._engine.on_use()
        outcome: Outcome | None = await self._engine.try_engine(key, partial(self.meter.free, key))
        return self._free_locally(key) if outcome is None else outcome

    async def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        """Requests a slot of the engine, or of the share."""
        engine, requested_us = self._engine, self._now_us()
        engine.on_use()
        shard = engine.shard_of(key)
        if (
            self.fallback == "local"
            and shard.phase(requested_us) is SETTLING
            and not self._free_locally(key)[ALLOWED]
        ):
            return self._acquire_locally(key, ticket, wait)
        slot: Slot | None = await engine.try_engine(key, partial(self.meter.acquire, key, ticket, wait))
        if slot is None:
            return self._acquire_locally(key, ticket, wait)
        if slot.outcome[ALLOWED]:
            expires_us = renewed_us(self.limit, slot.outcome[AT_US])
            engine.leases.put(
                (key, self._number, slot.outcome[MARK]), (requested_us, expires_us, slot.outcome[MARK])
            )
        return slot

    async def renew(self, key: str, fence: int) -> int | None:
        """Renews a lease; returns when it expires, None if it is gone."""
        engine, tag, requested_us = self._engine, (key, self._number, fence), self._now_us()
        granted_us, expires_us, engine_fence = engine.leases.get(tag) or (0, 0, fence)
        if engine_fence is None:
            renewed, engine_fence = await self._renew_local(key, fence, requested_us)
        else:
            renewed = await engine.try_engine(key, partial(self.meter.renew, key, engine_fence), boxed=True)
        if renewed is None:  # its giver is not there
            return expires_us if granted_us <= requested_us < renewed_us(self.limit, granted_us) else None
        (ends_us,) = renewed
        if ends_us is None:
            engine.leases.drop(tag)
        else:
            engine.leases.put(tag, (requested_us, ends_us, engine_fence))
        return ends_us

    async def _renew_local(self, key: str, fence: int, now_us: int) -> tuple[tuple[int | None] | None, int | None]:
        """Renews a lease of the fallback. Returns its new end as a 1-tuple, or None if it is not prolonged any
        more; and its fence in the engine, if it moved there."""
        engine, local_meter = self._engine, self._local_meter()
        if local_meter is None:
            return ((renewed_us(self.limit, now_us),) if self.fallback == "allow" else None), None
        if engine.shard_of(key).phase(now_us) is CLOSED:
            slot: Slot | None = await engine.try_engine(key, partial(self.meter.acquire, key))
            if slot is not None:
                if not slot.outcome[ALLOWED]:
                    return None, None
                local_meter.release(key, fence)
                return (renewed_us(self.limit, slot.outcome[AT_US]),), slot.outcome[MARK]
        return (local_meter.renew(key, fence),), None

    async def release(self, key: str, fence: int) -> bool:
        """Releases a lease; returns whether it was still held."""
        tag, requested_us = (key, self._number, fence), self._now_us()
        granted_us, _, engine_fence = self._engine.leases.get(tag) or (0, 0, fence)
        self._engine.leases.drop(tag)
        if engine_fence is None:
            local_meter = self._local_meter()
            return local_meter.release(key, fence) if local_meter is not None else self.fallback == "allow"
        released = await self._engine.try_engine(key, partial(self.meter.release, key, engine_fence), boxed=True)
        if released is None:  # its giver is not there: until it ends by itself, no other caller has it
            return granted_us <= requested_us < renewed_us(self.limit, granted_us)
        return bool(released[0])

    async def leave(self, key: str, ticket: int) -> None:
        """Gives a ticket up."""
        local_meter = self._local_meter()
        if local_meter is not None:
            local_meter.leave(key, ticket)
        await self._engine.try_engine(key, partial(self.meter.leave, key, ticket))

    async def pause(self, key: str, duration_us: int) -> int:
        """Pauses the key; raises EngineUnavailable if the engine does not answer."""
        paused_us: int = await self.meter.pause(key, duration_us)
        return paused_us

    async def reset(self, key: str) -> None:
        """Ends all leases and tickets of a key."""
        local_meter = self._local_meter()
        if local_meter is not None:
            local_meter.reset(key)
        done = await self._engine.try_engine(key, partial(self.meter.reset, key), boxed=True)
        if done is None:
            self._engine.shard_of(key).tally("lost_resets")

    def _local_meter(self) -> MemorySlotMeter | None:
        """Returns the share of these slots; None if this member has none."""
        if self.fallback != "local":
            return None
        slot_share = share(self.limit, *self._engine.members.position)
        return self._engine.local_engine.slots(slot_share, self.name) if isinstance(slot_share, Slots) else None

    def _free_locally(self, key: str) -> Outcome:
        local_meter, now_us = self._local_meter(), self._now_us()
        if local_meter is not None:
            return DegradedOutcome(local_meter.free(key))
        if self.fallback == "allow":
            return DegradedOutcome((True, 0, 0, 0, 0, now_us, 0))
        return self._refuse(key, now_us)

    def _acquire_locally(self, key: str, ticket: int | None, wait: bool) -> Slot:
        engine, local_meter, now_us = self._engine, self._local_meter(), self._now_us()
        shard = engine.shard_of(key)
        shard.tally("degraded")
        if local_meter is not None:
            outcome, ticket = local_meter.acquire(key, ticket, wait)
        elif self.fallback == "allow":
            with shard.lock:
                engine.last_fence = fence = max(engine.last_fence + 1, now_us)
            outcome, ticket = (True, 0, 0, 0, 0, now_us, fence), None
        else:
            # A waiting caller keeps asking: it needs a ticket for that, though there is no queue.
            outcome, ticket = self._refuse(key, now_us), (ticket or now_us) if wait else None
        if outcome[ALLOWED]:
            expires_us = renewed_us(self.limit, now_us)
            engine.leases.put((key, self._number, outcome[MARK]), (now_us, expires_us, None))
        return Slot(DegradedOutcome(outcome), ticket)

    def _refuse(self, key: str, now_us: int) -> Outcome:
        outcome = self._engine.degraded_refusal(self._engine.shard_of(key), now_us)
        return DegradedOutcome((*outcome[:MARK], 1))  # the next in the queue
