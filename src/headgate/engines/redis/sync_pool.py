"""Shares the connections to one server among any number of threads.

A caller that finds an idle connection sends its request and reads the reply by itself. If all connections are in
use, it waits, and one of the waiting callers sends for all of them, in one round trip (pool_state.py says which).
Takes under one limit become one script call, in the order of arrival; each is decided by itself, so sharing a
round trip changes no decision.

Each connection is opened by a thread of its own. However long that takes, a caller waits no longer than its
deadline, and the connection serves later callers.

A signal handler may raise anywhere in a caller's thread (Ctrl-C, Celery's soft time limit), also while this caller
sends for others:
  - the caller releases its connection in a `finally` block that begins with plain assignments, because Python runs
    no signal handler between them. A connection that may still get a reply is closed, never reused;
  - a round trip that was interrupted while it waited for replies continues in a thread of its own. The others get
    their replies, and `on_late_reply` gets the reply of the caller that left. If nothing was sent yet, the others
    wait again. Only if the handler raised during the sending or the reading do they get a connection error;
  - a caller that passes its deadline leaves in the same way. A thread waits for its reply on that connection,
    which carries no other request meanwhile; silent_connections.py bounds how long, and how many such threads;
  - a second exception may cut the cleaning up short, so that a waiting caller is not woken. So every
    waiting caller also checks the pool every WAKE_S. It takes a free connection, or learns that none will reply.
"""

from __future__ import annotations

import time
from collections import deque
from threading import RLock
from typing import Any

from headgate.engines.redis.errors import ConnectFailed, ConnectionLost, RedisError, ServerError, TimedOut
from headgate.engines.redis.pool_state import PoolEntry, PoolState, PoolUser
from headgate.engines.redis.round_trip_metrics import MAX_ROUND_TRIPS, RoundTrips
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.signal_safe_thread import SignalSafeThread
from headgate.engines.redis.silent_connections import LINGER_S, MAX_LINGERING
from headgate.engines.redis.sync_batch import NO_REPLY, OnLateReply, SyncBatch, SyncRequest, Take
from headgate.engines.redis.sync_connection import SyncConnection

POOL_SIZE = 2  # connections to each server: while one is being read, another can be written
TRUSTED_S = 0.01  # a connection that was used within this time is not checked before it is used again
CONNECT_TIMEOUT_S = 1.0  # the least time for opening a connection, whatever the deadline
WAKE_S = 0.05  # a waiting caller checks the pool this often
MAX_ORPHANED_WAKES = 1  # after more checks in a row that found it orphaned, a caller gives up

INTERRUPTED = "the thread that asked was interrupted"


