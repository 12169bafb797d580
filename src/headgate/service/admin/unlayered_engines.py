"""The engines that the admin API talks to: those of the service, without layers around them.

An operator wants the engine's own answer, and an error if there is none. So there is a separate connection to a
server, which waits longer than a call could; it is opened when it is first needed. An in-memory engine is the
service's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.url import parse_server_url
from headgate.service.settings import Settings

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine

DEADLINE_S = 5.0  # for one request to a server


class UnlayeredEngines:
    """The service's engines without layers, opened on first use."""

    def __init__(self, limiter: AsyncRuleLimiter, settings: Settings) -> None:
        self._engine: Any = limiter.engine
        self._url, self._prefix = settings.engine, settings.prefix
        self._clients: dict[str, AsyncRedisEngine] = {}
        self.is_remote: bool = not isinstance(limiter.engine, AsyncMemoryEngine)  # counts on a server

    @property
    def engine(self) -> Any:
        """The engine in which the service counts."""
        return self.client(self._url) if self.is_remote else self._engine

    def client(self, url: str) -> AsyncRedisEngine:
        """Returns the engine at a URL."""
        from headgate.engines.redis.async_engine import AsyncRedisEngine

        client = self._clients.get(url)
        if client is None:
            server_url, deadline = parse_server_url(url, DEADLINE_S)
            client = AsyncRedisEngine(server_url, prefix=self._prefix, deadline=deadline)
            self._clients[url] = client
        return client

    async def override_expires_in(self, rule: str, key: str) -> float | None:
        """Returns the seconds until the override of a key ends by itself; None: it lasts, or there is none."""
        if self.is_remote:
            remaining_s: float | None = await self.engine.overrides(rule).expires_in(key)
        else:
            remaining_s = self._engine.engine.overrides(rule).expires_in(key)
        return None if remaining_s is None else round(remaining_s, 3)

    @contextmanager
    def sync_engine(self) -> Iterator[Any]:
        """Opens the engine in which the service counts, for a thread."""
        if not self.is_remote:
            yield self._engine.engine
            return
        from headgate.engines.redis.sync_engine import RedisEngine

        server_url, deadline = parse_server_url(self._url, DEADLINE_S)
        engine = RedisEngine(server_url, prefix=self._prefix, deadline=deadline)
        try:
            yield engine
        finally:
            engine.close()

    async def close(self) -> None:
        for engine in self._clients.values():
            await engine.close()
        self._clients.clear()
