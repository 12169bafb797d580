"""Undoes what replies grant to threads that have left: async_late_replies.py, with threads in place of tasks.

A thread leaves when its deadline is over, or when a signal handler raises in it. If no thread can be started to
give something back, the next one that can be does it: every reply to a slot, place or ticket tries again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

from headgate.engines.pending_cancellations import MAX_PLACES, PendingCancellations
from headgate.engines.redis.cancel_replies import was_given_back
from headgate.engines.redis.protocol import RedisRequest
from headgate.engines.redis.signal_safe_thread import SignalSafeThread
from headgate.errors import CorruptState, EngineUnavailable


class SyncLateReplies:
    """Undoes replies to threads that have left. `execute` is the engine's, and notes cancellations."""

    def __init__(self, execute: Callable[[RedisRequest], Any]) -> None:
        self._execute = execute
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Drops all pending work in a forked child: it is the parent's."""
        self._lock = Lock()
        self._pending: PendingCancellations[RedisRequest] = PendingCancellations()
        self._queue: deque[Callable[[], None]] = deque(maxlen=MAX_PLACES)  # work for the next thread
        self._threads: list[SignalSafeThread] = []

    def undo(self, request: RedisRequest, reply: Any) -> None:
        """Gives back what a reply grants to a caller that has left."""
        self.note(request, reply)
        if request.undo is not None:
            self._run_in_background(partial(self._execute_each, request.undo(reply)))

    def _execute_each(self, requests: Sequence[RedisRequest]) -> None:
        for request in requests:
            with suppress(CorruptState, EngineUnavailable):  # then it expires, as if this process had died
                self._execute(request)

    def note(self, request: RedisRequest, reply: Any) -> None:
        """Retries the cancellations of places before a cancelled one.

        Also if it gave nothing back: a later place may have been given back meanwhile, because threads do not come
        here in the order in which the server replied to them.
        """
        if self._queue:
            self._start_thread()
        place = request.queue_place
        if place is None:
            return
        with self._lock:
            was_given_back(self._pending, request, reply)
            again = self._pending.start_retry(place.key)
        if again:
            self._run_in_background(partial(self._retry_cancellations, place.key))

    def _retry_cancellations(self, count: Hashable) -> None:
        while self._locked(self._pending.continue_retry, count):
            while requests := self._locked(self._pending.pop_last, count, 1):
                reply = None
                with suppress(CorruptState, EngineUnavailable):
                    reply = self._execute(requests[0]._replace(queue_place=None))  # noted below instead
                if reply is None or not self._locked(was_given_back, self._pending, requests[0], reply):
                    break

    def _locked(self, step: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            return step(*args)

    def _run_in_background(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        self._start_thread()

    def _start_thread(self) -> None:
        thread = SignalSafeThread(self._run_queue)
        with suppress(RuntimeError):  # the process can have no more threads
            thread.start()
        with self._lock:
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]

    def _run_queue(self) -> None:
        with suppress(IndexError):
            while True:
                self._queue.popleft()()

    def wait(self, until: float) -> None:
        """Waits until everything is given back that can be, at most until that instant."""
        if self._queue:
            self._start_thread()
        while (alive := [each for each in self._threads if each.is_alive()]) and time.monotonic() < until:
            alive[0].join(until - time.monotonic())