class ConnectionPool:
    """The connections to one server, and the queue of callers that wait for one."""

    def __init__(self, address: ServerAddress, deadline: float) -> None:
        self.address = address
        self.deadline = deadline  # seconds; if it changes, a connection adopts it at its next use
        self.round_trips: RoundTrips = deque(maxlen=MAX_ROUND_TRIPS)
        self._lock = RLock()  # reentrant: a signal handler may send a request, too
        self._state = PoolState(POOL_SIZE)
        self._lingering: list[tuple[float, SignalSafeThread, SyncConnection]] = []  # by deadline, the oldest first

    def reset_after_fork(self) -> None:
        """Drops every connection and waiting caller in a forked child: they are the parent's."""
        inherited, self._lock, self._state = self._state, RLock(), PoolState(POOL_SIZE)
        lingering, self._lingering = self._lingering, []
        for *_, connection in lingering:
            connection.close()
        for entry in inherited.entries:
            if entry.connection is not None:
                entry.connection.close()

    def execute(self, request: bytes | Take, deadline_at: float) -> Any:
        """Sends one request by the pool's own deadline; returns the reply, or the outcome of a take. Raises
        RedisError."""
        state = self._state
        user, reply, complete = PoolUser(), NO_REPLY, True
        try:
            if not state.waiting:
                with self._lock:
                    state.claim(user, deadline_at)
            if user.entry is not None:
                connection: SyncConnection = user.entry.connection
                if isinstance(request, bytes):
                    packed = request
                else:
                    builder, key, cost = request
                    packed = builder.decide(key, cost, None, 0).packed
                if connection.timeout != self.deadline:
                    connection.set_timeout(self.deadline)
                complete = False
                # A connection that was used a moment ago is not checked: that costs a system call.
                if deadline_at - connection.due_at < TRUSTED_S or connection.alive:
                    connection.due_at = deadline_at
                    reply = connection.exchange(packed, deadline_at)
                    complete = True
        except ServerError:
            complete = True
            raise
        finally:
            entry, unusable = user.entry, None
            if entry is not None:
                if not complete:  # a reply may still be on its way
                    unusable, entry.connection = entry.connection, None
                entry.user = None
                if unusable is not None:
                    unusable.close()
                if state.waiting:
                    self._wake()
        if reply is NO_REPLY:  # no connection was idle, or it has died
            return self.execute_queued(request, deadline_at)
        self.round_trips.append((1, time.monotonic() - deadline_at + self.deadline))
        return reply if isinstance(request, bytes) else request[0].parse(reply)

    def execute_queued(
        self,
        request: bytes | Take,
        deadline_at: float,
        reply_count: int = 1,
        on_late_reply: OnLateReply | None = None,
    ) -> Any:
        """Sends a request behind the waiting callers, by any deadline. Returns the last of `reply_count` replies,
        or raises the error of the first.

        If the caller has left before the reply comes, `on_late_reply` is called with it: an exception was raised
        in the caller, or its deadline is over. It is called at most once, by any thread, and not at all if no
        reply comes within LINGER_S of the deadline, or the connection fails, or is the oldest of more than
        MAX_LINGERING.
        """
        return self._wait(SyncRequest(request, reply_count, deadline_at, on_late_reply))

    def _wait(self, request: SyncRequest) -> Any:
        """Waits until another caller has sent this request, or sends a batch of all waiting ones."""
        orphaned_wakes = 0
        try:
            with self._lock:
                self._state.waiting.append(request)
                leads = self._may_lead(request)
            while request.reply is NO_REPLY:
                if leads:
                    self._send_batch(request)
                else:
                    remaining_s = request.deadline_at - time.monotonic()
                    if remaining_s <= 0:
                        raise TimedOut("no reply in time")
                    request.wakeup.acquire(True, remaining_s if remaining_s < WAKE_S else WAKE_S)
                    if request.reply is not NO_REPLY:
                        break
                with self._lock:
                    queued = request in self._state.waiting
                    leads = queued and self._may_lead(request)
                    orphaned_wakes = 0 if queued or not self._state.is_orphaned(request) else orphaned_wakes + 1
                if orphaned_wakes > MAX_ORPHANED_WAKES:
                    raise ConnectionLost(INTERRUPTED)
        except BaseException:
            request.leave(self._lock)
            raise
        finally:
            entry = request.entry
            if entry is not None:  # interrupted before anything was sent
                entry.user = request.entry = None
            if request.reply is NO_REPLY:
                with self._lock:
                    self._state.leave(request)
                self._wake()
        if isinstance(request.reply, RedisError):
            raise request.reply
        return request.reply

    def _may_lead(self, request: SyncRequest) -> bool:
        """Returns whether this caller has marked a connection to send a batch on; opens one if none is idle.

        The caller holds the lock.
        """
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

    def _send_batch(self, request: SyncRequest) -> None:
        """Sends all waiting requests on the connection that this caller has marked."""
        entry: PoolEntry = request.entry  # type: ignore[assignment]
        connection: SyncConnection = entry.connection
        batch: list[SyncRequest] = []
        round_trip: SyncBatch | None = None
        complete = False
        failure: RedisError | None = None
        try:
            # The check lets other threads run: requests that come meanwhile join this batch.
            closed_by_server = not connection.alive
            if closed_by_server and connection.used:
                return  # another connection is opened
            with self._lock:
                self._state.take_batch(request, batch)
            if not batch:  # this caller is in another batch already
                complete = not closed_by_server
                return
            if closed_by_server:  # closed right after it was accepted: too many clients, perhaps
                failure = connection.close_reason()
                return
            if connection.timeout != self.deadline:
                connection.set_timeout(self.deadline)
            round_trip, sent_at = SyncBatch(connection, batch, self._lock), time.monotonic()
            round_trip.run(request.deadline_at)
            complete = True
            self.round_trips.append((len(batch), time.monotonic() - sent_at))
        except (TimedOut, ConnectionLost) as error:
            failure = error
        finally:
            if not complete:
                entry.connection = None
            entry.user = request.entry = None
            if not complete and not self._finish_in_background(request, round_trip, batch, failure):
                connection.close()
                if failure is None and (round_trip is None or not round_trip.may_have_sent):
                    with self._lock:
                        self._state.requeue(batch)
                else:
                    for each in batch:
                        each.deliver(failure or ConnectionLost(INTERRUPTED), self._lock)
            if self._state.waiting:
                self._wake()

    def _finish_in_background(
        self,
        leader: SyncRequest,
        round_trip: SyncBatch | None,
        batch: list[SyncRequest],
        failure: RedisError | None,
    ) -> bool:
        """Returns whether another thread now reads the replies that may still come to this round trip."""
        has_late_hook = any(request.on_late_reply is not None for request in batch)
        if (
            round_trip is None
            or not round_trip.resumable
            or not (failure is None or (has_late_hook and isinstance(failure, TimedOut)))
        ):
            return False
        until = leader.deadline_at + (LINGER_S if has_late_hook else 0.0)
        leader.resumed_by = thread = SignalSafeThread(round_trip.finish, until)
        try:
            thread.start()
        except RuntimeError:  # the process can have no more threads
            return False
        if has_late_hook:
            self._track_lingering(leader.deadline_at, thread, round_trip.connection)
        return True

    def _track_lingering(self, deadline_at: float, thread: SignalSafeThread, connection: SyncConnection) -> None:
        """Remembers a connection that is read for callers who left; of too many, ends the oldest past its
        deadline."""
        now = time.monotonic()
        with self._lock:
            alive = [each for each in self._lingering if each[1].is_alive()]
            past_deadline = [each for each in alive if each[0] < now]
            to_end = past_deadline[: max(0, len(alive) + 1 - MAX_LINGERING)]
            self._lingering = [*(each for each in alive if each not in to_end), (deadline_at, thread, connection)]
        for *_, oldest in to_end:
            oldest.hang_up()

    def await_late_replies(self, until: float) -> None:
        """Waits for late replies until the instant `until`; then ends those connections."""
        with self._lock:
            lingering, self._lingering = self._lingering, []
        for _, thread, _ in lingering:
            thread.join(max(0.0, until - time.monotonic()))
        for *_, connection in lingering:
            connection.hang_up()

    def _open(self, entry: PoolEntry) -> None:
        """Opens a connection in a thread of its own; the caller holds the lock."""
        entry.opening = thread = SignalSafeThread(self._connect, entry)
        try:
            thread.start()
        except RuntimeError as error:  # the process can have no more threads
            entry.opening = None
            raise ConnectFailed(f"no thread could be started to connect: {error}") from error

    def _connect(self, entry: PoolEntry) -> None:
        try:
            connection = SyncConnection(self.address, max(CONNECT_TIMEOUT_S, self.deadline), self.deadline)
        except Exception as error:
            failure = error if isinstance(error, RedisError) else ConnectFailed(str(error))
            with self._lock:
                entry.opening = None
                waiting, self._state.waiting[:] = tuple(self._state.waiting), []
            for request in waiting:
                request.deliver(failure, self._lock)
        else:
            with self._lock:
                kept_open = self._state.set_connection(entry, connection)
            if not kept_open:
                connection.close()
            self._wake()

    def _wake(self) -> None:
        """Wakes the caller that leads the next batch."""
        with self._lock:
            next_leader = self._state.most_patient()
        if next_leader is not None:
            next_leader.wake()

    def close(self) -> None:
        """Closes idle connections. A later request opens them again."""
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
        """Returns how many connections are open and not in use."""
        return sum(entry.user is None and entry.connection is not None for entry in self._state.entries)
