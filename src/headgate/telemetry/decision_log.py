"""DecisionLog: an observer that writes one JSON line for each call.

    log = DecisionLog("decisions.jsonl", sample=0.1)
    limiter = Limiter.from_rules("rules.yaml", "redis://localhost:6379/0", observers=[log])

The lines can be replayed (headgate replay decisions.jsonl --rules rules.yaml). docs/how-to/decision-log.md shows
how to use it, docs/reference/decision-log.md describes every field.

A call only copies its attributes and appends to a queue; a thread makes the line and writes it. If the queue is
full, or the file cannot be written, records are dropped: `dropped` counts them, the next line that is written says
how many are missing before it, and the program's log has one line when it begins and one when it is over.

Laws (tests/telemetry/test_decision_log.py, test_decision_log_faults.py):
  - no call is delayed, refused or failed because of its record;
  - every call is a line of the log, or is counted as dropped, or was left out by sampling;
  - all calls that a rule refuses are kept, also those that only a shadow or a candidate would refuse.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from itertools import count
from threading import Lock
from time import monotonic
from typing import Any
from weakref import finalize

from headgate.algorithms.decision import Decision
from headgate.clock import Clock, check_clock
from headgate.engines.fork_reset import on_fork
from headgate.errors import InvalidSetting
from headgate.observer import LimitChange, Observer
from headgate.telemetry.decision_record import DecidedCall, Record, RecordMaker, process_name
from headgate.telemetry.record_queue import RecordQueue
from headgate.telemetry.rotating_file import KEEP_FILES, MAX_AGE_S, MAX_BYTES, RotatingFile

MAX_QUEUED = 10_000  # records that wait to be written
MAX_PENDING = 10_000  # records that wait for the response to their call
MAX_PENDING_S = 60.0  # then a record is written without its response
MIN_SALT = 8  # characters
REPORT_EVERY_S = 60.0  # between two lines of the program's log about dropped records

_log = logging.getLogger("headgate")
_encode = json.JSONEncoder(separators=(",", ":")).encode


class DecisionLog(Observer):
    """Writes one JSON line for each call to a file, which it rotates.

    sample      the part of the calls that are recorded, from 0 to 1; refusals are always recorded
    salt        hashes keys, and the attributes that they are made of, with this secret
    max_bytes   the file is rotated when it has so many bytes
    max_age     ... and when a span of so many seconds ends (86,400: at midnight UTC); None: never
    keep_files  how many rotated files are kept
    clock       the time of calls that no engine decided, and of rotation

    `written` and `dropped` count records. `problem` is a sentence while the file cannot be written, else None.

    >>> log = DecisionLog(FOLDER + "/decisions.jsonl")
    >>> with Limiter("1/minute", observers=[log]) as limiter:
    ...     limiter.take("ann").allowed, limiter.take("ann").allowed
    (True, False)
    >>> log.written, log.dropped
    (2, 0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sample: float = 1.0,
        salt: str | None = None,
        max_bytes: int = MAX_BYTES,
        max_age: float | None = MAX_AGE_S,
        keep_files: int = KEEP_FILES,
        clock: Clock | None = None,
    ) -> None:
        self.path: str = os.fspath(path)
        self.sample: float = _check_sample(sample)
        if salt is not None and len(salt) < MIN_SALT:
            raise InvalidSetting(f"The salt of a decision log has at least {MIN_SALT} characters.")
        for name, number, least in (("max_bytes", max_bytes, 1), ("keep_files", keep_files, 0)):
            if type(number) is not int or number < least:
                raise InvalidSetting(f"{name}= is a whole number of at least {least}, not {number!r}.")
        if max_age is not None and not max_age > 0:
            raise InvalidSetting(f"max_age= is a number of seconds above 0, or None; not {max_age!r}.")
        self._clock = check_clock(clock)
        self._now_us = self._clock.now_us
        file = RotatingFile(self.path, self._clock, max_bytes, max_age, keep_files)
        try:
            file.open()
        except OSError as error:
            raise InvalidSetting(
                f"The decision log {self.path} cannot be written: {error.strerror or error}."
            ) from None
        self._writer = LineWriter(file, RecordMaker(self.sample, salt), self.path)
        self._queue: RecordQueue[Entry] = RecordQueue(self._writer.write, MAX_QUEUED, "headgate-decision-log")
        self._writer.dropped_by_queue = self._queue.dropped_count
        self._begin()
        on_fork(self.reset_after_fork)
        finalize(self, self._queue.close)

    def _begin(self) -> None:
        self._numbers = count(1)
        self._pending: dict[int, tuple[float, DecidedCall]] = {}  # by the id of the decision
        self._pending_lock = Lock()

    @property
    def written(self) -> int:
        """Returns how many records were written."""
        return self._writer.written

    @property
    def dropped(self) -> int:
        """Returns how many records were dropped, because the queue was full or the file could not be written."""
        return self._queue.dropped + self._writer.dropped

    @property
    def problem(self) -> str | None:
        """Returns why the file cannot be written, as a sentence; None if it can."""
        return self._writer.problem

    def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None:
        attributes = decision.attributes
        call = DecidedCall(
            decision,
            None if attributes is None else dict(attributes),
            self._now_us(),
            latency_us,
            next(self._numbers),
        )
        if response_follows:
            self._hold(decision, call)
        else:
            self._queue.put(call)

    def _hold(self, decision: Decision, call: DecidedCall) -> None:
        """Keeps a record until the response to its call is known."""
        now = monotonic()
        with self._pending_lock:
            pending = self._pending
            pending[id(decision)] = now, call  # the call has the decision, so the id stays its own
            while pending:
                oldest = next(iter(pending))
                since, waiting = pending[oldest]
                if len(pending) <= MAX_PENDING and now - since < MAX_PENDING_S:
                    break
                del pending[oldest]
                self._queue.put(waiting)

    def responded(self, decision: Decision, status: int, duration_us: int) -> None:
        with self._pending_lock:
            _, call = self._pending.pop(id(decision), (0, None))
        if call is not None:
            self._queue.put(call._replace(status=status, duration_us=duration_us))

    def failed(self, error: Exception, latency_us: int | None) -> None:
        self._put_record(latency_us=latency_us, error=str(error))

    def limit_changed(self, change: LimitChange) -> None:
        self._put_record(limit_change={**change._asdict(), "key": self._writer.key_of_rule(change.key)})

    def _put_record(self, **more: object) -> None:
        """Queues a record that is of no decided call."""
        self._queue.put(
            {
                "at_us": self._now_us(),
                "seq": next(self._numbers),
                "process": self._writer.process,
                "attributes": {},
                "allowed": None,
                "sample": self.sample,
                **more,
            }
        )

    def close(self) -> None:
        """Writes all records that wait, also those whose response is not known."""
        with self._pending_lock:
            pending, self._pending = self._pending, {}
        for _, call in pending.values():
            self._queue.put(call)
        self._queue.close()

    def reset_after_fork(self) -> None:
        """Begins anew in a forked child: the records of the parent are the parent's to write."""
        self._begin()
        self._writer.reset_after_fork()


