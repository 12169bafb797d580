"""Cancels tasks that wait too long for a client's request body.

A timer for each task would cost more than the usual wait: most bodies are already here. So all tasks share one
timer, which runs while any task waits: a task is cancelled after `seconds`, and before twice that.
"""

from __future__ import annotations

import asyncio
from asyncio import current_task
from typing import Any


class BodyTimeouts:
    """Cancels tasks that wait longer than so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._tick = 0  # of the timer: how often it has fired
        self._started_ticks: dict[asyncio.Task[Any], int] = {}  # the tick at which each task began to wait
        self._timed_out: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> asyncio.Task[Any]:
        """Starts the timeout of the current task, and returns the task."""
        task: asyncio.Task[Any] = current_task()  # type: ignore[assignment]
        self._started_ticks[task] = self._tick
        if self._timer is None:
            self._timer = task.get_loop().call_later(self.seconds, self._cancel_overdue, task.get_loop())
        return task

    def timed_out(self, task: asyncio.Task[Any]) -> bool:
        """Returns whether the task was cancelled by its timeout, and not by something else."""
        if task in self._timed_out:
            task.uncancel()
            return True
        return False

    def end(self, task: asyncio.Task[Any]) -> None:
        """Ends the timeout of a task."""
        if self._started_ticks.pop(task, None) is None:
            self._timed_out.discard(task)

    def _cancel_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for task in [task for task, tick in self._started_ticks.items() if tick < self._tick]:
            self._timed_out.add(task)
            task.cancel()
            del self._started_ticks[task]
        self._tick += 1
        if self._started_ticks:
            self._timer = loop.call_later(self.seconds, self._cancel_overdue, loop)
