"""Harness of slot tests: one key of slots, its clock, and what is expected of it."""

from typing import Protocol

from headgate.algorithms.decision import Outcome
from headgate.algorithms.slots import Slots

BASE_US = 1_700_000_000_000_000
SECOND = 1_000_000


class Keeper(Protocol):
    """One key of slots and the clock that it lives by."""

    def set_us(self, now_us: int) -> None: ...
    def acquire(self, limit: Slots, ticket: int | None, wait: bool) -> tuple[Outcome, int | None]: ...
    def renew(self, limit: Slots, fence: int) -> int | None: ...
    def release(self, limit: Slots, fence: int) -> bool: ...
    def leave(self, limit: Slots, ticket: int) -> bool: ...
    def peek(self, limit: Slots) -> Outcome: ...
    def forgotten(self) -> bool: ...


class SlotHarness:
    """A keeper, as a story speaks to it."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.limit = Slots(2)
        self.at(0)

    def at(self, seconds: float) -> None:
        self.now_us = BASE_US + round(seconds * SECOND)
        self.keeper.set_us(self.now_us)

    def acquire_or_poll(self, ticket: int | None = None, *, wait: bool = False) -> tuple[Outcome, int | None]:
        return self.keeper.acquire(self.limit, ticket, wait)

    def gets(self, ticket: int | None = None, *, remaining: int | None = None) -> int:
        """The fence of a lease that is granted."""
        outcome, left = self.acquire_or_poll(ticket, wait=ticket is not None)
        allowed, free, retry_us, _, delay_us, at_us, fence = outcome
        assert (allowed, retry_us, delay_us, at_us, left) == (True, 0, 0, self.now_us, None)
        assert remaining is None or free == remaining
        return fence

    def denied(self, *, retry_after: float | None = None) -> None:
        """A newcomer gets no slot, and is told when."""
        outcome, ticket = self.acquire_or_poll()
        allowed, free, retry_us, _, delay_us, at_us, place = outcome
        assert (allowed, free, delay_us, at_us, ticket) == (False, 0, 0, self.now_us, None)
        assert place > 0
        assert retry_us is not None
        assert retry_us > 0
        assert retry_after is None or retry_us == round(retry_after * SECOND)

    def waits(self, ticket: int | None = None, *, place: int | None = None) -> int:
        """The ticket of one who is told to wait, and in which place."""
        outcome, given = self.acquire_or_poll(ticket, wait=True)
        assert not outcome[0]
        assert place in (None, outcome[6])
        assert given is not None
        return given

    def renews(self, fence: int) -> float | None:
        """Until when, in seconds since the story began."""
        expires_us = self.keeper.renew(self.limit, fence)
        return None if expires_us is None else (expires_us - BASE_US) / SECOND

    def releases(self, fence: int) -> bool:
        return self.keeper.release(self.limit, fence)

    def leaves(self, ticket: int) -> bool:
        return self.keeper.leave(self.limit, ticket)

    def free(self) -> int:
        allowed, free, *_ = self.keeper.peek(self.limit)
        assert allowed == (free > 0)
        return free
