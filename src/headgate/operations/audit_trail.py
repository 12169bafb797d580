"""The audit trail: who changed what, when, from where and why; kept with what it takes to undo the change.

Entries are kept where counts are kept: on the engine's server, in a stream of bounded length, or in this process
with memory://. The log has the same changes, a line each (service/admin/audit_log.py), and keeps them for longer.
"""

from __future__ import annotations

import json
import time
from collections import deque
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from headgate.errors import CorruptState

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine

MAX_ENTRIES: Final = 2000
UNDO_WITHIN_S: Final = 30 * 86_400  # an older change is not undone

Details = dict[str, str | int | float | None]


class AuditEntry(NamedTuple):
    """One change. `details` holds what was changed: rule, key, before, after, reason and others."""

    id: str
    at_us: int
    event: str
    author: str
    remote: str
    details: Details


class AuditTrail(Protocol):
    """Keeps the latest changes; Redis and this process have one each."""

    async def add(self, event: str, author: str, remote: str, details: Details) -> None:
        """Adds a change."""

    async def latest(self, number: int) -> list[AuditEntry]:
        """Returns the latest changes, the newest first."""

    async def claim_undo(self, identity: str) -> bool:
        """Marks a change as undone; returns whether it was not marked before. Of several callers one gets True."""

    async def release_undo(self, identity: str) -> None:
        """Removes the mark, because the change was not undone after all."""


class MemoryAuditTrail:
    """Keeps changes in this process."""

    def __init__(self) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=MAX_ENTRIES)
        self._undone: deque[str] = deque(maxlen=MAX_ENTRIES)
        self._numbers = count(1)
        self._lock = Lock()

    async def add(self, event: str, author: str, remote: str, details: Details) -> None:
        with self._lock:
            at_us = time.time_ns() // 1000
            self._entries.appendleft(AuditEntry(str(next(self._numbers)), at_us, event, author, remote, details))

    async def latest(self, number: int) -> list[AuditEntry]:
        with self._lock:
            return list(self._entries)[:number]

    async def claim_undo(self, identity: str) -> bool:
        with self._lock:
            if identity in self._undone:
                return False
            self._undone.append(identity)
            return True

    async def release_undo(self, identity: str) -> None:
        with self._lock:
            self._undone.remove(identity)


class RedisAuditTrail:
    """Keeps changes on the engine's server, for all services."""

    def __init__(self, engine: AsyncRedisEngine) -> None:
        from headgate.engines.redis.audit_stream import AuditStream

        self._stream = AuditStream(engine, MAX_ENTRIES)

    async def add(self, event: str, author: str, remote: str, details: Details) -> None:
        await self._stream.add(pack_entry(event, author, remote, details))

    async def latest(self, number: int) -> list[AuditEntry]:
        return [unpack_entry(*each) for each in await self._stream.latest(number)]

    async def claim_undo(self, identity: str) -> bool:
        return await self._stream.claim_undo(identity, 2 * UNDO_WITHIN_S)

    async def release_undo(self, identity: str) -> None:
        await self._stream.release_undo(identity)


def pack_entry(event: str, author: str, remote: str, details: Details) -> bytes:
    """Returns a change as JSON, without its time: the server's number of an entry has that."""
    fields = {"event": event, "author": author, "remote": remote, "details": details}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def unpack_entry(identity: bytes, packed: bytes) -> AuditEntry:
    """Returns the change that was stored under a server's number, such as 1794800944000-0.

    >>> unpack_entry(b"1794800944000-0", pack_entry("key reset", "ann", "", {"rule": "login"})).at_us
    1794800944000000
    """
    try:
        fields: dict[str, Any] = json.loads(packed)
        return AuditEntry(
            identity.decode(),
            int(identity.partition(b"-")[0]) * 1000,
            str(fields["event"]),
            str(fields["author"]),
            str(fields["remote"]),
            dict(fields["details"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptState(f"Entry {identity!r} of the audit trail is not one: {error}.") from error
