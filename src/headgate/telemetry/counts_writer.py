"""Writes the counts of this process to Redis, once a second, in one request.

A thread does it, so that no call waits for Redis. A write has a number, and is done once: if no reply came, the
same write is sent again. While Redis is gone, counts stay in the process: the seconds of the last two minutes and
the minutes of the last 25 hours of each rule, 10,000 distinct keys, a minute of hot keys. One line is logged when
Redis is gone, and one when it is back.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from contextlib import suppress
from functools import cache
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final

from headgate.engines.fork_reset import on_fork
from headgate.engines.redis.counts_store import MissingRights
from headgate.engines.redis.errors import reason_of
from headgate.engines.redis.signal_safe_thread import SignalSafeThread
from headgate.engines.url import open_counts_store
from headgate.errors import CorruptState, EngineUnavailable

if TYPE_CHECKING:
    from headgate.telemetry.counts import Counts

REMEMBERED_S: Final = 25 * 3600  # how long rules and writers are remembered after their last write
INTERVAL_S: Final = 1.0

_log = logging.getLogger("headgate")


@cache
def installed_version() -> str:
    """Returns the version of headgate that is installed; an empty text if it runs without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("headgate")
    except PackageNotFoundError:
        return ""


class CountsWriter:
    """Shares the counts of one Counts with all other processes."""

    def __init__(self, counts: Counts, url: str, prefix: str = "hg") -> None:
        self._counts = counts
        self._store = open_counts_store(url, prefix)
        self._start_anew()
        on_fork(self._start_anew)

    def _start_anew(self) -> None:
        """Begins as a writer of its own: also in a forked child, which writes nothing of its parent's."""
        self._id = secrets.token_hex(8)
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._number = 0
        self._unanswered: Any = None  # the write that was sent and got no reply
        self._failed_at_us: int | None = None
        self._reported: set[str] = set()
        self._lock = Lock()
        self._closed = Event()
        self._thread: SignalSafeThread | None = None

    def start(self) -> None:
        """Starts the thread, unless it runs. If the process can have no more threads, it is tried again later."""
        if self._thread is None and not self._closed.is_set():
            thread = SignalSafeThread(self._run)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while not self._closed.wait(INTERVAL_S):
            self.write()

    def write(self, at_once: bool = False) -> bool:
        """Writes what was counted since the last write; returns whether Redis has it all. `at_once`: also the hot
        keys of the ten seconds that have not ended."""
        from headgate.telemetry.shared_layout import parts_of, parts_of_changes

        with self._lock:
            if self._unanswered is None:
                rules = [(each.rule, parts_of(each, self._name)) for each in self._counts.take_unshared(at_once)]
                rules += parts_of_changes(self._counts.take_limit_changes(), self._name)
                if not rules:
                    return True
                self._number += 1
                now_s = self._counts.clock.now_us() // 1_000_000
                self._unanswered = self._store.packed_write(
                    self._id,
                    self._number,
                    now_s,
                    f"{self._name} {installed_version()}".rstrip(),
                    REMEMBERED_S,
                    rules,
                )
            try:
                left_out = self._store.send(self._unanswered)
            except (CorruptState, MissingRights) as error:
                self._unanswered = None  # it would fail again, and parts of it may have been done
                self._report_once("headgate: counts are not shared: %s", error)
                return False
            except EngineUnavailable as error:
                self._report_outage(error)
                return False
            self._unanswered = None
        self._report_recovery()
        if left_out > 0:
            self._report_once("headgate: counts of %s rules are not shared: there are too many rules.", left_out)
        return True

    def _report_outage(self, error: Exception) -> None:
        if self._failed_at_us is None:
            self._failed_at_us = self._counts.clock.now_us()
            _log.warning(
                "headgate: counts cannot be written to Redis at %s (%s). They are kept here, and written when it "
                "answers again.",
                self._store.text,
                reason_of(error),
            )

    def _report_recovery(self) -> None:
        if self._failed_at_us is not None:
            outage_s = (self._counts.clock.now_us() - self._failed_at_us) / 1_000_000
            self._failed_at_us = None
            _log.warning(
                "headgate: counts are written to Redis at %s again, after %.1f s.", self._store.text, outage_s
            )

    def _report_once(self, line: str, *arguments: object) -> None:
        if line not in self._reported:
            self._reported.add(line)
            _log.error(line, *arguments)

    def close(self) -> None:
        """Writes the rest, and ends the thread."""
        if self._closed.is_set():
            return
        self._closed.set()
        thread = self._thread
        if thread is not None:
            thread.join(2 * INTERVAL_S)
        if self.write(at_once=True):  # perhaps the one that got no reply
            self.write(at_once=True)
        self._store.close()
