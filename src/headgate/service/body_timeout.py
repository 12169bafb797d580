"""Who takes too long is cut off: tasks that wait for a client, and the time since which they do.

A timer for each would cost more than what is mostly awaited: a body that is already here. So all share one, which
is set while anybody waits: who has begun to wait is cut off after `seconds`, and before twice that.
"""

from __future__ import annotations

import asyncio
from asyncio import current_task
from typing import Any


class BodyTimeouts:
    """Cancels tasks that wait for longer than so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._turn = 0  # of the timer
        self._since: dict[asyncio.Task[Any], int] = {}  # the turn in which they began
        self._over: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> asyncio.Task[Any]:
        """The task that runs now, which begins to wait."""
        task: asyncio.Task[Any] = current_task()  # type: ignore[assignment]
        self._since[task] = self._turn
        if self._timer is None:
            self._timer = task.get_loop().call_later(self.seconds, self._look, task.get_loop())
        return task

    def is_over(self, task: asyncio.Task[Any]) -> bool:
        """Whether it was cut off here, and not by somebody else."""
        if task in self._over:
            task.uncancel()
            return True
        return False

    def end(self, task: asyncio.Task[Any]) -> None:
        """It does not wait any more."""
        if self._since.pop(task, None) is None:
            self._over.discard(task)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for task in [task for task, turn in self._since.items() if turn < self._turn]:
            self._over.add(task)
            task.cancel()
            del self._since[task]
        self._turn += 1
        if self._since:
            self._timer = loop.call_later(self.seconds, self._look, loop)
