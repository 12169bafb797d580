"""Sends the requests of several callers in one round trip, and delivers each caller its own reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock, RLock, get_ident, main_thread
from typing import Any, NamedTuple

from headgate.engines.redis.errors import ConnectionLost, NoScript, RedisError, TimedOut
from headgate.engines.redis.pool_state import PoolWaiter
from headgate.engines.redis.protocol import TakeBuilder
from headgate.engines.redis.script_assembly import Script
from headgate.engines.redis.sync_connection import SyncConnection

NO_REPLY: Any = object()  # a server's reply may be None

Take = tuple[TakeBuilder, Any, Any]  # a take of a key at a cost, under a limit without a calendar; or a joint take
OnLateReply = Callable[[Any], object]  # receives a reply whose caller has left


class SyncRequest(PoolWaiter):
    """One caller's request, and a lock that wakes the caller: for a reply, or to lead a batch."""

    caller_left: bool = False
    reply: Any = NO_REPLY

    def __init__(
        self,
        content: bytes | Take,
        reply_count: int,
        deadline_at: float,
        on_late_reply: OnLateReply | None = None,
    ) -> None:
        self.content: bytes | Take = content  # a packed request, or a take: it joins others under the same limit
        self.reply_count = reply_count
        self.deadline_at = deadline_at
        self.on_late_reply = on_late_reply
        self.wakeup: Lock = Lock()
        self.wakeup.acquire()

    def wake(self) -> None:
        """Wakes the caller."""
        try:  # noqa: SIM105 - suppress() takes longer than waking
            self.wakeup.release()
        except RuntimeError:
            pass  # it is awake already

    def deliver(self, reply: Any, lock: RLock) -> None:
        """Sets the reply, if there is none yet; passes it to `on_late_reply` if the caller has left."""
        if self.on_late_reply is None:
            if self.reply is NO_REPLY:
                self.reply = reply
                try:  # noqa: SIM105 - wake() inlined: it runs for every reply
                    self.wakeup.release()
                except RuntimeError:
                    pass
            return
        with lock:
            is_first, caller_left = self.reply is NO_REPLY, self.caller_left
            if is_first:
                self.reply = reply
        if is_first and caller_left and not isinstance(reply, RedisError):
            self.on_late_reply(reply)
        self.wake()

    def leave(self, lock: RLock) -> None:
        """Notes that the caller waits no longer. A reply that has come already is handed over at once."""
        if self.on_late_reply is not None:
            with lock:
                self.caller_left, reply = True, self.reply
            if reply is not NO_REPLY and not isinstance(reply, RedisError):
                self.on_late_reply(reply)


class BatchItem(NamedTuple):
    """One command: takes of several callers under one limit, or any other request of one caller."""

    requests: Sequence[SyncRequest]
    packed: bytes
    reply_count: int
    script: Script | None  # to be loaded here if the server replies NOSCRIPT


class SyncBatch:
    """A batch in flight. `run` sends it and delivers the replies; after an interruption another thread can
    finish it, if it is `resumable`."""

    def __init__(self, connection: SyncConnection, batch: Sequence[SyncRequest], lock: RLock) -> None:
        self.connection: SyncConnection = connection
        self._batch, self._lock = batch, lock
        self._items = _batch_items(batch)
        self._to_reload: list[BatchItem] = []
        self._replies: list[Any] = []
        self._sent = False
        self.may_have_sent: bool = False

    def run(self, deadline_at: float) -> None:
        """Sends the batch and delivers all replies; raises TimedOut or ConnectionLost before the missing ones."""
        while self._items:
            if not self._sent:
                self.may_have_sent = True
                self.connection.send(b"".join([item.packed for item in self._items]))
                self._sent = True
                if self._may_block(deadline_at):
                    self.connection.receive(self._replies, deadline_at, at_once=True)
            item = self._items[0]
            while len(self._replies) < item.reply_count:
                self.connection.receive(self._replies, deadline_at)
            self._deliver_item(item, self._replies[: item.reply_count])
            # No call in between: if interrupted before, the item is delivered again; no caller takes two replies.
            del self._replies[: item.reply_count]
            del self._items[0]
            if not self._items and self._to_reload:
                self._items, self._to_reload, self._sent = self._to_reload, [], False

    def _may_block(self, deadline_at: float) -> bool:
        """Returns whether this thread gets no signals, and waits about as long as the connection's timeout."""
        if get_ident() == main_thread().ident:
            return False
        timeout = self.connection.timeout
        return 0.9 * timeout < deadline_at - time.monotonic() <= timeout

    @property
    def resumable(self) -> bool:
        """Returns whether replies are on their way, and none of them was lost."""
        return self._sent and bool(self._items) and not self.connection.bytes_lost

    def finish(self, deadline_at: float) -> None:
        """Finishes the batch in place of an interrupted caller; the connection is closed after that."""
        try:
            self.run(deadline_at)
        except (TimedOut, ConnectionLost) as error:
            for request in self._batch:
                request.deliver(error, self._lock)
        finally:
            self.connection.close()

    def _deliver_item(self, item: BatchItem, replies: list[Any]) -> None:
        if isinstance(replies[-1], NoScript) and item.script is not None:
            load = item.script.load + item.packed
            self._to_reload = [*self._to_reload, item._replace(packed=load, reply_count=2, script=None)]
            return
        reply = replies[0] if isinstance(replies[0], RedisError) else replies[-1]
        requests = item.requests
        builder = None if isinstance(requests[0].content, bytes) else requests[0].content[0]
        outcomes: Sequence[Any] = [reply] * len(requests)
        if builder is not None and reply.__class__ is list:
            outcomes = builder.parse_each(reply, len(requests))
        for request, outcome in zip(requests, outcomes, strict=True):
            request.deliver(outcome, self._lock)


def _batch_items(batch: Sequence[SyncRequest]) -> list[BatchItem]:
    """Groups the requests into commands: takes under one limit become one."""
    items: list[BatchItem] = []
    takes: dict[TakeBuilder, list[SyncRequest]] = {}
    for request in batch:
        if isinstance(request.content, bytes):
            items.append(BatchItem((request,), request.content, request.reply_count, None))
        else:
            takes.setdefault(request.content[0], []).append(request)
    for builder, requests in takes.items():
        _, keys, costs = zip(*[request.content for request in requests], strict=True)
        script_call = builder.decide_each(keys, costs)
        # A single caller loads the script by itself, as it does without a queue.
        items.append(BatchItem(requests, script_call.packed, 1, script_call.script if len(requests) > 1 else None))
    return items
