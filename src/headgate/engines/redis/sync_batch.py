"""Sends the questions of several callers together, and gives each caller its own reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock, RLock, get_ident, main_thread
from typing import Any, NamedTuple

from headgate.engines.redis import protocol
from headgate.engines.redis.errors import ConnectionLost, NoScript, RedisError, TimedOut
from headgate.engines.redis.pool_state import PoolWaiter
from headgate.engines.redis.protocol import RequestBuilder
from headgate.engines.redis.script_assembly import Script
from headgate.engines.redis.sync_connection import SyncConnection

NOT_YET: Any = object()  # a server's reply may be None

Take = tuple[RequestBuilder, str, int]
Abandoned = Callable[[Any], object]  # gets the reply of a caller that left before it came


class SyncRequest(PoolWaiter):
    """One caller's question, and what wakes the caller: a reply, or its turn to ask for all."""

    left: bool = False  # whether the caller has left
    reply: Any = NOT_YET

    def __init__(
        self,
        take: Take | None,
        packed: bytes,
        replies: int,
        deadline_at: float,
        abandoned: Abandoned | None = None,
    ) -> None:
        self.take = take
        self.packed = packed
        self.replies = replies
        self.deadline_at = deadline_at
        self.abandoned = abandoned
        self.wakeup: Lock = Lock()
        self.wakeup.acquire()

    def wake(self) -> None:
        try:  # noqa: SIM105 - suppress() takes longer than waking
            self.wakeup.release()
        except RuntimeError:
            pass  # it was woken already

    def answer(self, reply: Any, lock: RLock) -> None:
        """Give the caller its reply, if it has none; `abandoned` gets it if the caller has left."""
        if self.abandoned is None:
            if self.reply is NOT_YET:
                self.reply = reply
                try:  # noqa: SIM105 - wake(), without a call: this is done for every reply
                    self.wakeup.release()
                except RuntimeError:
                    pass
            return
        with lock:
            first, left = self.reply is NOT_YET, self.left
            if first:
                self.reply = reply
        if first and left and not isinstance(reply, RedisError):
            self.abandoned(reply)
        self.wake()

    def leave(self, lock: RLock) -> None:
        """The caller waits no longer. A reply that has come already is handed over at once."""
        if self.abandoned is not None:
            with lock:
                self.left, reply = True, self.reply
            if reply is not NOT_YET and not isinstance(reply, RedisError):
                self.abandoned(reply)


class Joint(NamedTuple):
    """One question for those who take under one limit, or for one who asked anything else."""

    requests: Sequence[SyncRequest]
    packed: bytes
    replies: int
    script: Script | None  # to be loaded here if the server does not know it


class SyncBatch:
    """A batch on its way. `run` sends it and hands out the replies; after an interruption another thread can
    run it on, if it is `resumable`."""

    def __init__(self, connection: SyncConnection, batch: Sequence[SyncRequest], lock: RLock) -> None:
        self.connection: SyncConnection = connection
        self._batch, self._lock = batch, lock
        self._joints = _joined(batch)
        self._forgotten: list[Joint] = []
        self._replies: list[Any] = []
        self._sent = False
        self.begun: bool = False  # whether anything may have been sent

    def run(self, deadline_at: float) -> None:
        """Raises Late or Lost; those who have no reply yet have none then."""
        while self._joints:
            if not self._sent:
                self.begun = True
                self.connection.send(b"".join([joint.packed for joint in self._joints]))
                self._sent = True
                if self._may_block(deadline_at):
                    self.connection.receive(self._replies, deadline_at, at_once=True)
            joint = self._joints[0]
            while len(self._replies) < joint.replies:
                self.connection.receive(self._replies, deadline_at)
            self._hand_out(joint, self._replies[: joint.replies])
            # No call comes between: interrupted before, a joint is handed out again, and nobody takes two replies.
            del self._replies[: joint.replies]
            del self._joints[0]
            if not self._joints and self._forgotten:
                self._joints, self._forgotten, self._sent = self._forgotten, [], False

    def _may_block(self, deadline_at: float) -> bool:
        """Whether this thread gets no signals, and is to wait about as long as the connection's own timeout."""
        if get_ident() == main_thread().ident:
            return False
        timeout = self.connection.timeout
        return 0.9 * timeout < deadline_at - time.monotonic() <= timeout

    @property
    def resumable(self) -> bool:
        """Whether replies are under way, and none of them was lost."""
        return self._sent and bool(self._joints) and not self.connection.bytes_lost

    def run_to_the_end(self, deadline_at: float) -> None:
        """Run on in place of one who was interrupted; the connection is of no use after that."""
        try:
            self.run(deadline_at)
        except (TimedOut, ConnectionLost) as trouble:
            for request in self._batch:
                request.answer(trouble, self._lock)
        finally:
            self.connection.close()

    def _hand_out(self, joint: Joint, replies: list[Any]) -> None:
        if isinstance(replies[-1], NoScript) and joint.script is not None:
            load = joint.script.load + joint.packed
            self._forgotten = [*self._forgotten, joint._replace(packed=load, replies=2, script=None)]
            return
        reply = replies[0] if isinstance(replies[0], RedisError) else replies[-1]
        facts = [reply] if joint.requests[0].take is None else protocol.parse_takes(reply, len(joint.requests))
        for request, answer in zip(joint.requests, facts, strict=True):
            request.answer(answer, self._lock)


def _joined(batch: Sequence[SyncRequest]) -> list[Joint]:
    """Join the requests into questions: takes under one limit become one."""
    joints: list[Joint] = []
    takes: dict[RequestBuilder, list[SyncRequest]] = {}
    for request in batch:
        if request.take is None:
            joints.append(Joint((request,), request.packed, request.replies, None))
        else:
            takes.setdefault(request.take[0], []).append(request)
    for questions, requests in takes.items():
        _, keys, costs = zip(*[request.take for request in requests if request.take], strict=True)
        question = questions.decide_each(keys, costs)
        # A caller alone loads the script by itself, as it does without a queue.
        joints.append(Joint(requests, question.packed, 1, question.script if len(requests) > 1 else None))
    return joints
