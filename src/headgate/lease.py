"""A slot that is held: renewed by who works long, released when done, gone by itself after its ttl.

    with limiter.acquire("exports", timeout=5) as lease:
        for part in parts:
            write(part, fence=lease.fence)
            if not lease.renew():
                raise Stop("somebody else may hold the slot by now")

Nothing renews a lease in the background: a holder that hangs should lose its slot, and a thread that goes on
renewing for it would hide that. Renew from the work itself, at least every third of the ttl or so, and stop
when it says no. The fence grows with every lease of a key; a store that refuses lower ones than it has seen
is safe even from a holder that has not noticed yet.
"""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Protocol, TypeVar

from headgate.errors import CorruptState, EngineUnavailable, HeadgateError
from headgate.model.decision import Decision
from headgate.model.limit import SECOND
from headgate.model.slots import Slots, renewed_us


class Keeper(Protocol):
    """Whoever keeps the lease: an engine's meter."""

    def renew(self, key: str, fence: int) -> int | None: ...
    def release(self, key: str, fence: int) -> bool: ...


class AsyncKeeper(Protocol):
    async def renew(self, key: str, fence: int) -> int | None: ...
    async def release(self, key: str, fence: int) -> bool: ...


K = TypeVar("K")


class _Held(Generic[K]):
    """What is known of a lease. True while it is held as far as known: time alone does not change that."""

    def __init__(self, keeper: K, key: str, decision: Decision) -> None:
        limit = decision.limit
        if not isinstance(limit, Slots) or not decision.allowed:
            raise TypeError(f"A lease comes of slots that were granted, not of: {decision}")
        *_, at_us, fence = decision.facts
        self._keeper = keeper
        self._expires_us = renewed_us(limit, at_us)
        self._held = True
        self.key = key
        self.decision = decision
        self.fence = fence

    @property
    def expires_at(self) -> float:
        """When it ends unless it is renewed, in seconds since 1970 by the engine's clock."""
        return self._expires_us / SECOND

    def __bool__(self) -> bool:
        return self._held

    def __repr__(self) -> str:
        state = f"until {self.expires_at:.3f}" if self._held else "gone"
        return f"<{type(self).__name__} {self.fence} on {self.key!r}, {state}>"

    def _renewed(self, expires_us: int | None) -> bool:
        self._held = expires_us is not None
        self._expires_us = expires_us or self._expires_us
        return self._held

    def _not_released(self, work: BaseException, why: HeadgateError) -> None:
        # What the work raised matters more, and the slot comes back by itself.
        work.add_note(f"The slot of {self.key!r} could not be released ({why}) and will expire.")


class Lease(_Held[Keeper]):
    """A slot of a key, held. Leaving its with statement releases it."""

    def renew(self) -> bool:
        """Hold it for another ttl from now; False if it is gone, and then somebody else may hold the slot."""
        return self._held and self._renewed(self._keeper.renew(self.key, self.fence))

    def release(self) -> bool:
        """Give it back; False if it was gone already. Any number of times."""
        if not self._held:
            return False
        released = self._keeper.release(self.key, self.fence)
        self._held = False
        return released

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except (CorruptState, EngineUnavailable) as why:
            if error is None:
                raise
            self._not_released(error, why)


class AsyncLease(_Held[AsyncKeeper]):
    """A slot of a key, held. Leaving its async with statement releases it."""

    async def renew(self) -> bool:
        """Hold it for another ttl from now; False if it is gone, and then somebody else may hold the slot."""
        return self._held and self._renewed(await self._keeper.renew(self.key, self.fence))

    async def release(self) -> bool:
        """Give it back; False if it was gone already. Any number of times."""
        if not self._held:
            return False
        released = await self._keeper.release(self.key, self.fence)
        self._held = False
        return released

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except (CorruptState, EngineUnavailable) as why:
            if error is None:
                raise
            self._not_released(error, why)
