"""Lets a thread wait for its turn to call the engine again (recheck.py); async_waiter.py is for tasks."""

from __future__ import annotations

from threading import Event


class Waiter:
    """A thread that waits."""

    def __init__(self) -> None:
        self._woken = Event()

    def wait(self, seconds: float) -> bool:
        """Waits until it is woken, for so long at most; returns whether it was."""
        return self._woken.wait(seconds)

    def wake(self) -> None:
        self._woken.set()
