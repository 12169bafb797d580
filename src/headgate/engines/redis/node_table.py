"""The table of node reports on a server, `hg2:nodes`: one hash, a field for each worker of a service.

What a report holds is the business of service/node_reports.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.engines.redis import keys
from headgate.engines.redis.protocol import RedisRequest, command

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine


class NodeTable:
    """The table, read and written through an engine that the caller opens and closes."""

    def __init__(self, engine: AsyncRedisEngine) -> None:
        self._engine, self._key = engine, keys.nodes_key(engine.prefix)

    async def write(self, name: str, report: str) -> None:
        await self._execute("HSET", name.encode(), report.encode())

    async def delete(self, name: str) -> None:
        await self._execute("HDEL", name.encode())

    async def read(self) -> dict[str, str]:
        """Returns the reports by name."""
        reply = await self._execute("HGETALL")
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return {name.decode("utf-8", "replace"): report.decode() for name, report in pairs}

    async def _execute(self, verb: str, *args: bytes) -> Any:
        return await self._engine.execute(RedisRequest(command(verb, self._key, *args), None, self._key))
