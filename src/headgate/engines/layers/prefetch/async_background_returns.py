"""Gives back in time what was fetched ahead and not used: timers and tasks, for the async engine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import SECOND
from headgate.clock import Clock
from headgate.engines.layers.prefetch.async_give_back import give_back_expired
from headgate.engines.layers.prefetch.prefetched_batches import HotKeys
from headgate.engines.layers.prefetch.prefetched_units import MIN_WAKE_US, PrefetchedUnits

T = TypeVar("T")


class AsyncBatchReturns:
    """Sees to it that batches are given back in time. Works from several event loops."""

    def __init__(self, hot_keys: HotKeys, clock: Clock) -> None:
        self.hot_keys: HotKeys = hot_keys
        self.clock: Clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()  # they go on if their caller is cancelled

    def ready(self) -> bool:
        """Returns whether a batch can be given back in time: a loop can always set a timer."""
        return True

    def watch(self, batch: PrefetchedUnits) -> None:
        """Sets a timer for a batch."""
        self._schedule(batch, asyncio.get_running_loop())

    def _schedule(self, batch: PrefetchedUnits, loop: asyncio.AbstractEventLoop) -> None:
        """Sets a timer for a batch, again if it fired early; the next loop finds batches of an ended one."""
        now_us = self.clock.now_us()
        if batch.is_held and batch.is_valid(now_us):
            loop.call_later(max(batch.until_us - now_us, MIN_WAKE_US) / SECOND, self._schedule, batch, loop)
        elif self.hot_keys.due_us(now_us) == 0:
            self._track(loop.create_task(give_back_expired(self.hot_keys, self.clock)))

    async def finish(self, fetch: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Finishes a fetch even if its caller is cancelled, so that fetched units are stored."""
        return await asyncio.shield(self._track(asyncio.create_task(fetch)))

    def _track(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its caller may be gone
        return task

    def reset(self) -> None:
        """Forgets the tasks, which a forked child does not have."""
        self._tasks.clear()

    async def stop(self) -> None:
        """Waits for the tasks of this loop."""
        loop_tasks = [task for task in self._tasks if task.get_loop() is asyncio.get_running_loop()]
        await asyncio.gather(*loop_tasks, return_exceptions=True)
