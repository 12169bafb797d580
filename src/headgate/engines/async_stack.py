"""Puts the layers around an engine: fallback( denial cache( prefetch( the engine ))).

A layer is imported when it is first used: most programs use none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from headgate.clock import Clock
from headgate.engines.port import AsyncEngine
from headgate.engines.url_options import EngineUrl

if TYPE_CHECKING:
    from headgate.engines.layers.fallback.membership import AsyncMembership

# A process is one member among those that share a server's limits, however many engines it opens.
_memberships: WeakValueDictionary[tuple[str, str], AsyncMembership] = WeakValueDictionary()


def add_layers(engine: AsyncEngine, url: EngineUrl, prefix: str, clock: Clock, ruled: bool) -> AsyncEngine:
    """Returns the engine with the layers that its URL chooses; `ruled`: with those that rules may choose."""
    options = url.options
    if ruled or options.prefetch is not None:
        from headgate.engines.layers.prefetch import AsyncPrefetchEngine

        engine = AsyncPrefetchEngine(engine, hold_us=options.hold_us, units=options.prefetch_units, clock=clock)
    if options.denial_cache:
        from headgate.engines.layers.denial_cache import AsyncDenialCacheEngine

        engine = AsyncDenialCacheEngine(engine, clock=clock)
    if ruled or options.fallback is not None:
        from headgate.engines.layers.fallback import AsyncFallbackEngine

        engine = AsyncFallbackEngine(
            engine,
            fallback=options.fallback,
            members=_membership(url, prefix, ruled),
            clock=clock,
            deadline=options.effective_deadline,
        )
    return engine


def _membership(url: EngineUrl, prefix: str, ruled: bool) -> AsyncMembership:
    """Returns the processes that share the limits: counted by their heartbeats, or as many as was stated."""
    from headgate.engines.layers.fallback.membership import AsyncMembership

    _, server_url, options = url
    if server_url is None or options.nodes is not None or not (ruled or options.fallback == "local"):
        return AsyncMembership(count=options.nodes)
    shared = _memberships.get((server_url, prefix))
    if shared is None:
        from headgate.engines.redis.async_engine import AsyncRedisEngine

        engine = AsyncRedisEngine(server_url, prefix=prefix)
        shared = AsyncMembership(engine.heartbeat, engine.leave, on_close=engine.close)
        _memberships[server_url, prefix] = shared
    return shared
