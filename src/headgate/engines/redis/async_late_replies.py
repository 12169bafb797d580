"""Gives back what replies bring for callers who have left: cancelled on the way, or too late by their deadline.

A reservation is cancelled, a slot released, a ticket given up. A take stays charged: a caller that waits for at
most so long may well have gone on without the answer. It costs at most what the limit holds, while places in a
queue would push it out without end.

All of this is asked in the background, for nobody waits for it. If it gets no answer, the place, slot or ticket
ends by itself, as if its process had died.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

from headgate.engines.pending_cancellations import PendingCancellations
from headgate.engines.redis.cancellations import all_cancelled, given
from headgate.engines.redis.errors import RedisError
from headgate.engines.redis.protocol import RedisRequest

MAX_AT_ONCE = 128  # stuck places that are tried again together


class AsyncLateReplies:
    """Undoes replies to tasks that have left, on all loops of one engine. `ask` and `ask_all` are the engine's."""

    def __init__(
        self,
        ask: Callable[[RedisRequest, float | None], Awaitable[Any]],
        ask_all: Callable[[Sequence[RedisRequest]], Awaitable[list[Any]]],
    ) -> None:
        self._ask, self._ask_all = ask, ask_all
        self._stuck: dict[AbstractEventLoop, PendingCancellations[RedisRequest]] = {}
        self._under_way: set[asyncio.Future[Any]] = set()

    def left(self, question: RedisRequest, reply: Any) -> None:
        """Give back what a reply brings for a caller that has left."""
        self._note(question, reply)
        for each in question.undo(reply) if question.undo is not None else ():
            self._in_background(asyncio.ensure_future(self.ask_noting(each)))

    def all_left(self, questions: Sequence[RedisRequest], asked: Awaitable[list[Any]]) -> None:
        """The same of several questions, when they are answered; trouble stands in the place of a reply."""
        self._in_background(asyncio.ensure_future(self._when_answered(questions, asked)))

    async def _when_answered(self, questions: Sequence[RedisRequest], asked: Awaitable[list[Any]]) -> None:
        for question, reply in zip(questions, await asked, strict=True):
            if not isinstance(reply, RedisError):
                self.left(question, reply)

    async def ask_noting(self, question: RedisRequest, deadline: float | None = None) -> Any:
        """One question, one reply; what became of a cancelled place is noted."""
        reply = await self._ask(question, deadline)
        self._note(question, reply)
        return reply

    def _note(self, question: RedisRequest, reply: Any) -> None:
        """If a place was given back, those are tried again that it was built on."""
        place, loop = question.place, get_running_loop()
        if place is None:
            return
        stuck = self._stuck.get(loop)
        if stuck is None:
            for ended in [each for each in tuple(self._stuck) if each.is_closed()]:
                self._stuck.pop(ended, None)
            stuck = self._stuck[loop] = PendingCancellations()
        if given(stuck, question, reply) and stuck.begin(place.key):
            self._in_background(loop.create_task(self._cancel_again(stuck, place.key)))

    async def _cancel_again(self, stuck: PendingCancellations[RedisRequest], count: Hashable) -> None:
        while stuck.again(count):
            many = 1
            while questions := stuck.last(count, many):
                if not all_cancelled(stuck, questions, await self._ask_all(questions)):
                    break
                many = min(2 * many, MAX_AT_ONCE)

    def _in_background(self, asked: asyncio.Future[Any]) -> None:
        self._under_way.add(asked)
        asked.add_done_callback(self._ended)

    def _ended(self, asked: asyncio.Future[Any]) -> None:
        self._under_way.discard(asked)
        if not asked.cancelled():
            asked.exception()  # nobody waits for it

    async def settled(self) -> None:
        """Wait until all was given back that can be, on this loop."""
        loop = get_running_loop()
        while under_way := [each for each in self._under_way if each.get_loop() is loop]:
            await asyncio.wait(under_way)
