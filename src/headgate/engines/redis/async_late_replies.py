"""Undoes what replies grant to callers who have left: cancelled before the reply came, or past their deadline.

A reservation is cancelled, a slot released, a ticket given up. A take stays charged: a caller that waits for a
limited time may well have gone on without the reply. It costs at most what the limit holds, while places in a
queue would make it longer without end.

All of this is sent in the background, because no caller waits for it. If it gets no reply, the place, slot or
ticket expires by itself, as if its process had died.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

from headgate.engines.pending_cancellations import PendingCancellations
from headgate.engines.redis.cancel_replies import all_cancelled, was_given_back
from headgate.engines.redis.errors import RedisError
from headgate.engines.redis.protocol import RedisRequest

RETRY_BATCH_SIZE = 128  # pending cancellations that are retried together


class AsyncLateReplies:
    """Undoes replies to tasks that have left, on all loops of one engine.

    `execute` and `execute_all` are the engine's.
    """

    def __init__(
        self,
        execute: Callable[[RedisRequest, float | None], Awaitable[Any]],
        execute_all: Callable[[Sequence[RedisRequest]], Awaitable[list[Any]]],
    ) -> None:
        self._execute, self._execute_all = execute, execute_all
        self._pending: dict[AbstractEventLoop, PendingCancellations[RedisRequest]] = {}
        self._running: set[asyncio.Future[Any]] = set()

    def undo(self, request: RedisRequest, reply: Any) -> None:
        """Gives back what a reply grants to a caller that has left."""
        self._note(request, reply)
        for each in request.undo(reply) if request.undo is not None else ():
            self._run_in_background(asyncio.ensure_future(self.execute_and_note(each)))

    def undo_all(self, requests: Sequence[RedisRequest], replies: Awaitable[list[Any]]) -> None:
        """Gives back what several replies grant, when they come; errors take the place of replies."""
        self._run_in_background(asyncio.ensure_future(self._undo_when_done(requests, replies)))

    async def _undo_when_done(self, requests: Sequence[RedisRequest], replies: Awaitable[list[Any]]) -> None:
        for request, reply in zip(requests, await replies, strict=True):
            if not isinstance(reply, RedisError):
                self.undo(request, reply)

    async def execute_and_note(self, request: RedisRequest, deadline: float | None = None) -> Any:
        """Sends a request and returns the reply; notes whether a cancellation gave anything back."""
        reply = await self._execute(request, deadline)
        self._note(request, reply)
        return reply

    def _note(self, request: RedisRequest, reply: Any) -> None:
        """Retries the cancellations of earlier places if this place was given back."""
        place, loop = request.queue_place, get_running_loop()
        if place is None:
            return
        pending = self._pending.get(loop)
        if pending is None:
            for closed_loop in [each for each in tuple(self._pending) if each.is_closed()]:
                self._pending.pop(closed_loop, None)
            pending = self._pending[loop] = PendingCancellations()
        if was_given_back(pending, request, reply) and pending.start_retry(place.key):
            self._run_in_background(loop.create_task(self._retry_cancellations(pending, place.key)))

    async def _retry_cancellations(self, pending: PendingCancellations[RedisRequest], count: Hashable) -> None:
        while pending.continue_retry(count):
            batch_size = 1
            while requests := pending.pop_last(count, batch_size):
                if not all_cancelled(pending, requests, await self._execute_all(requests)):
                    break
                batch_size = min(2 * batch_size, RETRY_BATCH_SIZE)

    def _run_in_background(self, future: asyncio.Future[Any]) -> None:
        self._running.add(future)
        future.add_done_callback(self._on_done)

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # retrieve it: no caller waits

    async def wait_until_done(self) -> None:
        """Waits until everything is given back that can be, on this loop."""
        loop = get_running_loop()
        while running := [each for each in self._running if each.get_loop() is loop]:
            await asyncio.wait(running)
