"""Slots when the engine does not answer: what a holder is told.

A lease belongs to whoever gave it, and only the giver can prolong it. While the giver is not there, the lease
lasts for as long as it was given and no longer: renewing it answers the end that it had, and once that may have
passed by our own clock, None. So nobody is told to hold a slot that somebody else may hold.

    allow   gives leases of its own, with the clock's microseconds for fences, and renews them at any time
    deny    gives none; whoever waits may ask again
    local   gives leases of this member's share of the slots. When the engine is back, renewing such a lease takes
            a slot of the engine for it; the holder keeps its fence. If there is none, it lasts to its end.

In the second of settling, a slot must be free in the share and in the engine.

Laws (tests/engines/layers/test_fallback_slots.py): as told; fences of a fallback grow and never repeat.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from headgate.algorithms.decision import ALLOWED, AT_US, MARK, DegradedOutcome, Outcome
from headgate.algorithms.slots import Slots, renewed_us
from headgate.engines.layers.fallback.breaker import CLOSED, SETTLING
from headgate.engines.layers.fallback.flows import Fallback
from headgate.engines.layers.fallback.limit_share import share
from headgate.engines.memory.engine import MemorySlotMeter
from headgate.engines.port import Slot
from headgate.engines.url_options import Instead
from headgate.flow import Flow


class FallbackSlots:
    """The flows of one limit's slots. `meter` is the engine's own."""

    def __init__(self, engine: Fallback, meter: Any, instead: Instead) -> None:
        self.meter = meter
        self.instead = instead
        self.limit: Slots = meter.limit
        self.name: str = meter.name
        self._engine = engine
        self._number = engine.number(self.limit, self.name)
        self._now_us = engine.clock.now_us

    def freeing(self, key: str) -> Flow[Outcome]:
        self._engine.used()
        facts: Outcome | None = yield from self._engine.trying(key, partial(self.meter.free, key))
        return self._free_here(key) if facts is None else facts

    def acquiring(self, key: str, ticket: int | None, wait: bool) -> Flow[Slot]:
        engine, asked_us = self._engine, self._now_us()
        engine.used()
        shard = engine.shard_of(key)
        if self.instead == "local" and shard.phase(asked_us) is SETTLING and not self._free_here(key)[ALLOWED]:
            return self._acquire_here(key, ticket, wait)
        slot: Slot | None = yield from engine.trying(key, partial(self.meter.acquire, key, ticket, wait))
        if slot is None:
            return self._acquire_here(key, ticket, wait)
        if slot.facts[ALLOWED]:
            expires_us = renewed_us(self.limit, slot.facts[AT_US])
            engine.leases.keep((key, self._number, slot.facts[MARK]), (asked_us, expires_us, slot.facts[MARK]))
        return slot

    def renewing(self, key: str, fence: int) -> Flow[int | None]:
        engine, tag, asked_us = self._engine, (key, self._number, fence), self._now_us()
        given_us, expires_us, theirs = engine.leases.find(tag) or (0, 0, fence)
        if theirs is None:
            renewed, theirs = yield from self._renewing_ours(key, fence, asked_us)
        else:
            renewed = yield from engine.trying(key, partial(self.meter.renew, key, theirs), boxed=True)
        if renewed is None:  # whoever gave it is not there
            return expires_us if given_us <= asked_us < renewed_us(self.limit, given_us) else None
        (ends_us,) = renewed
        if ends_us is None:
            engine.leases.drop(tag)
        else:
            engine.leases.keep(tag, (asked_us, ends_us, theirs))
        return ends_us

    def _renewing_ours(
        self, key: str, fence: int, now_us: int
    ) -> Flow[tuple[tuple[int | None] | None, int | None]]:
        """Its new end in a box, or None if it is no longer prolonged; and its fence in the engine, if it moved."""
        engine, here = self._engine, self._here()
        if here is None:
            return ((renewed_us(self.limit, now_us),) if self.instead == "allow" else None), None
        if engine.shard_of(key).phase(now_us) is CLOSED:
            slot: Slot | None = yield from engine.trying(key, partial(self.meter.acquire, key))
            if slot is not None:
                if not slot.facts[ALLOWED]:
                    return None, None
                here.release(key, fence)
                return (renewed_us(self.limit, slot.facts[AT_US]),), slot.facts[MARK]
        return (here.renew(key, fence),), None

    def releasing(self, key: str, fence: int) -> Flow[bool]:
        tag, asked_us = (key, self._number, fence), self._now_us()
        given_us, _, theirs = self._engine.leases.find(tag) or (0, 0, fence)
        self._engine.leases.drop(tag)
        if theirs is None:
            here = self._here()
            return here.release(key, fence) if here is not None else self.instead == "allow"
        released = yield from self._engine.trying(key, partial(self.meter.release, key, theirs), boxed=True)
        if released is None:  # whoever gave it is not there: until it ends by itself, nobody else has it
            return given_us <= asked_us < renewed_us(self.limit, given_us)
        return bool(released[0])

    def leaving(self, key: str, ticket: int) -> Flow[None]:
        here = self._here()
        if here is not None:
            here.leave(key, ticket)
        yield from self._engine.trying(key, partial(self.meter.leave, key, ticket))

    def resetting(self, key: str) -> Flow[None]:
        here = self._here()
        if here is not None:
            here.reset(key)
        done = yield from self._engine.trying(key, partial(self.meter.reset, key), boxed=True)
        if done is None:
            self._engine.shard_of(key).tally("lost_resets")

    def _here(self) -> MemorySlotMeter | None:
        """The share of these slots; None if this member has none."""
        if self.instead != "local":
            return None
        part = share(self.limit, *self._engine.members.place)
        return self._engine.local.slots(part, self.name) if isinstance(part, Slots) else None

    def _free_here(self, key: str) -> Outcome:
        here, now_us = self._here(), self._now_us()
        if here is not None:
            return DegradedOutcome(here.free(key))
        if self.instead == "allow":
            return DegradedOutcome((True, 0, 0, 0, 0, now_us, 0))
        return self._refusal(key, now_us)

    def _acquire_here(self, key: str, ticket: int | None, wait: bool) -> Slot:
        engine, here, now_us = self._engine, self._here(), self._now_us()
        shard = engine.shard_of(key)
        shard.tally("degraded")
        if here is not None:
            facts, ticket = here.acquire(key, ticket, wait)
        elif self.instead == "allow":
            with shard.lock:
                engine.last_fence = fence = max(engine.last_fence + 1, now_us)
            facts, ticket = (True, 0, 0, 0, 0, now_us, fence), None
        else:
            # Whoever waits keeps asking: it needs a ticket for that, though there is no line.
            facts, ticket = self._refusal(key, now_us), (ticket or now_us) if wait else None
        if facts[ALLOWED]:
            expires_us = renewed_us(self.limit, now_us)
            engine.leases.keep((key, self._number, facts[MARK]), (now_us, expires_us, None))
        return Slot(DegradedOutcome(facts), ticket)

    def _refusal(self, key: str, now_us: int) -> Outcome:
        facts = self._engine.refusal(self._engine.shard_of(key), now_us)
        return DegradedOutcome((*facts[:MARK], 1))  # the next in line
