"""Quota ledgers in Redis: one string beside the counts of its key, divided among holders by a script.

The server's clock decides. For what happens when a ledger is lost see engines/quota_ledger.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.algorithms.limit import Limit
from headgate.algorithms.quota_grants import QuotaGrant, grant_in_units
from headgate.engines.quota_ledger import GrantExpiries, LedgerBase, validate_holder
from headgate.engines.redis import keys, protocol
from headgate.engines.redis.protocol import RedisRequest
from headgate.engines.redis.script_assembly import standalone_script

_NO_GRANT_YET = -1


class _LedgerRequests(LedgerBase):
    """Builds requests for both engines, and remembers the grants that were reported. `execute` is the engine's."""

    def __init__(
        self,
        execute: Callable[[RedisRequest], Any],
        reported: GrantExpiries,
        prefix: str,
        limit: Limit,
        name: str,
        ttl_us: int,
        grace_us: int,
    ) -> None:
        super().__init__(limit, name, ttl_us, grace_us)
        self._head = keys.key_head(prefix, "assignment", name)
        self._script = standalone_script("quota_ledger", "quota_grants")
        self._reported = reported
        self._execute = execute

    def grant_request(self, key: str, holder: str, wanted: int | None, within_us: int) -> RedisRequest:
        wants = self.demand_in_grains(key, holder, wanted, within_us)
        wants_arg = "" if wants is None else wants
        return self._request(
            "grant", key, holder, wants_arg, self.live_us, self._reported.until_us(key), self.quota_units.least
        )

    def leave_request(self, key: str, holder: str) -> RedisRequest:
        validate_holder(key, holder)
        return self._request("leave", key, holder)

    def parse_grant(self, key: str, reply: list[int]) -> QuotaGrant | None:
        grant_units, at_us, _ = reply
        if grant_units == _NO_GRANT_YET:
            return None
        if grant_units:
            self._reported.note(key, at_us + self.live_us, at_us)
        return grant_in_units(self.quota_units, grant_units, self.ttl_us)

    def _request(self, verb: str, key: str, holder: str, *args: int | str) -> RedisRequest:
        packed = protocol.command(
            "EVALSHA", self._script.sha, 1, keys.build_key(self._head, key), verb, keys.escape_key(holder), *args
        )
        return RedisRequest(packed, self._script, keys.escape_key(key))


class RedisLedger(_LedgerRequests):
    """The ledgers of one limit, on the server."""

    def grant(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> QuotaGrant | None:
        return self.parse_grant(key, self._execute(self.grant_request(key, holder, wanted, within_us)))

    def leave(self, key: str, holder: str) -> None:
        self._execute(self.leave_request(key, holder))


class AsyncRedisLedger(_LedgerRequests):
    """The ledgers of one limit, awaited."""

    async def grant(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> QuotaGrant | None:
        return self.parse_grant(key, await self._execute(self.grant_request(key, holder, wanted, within_us)))

    async def leave(self, key: str, holder: str) -> None:
        await self._execute(self.leave_request(key, holder))
