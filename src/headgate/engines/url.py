"""Opens engines by URL: memory://, redis://host:port/db, rediss://, valkey://, unix:///path/to.sock,
redis+cluster://, redis+sentinel://; with layers around them, by options of the URL or by keywords (see
url_options.py).

The order is fixed: fallback( denial cache( prefetch( the engine ) ) ). The innermost engine decides; a layer
spares a round trip or answers when the engine does not.

`ruled`: the caller has a rulebook, whose rules may choose fallback and prefetch each for itself. So both layers
are around a server in any case, and do nothing for a rule that does not want them, unless the URL chooses a
fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from headgate.clock import Clock, SystemClock, check_clock
from headgate.engines import url_options
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import AsyncEngine, Engine
from headgate.engines.url_options import EngineOptions, FallbackMode
from headgate.engines.url_schemes import MEMORY, scheme_of
from headgate.errors import InvalidRule
from headgate.extras import require

if TYPE_CHECKING:
    from headgate.engines.layers.fallback.membership import AsyncMembership, Membership
    from headgate.engines.redis.rulebook_versions import RedisVersionStore

_MIN_VERSION_DEADLINE_S = 1.0  # a version is larger than a decision

# A process is one member among those that share a server's limits, however many engines it opens.
_memberships: WeakValueDictionary[tuple[str, str], Membership] = WeakValueDictionary()
_async_memberships: WeakValueDictionary[tuple[str, str], AsyncMembership] = WeakValueDictionary()


class KeywordOptions(NamedTuple):
    """The options that a caller gave as keywords."""

    deadline: float | str | None = None
    fallback: FallbackMode | None = None
    denial_cache: bool | None = None
    prefetch: float | str | None = None
    prefetch_units: int | None = None
    nodes: int | None = None


class EngineUrl(NamedTuple):
    """An engine's URL, parsed."""

    text: str  # as it was written
    server: str | None  # the URL of the server, without our options; None: memory://
    options: EngineOptions


def open_engine(
    url: str,
    *,
    prefix: str = "hg",
    clock: Clock | None = None,
    ruled: bool = False,
    deadline: float | str | None = None,
    fallback: FallbackMode | None = None,
    denial_cache: bool | None = None,
    prefetch: float | str | None = None,
    prefetch_units: int | None = None,
    nodes: int | None = None,
) -> Engine:
    """Opens the engine that a URL names.

    >>> engine = open_engine("memory://")
    >>> Limiter("3/s", engine).take("ann").allowed
    True

    A server's may have options: open_engine("redis://localhost:6379/0", deadline="50ms", fallback="local").

    prefix           what keys on the server begin with
    clock            whose time memory:// counts by; a server has its own, and another one is refused
    ruled            for a limiter that follows a rulebook: rules choose fallback and prefetch
    deadline         how long a decision may take: seconds, or a text such as "50ms"
    fallback         "allow", "deny" or "local": what happens when no answer comes by then
    denial_cache     answer a refusal again here for at most min(retry_after, 1 s)
    prefetch         how long units of hot keys may be held ahead: seconds, or a text such as "100ms"
    prefetch_units   how many of them at most
    nodes            how many processes share the limits while the server is gone, if that is known

    The last six may be in the URL instead (?deadline=50ms&fallback=local); a keyword wins. With memory://
    all six are accepted, so that one program runs with either URL; deadline, fallback and nodes change nothing.
    """
    keywords = KeywordOptions(deadline, fallback, denial_cache, prefetch, prefetch_units, nodes)
    return build_engine(parse_engine_url(url, ruled=ruled, keywords=keywords), prefix, clock, ruled)


def build_engine(url: EngineUrl, prefix: str = "hg", clock: Clock | None = None, ruled: bool = False) -> Engine:
    """Builds the engine of a parsed URL, with its layers."""
    _, server_url, options = url
    clock = _checked_clock(clock, url)
    ruled = ruled and server_url is not None
    engine: Engine = MemoryEngine(clock)
    if server_url is not None:
        from headgate.engines.redis.sync_engine import RedisEngine

        engine = RedisEngine(server_url, prefix=prefix, clock=clock, deadline=options.effective_deadline)
    if ruled or options.prefetch is not None:
        from headgate.engines.layers.prefetch import PrefetchEngine

        engine = PrefetchEngine(engine, hold_us=options.hold_us, units=options.prefetch_units, clock=clock)
    if options.denial_cache:
        from headgate.engines.layers.denial_cache import DenialCacheEngine

        engine = DenialCacheEngine(engine, clock=clock)
    if ruled or options.fallback is not None:
        from headgate.engines.layers.fallback import FallbackEngine

        engine = FallbackEngine(
            engine,
            fallback=options.fallback,
            members=_membership(server_url, prefix, options, ruled),
            clock=clock,
            deadline=options.effective_deadline,
        )
    return engine


