"""A bounded queue of records, and the thread that writes them: no caller ever waits for a disk or a server.

`put` appends to a deque and returns. The thread gathers for BATCH_DELAY_S, or until the queue is half full, and
passes what it found to `write`. A record that finds the queue full is dropped and counted. The thread starts with
the first record, sleeps while there are none, and ends with `close`; the next record starts another.

A forked child begins with an empty queue: the records of its parent are written by its parent.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Event, Lock, Thread, current_thread
from typing import Generic, TypeVar

from headgate.engines.fork_reset import on_fork

BATCH_DELAY_S = 0.05
CLOSE_TIMEOUT_S = 5.0
MAX_BATCH = 2000  # records that are written together

T = TypeVar("T")

_log = logging.getLogger("headgate")


class RecordQueue(Generic[T]):
    """Passes records to `write`, in a thread of its own; at most `max_records` wait. Thread-safe.

    The thread keeps the queue's `write` alive until it has ended, but not who puts records into the queue: the
    owner closes the queue when it is no longer needed.
    """

    def __init__(
        self, write: Callable[[list[T]], None], max_records: int, name: str, delay_s: float | None = None
    ) -> None:
        self.dropped: int = 0
        self._delay_s = delay_s  # None: BATCH_DELAY_S, or less if many records wait
        self._write = write
        self._max_records, self._half = max_records, max(1, max_records // 2)
        self._name = name
        self._warned = False
        self._begin()
        on_fork(self.reset_after_fork)

    def _begin(self) -> None:
        self.records: deque[T] = deque()
        self._lock = Lock()
        self._wake, self._urgent, self._stop = Event(), Event(), Event()
        self._thread: Thread | None = None

    def put(self, record: T) -> None:
        """Appends a record, or drops it if the queue is full."""
        records = self.records
        waiting = len(records)
        if waiting >= self._max_records:
            self.dropped += 1
            return
        records.append(record)
        if waiting == self._half and self._delay_s is None:
            self._urgent.set()
        if not self._wake.is_set():
            self._wake.set()
            if self._thread is None:
                self._start()

    def dropped_count(self) -> int:
        """Returns how many records found the queue full."""
        return self.dropped

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._stop = Event()
            delay_s = BATCH_DELAY_S if self._delay_s is None else self._delay_s
            args = self.records, self._write, self._wake, self._urgent, self._stop, delay_s
            thread = Thread(target=_write_loop, args=args, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process has as many threads as it may have
                self._wake.clear()  # so that the next record tries again
                if not self._warned:
                    self._warned = True
                    _log.warning(
                        "headgate: records of decisions wait, because no thread could be started: %s", error
                    )
                return
            self._thread = thread
            self._warned = False

    def close(self) -> None:
        """Has the thread write the waiting records and end. Waits for it for CLOSE_TIMEOUT_S at most."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stop.set()
            self._urgent.set()
            self._wake.set()
        if thread is not None and thread is not current_thread():
            thread.join(CLOSE_TIMEOUT_S)
        self._wake.clear()
        if self.records:  # no thread could be started, or one came too late
            write_all(self.records, self._write)

    def reset_after_fork(self) -> None:
        """Starts with an empty queue in a forked child: the parent writes the records that wait."""
        self.dropped = 0
        self._begin()


def write_all(records: deque[T], write: Callable[[list[T]], None]) -> None:
    """Writes all records that wait."""
    while records:
        batch: list[T] = []
        while records and len(batch) < MAX_BATCH:
            batch.append(records.popleft())
        try:
            write(batch)
        except Exception:  # the thread must go on
            _log.exception("headgate: %d records of decisions could not be written.", len(batch))


def _write_loop(
    records: deque[T],
    write: Callable[[list[T]], None],
    wake: Event,
    urgent: Event,
    stop: Event,
    delay_s: float,
) -> None:
    while True:
        wake.wait()
        urgent.wait(delay_s)
        urgent.clear()
        wake.clear()
        write_all(records, write)
        if stop.is_set():
            return
