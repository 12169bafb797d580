"""Shares the connections to one server among any number of threads.

A caller that finds an idle connection sends its question and reads the reply by itself. If all connections are
in use, it waits, and one of those that wait sends for all of them, in one round trip (pool_state.py says which).
Takes under one limit become one script call, in the order of arrival; each is decided by itself, so sharing a
round trip changes no decision.

A thread of its own opens each connection. However long that takes, a caller waits no longer than its deadline,
and the connection serves later callers.

A signal handler may raise anywhere in a caller's thread (Ctrl-C, Celery's soft time limit), also while this caller
sends for others:
  - the caller removes its mark in a `finally` whose first steps are plain assignments, at which Python runs no
    signal handler. A connection that may still get a reply is closed, never reused;
  - a round trip that was interrupted while it waited for replies goes on in a thread of its own. The others get
    their replies, and `abandoned` gets the reply of the caller that left. If nothing was sent yet, the others wait
    again. Only if the handler raised during the sending or the reading are they told that the connection failed;
  - a caller whose deadline is over has left, too: its reply is awaited in the same way, on a connection that
    carries no other question, within the bounds of lingering.py;
  - a second exception may cut the cleaning up short, so that a waiting caller is not woken. It looks by itself
    every WAKE_S, and finds a free connection, or that nobody will answer it.
"""

from __future__ import annotations

import time
from threading import RLock
from typing import Any

from headgate.engines.redis import protocol
from headgate.engines.redis.background_thread import BackgroundThread
from headgate.engines.redis.errors import ConnectFailed, ConnectionLost, RedisError, ServerError, TimedOut
from headgate.engines.redis.pool_state import PoolEntry, PoolState, PoolUser
from headgate.engines.redis.protocol import RequestBuilder
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.silent_connections import LINGER_S, MAX_LINGERING
from headgate.engines.redis.sync_batch import NOT_YET, Abandoned, SyncBatch, SyncRequest
from headgate.engines.redis.sync_connection import SyncConnection

POOL_SIZE = 2  # connections to each server: while one is being read, another can be written
TRUSTED_S = 0.01  # a connection that was used so short a time ago is not looked at before it is used again
CONNECT_TIMEOUT_S = 1.0  # that opening a connection may take at least, whatever the deadline
WAKE_S = 0.05  # a caller that waits looks by itself so often
FORGOTTEN_WAKES = 1  # after so many looks in a row that found nobody who asks for it, a caller waits no longer

INTERRUPTED = "the thread that asked was interrupted"


