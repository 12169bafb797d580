"""Clocks: the only place that reads the time or sleeps.

A clock does both, because a test that moves one must move the other. Times are microseconds since the epoch
everywhere: windows are cut on the epoch, and an integer of microseconds is exact in Lua's doubles until 2255.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol, cast

from headgate.errors import InvalidRule

_now_ns = time.time_ns
_VERBS = "now_us", "sleep_us", "asleep_us"


class Clock(Protocol):
    """A clock that a limiter can use: SystemClock, ManualClock, or a program's own."""

    def now_us(self) -> int: ...
    def sleep_us(self, duration_us: int) -> None: ...
    async def asleep_us(self, duration_us: int) -> None: ...


class SystemClock:
    """The machine's clock.

    >>> SystemClock().now_us() > 1_700_000_000_000_000
    True
    """

    def now_us(self) -> int:
        """Returns microseconds since 1970."""
        return _now_ns() // 1000

    def sleep_us(self, duration_us: int) -> None:
        """Sleeps so many microseconds."""
        time.sleep(duration_us / 1_000_000)

    async def asleep_us(self, duration_us: int) -> None:
        """Sleeps so many microseconds, and lets other tasks run."""
        await asyncio.sleep(duration_us / 1_000_000)


def check_clock(clock: object) -> Clock:
    """Returns the clock; the machine's for None. Raises InvalidRule if it is no clock."""
    if clock is None:
        return SystemClock()
    if isinstance(clock, type) or not all(callable(getattr(clock, verb, None)) for verb in _VERBS):
        raise InvalidRule(
            f"A clock has now_us, sleep_us and asleep_us, as ManualClock() has; not {repr(clock)[:60]}."
        )
    return cast(Clock, clock)


def nanoseconds(clock: Clock) -> Callable[[], int]:
    """Returns a function that reads the clock in nanoseconds: the system's own where possible, for hot paths."""
    return _now_ns if type(clock) is SystemClock else lambda: clock.now_us() * 1000


def _checked_instant(now_us: object) -> int:
    if type(now_us) is not int:
        raise InvalidRule(
            "A ManualClock is set to whole microseconds since 1970, such as 1_700_000_000_000_000; "
            f"not {repr(now_us)[:60]}."
        )
    return now_us


class ManualClock:
    """A clock for tests: it moves only when it is set or advanced, or when somebody sleeps on it.

    >>> clock = ManualClock()
    >>> limiter = Limiter("1/minute", clock=clock)
    >>> limiter.take("ann").allowed, limiter.take("ann").allowed, clock.advance(60), limiter.take("ann").allowed
    (True, False, None, True)
    """

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = _checked_instant(now_us)

    def now_us(self) -> int:
        """Returns microseconds since 1970, as they were set.

        >>> ManualClock(5).now_us()
        5
        """
        return self._now_us

    def set_us(self, now_us: int) -> None:
        """Sets the clock, also back, to so many microseconds since 1970.

        >>> clock = ManualClock()
        >>> clock.set_us(7)
        >>> clock.now_us()
        7
        """
        self._now_us = _checked_instant(now_us)

    def advance(self, seconds: float) -> None:
        """Moves the clock by so many seconds.

        >>> clock = ManualClock(0)
        >>> clock.advance(1.5)
        >>> clock.now_us()
        1500000
        """
        if type(seconds) not in (int, float) or not math.isfinite(seconds):
            raise InvalidRule(f"A ManualClock advances by a number of seconds, such as 1.5; not {seconds!r}.")
        self._now_us += round(seconds * 1_000_000)

    def sleep_us(self, duration_us: int) -> None:
        """Moves the clock by so many microseconds, at once."""
        self._now_us += duration_us

    async def asleep_us(self, duration_us: int) -> None:
        """Moves the clock by so many microseconds, and lets other tasks run."""
        self._now_us += duration_us
        await asyncio.sleep(0)
