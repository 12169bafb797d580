"""A bounded sample of the recent records of all processes, in Redis: what a preview of a rulebook is made of.

    recent = RecentRecords("redis://localhost:6379/0")
    limiter = Limiter.from_rules("rules.yaml", "redis://localhost:6379/0", observers=[recent])
    RecentRecordsReader("redis://localhost:6379/0").records(rule="login", refused=True)

Bounds, over all processes together: MAX_RECORDS_PER_S records of one second, refusals first; KEPT_S seconds;
MAX_BYTES of Redis' memory. A process writes at most once a second, one command, in a thread. A record is
compressed with a dictionary of what all records have in common, to a fifth of its size. While Redis is gone,
records are dropped and counted: a sample needs no more.
"""

from __future__ import annotations

import json
import logging
import zlib
from itertools import count
from time import monotonic
from typing import Any
from weakref import finalize

from headgate.algorithms.decision import Decision
from headgate.clock import Clock, check_clock
from headgate.engines.fork_reset import on_fork
from headgate.engines.redis.errors import reason_of
from headgate.engines.url import open_recent_records_store
from headgate.errors import CorruptState, EngineUnavailable
from headgate.observer import Observer
from headgate.telemetry.decision_record import DecidedCall, Record, RecordMaker, process_name
from headgate.telemetry.memory_records import MemoryRecordsStore
from headgate.telemetry.record_queue import RecordQueue

MAX_RECORDS_PER_S = 200
KEPT_S = 15 * 60
MAX_BYTES = 32_000_000
WRITE_INTERVAL_S = 1.0

_KEY_BYTES = 600  # of the three keys of one second, roughly
MAX_BYTES_PER_S = MAX_BYTES // KEPT_S - _KEY_BYTES

# What records have in common. A changed dictionary is another format: records name theirs by the first byte.
_FORMAT = b"\x01"
_DICTIONARY = (
    b'"delay_us":0,"override":null}],"shadow":[{"candidate":[{"degraded":true,"together":[0,"in_code":true,'
    b'"patience_us":"hashed":["address","user"],"duration_us":"version":null,"status":null,"status":200,'
    b'"header.authorization":"header.x-api-key":"plan":"method":"GET","method":"POST","path":"/api/v1/","host":"'
    b'"allowed":false,"remaining":0,"retry_after_us":{"at_us":179,"seq":1,"process":"","attributes":{"address":"'
    b'","user":"},"cost":1,"cost":null,"allowed":true,"rule":"","version":"sample":1,"latency_us":"status":429,'
    b'"verdicts":[{"rule":"","key":"user=","key":"address=","limit":"/minute","/s burst ","cost":1,"allowed":true,'
    b'"remaining":1,"retry_after_us":0,"delay_us":0}],"shadow":[],"candidate":[]}'
)

_log = logging.getLogger("headgate")
_encode = json.JSONEncoder(separators=(",", ":")).encode


def pack_record(record: Record) -> bytes:
    """Compresses a record.

    >>> len(pack_record({"allowed": True, "rule": "login", "version": 7})) < 40
    True
    """
    compressor = zlib.compressobj(wbits=-15, zdict=_DICTIONARY)
    return _FORMAT + compressor.compress(_encode(record).encode()) + compressor.flush()


def unpack_record(packed: bytes) -> Record | None:
    """Returns a record; None if a newer version of headgate wrote it.

    >>> unpack_record(pack_record({"allowed": True}))
    {'allowed': True}
    """
    if packed[:1] != _FORMAT:
        return None
    record: Record = json.loads(zlib.decompressobj(wbits=-15, zdict=_DICTIONARY).decompress(packed[1:]))
    return record


