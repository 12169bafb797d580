"""The plan of a staged enforcement on a server, `hg2:staged`, and the lock of the worker that advances it.

What a plan holds is the business of service/staged_enforcement.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headgate.engines.redis import keys
from headgate.engines.redis.protocol import RedisRequest, command

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine

LOCK_MS: Final = 5000  # after a worker was last heard of


class RedisPlanStore:
    """The plan and the lock, through an engine that the caller opens and closes."""

    def __init__(self, engine: AsyncRedisEngine) -> None:
        self._engine, self._key = engine, keys.staged_key(engine.prefix)
        self._lock_key = self._key + b":lock"

    async def load(self) -> str | None:
        reply = await self._execute(self._key, "GET", self._key)
        return None if reply is None else str(reply.decode())

    async def save(self, plan: str) -> None:
        await self._execute(self._key, "SET", self._key, plan.encode())

    async def lock(self, owner: str) -> bool:
        """Takes or keeps the lock; whether the owner has it. A lock that is not kept ends by itself."""
        if await self._execute(self._lock_key, "SET", self._lock_key, owner.encode(), "NX", "PX", LOCK_MS):
            return True
        if await self._execute(self._lock_key, "GET", self._lock_key) != owner.encode():
            return False
        return bool(await self._execute(self._lock_key, "PEXPIRE", self._lock_key, LOCK_MS))

    async def is_locked(self) -> bool:
        return await self._execute(self._lock_key, "GET", self._lock_key) is not None

    async def _execute(self, key: bytes, *words: bytes | str | int) -> Any:
        return await self._engine.execute(RedisRequest(command(*words), None, key))
