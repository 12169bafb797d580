"""Puts calls in the order of their times, within a window.

Logs are nearly in order: a line is written when its call ends, or by several processes. Calls wait until the log
is `window_us` ahead of them, or until MAX_WAITING calls wait. A call that comes later than that gets the time at
which the window begins, or that of the last call that waits no more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter

from headgate.traffic.recorded_call import RecordedCall

WINDOW_US = 3_600_000_000
MAX_WAITING = 100_000  # calls
BATCH_SIZE = 4096

_time_us = itemgetter(0)


class TimeOrder:
    """Orders the calls of one log, batch by batch; counts those out of order, and those that came too late."""

    def __init__(
        self, window_us: int = WINDOW_US, order: Callable[[RecordedCall], tuple[int, int]] | None = None
    ) -> None:
        self.window_us = window_us
        self._order = order  # where calls of one time have an order, too
        self.disordered: int = 0
        self.late: int = 0
        self._waiting: list[RecordedCall] = []
        self._reached_us = -(1 << 62)
        self._newest_us = -(1 << 62)

    def add(self, batch: list[RecordedCall]) -> list[RecordedCall]:
        """Takes calls as they are in the log; returns those whose turn it is."""
        if not batch:
            return []
        times = [call[0] for call in batch]
        ordered = sorted(times) == times and times[0] >= self._newest_us
        if not ordered:
            batch = self._within_window(batch)
        self._newest_us = max(self._newest_us, max(times))
        self._waiting += batch
        if self._order is not None:
            self._waiting.sort(key=self._order)
        elif not ordered:
            self._waiting.sort(key=_time_us)
        count = bisect_right(self._waiting, self._newest_us - self.window_us, key=_time_us)
        return self._release(max(count, len(self._waiting) - MAX_WAITING))

    def _within_window(self, batch: list[RecordedCall]) -> list[RecordedCall]:
        """Counts the calls that are out of order; those beyond the window get the time at which it begins."""
        newest_us = self._newest_us
        calls = []
        for call in batch:
            if call[0] >= newest_us:
                newest_us = call[0]
            else:
                self.disordered += 1
                if call[0] < newest_us - self.window_us:
                    self.late += 1
                    call = call._replace(time_us=newest_us - self.window_us)
            calls.append(call)
        return calls

    def finish(self) -> list[RecordedCall]:
        """Returns all calls that are left."""
        return self._release(len(self._waiting))

    def _release(self, count: int) -> list[RecordedCall]:
        if count <= 0:
            return []
        released, self._waiting = self._waiting[:count], self._waiting[count:]
        if released[0].time_us < self._reached_us:
            late = bisect_right(released, self._reached_us - 1, key=_time_us)
            self.late += late
            released[:late] = [call._replace(time_us=self._reached_us) for call in released[:late]]
        self._reached_us = released[-1].time_us
        return released


def merge_in_order(logs: Iterable[Iterator[list[RecordedCall]]]) -> Iterator[list[RecordedCall]]:
    """Merges logs, each in the order of time, into one in the order of time."""
    streams = list(logs)
    if len(streams) == 1:
        yield from streams[0]
        return
    merged = merge(*map(_calls, streams), key=_time_us)
    while batch := list(islice(merged, BATCH_SIZE)):
        yield batch


def _calls(batches: Iterator[list[RecordedCall]]) -> Iterator[RecordedCall]:
    for batch in batches:
        yield from batch
