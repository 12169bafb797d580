"""MemoryRecordsStore: the recent records of this process alone, for a service that counts in memory.

It has the methods of the store in Redis, and its bounds: so many records and bytes of one second, refusals first.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple


class _Write(NamedTuple):
    second: int
    refusals: Sequence[bytes]
    passes: Sequence[bytes]
    max_records: int
    max_bytes: int
    ttl_s: int


class MemoryRecordsStore:
    """Recent records in this process: by second, refusals ("r") and calls that passed ("p").

    >>> store = MemoryRecordsStore()
    >>> store.send(store.packed_write(7, [b"no"], [b"yes"], 200, 1000, 900)), store.read([7, 6], ["r"])
    (2, [b'no'])
    """

    text: str = "this process"

    def __init__(self) -> None:
        self._seconds: dict[int, dict[str, list[bytes]]] = {}
        self._bytes: dict[int, int] = {}  # by second
        self._lock = Lock()

    def packed_write(
        self,
        second: int,
        refusals: Sequence[bytes],
        passes: Sequence[bytes],
        max_records: int,
        max_bytes: int,
        ttl_s: int,
    ) -> _Write:
        """Returns a write of one second's records."""
        return _Write(second, refusals, passes, max_records, max_bytes, ttl_s)

    def send(self, write: _Write) -> int:
        """Does a write; returns how many records were stored."""
        stored = 0
        with self._lock:
            kept = self._seconds.setdefault(write.second, {"r": [], "p": []})
            for kind, records in (("r", write.refusals), ("p", write.passes)):
                for record in records:
                    size = self._bytes.get(write.second, 0) + len(record)
                    if len(kept["r"]) + len(kept["p"]) < write.max_records and size <= write.max_bytes:
                        self._bytes[write.second] = size
                        kept[kind].append(record)
                        stored += 1
            for second in [each for each in self._seconds if each <= write.second - write.ttl_s]:
                del self._seconds[second]
                self._bytes.pop(second, None)
        return stored

    def read(self, seconds: Sequence[int], kinds: Sequence[str]) -> list[bytes]:
        """Returns the records of these seconds."""
        with self._lock:
            return [
                record
                for second in seconds
                for kind in kinds
                for record in self._seconds.get(second, {}).get(kind, ())
            ]

    def close(self) -> None:
        """Does nothing: there is nothing to close."""
