"""Lets a task wait for its turn to call the engine again (recheck.py); sync_waiter.py is for threads."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class AsyncWaiter:
    """A task that waits. Any thread may wake it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = self._loop.create_future()

    async def wait(self, seconds: float) -> bool:
        """Waits until it is woken, for so long at most; returns whether it was."""
        timer = self._loop.call_later(seconds, self._resolve, False)
        try:
            return bool(await self._woken)
        finally:
            timer.cancel()

    def wake(self) -> None:
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._resolve, True)

    def _resolve(self, woken: bool) -> None:
        if not self._woken.done():
            self._woken.set_result(woken)