Entry = DecidedCall | Record


class LineWriter:
    """Makes lines of records and appends them to the file; counts and reports what cannot be written."""

    def __init__(self, file: RotatingFile, records: RecordMaker, name: str) -> None:
        self.written: int = 0
        self.dropped: int = 0
        self.problem: str | None = None
        self.dropped_by_queue: Callable[[], int] = lambda: 0
        self._file, self._records, self._name = file, records, name
        self._reported_drops = 0  # of both kinds, in the program's log
        self._reported_at = -REPORT_EVERY_S
        self._stated_drops = 0  # in the file
        self._failed_drops = 0  # when the current problem began

    @property
    def process(self) -> str:
        return self._records.process

    def key_of_rule(self, key: str) -> str:
        return self._records.key_of_rule(key)

    def reset_after_fork(self) -> None:
        """Begins anew in a forked child, with a file of its own."""
        self._file.close()
        self._records.process = process_name()
        self.written = self.dropped = self._reported_drops = self._stated_drops = 0
        self.problem = None

    def write(self, batch: list[Entry]) -> None:
        """Writes records. An error is a line of the program's log, not of each batch."""
        lines: list[bytes] = []
        missing = self.dropped + self.dropped_by_queue() - self._stated_drops
        for entry in batch:
            if isinstance(entry, DecidedCall):
                states_drops = missing and not lines
                line = None if states_drops else self._records.short_line(entry)
                if line is not None:
                    lines.append(line.encode() + b"\n")
                    continue
                record: dict[str, Any] = self._records.record(entry)
            else:
                record = entry
            if missing and not lines:
                record["dropped"] = missing
            lines.append(_encode(record).encode() + b"\n")
        whole, error = self._file.append(lines)
        self.written += whole
        if whole:
            self._stated_drops += missing
        if error is not None:
            self._fail(error)
            self.dropped += len(lines) - whole
        elif self.problem is not None:
            self._recover()
        self._report_drops()

    def _fail(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if self.problem is None:
            self._failed_drops = self.dropped
            self.problem = f"The decision log {self._name} cannot be written: {reason}."
            _log.error(
                "headgate: the decision log %s cannot be written: %s. Records are dropped until it can be; calls "
                "are decided as before.",
                self._name,
                reason,
            )

    def _recover(self) -> None:
        self.problem = None
        _log.warning(
            "headgate: the decision log %s is written again; %d records were dropped.",
            self._name,
            self.dropped - self._failed_drops,
        )

    def _report_drops(self) -> None:
        """Reports records that came faster than they could be written."""
        dropped, now = self.dropped_by_queue(), monotonic()
        if dropped > self._reported_drops and now - self._reported_at >= REPORT_EVERY_S:
            _log.warning(
                "headgate: %d records of the decision log %s were dropped, because calls came faster than they "
                "could be written. Record a sample: DecisionLog(..., sample=0.1).",
                dropped - self._reported_drops,
                self._name,
            )
            self._reported_drops, self._reported_at = dropped, now


def _check_sample(sample: object) -> float:
    if isinstance(sample, bool) or not isinstance(sample, int | float) or not 0 <= sample <= 1:
        raise InvalidSetting(f"sample= is the part of the calls to record, from 0 to 1; not {sample!r}.")
    return sample