def _membership(server_url: str | None, prefix: str, options: EngineOptions, ruled: bool) -> Membership:
    """Returns the processes that share the limits: counted by their heartbeats, or as many as was stated."""
    from headgate.engines.layers.fallback.membership import Membership

    if server_url is None or options.nodes is not None or not (ruled or options.fallback == "local"):
        return Membership(count=options.nodes)
    shared = _memberships.get((server_url, prefix))
    if shared is None:
        from headgate.engines.redis.sync_engine import RedisEngine

        engine = RedisEngine(server_url, prefix=prefix)
        shared = _memberships[server_url, prefix] = Membership(
            engine.heartbeat, engine.leave, on_close=engine.close
        )
    return shared


def open_async_engine(
    url: str,
    *,
    prefix: str = "hg",
    clock: Clock | None = None,
    ruled: bool = False,
    deadline: float | str | None = None,
    fallback: FallbackMode | None = None,
    denial_cache: bool | None = None,
    prefetch: float | str | None = None,
    prefetch_units: int | None = None,
    nodes: int | None = None,
) -> AsyncEngine:
    """Opens the engine that a URL names, awaited: for AsyncLimiter. See open_engine.

    >>> limiter = AsyncLimiter("3/s", open_async_engine("memory://"))
    """
    keywords = KeywordOptions(deadline, fallback, denial_cache, prefetch, prefetch_units, nodes)
    return build_async_engine(parse_engine_url(url, ruled=ruled, keywords=keywords), prefix, clock, ruled)


def build_async_engine(
    url: EngineUrl, prefix: str = "hg", clock: Clock | None = None, ruled: bool = False
) -> AsyncEngine:
    """Builds the awaited engine of a parsed URL, with its layers."""
    _, server_url, options = url
    clock = _checked_clock(clock, url)
    ruled = ruled and server_url is not None
    engine: AsyncEngine
    if server_url is None:
        from headgate.engines.memory.async_engine import AsyncMemoryEngine

        engine = AsyncMemoryEngine(MemoryEngine(clock))
    else:
        from headgate.engines.redis.async_engine import AsyncRedisEngine

        engine = AsyncRedisEngine(server_url, prefix=prefix, clock=clock, deadline=options.effective_deadline)
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
            members=_async_membership(server_url, prefix, options, ruled),
            clock=clock,
            deadline=options.effective_deadline,
        )
    return engine


def _async_membership(server_url: str | None, prefix: str, options: EngineOptions, ruled: bool) -> AsyncMembership:
    """Returns the same for an event loop."""
    from headgate.engines.layers.fallback.membership import AsyncMembership

    if server_url is None or options.nodes is not None or not (ruled or options.fallback == "local"):
        return AsyncMembership(count=options.nodes)
    shared = _async_memberships.get((server_url, prefix))
    if shared is None:
        from headgate.engines.redis.async_engine import AsyncRedisEngine

        engine = AsyncRedisEngine(server_url, prefix=prefix)
        shared = AsyncMembership(engine.heartbeat, engine.leave, on_close=engine.close)
        _async_memberships[server_url, prefix] = shared
    return shared


def open_version_store(url: EngineUrl, prefix: str = "hg") -> tuple[RedisVersionStore, Callable[[], None]]:
    """Opens the store of published rulebook versions on a server; returns it and a function that closes it."""
    _, server_url, options = url
    if server_url is None:
        raise InvalidRule("memory:// is this process alone: nothing can be published there.")
    from headgate.engines.redis.rulebook_versions import RedisVersionStore
    from headgate.engines.redis.sync_engine import RedisEngine

    engine = RedisEngine(server_url, prefix=prefix, deadline=max(options.deadline or 0, _MIN_VERSION_DEADLINE_S))
    return RedisVersionStore(engine), engine.close


def _checked_clock(clock: Clock | None, url: EngineUrl) -> Clock:
    """Validates the clock: to sleep by, and for memory:// to count by. A server has its own."""
    valid, scheme = check_clock(clock), scheme_of(url.text)
    if scheme != MEMORY and not isinstance(valid, SystemClock):
        raise InvalidRule(
            f"{scheme}://… counts by the server's clock, and {type(valid).__name__} would not move it. "
            "Leave clock out, or use memory://, which counts by any clock."
        )
    return valid


def parse_engine_url(url: str, *, ruled: bool = False, keywords: KeywordOptions | None = None) -> EngineUrl:
    """Parses an engine's URL, with options that a caller gave as keywords."""
    server_url, options = url_options.split_rulebook_url(url) if ruled else url_options.split_url_options(url)
    if keywords is not None:
        options = options.with_keywords(keywords._asdict())
    if options.prefetch_units is not None and options.prefetch is None:
        raise InvalidRule(
            "prefetch_units has no effect without prefetch. Write prefetch=100ms&prefetch_units=500."
        )
    if scheme_of(url) == MEMORY:
        return EngineUrl(url, None, options)
    if keywords is not None and not ruled and options.nodes is not None and options.fallback != "local":
        raise InvalidRule(
            f"nodes has no effect without fallback=local. Write fallback=local&nodes={options.nodes}."
        )
    require("The Redis engine", "redis", "redis", "hiredis")
    return EngineUrl(url, server_url, options)