class RecentRecords(Observer):
    """Writes a sample of this process's records to Redis, at most once a second.

    `written` and `dropped` count records; a record that is left out because a second is full counts as neither.

    >>> issubclass(RecentRecords, Observer)
    True
    """

    def __init__(
        self,
        url: str | MemoryRecordsStore,
        *,
        prefix: str = "hg",
        salt: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store: Any = open_recent_records_store(url, prefix) if isinstance(url, str) else url
        self._now_us = check_clock(clock).now_us
        self._sender = RecordSender(self._store, RecordMaker(1, salt))
        self._queue: RecordQueue[DecidedCall] = RecordQueue(
            self._sender.write, 2 * MAX_RECORDS_PER_S, "headgate-recent-records", WRITE_INTERVAL_S
        )
        self._numbers = count(1)
        on_fork(self.reset_after_fork)
        finalize(self, self._queue.close)

    @property
    def written(self) -> int:
        """Returns how many records this process has stored."""
        return self._sender.written

    @property
    def dropped(self) -> int:
        """Returns how many records were dropped because Redis did not answer."""
        return self._sender.dropped

    @property
    def has_enough_passes(self) -> bool:
        """True if it keeps no more records of calls that passed until those that wait are written."""
        return self._sender.waiting_passes >= MAX_RECORDS_PER_S

    def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None:
        sender, refused = self._sender, decision.has_refusal
        if refused:
            if sender.waiting_refusals >= MAX_RECORDS_PER_S:
                return
            sender.waiting_refusals += 1
        else:
            if sender.waiting_passes >= MAX_RECORDS_PER_S:
                return
            sender.waiting_passes += 1
        attributes = decision.attributes
        copied = None if attributes is None else dict(attributes)
        self._queue.put(DecidedCall(decision, copied, self._now_us(), latency_us, next(self._numbers)))

    def close(self) -> None:
        """Writes what waits. The next decision begins anew."""
        self._queue.close()

    def reset_after_fork(self) -> None:
        """Begins anew in a forked child."""
        self._numbers = count(1)
        self._sender.reset_after_fork()


class RecordSender:
    """Sends the records that waited for a second; reports when Redis is gone, and when it is back."""

    def __init__(self, store: Any, records: RecordMaker) -> None:
        self.written: int = 0
        self.dropped: int = 0
        self.waiting_refusals: int = 0
        self.waiting_passes: int = 0
        self._store, self._records = store, records
        self._failed_at: float | None = None
        self._failed_drops = 0

    def reset_after_fork(self) -> None:
        self.written = self.dropped = self.waiting_refusals = self.waiting_passes = 0
        self._failed_at, self._records.process = None, process_name()

    def write(self, batch: list[DecidedCall]) -> None:
        """Writes records in one command."""
        self.waiting_refusals = self.waiting_passes = 0
        refusals: list[bytes] = []
        passes: list[bytes] = []
        for call in batch:
            packed = pack_record(self._records.record(call))
            (refusals if call.decision.has_refusal else passes).append(packed)
        second = max(call.at_us for call in batch) // 1_000_000
        request = self._store.packed_write(
            second, refusals[:MAX_RECORDS_PER_S], passes, MAX_RECORDS_PER_S, MAX_BYTES_PER_S, KEPT_S
        )
        try:
            self.written += self._store.send(request)
        except (EngineUnavailable, CorruptState) as error:
            self._fail(error)
            self.dropped += len(batch)
            return
        if self._failed_at is not None:
            _log.warning(
                "headgate: recent records are written to Redis at %s again, after %.1f s; %d were dropped.",
                self._store.text,
                monotonic() - self._failed_at,
                self.dropped - self._failed_drops,
            )
            self._failed_at = None

    def _fail(self, error: Exception) -> None:
        if self._failed_at is None:
            self._failed_at, self._failed_drops = monotonic(), self.dropped
            _log.warning(
                "headgate: recent records cannot be written to Redis at %s (%s). They are dropped until it "
                "answers; calls are decided as before.",
                self._store.text,
                reason_of(error),
            )


class RecentRecordsReader:
    """Reads the recent records of all processes.

    >>> callable(RecentRecordsReader.records)
    True
    """

    def __init__(self, url: str | MemoryRecordsStore, *, prefix: str = "hg", clock: Clock | None = None) -> None:
        self._store: Any = open_recent_records_store(url, prefix) if isinstance(url, str) else url
        self._now_us = check_clock(clock).now_us

    def records(
        self,
        *,
        seconds: int = KEPT_S,
        skip_seconds: int = 0,
        refused: bool | None = None,
        rule: str | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """Returns records, newest first: of so many seconds, without the newest `skip_seconds`, only refusals or
        only the others, of one rule, at most `limit`. A refusal of a shadow or a candidate counts as one."""
        kinds = ["r", "p"] if refused is None else ["r"] if refused else ["p"]
        now_s = self._now_us() // 1_000_000
        newest = now_s - skip_seconds if skip_seconds else now_s + 1  # another machine's clock may be ahead
        span = range(newest, now_s - min(skip_seconds + seconds, KEPT_S), -1)
        unpacked = map(unpack_record, self._store.read(span, kinds))
        records = [each for each in unpacked if each is not None and (rule is None or rule in rules_of(each))]
        records.sort(key=lambda each: (each["at_us"], each["seq"]), reverse=True)
        return records[:limit]

    def close(self) -> None:
        """Closes the connections."""
        self._store.close()


def rules_of(record: Record) -> set[str]:
    """Returns the rules that a record has verdicts of.

    >>> sorted(rules_of({"verdicts": [{"rule": "b"}], "shadow": [{"rule": "a"}], "candidate": []}))
    ['a', 'b']
    """
    return {verdict["rule"] for kind in ("verdicts", "shadow", "candidate") for verdict in record[kind]}
