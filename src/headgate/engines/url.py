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

from headgate.clock import Clock, SystemClock, check_clock
from headgate.engines import sync_stack, url_options
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import AsyncEngine, Engine
from headgate.engines.url_options import EngineUrl, FallbackMode
from headgate.engines.url_schemes import MEMORY, scheme_of
from headgate.errors import InvalidRule
from headgate.extras import require

if TYPE_CHECKING:
    from headgate.engines.redis.adaptive_limits_store import RedisAdaptiveLimitsStore
    from headgate.engines.redis.counts_store import RedisCountsStore
    from headgate.engines.redis.recent_records_store import RedisRecentRecordsStore
    from headgate.engines.redis.rulebook_versions import RedisVersionStore

_MIN_VERSION_DEADLINE_S = 1.0  # a version is larger than a decision
_MIN_COUNTS_DEADLINE_S = 1.0  # so are the counts of a second, and no call waits for them


class KeywordOptions(NamedTuple):
    """The options that a caller gave as keywords."""

    deadline: float | str | None = None
    fallback: FallbackMode | None = None
    denial_cache: bool | None = None
    prefetch: float | str | None = None
    prefetch_units: int | None = None
    nodes: int | None = None


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
    clock = _checked_clock(clock, url)
    engine: Engine = MemoryEngine(clock)
    if url.server is not None:
        from headgate.engines.redis.sync_engine import RedisEngine

        engine = RedisEngine(url.server, prefix=prefix, clock=clock, deadline=url.options.effective_deadline)
    return sync_stack.add_layers(engine, url, prefix, clock, ruled and url.server is not None)


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
    from headgate.engines import async_stack

    clock = _checked_clock(clock, url)
    engine: AsyncEngine
    if url.server is None:
        from headgate.engines.memory.async_engine import AsyncMemoryEngine

        engine = AsyncMemoryEngine(MemoryEngine(clock))
    else:
        from headgate.engines.redis.async_engine import AsyncRedisEngine

        engine = AsyncRedisEngine(url.server, prefix=prefix, clock=clock, deadline=url.options.effective_deadline)
    return async_stack.add_layers(engine, url, prefix, clock, ruled and url.server is not None)


def open_version_store(url: EngineUrl, prefix: str = "hg") -> tuple[RedisVersionStore, Callable[[], None]]:
    """Opens the store of published rulebook versions on a server; returns it and a function that closes it."""
    _, server_url, options = url
    if server_url is None:
        raise InvalidRule("memory:// is this process alone: nothing can be published there.")
    from headgate.engines.redis.rulebook_versions import RedisVersionStore
    from headgate.engines.redis.sync_engine import RedisEngine

    engine = RedisEngine(server_url, prefix=prefix, deadline=max(options.deadline or 0, _MIN_VERSION_DEADLINE_S))
    return RedisVersionStore(engine), engine.close


def open_counts_store(url: str, prefix: str = "hg") -> RedisCountsStore:
    """Opens the store of shared counts on a server."""
    server_url, deadline = parse_server_url(url, _MIN_COUNTS_DEADLINE_S)
    from headgate.engines.redis.counts_store import RedisCountsStore
    from headgate.engines.redis.sync_engine import RedisEngine

    return RedisCountsStore(RedisEngine(server_url, prefix=prefix, deadline=max(deadline, _MIN_COUNTS_DEADLINE_S)))


def open_recent_records_store(url: str, prefix: str = "hg") -> RedisRecentRecordsStore:
    """Opens the store of recent records of decisions on a server."""
    server_url, deadline = parse_server_url(url, _MIN_VERSION_DEADLINE_S)
    from headgate.engines.redis.recent_records_store import RedisRecentRecordsStore
    from headgate.engines.redis.sync_engine import RedisEngine

    return RedisRecentRecordsStore(RedisEngine(server_url, prefix=prefix, deadline=deadline))


def open_adaptive_limits_store(url: str, prefix: str = "hg") -> RedisAdaptiveLimitsStore:
    """Opens the store of the adaptive limits that processes agree on."""
    server_url, deadline = parse_server_url(url, _MIN_VERSION_DEADLINE_S)
    from headgate.engines.redis.adaptive_limits_store import RedisAdaptiveLimitsStore
    from headgate.engines.redis.sync_engine import RedisEngine

    return RedisAdaptiveLimitsStore(RedisEngine(server_url, prefix=prefix, deadline=deadline))


def parse_server_url(url: str, default_deadline: float) -> tuple[str, float]:
    """Returns the URL of a server without our options, and the deadline of an operator's requests."""
    _, server_url, options = parse_engine_url(url)
    if server_url is None:
        raise InvalidRule("memory:// is this process alone: it has no server.")
    return server_url, options.deadline or default_deadline


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
