"""The engines that operators ask: those of the service, with nothing around them.

An operator wants to know what the engine says, and that it said nothing. So there is a line of its own to a
server, which waits longer than a call could; it is opened when it is first needed. The embedded engine is the one
that decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.engines import url_options
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.service.settings import Settings

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine

DEADLINE_S = 5.0  # seconds that a server may take


class EngineClients:
    def __init__(self, limiter: AsyncRuleLimiter, settings: Settings) -> None:
        self._engine: Any = limiter.engine
        self._url, self._prefix = settings.engine, settings.prefix
        self._opened: dict[str, AsyncRedisEngine] = {}
        self.remote: bool = not isinstance(limiter.engine, AsyncMemoryEngine)  # whether a server counts

    @property
    def engine(self) -> Any:
        """Where the service counts."""
        return self.to(self._url) if self.remote else self._engine

    def to(self, url: str) -> AsyncRedisEngine:
        """The server at a URL."""
        from headgate.engines.redis.async_engine import AsyncRedisEngine

        known = self._opened.get(url)
        if known is None:
            plain, chosen = url_options.split(url)
            known = AsyncRedisEngine(plain, prefix=self._prefix, deadline=chosen.deadline or DEADLINE_S)
            self._opened[url] = known
        return known

    @contextmanager
    def blocking(self) -> Iterator[Any]:
        """Where the service counts, for a thread."""
        if not self.remote:
            yield self._engine.engine
            return
        from headgate.engines.redis.sync_engine import RedisEngine

        plain, chosen = url_options.split(self._url)
        engine = RedisEngine(plain, prefix=self._prefix, deadline=chosen.deadline or DEADLINE_S)
        try:
            yield engine
        finally:
            engine.close()

    async def close(self) -> None:
        for engine in self._opened.values():
            await engine.close()
        self._opened.clear()
