"""The counts of the last minute by rule and second, and the stream of what changes in them.

One poll serves all clients of this worker: it reads the last seconds of every rule, in a thread, and what changed
is encoded once. Without clients nothing is read. A poll that takes long is made less often, so that it uses at
most a twentieth of a core.

A row is [second, offered, delayed, refused, shadow refused, candidate refused, degraded].
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from headgate.errors import CorruptState, EngineUnavailable
from headgate.telemetry.counts import Counts
from headgate.telemetry.decision_counts import DecisionCounts
from headgate.telemetry.shared_counts import SharedCounts

HISTORY_S: Final = 60
_LATE_S: Final = 4  # counts may come so late
_POLL_S: Final = 0.4
_MAX_LOAD: Final = 20  # a poll may take this part of the time between two
_KEEPALIVE_S: Final = 10.0
_MAX_WAITING: Final = 50  # messages of one client; one that reads no more loses them

Row = list[int]
_encode: Final = msgspec.json.Encoder().encode


def row_of(second: int, counts: DecisionCounts) -> Row:
    """Returns the row of one second.

    >>> row_of(7, DecisionCounts(allowed=3, refused=1, delayed=2))
    [7, 4, 2, 1, 0, 0, 0]
    """
    return [
        second,
        counts.calls + counts.shadow_calls,
        counts.delayed,
        counts.refused + counts.shed,
        counts.shadow_refused,
        counts.candidate_refused,
        counts.degraded,
    ]


class LiveCounts:
    """Polls counts while somebody watches, and streams what changed."""

    def __init__(self, reader: Callable[[], Counts | SharedCounts], state: Callable[[], dict[str, Any]]) -> None:
        self._reader, self._state = reader, state
        self._rows: dict[str, dict[int, Row]] = {}  # by rule and second
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()
        self._clients: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self.problem: str | None = None  # why nothing newer can be read
        self.poll_s: float = 0.0  # how long the last poll took
        self._state_sent: bytes = b""

    async def rows(self) -> dict[str, list[Row]]:
        """Returns the rows of the last minute by rule, the oldest first."""
        await self._poll()
        return self.last_rows()

    def last_rows(self) -> dict[str, list[Row]]:
        """Returns the rows that were read last."""
        return {rule: [rows[second] for second in sorted(rows)] for rule, rows in self._rows.items()}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields events for one client, until the service stops."""
        waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_WAITING)
        self._clients.add(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        try:
            yield b"retry: 1000\n\n" + _event({"state": self._state() | {"problem": self.problem}})
            while True:
                try:
                    message = await asyncio.wait_for(waiting.get(), _KEEPALIVE_S)
                except TimeoutError:
                    message = b": still here\n\n"
                if message is None:
                    return
                yield message
        finally:
            self._clients.discard(waiting)

    async def close(self) -> None:
        """Ends all streams."""
        for client in self._clients:
            with suppress(asyncio.QueueFull):
                client.put_nowait(None)
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._clients:
            event = await self._poll()
            state = _encode(self._state() | {"problem": self.problem})
            if state != self._state_sent:
                self._state_sent = state
                event["state"] = msgspec.Raw(state)
            if event:
                encoded = _event(event)
                for client in self._clients:
                    with suppress(asyncio.QueueFull):
                        client.put_nowait(encoded)
            await asyncio.sleep(max(_POLL_S, _MAX_LOAD * self.poll_s))

    async def _poll(self) -> dict[str, Any]:
        """Reads the last seconds, or the whole minute after a break; returns the rows that changed."""
        async with self._lock:
            began = time.monotonic()
            if began - self._read_at < _POLL_S / 2:
                return {}
            missed_s = min(float(HISTORY_S), began - self._read_at)
            try:
                seconds = min(HISTORY_S, int(missed_s) + _LATE_S)
                now_s, series = await asyncio.to_thread(self._read, seconds)
            except (EngineUnavailable, CorruptState) as error:
                self.problem = str(error)
                return {}
            self.problem = None
            changed = self._merge(now_s, series)
            self._read_at, self.poll_s = began, time.monotonic() - began
            return {"now": now_s, "rows": changed} if changed else {"now": now_s}

    def _read(self, seconds: int) -> tuple[int, dict[str, list[DecisionCounts]]]:
        series = self._reader().all_series(seconds=seconds)
        return int(time.time()), series

    def _merge(self, now_s: int, series: dict[str, list[DecisionCounts]]) -> dict[str, list[Row]]:
        changed: dict[str, list[Row]] = {}
        for rule, counts in series.items():
            kept = self._rows.setdefault(rule, {})
            for second, each in enumerate(counts, now_s - len(counts) + 1):
                if any(each) and kept.get(second) != (row := row_of(second, each)):
                    kept[second] = row
                    changed.setdefault(rule, []).append(row)
        for rule in list(self._rows):
            rows = self._rows[rule]
            for second in [each for each in rows if each <= now_s - HISTORY_S]:
                del rows[second]
            if not rows:
                del self._rows[rule]
        return changed


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + _encode(document) + b"\n\n"