class ConnectionPool:
    """The connections to one server, and the queue of those who wait for one."""

    def __init__(self, address: ServerAddress, deadline: float) -> None:
        self.address = address
        self.deadline = deadline  # seconds; may be changed: a connection learns of it when it is used next
        self._lock = RLock()  # a signal handler may ask, too
        self._state = PoolState(POOL_SIZE)
        self._lingering: list[tuple[float, BackgroundThread, SyncConnection]] = []  # by deadline, the oldest first

    def start_afresh(self) -> None:
        """In a forked child: forget every connection. They are the parent's, and so are those who wait."""
        inherited, self._lock, self._state = self._state, RLock(), PoolState(POOL_SIZE)
        lingering, self._lingering = self._lingering, []
        for *_, connection in lingering:
            connection.close()
        for entry in inherited.entries:
            if entry.connection is not None:
                entry.connection.close()

    def take(self, questions: RequestBuilder, key: str, cost: int, deadline_at: float) -> Any:
        """A take of a limit that is not a calendar's; its facts. Raises Trouble."""
        if self._state.waiting:
            return self.take_in_turn(questions, key, cost, deadline_at)
        reply = self._ask_alone(b"", deadline_at, questions, key, cost)
        return self.take_in_turn(questions, key, cost, deadline_at) if reply is NOT_YET else protocol.facts(reply)

    def take_in_turn(self, questions: RequestBuilder, key: str, cost: int, deadline_at: float) -> Any:
        """The same, behind those who wait, and by any deadline."""
        return self._wait(SyncRequest((questions, key, cost), b"", 1, deadline_at))

    def ask(self, packed: bytes, deadline_at: float) -> Any:
        """One question, one reply, by the pool's own deadline; raises Trouble."""
        reply = self._ask_alone(packed, deadline_at)
        return self.ask_in_turn(packed, deadline_at) if reply is NOT_YET else reply

    def ask_in_turn(
        self, packed: bytes, deadline_at: float, replies: int = 1, abandoned: Abandoned | None = None
    ) -> Any:
        """The same, behind those who wait, and by any deadline; the reply is the last of `replies`, or the trouble
        of the first.

        `abandoned` is called with the reply if the caller has left before it comes: an exception was raised in it,
        or its deadline is over. It is called at most once, by any thread, and not at all if no reply comes within
        LINGER_S of the deadline, or the connection fails, or is the oldest of more than MAX_LINGERING.
        """
        return self._wait(SyncRequest(None, packed, replies, deadline_at, abandoned))

    def _ask_alone(
        self,
        packed: bytes,
        deadline_at: float,
        questions: RequestBuilder | None = None,
        key: str = "",
        cost: int = 0,
    ) -> Any:
        """Ask at once, what is packed or a take; NOT_YET if no connection is idle, or it has died."""
        state = self._state
        if state.waiting:
            return NOT_YET
        user, reply, whole = PoolUser(), NOT_YET, True
        try:
            with self._lock:
                if not state.claim(user, deadline_at):
                    return NOT_YET
            connection: SyncConnection = user.entry.connection  # type: ignore[union-attr]
            if questions is not None:
                packed = questions.decide(key, cost, None, 0).packed
            if connection.timeout != self.deadline:
                connection.set_timeout(self.deadline)
            whole = False
            # A connection that was used a moment ago is trusted: looking costs a system call.
            if deadline_at - connection.due_at < TRUSTED_S or connection.alive:
                connection.due_at = deadline_at
                reply = connection.exchange(packed, deadline_at)
                whole = True
        except ServerError:
            whole = True
            raise
        finally:
            entry, broken = user.entry, None
            if entry is not None:
                if not whole:  # a reply may still be under way
                    broken, entry.connection = entry.connection, None
                entry.user = None
                if broken is not None:
                    broken.close()
                if state.waiting:
                    self._wake()
        return reply

    def _wait(self, request: SyncRequest) -> Any:
        """Wait until somebody has asked for this caller, or ask for all who wait."""
        forgotten = 0
        try:
            with self._lock:
                self._state.waiting.append(request)
                turn = self._has_turn(request)
            while request.reply is NOT_YET:
                if turn:
                    self._ask_for_all(request)
                else:
                    left = request.deadline_at - time.monotonic()
                    if left <= 0:
                        raise TimedOut("no reply in time")
                    request.wakeup.acquire(True, left if left < WAKE_S else WAKE_S)
                    if request.reply is not NOT_YET:
                        break
                with self._lock:
                    waits = request in self._state.waiting
                    turn = waits and self._has_turn(request)
                    forgotten = 0 if waits or not self._state.is_orphaned(request) else forgotten + 1
                if forgotten > FORGOTTEN_WAKES:
                    raise ConnectionLost(INTERRUPTED)
        except BaseException:
            request.leave(self._lock)
            raise
        finally:
            entry = request.entry
            if entry is not None:  # interrupted before anything was sent
                entry.user = request.entry = None
            if request.reply is NOT_YET:
                with self._lock:
                    self._state.leave(request)
                self._wake()
        if isinstance(request.reply, RedisError):
            raise request.reply
        return request.reply

    def _has_turn(self, request: SyncRequest) -> bool:
        """Whether this caller has got a connection to ask on for all. If there is none, another one is opened. The
        caller holds the lock."""
        state = self._state
        if not state.has_idle():
            entry = state.entry_to_open(time.monotonic())
            if entry is not None:
                self._open(entry)
            return False
        leader = state.claim_for_batch(request)
        if leader is not request:
            leader.wake()
        return leader is request

    def _ask_for_all(self, request: SyncRequest) -> None:
        """Ask whatever waits, on the connection that this caller has marked."""
        entry: PoolEntry = request.entry  # type: ignore[assignment]
        connection: SyncConnection = entry.connection
        batch: list[SyncRequest] = []
        trip: SyncBatch | None = None
        whole = False
        trouble: RedisError | None = None
        try:
            # The look lets other threads run, too: those that ask meanwhile travel in this round trip.
            dead = not connection.alive
            if dead and connection.used:
                return  # another one is opened
            with self._lock:
                self._state.take_batch(request, batch)
            if not batch:  # another one asks for this caller already
                whole = not dead
                return
            if dead:  # it was accepted only to be closed: too many clients, perhaps
                trouble = connection.close_reason()
                return
            if connection.timeout != self.deadline:
                connection.set_timeout(self.deadline)
            trip = SyncBatch(connection, batch, self._lock)
            trip.run(request.deadline_at)
            whole = True
        except (TimedOut, ConnectionLost) as error:
            trouble = error
        finally:
            if not whole:
                entry.connection = None
            entry.user = request.entry = None
            if not whole and not self._runs_on(request, trip, batch, trouble):
                connection.close()
                if trouble is None and (trip is None or not trip.begun):
                    with self._lock:
                        self._state.requeue(batch)
                else:
                    for each in batch:
                        each.answer(trouble or ConnectionLost(INTERRUPTED), self._lock)
            if self._state.waiting:
                self._wake()

    def _runs_on(
        self, leader: SyncRequest, trip: SyncBatch | None, batch: list[SyncRequest], trouble: RedisError | None
    ) -> bool:
        """A round trip ended early; whether another thread waits for the replies that may still come."""
        awaited = any(request.abandoned is not None for request in batch)
        if (
            trip is None
            or not trip.resumable
            or not (trouble is None or (awaited and isinstance(trouble, TimedOut)))
        ):
            return False
        until = leader.deadline_at + (LINGER_S if awaited else 0.0)
        leader.resumed_by = thread = BackgroundThread(trip.run_to_the_end, until)
        try:
            thread.start()
        except RuntimeError:  # the process has as many as it may have
            return False
        if awaited:
            self._linger(leader.deadline_at, thread, trip.connection)
        return True

    def _linger(self, deadline_at: float, thread: BackgroundThread, connection: SyncConnection) -> None:
        """Remember a connection that is read on for callers who left. Of too many, the oldest on which nobody else
        waits ends."""
        now = time.monotonic()
        with self._lock:
            alive = [each for each in self._lingering if each[1].is_alive()]
            overdue = [each for each in alive if each[0] < now]
            ends = overdue[: max(0, len(alive) + 1 - MAX_LINGERING)]
            self._lingering = [*(each for each in alive if each not in ends), (deadline_at, thread, connection)]
        for *_, oldest in ends:
            oldest.hang_up()

    def await_late_replies(self, until: float) -> None:
        """Wait for what may come for callers who left, but no longer than that; then end those connections."""
        with self._lock:
            lingering, self._lingering = self._lingering, []
        for _, thread, _ in lingering:
            thread.join(max(0.0, until - time.monotonic()))
        for *_, connection in lingering:
            connection.hang_up()

    def _open(self, entry: PoolEntry) -> None:
        """Open a connection in a thread of its own; the caller holds the lock."""
        entry.opening = thread = BackgroundThread(self._connect, entry)
        try:
            thread.start()
        except RuntimeError as error:  # the process has as many as it may have
            entry.opening = None
            raise ConnectFailed(f"no thread could be started to connect: {error}") from error

    def _connect(self, entry: PoolEntry) -> None:
        try:
            connection = SyncConnection(self.address, max(CONNECT_TIMEOUT_S, self.deadline), self.deadline)
        except Exception as error:
            trouble = error if isinstance(error, RedisError) else ConnectFailed(str(error))
            with self._lock:
                entry.opening = None
                waiting, self._state.waiting[:] = tuple(self._state.waiting), []
            for request in waiting:
                request.answer(trouble, self._lock)
        else:
            with self._lock:
                of_use = self._state.opened(entry, connection)
            if not of_use:
                connection.close()
            self._wake()

    def _wake(self) -> None:
        """Wake the one who asks for all."""
        with self._lock:
            patient = self._state.most_patient()
        if patient is not None:
            patient.wake()

    def close(self) -> None:
        """Close what is idle. Whoever asks again opens it again."""
        with self._lock:
            idle = [entry for entry in self._state.entries if entry.user is None]
            connections = [entry.connection for entry in idle if entry.connection is not None]
            for entry in idle:
                entry.connection = None
        for connection in connections:
            connection.close()
        self._wake()

    @property
    def idle(self) -> int:
        """How many connections are open and not in use."""
        return sum(entry.user is None and entry.connection is not None for entry in self._state.entries)
