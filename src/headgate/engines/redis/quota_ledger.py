"""Assignments in Redis: a ledger is one string beside the counts of its key, divided by a script and the server's
clock. What happens when it is lost: engines/quota_ledger.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headgate.algorithms.limit import Limit
from headgate.algorithms.quota_grants import Assignment, told
from headgate.engines.quota_ledger import Dividing, Told, checked
from headgate.engines.redis import keys, protocol
from headgate.engines.redis.protocol import RedisRequest
from headgate.engines.redis.script_assembly import bare

_LISTENING = -1


class _Asked(Dividing):
    """What both shells have: questions, and what is remembered of the answers."""

    def __init__(self, known: Told, prefix: str, limit: Limit, name: str, ttl_us: int, grace_us: int) -> None:
        super().__init__(limit, name, ttl_us, grace_us)
        self._head = keys.head(prefix, "assignment", name)
        self._script = bare("quota_ledger", "quota_grants")
        self._told = known

    def assigning(self, key: str, holder: str, wanted: int | None, within_us: int) -> RedisRequest:
        wants = self.wants(key, holder, wanted, within_us)
        noted = "" if wants is None else wants
        return self._of("assign", key, holder, noted, self.live_us, self._told.until_us(key), self.division.least)

    def leaving(self, key: str, holder: str) -> RedisRequest:
        checked(key, holder)
        return self._of("leave", key, holder)

    def assigned(self, key: str, reply: list[int]) -> Assignment | None:
        grains, at_us, _ = reply
        if grains == _LISTENING:
            return None
        if grains:
            self._told.note(key, at_us + self.live_us, at_us)
        return told(self.division, grains, self.ttl_us)

    def _of(self, verb: str, key: str, holder: str, *words: int | str) -> RedisRequest:
        packed = protocol.command(
            "EVALSHA", self._script.sha, 1, keys.tagged(self._head, key), verb, keys.escaped(holder), *words
        )
        return RedisRequest(packed, self._script, keys.escaped(key))


class RedisLedger(_Asked):
    """Ledgers of one limit, on the server."""

    def __init__(
        self,
        ask: Callable[[RedisRequest], Any],
        known: Told,
        prefix: str,
        limit: Limit,
        name: str,
        ttl_us: int,
        grace_us: int,
    ) -> None:
        super().__init__(known, prefix, limit, name, ttl_us, grace_us)
        self._ask = ask

    def assign(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> Assignment | None:
        return self.assigned(key, self._ask(self.assigning(key, holder, wanted, within_us)))

    def leave(self, key: str, holder: str) -> None:
        self._ask(self.leaving(key, holder))


class AsyncRedisLedger(_Asked):
    """The same, awaited."""

    def __init__(
        self,
        ask: Callable[[RedisRequest], Awaitable[Any]],
        known: Told,
        prefix: str,
        limit: Limit,
        name: str,
        ttl_us: int,
        grace_us: int,
    ) -> None:
        super().__init__(known, prefix, limit, name, ttl_us, grace_us)
        self._ask = ask

    async def assign(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> Assignment | None:
        return self.assigned(key, await self._ask(self.assigning(key, holder, wanted, within_us)))

    async def leave(self, key: str, holder: str) -> None:
        await self._ask(self.leaving(key, holder))
