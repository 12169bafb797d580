"""Guards beside the response time: CPU usage and the lag of the event loop.

Neither is enough alone. A service that waits for a database is overloaded with an idle CPU and a prompt event
loop; one that compresses images runs at full CPU and is healthy. So a guard that is above its threshold stops
the limit from growing, and lowers it only if response times show a queue as well.

    CpuUsage        of the container (cgroup v2 or v1) if it has a quota, otherwise of the whole machine
    EventLoopLag    by how much timers of an asyncio loop are late
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from headgate.adaptive.window import check_number

CGROUP = Path("/sys/fs/cgroup")
PROC_STAT = Path("/proc/stat")


class Signal(Protocol):
    """A guard that a limiter reads once for each window."""

    def strained(self) -> bool:
        """Returns whether it is above its threshold."""


class CpuUsage:
    """The part of the available CPU time that is used, since it was last read; smoothed.

    In a container the available time is its quota, which the machine's own figures do not show.

    >>> from headgate.adaptive.overload_signals import CpuUsage
    >>> CpuUsage(threshold=0.9).strained() in (True, False)
    True
    """

    def __init__(
        self,
        threshold: float = 0.9,
        *,
        cgroup: Path = CGROUP,
        proc_stat: Path = PROC_STAT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.threshold: float = check_number("threshold", threshold, 0, 1, above=True)
        self._cgroup, self._proc_stat, self._clock = cgroup, proc_stat, clock
        self._read = self._container_seconds if self._quota() else self._machine_seconds
        self._at, self._seconds = clock(), self._read()
        self.usage: float = 0.0

    def strained(self) -> bool:
        """Returns whether the CPU usage is above the threshold. Measures it at most ten times a second."""
        now = self._clock()
        elapsed = now - self._at
        if elapsed >= 0.1:
            used, self._at = self._read() - self._seconds, now
            self._seconds += used
            available = elapsed * (self._quota() or _processors())
            self.usage = 0.5 * self.usage + 0.5 * min(1.0, max(0.0, used / available))
        return self.usage > self.threshold

    def _quota(self) -> float | None:
        """Returns the processors that the container may use; None without a quota."""
        fields = _words(self._cgroup / "cpu.max")
        if len(fields) == 2 and fields[0].isdigit():
            return int(fields[0]) / int(fields[1])
        quota = _words(self._cgroup / "cpu" / "cpu.cfs_quota_us")
        period = _words(self._cgroup / "cpu" / "cpu.cfs_period_us")
        if quota and period and quota[0].isdigit() and int(quota[0]) > 0:
            return int(quota[0]) / int(period[0])
        return None

    def _container_seconds(self) -> float:
        fields = _words(self._cgroup / "cpu.stat")
        if "usage_usec" in fields:
            return int(fields[fields.index("usage_usec") + 1]) / 1e6
        nanoseconds = _words(self._cgroup / "cpuacct" / "cpuacct.usage")
        return int(nanoseconds[0]) / 1e9 if nanoseconds else sum(os.times()[:4])

    def _machine_seconds(self) -> float:
        fields = _words(self._proc_stat)[1:9]
        if len(fields) < 8:
            return sum(os.times()[:4])
        ticks = [int(field) for field in fields]
        idle = ticks[3] + ticks[4]
        return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


class EventLoopLag:
    """Measures how late the timers of an event loop are, smoothed; `start` it in the loop, and `stop` it there.

    >>> import asyncio
    >>> from headgate.adaptive.overload_signals import EventLoopLag
    >>> async def main():
    ...     lag = EventLoopLag(threshold=0.05)
    ...     lag.start()
    ...     await asyncio.sleep(0)
    ...     lag.stop()
    ...     return lag.strained()
    >>> asyncio.run(main())
    False
    """

    def __init__(self, threshold: float = 0.05, interval: float = 0.05) -> None:
        self.threshold: float = check_number("threshold", threshold, 0, above=True)
        self._interval = check_number("interval", interval, 0, 10, above=True)
        self.lag: float = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts to measure the running loop."""
        self.stop()
        self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stops measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def strained(self) -> bool:
        """Returns whether the event loop's lag is above the threshold."""
        return self.lag > self.threshold

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self._interval
        self._timer = loop.call_at(due, self._measure, loop, due)

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.lag = 0.7 * self.lag + 0.3 * max(0.0, loop.time() - due)
        self._schedule(loop)


def _words(path: Path) -> list[str]:
    """Returns the words of a small file; none if it cannot be read."""
    try:
        return path.read_text("ascii").split()
    except (OSError, UnicodeDecodeError):
        return []


def _processors() -> int:
    return os.cpu_count() or 1
