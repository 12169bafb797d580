"""Now, and sleep: the only place that reads or spends time.

Reading and sleeping are one thing, because a test that moves one must move the other. Epoch microseconds
everywhere: windows are cut on the epoch, and an integer of microseconds is exact in Lua's doubles until 2255.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

_now_ns = time.time_ns


class Clock(Protocol):
    def now_us(self) -> int: ...
    def sleep_us(self, duration_us: int) -> None: ...
    async def asleep_us(self, duration_us: int) -> None: ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return _now_ns() // 1000

    def sleep_us(self, duration_us: int) -> None:
        time.sleep(duration_us / 1_000_000)

    async def asleep_us(self, duration_us: int) -> None:
        await asyncio.sleep(duration_us / 1_000_000)


def nanoseconds(clock: Clock) -> Callable[[], int]:
    """The same clock, read in nanoseconds: the system's without a detour, for who reads it most."""
    return _now_ns if type(clock) is SystemClock else lambda: clock.now_us() * 1000


class ManualClock:
    """A clock that moves only when told, or when somebody sleeps on it."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def set_us(self, now_us: int) -> None:
        self._now_us = now_us

    def advance(self, seconds: float) -> None:
        self._now_us += round(seconds * 1_000_000)

    def sleep_us(self, duration_us: int) -> None:
        self._now_us += duration_us

    async def asleep_us(self, duration_us: int) -> None:
        self._now_us += duration_us
        await asyncio.sleep(0)
