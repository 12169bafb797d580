"""Lets calls wait, first come, first served, until an adaptive limit has room: for clients of somebody's service.

A server refuses calls that it has no room for; a client waits. Threads and tasks may wait in one queue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any

from headgate.adaptive.gate import IGNORED, ConcurrencyGate
from headgate.adaptive.guard import AsyncQueuedCall, QueuedCall
from headgate.adaptive.window import LimitAlgorithm


class WaitingGate:
    """A limit that an algorithm moves, and the queue of the calls that wait for room below it. Thread-safe."""

    def __init__(self, algorithm: LimitAlgorithm[Any], clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._gate = ConcurrencyGate(algorithm, clock_ns())
        self._queue: deque[QueuedCall] = deque()
        self._abandoned: deque[tuple[int, int]] = deque()
        self._lock = Lock()

    @property
    def limit(self) -> int:
        """Returns how many calls may be in flight now."""
        return self._gate.limit

    @property
    def in_flight(self) -> int:
        """Returns how many calls are in flight."""
        return self._gate.in_flight

    @property
    def waiting(self) -> int:
        """Returns how many calls wait for their turn."""
        return len(self._queue)

    def enter(self, timeout: float | None) -> int:
        """Waits for room, at most so many seconds; returns how many calls are in flight with this one, or 0."""
        token = QueuedCall()
        if not self._enter_or_queue(token):
            try:
                token.wait(-1 if timeout is None else timeout)
            except BaseException:
                self._abandon(token)
                raise
        return self._admitted(token)

    async def enter_async(self, timeout: float | None) -> int:
        """Waits for room, at most so many seconds; returns how many calls are in flight with this one, or 0."""
        token = AsyncQueuedCall()
        if not self._enter_or_queue(token):
            try:
                await token.wait_async(timeout)
            except BaseException:
                self._abandon(token)
                raise
        return self._admitted(token)

    def leave(self, entered: int, started_ns: int, outcome: int) -> None:
        """Counts a call that ended, and wakes those that have room now."""
        with self._lock:
            now_ns = self._clock_ns()
            self._gate.leave(entered, started_ns, now_ns, outcome)
            woken = []
            while self._queue and self._gate.in_flight < self._gate.limit:
                token = self._queue.popleft()
                token.entered = self._gate.try_enter(now_ns)
                woken.append(token)
        for token in woken:
            token.wake()
        self._end_abandoned()

    def abandon(self, entered: int, started_ns: int) -> None:
        """Ends a call whose caller is garbage: it is ignored. Waits for no lock that this thread may hold."""
        self._abandoned.append((entered, started_ns))
        if not self._lock.locked():
            self._end_abandoned()

    def _end_abandoned(self) -> None:
        while self._abandoned:
            try:
                entered, started_ns = self._abandoned.popleft()
            except IndexError:  # another thread was faster
                return
            self.leave(entered, started_ns, IGNORED)

    def _enter_or_queue(self, token: QueuedCall) -> bool:
        with self._lock:
            if self._queue or self._gate.in_flight >= self._gate.limit:
                self._gate.wait()
                self._queue.append(token)
            else:
                token.entered = self._gate.try_enter(self._clock_ns())
        self._end_abandoned()
        return token.entered > 0

    def _admitted(self, token: QueuedCall) -> int:
        """Returns how many calls are in flight with this one; 0 if its turn did not come: it left the queue."""
        with self._lock:
            if not token.entered:
                self._queue.remove(token)
            return token.entered

    def _abandon(self, token: QueuedCall) -> None:
        """Removes a call whose caller is gone; ends it if it had begun."""
        with self._lock:
            if not token.entered:
                self._queue.remove(token)
                return
        self.leave(token.entered, self._clock_ns(), IGNORED)
