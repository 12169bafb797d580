"""Sends the requests of all tasks of one event loop to one server, over one connection, and batches those that
come together.

    a request that comes alone is sent at once: batching costs a single call nothing
    takes under one limit that come together become one script call, in the order of arrival; and so do joint takes
    on the same limits
    any other requests that come together are written together, and answered one by one

So the server works on one batch while the next ones gather; while MAX_BATCHES_IN_FLIGHT are on their way, the rest
waits here. LAW: exact. Each charge is decided by itself, after all those before it, and gets its own reply. A
caller who has left (cancelled, or too late) leaves a finished future, which no other caller gets. If its request
says how to undo what the reply grants (a place in a queue, a slot, a ticket), that is undone when the reply comes,
and the request is not sent at all if it was not sent yet; a take stays charged. A connection that falls silent is
replaced, and read on for such replies (silent_connections.py). A request that was sent is never sent again, unless
the server replied that it has done nothing. No caller waits longer than the batcher's deadline, which one timer
checks for all; a request with a shorter one has a timer of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from time import monotonic
from typing import Any

from headgate.engines.redis import protocol
from headgate.engines.redis.async_batch import Batch, Call, ReplyFuture
from headgate.engines.redis.async_connection import TRUSTED_S, AsyncConnection, OnReply
from headgate.engines.redis.async_single_take import SingleTake
from headgate.engines.redis.errors import ConnectFailed, ConnectionLost, NoScript, RedisError, TimedOut
from headgate.engines.redis.protocol import RedisRequest, TakeBuilder
from headgate.engines.redis.round_trip_metrics import MAX_ROUND_TRIPS, RoundTrips
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.silent_connections import SilentConnections

BATCH_SIZE = 128  # requests
MAX_BATCHES_IN_FLIGHT = 4  # the rest waits here
CONNECT_TIMEOUT_S = 1.0  # the least time for opening a connection, whatever the deadline
SILENCE_TIMEOUT_S = 1.0  # beyond the deadline, after which a connection that sends nothing is given up

_ASKING = protocol.command("ASKING")


class AsyncBatcher:
    """Batches requests to one server; connects when it is needed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: ServerAddress,
        deadline: float,
        failure: Callable[[RedisError], Exception],
        on_late_reply: Callable[[RedisRequest, Any], None],
    ) -> None:
        self.address = address
        self._loop = loop
        self._new_future = loop.create_future
        self._deadline = deadline
        self._failure = failure
        self._on_late_reply = on_late_reply
        self._pending: list[Call] = []
        self._in_flight: deque[Batch] = deque()  # the oldest first
        self.round_trips: RoundTrips = deque(maxlen=MAX_ROUND_TRIPS)
        self._last_was_single = True  # whether the last batch was a single request
        self._flush_scheduled = False
        self._connection: AsyncConnection | None = None
        self.silent_connections: SilentConnections = SilentConnections(loop)
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def bind_take(self, builder: TakeBuilder, deadline: float | None = None) -> Callable[[Any, Any], ReplyFuture]:
        """Returns a function that takes from a key under one limit without a calendar, or jointly from several."""
        new_future, schedule, in_flight, pack = self._new_future, self._schedule, self._in_flight, builder.decide

        def take(key: Any, cost: Any) -> ReplyFuture:
            future, now, connection = new_future(), monotonic(), self._connection
            call = now, future, builder, key, cost
            if (
                self._last_was_single
                and not in_flight
                and not self._pending
                and self._timer is not None
                and connection is not None
                and now - connection.last_reply_at < TRUSTED_S
            ):
                request = pack(key, cost, None, 0)
                single = SingleTake(self, connection, call, request)
                in_flight.append(single)
                connection.write_one(request.packed, single.on_reply)
                return future
            self._pending.append(call)
            if not self._flush_scheduled:
                schedule()
            return future

        return take if deadline is None else lambda key, cost: self._with_deadline(take(key, cost), deadline)

    def execute(self, request: RedisRequest, asking: bool = False, deadline: float | None = None) -> ReplyFuture:
        """Sends a request that is no take; returns a future of its reply."""
        future = self._new_future()
        self._pending.append((monotonic(), future, None, request, int(asking)))
        if not self._flush_scheduled:
            self._schedule()
        return future if deadline is None else self._with_deadline(future, deadline)

    def _with_deadline(self, future: ReplyFuture, deadline: float) -> ReplyFuture:
        """Gives a future a timer of its own, if its deadline is shorter than the batcher's."""
        if deadline < self._deadline:
            timer = self._loop.call_later(deadline, self._time_out, future)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def _time_out(self, future: ReplyFuture) -> None:
        unsent = [call for call in self._pending if call[1] is future]
        for call in unsent:
            self._pending.remove(call)
        self.resolve(future, TimedOut("no reply in time; it was not sent" if unsent else "no reply in time"))

    def set_deadline(self, deadline: float) -> None:
        """Changes the deadline, from any thread, also for callers that already wait."""
        self._deadline = deadline
        with suppress(RuntimeError):  # the loop has ended, and no caller waits
            self._loop.call_soon_threadsafe(self._restart_timer)

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._check_deadlines()

    def _schedule(self) -> None:
        if self._last_was_single and not self._in_flight and len(self._pending) == 1:
            self._flush()
        elif len(self._in_flight) < MAX_BATCHES_IN_FLIGHT:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._pending:
            return
        if self._timer is None:
            self._timer = self._loop.call_later(self._deadline, self._check_deadlines)
        connection = self._connection
        if connection is None:
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._open())
        elif connection.has_unread_data:
            self._flush_scheduled = True
            self._loop.call_later(0.001, self._flush)  # after it was read
        else:
            while self._pending and len(self._in_flight) < MAX_BATCHES_IN_FLIGHT:
                calls, self._pending = self._pending[:BATCH_SIZE], self._pending[BATCH_SIZE:]
                self._send(connection, Batch(calls))

    def _send(self, connection: AsyncConnection, batch: Batch) -> None:
        """Writes a batch, with one script call for all takes under one limit."""
        packed: list[bytes] = []
        callbacks: list[OnReply] = []
        asking_count = 0
        for builder, columns in _group_by_limit(batch.calls):
            _, futures, _, keys_or_requests, costs = columns
            if builder is None:
                for future, request, asking in zip(futures, keys_or_requests, costs, strict=True):
                    if request.undo is not None and future.done():
                        continue
                    if asking:
                        packed.append(_ASKING)
                        callbacks.append(partial(self._resolve_if_error, future))
                        asking_count += 1
                    packed.append(request.packed)
                    callbacks.append(partial(self.on_reply, connection, batch, request, self.resolve, future))
                continue
            request = builder.decide_each(keys_or_requests, costs)
            packed.append(request.packed)
            resolve = partial(self.resolve_takes, builder)
            callbacks.append(partial(self.on_reply, connection, batch, request, resolve, futures))
        if not callbacks:  # all callers have left
            return
        batch.missing_replies = len(callbacks) - asking_count
        self._last_was_single = len(batch.calls) == 1
        self._in_flight.append(batch)
        connection.write(b"".join(packed), callbacks)

    def on_reply(
        self,
        connection: AsyncConnection,
        batch: Batch,
        request: RedisRequest,
        resolve: Callable[[Any, Any], None],
        futures: Any,
        reply: Any,
    ) -> None:
        """Resolves futures with a reply; loads the script first if the server has lost it."""
        if isinstance(reply, NoScript) and request.script is not None:
            then_send = partial(self._send_after_load, connection, batch, request, resolve, futures)
            connection.write(request.script.load, [then_send])
            return
        if request.needs_reply and futures.done() and not isinstance(reply, RedisError):
            self._on_late_reply(request, reply)
        resolve(futures, reply)
        batch.missing_replies -= 1
        if not batch.missing_replies:
            self.batch_done(batch)

    def batch_done(self, batch: Batch) -> None:
        """Removes a batch whose replies have all come, and sends the next one."""
        try:
            self._in_flight.remove(batch)
        except ValueError:
            return  # its connection was given up
        calls = batch.calls
        self.round_trips.append((len(calls), monotonic() - calls[0][0]))
        if self._pending and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _send_after_load(
        self,
        connection: AsyncConnection,
        batch: Batch,
        request: RedisRequest,
        resolve: Callable[[Any, Any], None],
        futures: Any,
        loaded: Any,
    ) -> None:
        """Sends a request again after its script was loaded; loads it again only while a caller may wait."""
        if monotonic() - batch.calls[-1][0] > self._deadline:
            request = request._replace(script=None)
        on_reply = partial(self.on_reply, connection, batch, request, resolve, futures)
        if isinstance(loaded, RedisError):
            on_reply(loaded)
        else:
            connection.write(request.packed, [on_reply])

    def resolve_takes(self, builder: TakeBuilder, futures: Sequence[ReplyFuture], reply: Any) -> None:
        """Resolves the futures of takes that were one script call."""
        count = len(futures)
        replies = builder.parse_each(reply, count) if reply.__class__ is list else repeat(reply, count)
        for future, each in zip(futures, replies, strict=True):
            if isinstance(each, RedisError):
                self.resolve(future, each)
            elif not future.done():
                future.set_result(each)

    def _resolve_if_error(self, future: ReplyFuture, reply: Any) -> None:
        if isinstance(reply, RedisError):
            self.resolve(future, reply)

    def resolve(self, future: ReplyFuture, reply: Any) -> None:
        if future.done():
            return
        if isinstance(reply, RedisError):
            failure = self._failure(reply)
            failure.__cause__ = reply
            future.set_exception(failure)
        else:
            future.set_result(reply)

    @property
    def has_late_replies(self) -> bool:
        """Returns whether a reply is on its way that must be undone, because its caller has left."""
        calls = chain.from_iterable(batch.calls for batch in self._in_flight)
        return any(
            builder is None and request.needs_reply and future.done() for _, future, builder, request, _ in calls
        )

    def _check_deadlines(self) -> None:
        """Times out callers that have waited for the whole deadline, and restarts the timer."""
        self._timer = None
        now = monotonic()
        expired_before = now - self._deadline
        for called_at, future, *_ in chain.from_iterable(batch.calls for batch in self._in_flight):
            if called_at <= expired_before:
                self.resolve(future, TimedOut("no reply in time"))
        while self._pending and self._pending[0][0] <= expired_before:
            self.resolve(self._pending.pop(0)[1], TimedOut("no reply in time; it was not sent"))
        if self._connection is not None and self._in_flight:
            sent_at, *_ = self._in_flight[0].calls[-1]
            if max(sent_at, self._connection.last_reply_at) < expired_before - SILENCE_TIMEOUT_S:
                self._give_up(self._connection)
        waiting = [
            called_at for batch in self._in_flight for called_at, *_ in batch.calls if called_at > expired_before
        ]
        waiting += [called_at for called_at, *_ in self._pending[:1]]
        if self._timer is not None:  # started for requests that a lost connection left unsent
            self._timer.cancel()
            self._timer = None
        if waiting:
            self._timer = self._loop.call_later(min(waiting) - expired_before, self._check_deadlines)
        elif self._in_flight:
            # No later than the deadline of the next request.
            self._timer = self._loop.call_later(min(SILENCE_TIMEOUT_S / 4, self._deadline), self._check_deadlines)

    def _give_up(self, connection: AsyncConnection) -> None:
        """Replaces a connection that fell silent, and reads it on if its late replies may have to be undone."""
        calls = tuple(chain.from_iterable(batch.calls for batch in self._in_flight))
        if not any(builder is None and request.needs_reply for _, _, builder, request, _ in calls):
            connection.connection_lost(OSError("the server fell silent"))
            return
        lost = ConnectionLost("the server fell silent")
        for _, future, *_ in calls:
            self.resolve(future, lost)
        self.silent_connections.add(connection)
        self._on_lost(lost)

    async def _open(self) -> None:
        """Connects, and sends what waits."""
        task = asyncio.current_task()
        connection = AsyncConnection(self._on_lost)
        connect_error: RedisError | None = None
        try:
            async with asyncio.timeout(max(CONNECT_TIMEOUT_S, self._deadline)):
                await connection.open(self._loop, self.address)
            self._connection = connection
        except TimeoutError:
            connect_error = ConnectFailed("it did not open in time")
        except RedisError as error:
            connect_error = error
        except RuntimeError:
            if self._loop.is_closed():  # it ended while this connected
                return
            raise
        finally:
            if self._connecting is task:
                self._connecting = None
        if connect_error is not None:
            waiting, self._pending = self._pending, []
            for _, future, *_ in waiting:
                self.resolve(future, connect_error)
        self._flush()

    def _on_lost(self, lost: RedisError) -> None:
        """Forgets a connection that has ended; its requests have been resolved with the error."""
        self._connection = None
        self._in_flight.clear()
        self._last_was_single = True
        self._flush()  # sends what was not sent

    def close(self) -> None:
        """Closes the connection; callers that wait get an error."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._pending = self._pending, []
        for _, future, *_ in waiting:
            self.resolve(future, ConnectFailed("the engine was closed"))
        if self._connection is not None:
            self._connection.connection_lost(OSError("the engine was closed"))
        self.silent_connections.close()


def _group_by_limit(calls: Sequence[Call]) -> Iterable[tuple[TakeBuilder | None, Any]]:
    """Groups calls by their limit or limits, each group as columns; nearly always there is one."""
    columns: Any = tuple(zip(*calls, strict=True))
    builders = columns[2]
    if builders.count(builders[0]) == len(builders):
        return [(builders[0], columns)]
    groups: dict[TakeBuilder | None, list[Call]] = {}
    for call in calls:
        groups.setdefault(call[2], []).append(call)
    return [(builder, tuple(zip(*group, strict=True))) for builder, group in groups.items()]
