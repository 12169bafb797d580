"""Decides which caller uses which connection of a pool, and which callers wait. Pure: no thread, no socket, no
clock.

Nothing is counted, so no count can go wrong: each entry says by itself whether its connection is idle, in use or
being opened. A caller marks an entry with itself and removes the mark by plain assignments when it leaves,
however it leaves. A mark that stays all the same is void OVERDUE_S after its caller's deadline: a caller that
still works by then is late anyway.

A caller that finds no idle connection waits. When a connection becomes free, the waiting caller with the most time
left (give or take SAME_DEADLINE_S) sends for all that can be answered by its own deadline, in one round trip. So a
caller with a short deadline delays no other, no caller waits beyond its deadline, and no reply is given up more
than SAME_DEADLINE_S early.

The pool holds its lock around every method. tests/engines/redis/test_pool_schedules.py runs all schedules of a few
callers.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Protocol

BATCH_SIZE = 64  # requests in one round trip
SAME_DEADLINE_S = 0.005  # deadlines this close are treated as the same
OVERDUE_S = 1.0  # after its caller's deadline an entry is reused

_deadline_at = attrgetter("deadline_at")


class ThreadHandle(Protocol):
    """A thread that opens a connection, or reads late replies."""

    def is_alive(self) -> bool: ...


class PoolUser:
    """A caller that uses a connection for its own request."""

    entry: PoolEntry | None = None  # the entry that is marked with this caller


class PoolWaiter(PoolUser):
    """A caller that waits: until another one has sent its request, or until it leads a batch itself."""

    batch_leader: PoolWaiter | None = None  # the caller that sends this one's request in its batch
    resumed_by: ThreadHandle | None = None  # a thread that finishes the batch which this caller led

    def __init__(self, deadline_at: float) -> None:
        self.deadline_at = deadline_at


class PoolEntry:
    """A place for one connection."""

    __slots__ = ("connection", "opening", "until", "user")

    def __init__(self) -> None:
        self.connection: Any = None  # open, or None
        self.user: PoolUser | None = None
        self.until: float = 0.0  # the user's deadline
        self.opening: ThreadHandle | None = None


class PoolState:
    """The entries, and the waiting callers in the order of their arrival."""

    def __init__(self, size: int) -> None:
        self.entries: list[PoolEntry] = [PoolEntry() for _ in range(size)]
        self.waiting: list[Any] = []

    def claim(self, user: PoolUser, until: float) -> bool:
        """Marks an entry whose connection is idle, and returns whether there is one.

        The two marks are set without a call in between: a signal handler cannot run there.
        """
        for entry in self.entries:
            if entry.user is None and entry.connection is not None:
                entry.until = until
                user.entry = entry
                entry.user = user
                return True
        return False

    def claim_for_batch(self, waiter: Any) -> Any:
        """Returns who leads a batch on an idle connection: this caller, marked then, or one with more time."""
        patient = self.most_patient()
        if patient.deadline_at > waiter.deadline_at + SAME_DEADLINE_S:
            return patient
        self.claim(waiter, waiter.deadline_at)
        return waiter

    def has_idle(self) -> bool:
        """Returns whether a connection is open and not in use."""
        for entry in self.entries:  # noqa: SIM110 - runs before every take, and any() takes longer
            if entry.user is None and entry.connection is not None:
                return True
        return False

    def most_patient(self) -> Any:
        """Returns the waiting caller with the most time left, who leads the next batch; None if none waits."""
        return max(self.waiting, key=_deadline_at, default=None)

    def take_batch(self, leader: PoolWaiter, batch: list[Any]) -> None:
        """Moves the callers that can be answered by the leader's deadline from the queue into the batch.

        An interruption between the steps leaves some in both, never in none.
        """
        until = leader.deadline_at + SAME_DEADLINE_S
        chosen = [each for each in self.waiting if each.deadline_at <= until][:BATCH_SIZE]
        others = [each for each in self.waiting if each not in chosen] if len(chosen) < len(self.waiting) else []
        batch[:] = chosen
        for each in chosen:
            each.batch_leader = leader
        self.waiting[:] = others

    def requeue(self, batch: list[Any]) -> None:
        """Puts callers back into the queue for whom nothing was sent."""
        again = [each for each in batch if each not in self.waiting]
        self.waiting[:0] = again

    def is_orphaned(self, waiter: PoolWaiter) -> bool:
        """Returns whether nobody will send this caller's request or read its reply.

        Also true for a moment while the leader hands out an error.
        """
        leader = waiter.batch_leader
        return waiter not in self.waiting and not (
            leader is not None
            and (leader.entry is not None or (leader.resumed_by is not None and leader.resumed_by.is_alive()))
        )

    def entry_to_open(self, now: float) -> PoolEntry | None:
        """Returns an entry without a connection that no thread opens. An overdue one is taken from its user."""
        for entry in self.entries:
            if entry.user is None:
                if entry.connection is None and (entry.opening is None or not entry.opening.is_alive()):
                    return entry
            elif now > entry.until + OVERDUE_S:
                # A new entry: if the old user finishes after all, it unmarks the old one.
                new = self.entries[self.entries.index(entry)] = PoolEntry()
                if entry.connection is not None:
                    entry.connection.hang_up()
                return new
        return None

    def set_connection(self, entry: PoolEntry, connection: Any) -> bool:
        """Puts a new connection into its entry; returns False if the entry has another one by now, or is gone."""
        entry.opening = None
        if entry.connection is not None or entry not in self.entries:
            return False
        entry.connection = connection
        return True

    def leave(self, waiter: PoolWaiter) -> None:
        """Removes a caller from the queue."""
        if waiter in self.waiting:
            self.waiting.remove(waiter)
