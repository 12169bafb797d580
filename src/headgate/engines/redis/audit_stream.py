"""The stream of operators' changes on a server, `hg2:audit`: the latest ones, numbered and dated by the server.

`hg2:audit:undone:<number>` says that an entry was undone, so that no second operator undoes it again.

What an entry holds is the business of operations/audit_trail.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.engines.redis import keys
from headgate.engines.redis.protocol import RedisRequest, command

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine


class AuditStream:
    """The stream, read and written through an engine that the caller opens and closes."""

    def __init__(self, engine: AsyncRedisEngine, max_entries: int) -> None:
        self._engine, self._max_entries = engine, max_entries
        self._key = keys.audit_key(engine.prefix)

    async def add(self, entry: bytes) -> None:
        """Appends an entry, and drops the oldest beyond the bound."""
        words = ("XADD", self._key, "MAXLEN", "~", self._max_entries, "*", "entry", entry)
        await self._engine.execute(RedisRequest(command(*words), None, self._key))

    async def claim_undo(self, identity: str, kept_s: int) -> bool:
        """Marks an entry as undone, for so many seconds; whether it was not marked before."""
        key = self._undone_key(identity)
        words = ("SET", key, "1", "NX", "PX", 1000 * kept_s)
        return await self._engine.execute(RedisRequest(command(*words), None, key)) is not None

    async def release_undo(self, identity: str) -> None:
        """Removes the mark: the entry was not undone after all."""
        key = self._undone_key(identity)
        await self._engine.execute(RedisRequest(command("DEL", key), None, key))

    def _undone_key(self, identity: str) -> bytes:
        return b"%b:undone:%b" % (self._key, identity.encode())

    async def latest(self, number: int) -> list[tuple[bytes, bytes]]:
        """Returns the number of each of the latest entries and the entry, the newest first."""
        words = ("XREVRANGE", self._key, "+", "-", "COUNT", number)
        reply: list[Any] = await self._engine.execute(RedisRequest(command(*words), None, self._key))
        return [(identity, fields[1]) for identity, fields in reply]
