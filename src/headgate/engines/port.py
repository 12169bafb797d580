"""The engine port: the protocols that every engine implements.

An Engine makes a Meter for each limit: the limit bound to the engine, built once and used often. A meter returns
an Outcome and reads its own clock, once per request. A denied charge leaves no trace. Charges of one decision are
all committed or none; a shadow (`is_shadow` in its ChargeOptions) is decided and stored by itself. Consecutive
charges with the same ChargeOptions and key belong to one rule: refused too often, they are locked out together
(LockedOutcome); where the key has overrides, those decide (OverriddenOutcome); and while it is paused, all are
refused, or served after it (PausedOutcome).

The port has two forms: Engine returns at once or blocks, AsyncEngine is awaited. Both decide the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Hashable, Iterator, Sequence
from typing import NamedTuple, Protocol

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.quota_grants import QuotaGrant
from headgate.algorithms.slots import Slots
from headgate.engines.charge_options import ChargeOptions

# How many processes share the limits, and the rank of this one among them, if it is known.
MemberPosition = tuple[int, int | None]


class Slot(NamedTuple):
    """The answer to a request for a slot: the outcome, and a ticket for a caller that must wait."""

    outcome: Outcome
    ticket: int | None


class Meter(Protocol):
    """A limit bound to an engine, with the charge options of its rule if it has one."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...
    @property
    def options(self) -> ChargeOptions | None: ...

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        """Charges `cost` units; 0 peeks. With `patience_us` a charge may be admitted for up to so much later."""

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        """Gives units of a charge back; with `cancel` a reservation and its place in the queue."""

    def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome:
        """Charges units that a charge used beyond its cost: at once, and whether they fit or not. No lockout
        refuses them or counts them."""

    def retune(self, key: str) -> None:
        """Adapts the stored state of the key to a changed limit."""

    def pause(self, key: str, duration_us: int) -> int:
        """Refuses every charge on the key for so long, and serves waiting callers after it; returns for how long
        it is paused now, which is longer if a longer pause is under way. Only if its options allow pauses."""

    def reset(self, key: str) -> None:
        """Deletes the counters of the key, and ends its pause."""


class Decide(Protocol):
    """The signature of a meter's `decide`."""

    def __call__(self, key: str, cost: int, patience_us: int | None = None) -> Outcome: ...


