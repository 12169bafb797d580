"""What an engine promises.

An Engine hands out a Meter for each limit: its hand on that limit, bound once and asked often. A meter answers
with Outcome and reads its own clock, once per question. A charge that is denied leaves no trace. Charges given
together are all committed or none; what is aside by its Terms is decided and kept by itself. Consecutive
charges with the same Terms and key are one rule's: too often refused, they are locked out together
(LockedOutcome); and where the key has limits of its own, those decide (OverriddenOutcome).

Two spellings of one port: Engine answers at once or blocks, AsyncEngine is awaited. Whatever the model decides,
it decides the same in both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Hashable, Iterator, Sequence
from typing import NamedTuple, Protocol

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.quota_grants import Assignment
from headgate.algorithms.slots import Slots
from headgate.engines.charge_options import ChargeOptions


class Slot(NamedTuple):
    """An answer about a slot: the facts, and the ticket of one who must wait."""

    facts: Outcome
    ticket: int | None


class Meter(Protocol):
    """An engine's hand on one limit, on the terms of its rule if it has one."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...
    @property
    def terms(self) -> ChargeOptions | None: ...

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome: ...
    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome: ...
    def retune(self, key: str) -> None: ...
    def reset(self, key: str) -> None: ...


class SlotMeter(Protocol):
    """An engine's hand on the slots of one limit: held and released, not charged."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...

    def free(self, key: str) -> Outcome: ...
    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot: ...
    def renew(self, key: str, fence: int) -> int | None: ...
    def release(self, key: str, fence: int) -> bool: ...
    def leave(self, key: str, ticket: int) -> None: ...

    def reset(self, key: str) -> None: ...


class Ledger(Protocol):
    """The parts of one limit that holders may use by themselves, as an engine keeps them (quota_grants.py)."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...

    def assign(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> Assignment | None:
        """Note that a holder would have used so many units within that time, and tell it its part. With None, or
        within no time, it cannot know. The answer is None while parts may be out that nobody remembers: it is told
        nothing."""

    def leave(self, key: str, holder: str) -> None:
        """Note that it wants nothing more. What it was told still ends by itself."""


class Overrides(Protocol):
    """The limits that keys have of their own, in place of one rule's. They hold from the next call on."""

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        """Give the key these limits, for so many seconds or until they are unset. With `absent` only a key that
        has none; False: it had some, and keeps them."""

    def get(self, key: str) -> str | None: ...
    def unset(self, key: str) -> bool:
        """Whether there were any."""

    def list(self, limit: int | None = None) -> Iterator[tuple[str, str]]:
        """Keys and their limits' text, in no order, at most `limit`. A long key is told as it is stored."""


class Engine(Protocol):
    """Where decisions are made atomic."""

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> Meter: ...
    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> SlotMeter: ...
    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        """Without `commit` only what would be answered: nothing is kept, no refusal counted."""

    def overrides(self, rule: str) -> Overrides: ...
    def assignments(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Ledger:
        """Parts of the limit, told for a ttl and counted for a grace longer. If the engine does not answer,
        nothing is told, and what was told runs out: no fallback divides."""

    def shard(self, key: str) -> Hashable:
        """Which part of the engine answers for the key: parts fail apart."""

    def close(self) -> None: ...


class AsyncMeter(Protocol):
    """The same hand, awaited."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...
    @property
    def terms(self) -> ChargeOptions | None: ...

    # Awaited like the others; not itself a coroutine, because on the busiest way one more of them can be felt.
    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Awaitable[Outcome]: ...
    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome: ...
    async def retune(self, key: str) -> None: ...
    async def reset(self, key: str) -> None: ...


class AsyncSlotMeter(Protocol):
    """The same, awaited."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...

    async def free(self, key: str) -> Outcome: ...
    async def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot: ...
    async def renew(self, key: str, fence: int) -> int | None: ...
    async def release(self, key: str, fence: int) -> bool: ...
    async def leave(self, key: str, ticket: int) -> None: ...

    async def reset(self, key: str) -> None: ...


class AsyncLedger(Protocol):
    """The same, awaited."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...

    async def assign(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> Assignment | None: ...
    async def leave(self, key: str, holder: str) -> None: ...


class AsyncOverrides(Protocol):
    """The same, awaited."""

    async def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool: ...
    async def get(self, key: str) -> str | None: ...
    async def unset(self, key: str) -> bool: ...
    def list(self, limit: int | None = None) -> AsyncIterator[tuple[str, str]]: ...


class AsyncEngine(Protocol):
    """The same place, awaited."""

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> AsyncMeter: ...
    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> AsyncSlotMeter: ...
    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]: ...
    def overrides(self, rule: str) -> AsyncOverrides: ...
    def assignments(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> AsyncLedger: ...
    def shard(self, key: str) -> Hashable: ...
    async def close(self) -> None: ...
