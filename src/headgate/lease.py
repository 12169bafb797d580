"""Leases: slots that are held, renewed while a block runs, released at its end, expired after their ttl.

    with limiter.acquire("exports", timeout=5) as lease:
        for part in parts:
            if lease.lost:
                raise Stop("somebody else may hold the slot by now")
            write(part, fence=lease.fence)

A with statement renews the lease while its block runs, however long that is (slot_renewal.py); without one, call
renew about every third of the ttl, and stop when it returns False. `lost` is true as soon as somebody else may
hold the slot, and leaving the block then raises LeaseLost. The fence grows with every lease of a key; a store that
refuses lower ones than it has seen is safe even from a holder that has not noticed yet.
"""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from headgate.algorithms.decision import Decision
from headgate.algorithms.limit import SECOND
from headgate.algorithms.slots import Slots, renewed_us
from headgate.slot_renewal import AsyncHolding, Holding, SlotHold


class LeaseMeter(Protocol):
    """The part of an engine's meter that a lease uses."""

    def renew(self, key: str, fence: int) -> int | None: ...
    def release(self, key: str, fence: int) -> bool: ...


class AsyncLeaseMeter(Protocol):
    """The part of an awaited engine's meter that a lease uses."""

    async def renew(self, key: str, fence: int) -> int | None: ...
    async def release(self, key: str, fence: int) -> bool: ...


K = TypeVar("K")


class _LeaseBase(Generic[K]):
    """The state of a lease. True while the last reply of the engine says that it is held: time alone does not
    change that."""

    def __init__(self, meter: K, key: str, decision: Decision) -> None:
        limit = decision.limit
        if not isinstance(limit, Slots) or not decision.allowed:
            raise TypeError(f"A lease comes of slots that were granted, not of: {decision}")
        *_, at_us, fence = decision.outcome
        self._meter = meter
        self._expires_us = renewed_us(limit, at_us)
        self._held = True
        self._hold = decision.hold = SlotHold(f"The slot of {key!r}", limit.ttl_us / SECOND, self._expires_us)
        self.key = key
        self.decision = decision
        self.fence = fence

    @property
    def expires_at(self) -> float:
        """Returns when it ends unless it is renewed, in seconds since 1970 by the engine's clock."""
        return self._expires_us / SECOND

    @property
    def lost(self) -> bool:
        """Returns whether somebody else may hold the slot: the engine reported so, or has not renewed it for a
        ttl.
        """
        return self._hold.lost

    def __bool__(self) -> bool:
        return self._held

    def __repr__(self) -> str:
        state = f"until {self.expires_at:.3f}" if self._held else "gone"
        return f"<{type(self).__name__} {self.fence} on {self.key!r}, {state}>"

    def _update_expiry(self, requested_at: float, expires_us: int | None) -> bool:
        self._held = expires_us is not None
        self._expires_us = expires_us or self._expires_us
        return self._hold.record_reply(requested_at, expires_us)

    def _end(self, released: bool) -> bool:
        self._held = False
        self._hold.mark_released()
        return released


class Lease(_LeaseBase[LeaseMeter]):
    """A slot of a key that is held. A with statement renews it, and releases it at its end.

    >>> with Limiter("1 slot").acquire("exports") as lease:
    ...     bool(lease), lease.lost, lease.key
    (True, False, 'exports')
    """

    def renew(self) -> bool:
        """Holds it for another ttl from now; False if it is gone, and then somebody else may hold the slot.

        >>> Limiter("1 slot ttl 30s").acquire("exports").renew()
        True
        """
        requested_at = monotonic()
        return self._held and self._update_expiry(requested_at, self._meter.renew(self.key, self.fence))

    def release(self) -> bool:
        """Gives it back; False if it was gone already. Any number of times.

        >>> lease = Limiter("1 slot").acquire("exports")
        >>> lease.release(), lease.release()
        (True, False)
        """
        return self._held and self._end(self._meter.release(self.key, self.fence))

    def __enter__(self) -> Lease:
        self._holding = Holding(self._hold, self.renew, lambda: self._hold.is_released or self.release())
        self._holding.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holding.__exit__(kind, error, trace)


class AsyncLease(_LeaseBase[AsyncLeaseMeter]):
    """A slot of a key that is held. An async with statement renews it, and releases it at its end.

    >>> async def main() -> bool:
    ...     async with await AsyncLimiter("1 slot").acquire("exports") as lease:
    ...         return lease.lost
    >>> asyncio.run(main())
    False
    """

    async def renew(self) -> bool:
        """Holds it for another ttl from now; False if it is gone, and then somebody else may hold the slot."""
        requested_at = monotonic()
        return self._held and self._update_expiry(requested_at, await self._meter.renew(self.key, self.fence))

    async def release(self) -> bool:
        """Gives it back; False if it was gone already. Any number of times."""
        return self._held and self._end(await self._meter.release(self.key, self.fence))

    async def _release_once(self) -> bool:
        return self._hold.is_released or await self.release()

    async def __aenter__(self) -> AsyncLease:
        self._holding = AsyncHolding(self._hold, self.renew, self._release_once)
        await self._holding.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._holding.__aexit__(kind, error, trace)