class SlotMeter(Protocol):
    """The slots of one limit bound to an engine: held and released, not charged."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...

    def free(self, key: str) -> Outcome:
        """Peeks at the slots of the key."""

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        """Requests a slot; with `wait` a denied caller gets a ticket and keeps its place by asking again with
        it."""

    def renew(self, key: str, fence: int) -> int | None:
        """Renews a lease; returns when it expires, None if it is gone."""

    def release(self, key: str, fence: int) -> bool:
        """Releases a lease; returns whether it was still held."""

    def leave(self, key: str, ticket: int) -> None:
        """Gives a ticket up."""

    def pause(self, key: str, duration_us: int) -> int:
        """Gives no slot of the key for so long; returns for how long it is paused now. Only if its options allow
        pauses."""

    def reset(self, key: str) -> None:
        """Ends all leases and tickets of the key, and its pause."""


class Ledger(Protocol):
    """The quota ledger of one limit: which holder may use which part of it without asking (quota_grants.py)."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...

    def grant(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> QuotaGrant | None:
        """Records that a holder would have used so many units within that time, and returns its grant. With None,
        or within no time, its demand is unknown. Returns None while grants may be in use that no ledger remembers.
        """

    def leave(self, key: str, holder: str) -> None:
        """Records that the holder wants nothing more. Its grant still ends by itself."""


class Overrides(Protocol):
    """The overrides of one rule: limits of single keys. They apply from the next call on."""

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        """Sets limits for the key, for so many seconds or until they are unset. With `absent` only for a key that
        has none; returns False if it had some, which then stay."""

    def get(self, key: str) -> str | None: ...
    def unset(self, key: str) -> bool:
        """Removes the limits of the key; returns whether there were any."""

    def list(self, limit: int | None = None) -> Iterator[tuple[str, str]]:
        """Yields keys and the text of their limits, in no order, at most `limit`. A long key is listed as it is
        stored."""


class StackedEngine(Protocol):
    """Describes an engine in a stack of layers. Nothing here is awaited."""

    @property
    def inner(self) -> Engine | AsyncEngine | None:
        """The engine inside this layer; None if this is no layer."""

    def guarantees(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        """Yields labels and sentences: what this engine, or this layer, guarantees for a limit that so many
        processes use."""

    def set_deadline(self, seconds: float) -> None:
        """Changes how long a decision may take."""

    def count_members(self) -> None:
        """Counts the processes that share the limits, from now on."""

    def member_position(self) -> MemberPosition:
        """Returns how many processes share the limits, as far as it is known, and the rank of this one."""

    def degraded_shards(self) -> Sequence[tuple[Hashable, str]]:
        """Returns the parts of the engine that give no answer, each with the state of its breaker."""

    def describe_shard(self, shard: Hashable) -> str:
        """Returns a part of the engine as messages name it: by its server's address."""

    def mark_prefetched(self) -> None:
        """Returns outcomes of prefetched units as PrefetchedOutcome from now on, for those who count them: it
        takes longer to make."""

    def measurements(self) -> Iterator[tuple[str, float | list[float]]]:
        """Yields names and values of what this engine and those inside it measure, for metrics.

        A name that ends in _total has a number that only grows, a list has the values since the last call, and all
        others may go up and down."""

    @property
    def degraded_count(self) -> int:
        """Returns how many decisions were made without the engine."""


class Engine(StackedEngine, Protocol):
    """Makes decisions atomic."""

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> Meter: ...
    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> SlotMeter: ...
    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        """Decides charges together. Without `commit` it only previews: nothing is stored, no refusal counted."""

    def overrides(self, rule: str) -> Overrides: ...
    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Ledger:
        """Returns the quota ledger of a limit, whose grants last for a ttl and count for a grace longer. If the
        engine does not answer, nothing is granted, and grants run out: no fallback divides the limit."""

    def shard(self, key: str) -> Hashable:
        """Returns which part of the engine decides for the key: parts fail independently."""

    def close(self) -> None: ...


class AsyncMeter(Protocol):
    """A Meter whose methods are awaited."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...
    @property
    def options(self) -> ChargeOptions | None: ...

    # Awaited like the others; not itself a coroutine, because one more of them is measurable on the hot path.
    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Awaitable[Outcome]: ...
    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome: ...
    async def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome: ...
    async def retune(self, key: str) -> None: ...
    async def pause(self, key: str, duration_us: int) -> int: ...
    async def reset(self, key: str) -> None: ...


class AsyncDecide(Protocol):
    """The signature of an AsyncMeter's `decide`."""

    def __call__(self, key: str, cost: int, patience_us: int | None = None) -> Awaitable[Outcome]: ...


class AsyncSlotMeter(Protocol):
    """A SlotMeter whose methods are awaited."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...

    async def free(self, key: str) -> Outcome: ...
    async def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot: ...
    async def renew(self, key: str, fence: int) -> int | None: ...
    async def release(self, key: str, fence: int) -> bool: ...
    async def leave(self, key: str, ticket: int) -> None: ...
    async def pause(self, key: str, duration_us: int) -> int: ...
    async def reset(self, key: str) -> None: ...


class AsyncLedger(Protocol):
    """A Ledger whose methods are awaited."""

    @property
    def limit(self) -> Limit: ...
    @property
    def name(self) -> str: ...

    async def grant(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> QuotaGrant | None: ...
    async def leave(self, key: str, holder: str) -> None: ...


class AsyncOverrides(Protocol):
    """Overrides whose methods are awaited."""

    async def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool: ...
    async def get(self, key: str) -> str | None: ...
    async def unset(self, key: str) -> bool: ...
    def list(self, limit: int | None = None) -> AsyncIterator[tuple[str, str]]: ...


class AsyncEngine(StackedEngine, Protocol):
    """An Engine whose methods are awaited."""

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> AsyncMeter: ...
    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> AsyncSlotMeter: ...
    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]: ...
    def overrides(self, rule: str) -> AsyncOverrides: ...
    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> AsyncLedger: ...
    def shard(self, key: str) -> Hashable: ...
    async def close(self) -> None: ...
