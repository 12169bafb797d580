"""Gives back what replies bring for threads that have left; abandoned.py, with threads in place of tasks.

A thread leaves when its deadline is over, or when a signal handler raises in it. If no thread can be started to
give something back, the next one that can be does it: every slot, place or ticket that is answered tries again.
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
from headgate.engines.redis.background_thread import BackgroundThread
from headgate.engines.redis.cancellations import given
from headgate.engines.redis.protocol import RedisRequest
from headgate.errors import CorruptState, EngineUnavailable


class SyncLateReplies:
    """Undoes replies to threads that have left. `ask` is the engine's, and notes cancelled places."""

    def __init__(self, ask: Callable[[RedisRequest], Any]) -> None:
        self._ask = ask
        self.start_afresh()

    def start_afresh(self) -> None:
        """In a forked child: what is stuck is the parent's."""
        self._lock = Lock()
        self._stuck: PendingCancellations[RedisRequest] = PendingCancellations()
        self._work: deque[Callable[[], None]] = deque(maxlen=MAX_PLACES)  # for the next thread
        self._threads: list[BackgroundThread] = []

    def left(self, question: RedisRequest, reply: Any) -> None:
        """Give back what a reply brings for a caller that has left."""
        self.note(question, reply)
        if question.undo is not None:
            self._in_background(partial(self._ask_each, question.undo(reply)))

    def _ask_each(self, questions: Sequence[RedisRequest]) -> None:
        for question in questions:
            with suppress(CorruptState, EngineUnavailable):  # then it ends by itself, as if this process had died
                self._ask(question)

    def note(self, question: RedisRequest, reply: Any) -> None:
        """Try those again that a place was built on. Also if it gave nothing: what was built on it may have been
        given back meanwhile, for threads do not come here in the order in which the server answered them."""
        if self._work:
            self._start_thread()
        place = question.place
        if place is None:
            return
        with self._lock:
            given(self._stuck, question, reply)
            again = self._stuck.begin(place.key)
        if again:
            self._in_background(partial(self._cancel_again, place.key))

    def _cancel_again(self, count: Hashable) -> None:
        while self._locked(self._stuck.again, count):
            while questions := self._locked(self._stuck.last, count, 1):
                reply = None
                with suppress(CorruptState, EngineUnavailable):
                    reply = self._ask(questions[0]._replace(place=None))  # it is noted here
                if reply is None or not self._locked(given, self._stuck, questions[0], reply):
                    break

    def _locked(self, step: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            return step(*args)

    def _in_background(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._start_thread()

    def _start_thread(self) -> None:
        thread = BackgroundThread(self._work_off)
        with suppress(RuntimeError):  # the process has as many threads as it may have
            thread.start()
        with self._lock:
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]

    def _work_off(self) -> None:
        with suppress(IndexError):
            while True:
                self._work.popleft()()

    def wait(self, until: float) -> None:
        """Wait until all was given back that can be, but no longer than that."""
        if self._work:
            self._start_thread()
        while (alive := [each for each in self._threads if each.is_alive()]) and time.monotonic() < until:
            alive[0].join(until - time.monotonic())
