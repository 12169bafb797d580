"""Decides which caller uses which connection of a pool, and who waits. Pure: no thread, no socket, no clock.

Nothing is counted, so no count can go wrong: each entry says by itself whether its connection is idle, in use or
being opened. A caller marks an entry with itself and removes the mark by plain assignments when it leaves,
however it leaves. A mark that stays all the same is void OVERDUE_S after its caller's deadline: a caller that
still works by then is late anyway.

A caller that finds no idle connection waits. When a connection comes free, the waiting caller with the most time
left (give or take NEAR) sends for all that can be answered by its own deadline, in one round trip. So a caller
with a short deadline delays nobody, no caller waits beyond its deadline, and no reply is given up more than NEAR
early.

The pool holds its lock around every method. tests/engines/redis/test_pool_schedules.py runs all schedules of a few
callers.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Protocol

BATCH_SIZE = 64  # questions in one round trip
NEAR = 0.005  # seconds that the deadlines of two who came together may lie apart
OVERDUE_S = 1.0  # after its caller's deadline an entry is given to others

_deadline_at = attrgetter("deadline_at")


class Running(Protocol):
    """A thread: what opens a connection, or reads on."""

    def is_alive(self) -> bool: ...


class PoolUser:
    """A caller that asks on a connection by itself."""

    entry: PoolEntry | None = None  # the one that is marked with this caller


class PoolWaiter(PoolUser):
    """A caller that waits: until somebody asked for it, or until it is its turn to ask for all."""

    asked_by: PoolWaiter | None = None  # who asks for it, once that is no longer its own affair
    runs_on: Running | None = None  # a thread that goes on in place of this caller, where it asked for others

    def __init__(self, deadline_at: float) -> None:
        self.deadline_at = deadline_at


class PoolEntry:
    """Room for one connection."""

    __slots__ = ("connection", "opening", "until", "user")

    def __init__(self) -> None:
        self.connection: Any = None  # open, or None
        self.user: PoolUser | None = None
        self.until: float = 0.0  # the user's deadline
        self.opening: Running | None = None


class PoolState:
    """The entries, and those who wait, in the order in which they came."""

    def __init__(self, size: int) -> None:
        self.entries: list[PoolEntry] = [PoolEntry() for _ in range(size)]
        self.waiting: list[Any] = []

    def claim(self, user: PoolUser, until: float) -> bool:
        """Mark an entry whose connection is idle; whether there is one. No call comes between the two marks: a
        signal handler cannot run there."""
        for entry in self.entries:
            if entry.user is None and entry.connection is not None:
                entry.until = until
                user.entry = entry
                entry.user = user
                return True
        return False

    def claim_for_all(self, waiter: Any) -> Any:
        """Choose who asks for all on an idle connection: this caller, then marked, or one with more time left."""
        patient = self.most_patient()
        if patient.deadline_at > waiter.deadline_at + NEAR:
            return patient
        self.claim(waiter, waiter.deadline_at)
        return waiter

    def has_idle(self) -> bool:
        for entry in self.entries:  # noqa: SIM110 - this is asked before every take, and any() takes longer
            if entry.user is None and entry.connection is not None:
                return True
        return False

    def most_patient(self) -> Any:
        """Find the waiting caller with the most time left, who asks for all; None if nobody waits."""
        return max(self.waiting, key=_deadline_at, default=None)

    def take_batch(self, leader: PoolWaiter, batch: list[Any]) -> None:
        """Move those who wait, and can be asked for until the leader's deadline, into the batch. An interruption
        between the steps leaves some in both places, never in none."""
        until = leader.deadline_at + NEAR
        chosen = [each for each in self.waiting if each.deadline_at <= until][:BATCH_SIZE]
        left = [each for each in self.waiting if each not in chosen] if len(chosen) < len(self.waiting) else []
        batch[:] = chosen
        for each in chosen:
            each.asked_by = leader
        self.waiting[:] = left

    def put_back(self, batch: list[Any]) -> None:
        """Let those wait again for whom nothing was sent."""
        again = [each for each in batch if each not in self.waiting]
        self.waiting[:0] = again

    def is_forgotten(self, waiter: PoolWaiter) -> bool:
        """Whether nobody will send this caller's question or read its reply. Also true for a moment while the
        caller that sent it hands out the failure."""
        leader = waiter.asked_by
        return waiter not in self.waiting and not (
            leader is not None
            and (leader.entry is not None or (leader.runs_on is not None and leader.runs_on.is_alive()))
        )

    def to_open(self, now: float) -> PoolEntry | None:
        """An entry without a connection that nobody opens. One that is overdue is taken from its user."""
        for entry in self.entries:
            if entry.user is None:
                if entry.connection is None and (entry.opening is None or not entry.opening.is_alive()):
                    return entry
            elif now > entry.until + OVERDUE_S:
                # A new entry: should the old user come to its end after all, it unmarks the old one.
                new = self.entries[self.entries.index(entry)] = PoolEntry()
                if entry.connection is not None:
                    entry.connection.hang_up()
                return new
        return None

    def opened(self, entry: PoolEntry, connection: Any) -> bool:
        """Put a new connection into its entry; False: the entry has got another one meanwhile, or is gone."""
        entry.opening = None
        if entry.connection is not None or entry not in self.entries:
            return False
        entry.connection = connection
        return True

    def leave(self, waiter: PoolWaiter) -> None:
        if waiter in self.waiting:
            self.waiting.remove(waiter)
