"""Settles accounts in the background: tasks, for the async engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from headgate.engines.layers.fallback.shard import Shard


class AsyncSettlers:
    """Runs at most one task for each part of the engine."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    def start(self, settle: Callable[[Shard], Coroutine[Any, Any, None]], shard: Shard) -> None:
        """Settles a part, unless that is being done."""
        task = self._tasks.get(shard.name)
        if task is None or task.done() or task.get_loop().is_closed():
            self._tasks[shard.name] = asyncio.get_running_loop().create_task(settle(shard))

    async def stop(self) -> None:
        """Cancels the tasks of this loop."""
        loop = asyncio.get_running_loop()
        for task in tuple(self._tasks.values()):
            if task.get_loop() is loop and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def reset(self) -> None:
        """Forgets the tasks, which a forked child does not have."""
        self._tasks = {}
