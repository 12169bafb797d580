"""Engines by URL: memory://, redis://host:port/db, rediss://, valkey://, unix:///path/to.sock, redis+cluster://,
redis+sentinel://; with whatever is put around them, by the URL's options or by keywords (see options.py).

The order is fixed: fallback( denial cache( prefetch( the engine ) ) ). What is inside decides, what is around it
spares a round trip or stands in when there is no answer.

`ruled`: whoever asks has a rulebook, and its rules may choose fallback and prefetch each for itself. So both stand
around a server in any case, and do nothing for a rule that does not want them, unless the URL chooses a fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from headgate.clock import Clock, SystemClock, check_clock
from headgate.engines import url_options
from headgate.engines.layers.denial_cache.engines import AsyncDenialCacheEngine, DenialCacheEngine
from headgate.engines.layers.fallback import AsyncFallbackEngine, FallbackEngine
from headgate.engines.layers.fallback.membership import AsyncMembership, Membership
from headgate.engines.layers.prefetch.engines import AsyncPrefetchEngine, PrefetchEngine
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import AsyncEngine, Engine
from headgate.engines.url_options import Instead, Options
from headgate.engines.url_schemes import MEMORY, scheme_of
from headgate.errors import InvalidRule
from headgate.extras import require

if TYPE_CHECKING:
    from headgate.engines.redis.rulebook_versions import RedisVersionStore

_LARGE = 1.0  # seconds that a paper may take at least: it is larger than an answer

# A process is one member of those who share a server's limits, however many engines it opens.
_members: WeakValueDictionary[tuple[str, str], Membership] = WeakValueDictionary()
_async_members: WeakValueDictionary[tuple[str, str], AsyncMembership] = WeakValueDictionary()


class Given(NamedTuple):
    """The options that a caller gave as keywords."""

    deadline: float | str | None
    fallback: Instead | None
    denial_cache: bool | None
    prefetch: float | str | None
    prefetch_units: int | None
    nodes: int | None


def open_engine(
    url: str,
    *,
    prefix: str = "hg",
    clock: Clock | None = None,
    ruled: bool = False,
    deadline: float | str | None = None,
    fallback: Instead | None = None,
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
    fallback         "allow", "deny" or "local": what is done when no answer comes by then
    denial_cache     answer a refusal again here for at most min(retry_after, 1 s)
    prefetch         how long units of hot keys may be held ahead: seconds, or a text such as "100ms"
    prefetch_units   how many of them at most
    nodes            how many processes share the limits while the server is gone, if that is known

    The last six may stand in the URL instead (?deadline=50ms&fallback=local); a keyword goes first. With memory://
    all six are accepted, so that one program runs with either URL; deadline, fallback and nodes change nothing.
    """
    plain, chosen = _read(url, ruled, Given(deadline, fallback, denial_cache, prefetch, prefetch_units, nodes))
    clock = _clock(clock, url)
    ruled = ruled and plain is not None
    engine: Engine = MemoryEngine(clock)
    members = Membership(count=chosen.nodes)
    if plain is not None:
        from headgate.engines.redis.sync_engine import RedisEngine

        engine = RedisEngine(plain, prefix=prefix, clock=clock, deadline=chosen.patience)
        if (ruled or chosen.fallback == "local") and chosen.nodes is None:
            joined = _members.get((plain, prefix))
            if joined is None:
                voice = RedisEngine(plain, prefix=prefix)
                joined = _members[plain, prefix] = Membership(voice.beat, voice.leave, done=voice.close)
            members = joined
    if ruled or chosen.prefetch is not None:
        engine = PrefetchEngine(engine, hold_us=chosen.hold_us, units=chosen.prefetch_units, clock=clock)
    if chosen.denial_cache:
        engine = DenialCacheEngine(engine, clock=clock)
    if ruled or chosen.fallback is not None:
        engine = FallbackEngine(
            engine, fallback=chosen.fallback, members=members, clock=clock, deadline=chosen.patience
        )
    return engine


def open_async_engine(
    url: str,
    *,
    prefix: str = "hg",
    clock: Clock | None = None,
    ruled: bool = False,
    deadline: float | str | None = None,
    fallback: Instead | None = None,
    denial_cache: bool | None = None,
    prefetch: float | str | None = None,
    prefetch_units: int | None = None,
    nodes: int | None = None,
) -> AsyncEngine:
    """Opens the engine that a URL names, awaited: for AsyncLimiter. See open_engine.

    >>> limiter = AsyncLimiter("3/s", open_async_engine("memory://"))
    """
    plain, chosen = _read(url, ruled, Given(deadline, fallback, denial_cache, prefetch, prefetch_units, nodes))
    clock = _clock(clock, url)
    ruled = ruled and plain is not None
    engine: AsyncEngine = AsyncMemoryEngine(MemoryEngine(clock))
    members = AsyncMembership(count=chosen.nodes)
    if plain is not None:
        from headgate.engines.redis.async_engine import AsyncRedisEngine

        engine = AsyncRedisEngine(plain, prefix=prefix, clock=clock, deadline=chosen.patience)
        if (ruled or chosen.fallback == "local") and chosen.nodes is None:
            joined = _async_members.get((plain, prefix))
            if joined is None:
                voice = AsyncRedisEngine(plain, prefix=prefix)
                joined = _async_members[plain, prefix] = AsyncMembership(voice.beat, voice.leave, done=voice.close)
            members = joined
    if ruled or chosen.prefetch is not None:
        engine = AsyncPrefetchEngine(engine, hold_us=chosen.hold_us, units=chosen.prefetch_units, clock=clock)
    if chosen.denial_cache:
        engine = AsyncDenialCacheEngine(engine, clock=clock)
    if ruled or chosen.fallback is not None:
        engine = AsyncFallbackEngine(
            engine, fallback=chosen.fallback, members=members, clock=clock, deadline=chosen.patience
        )
    return engine


def open_archive(url: str, prefix: str = "hg") -> tuple[RedisVersionStore, Callable[[], None]]:
    """Where papers lie that all who share a server read, such as published rulebooks; and what closes it."""
    plain, chosen = _read(url)
    if plain is None:
        raise InvalidRule("memory:// is this process alone: nothing can be published there.")
    from headgate.engines.redis.rulebook_versions import RedisVersionStore
    from headgate.engines.redis.sync_engine import RedisEngine

    engine = RedisEngine(plain, prefix=prefix, deadline=max(chosen.deadline or 0, _LARGE))
    return RedisVersionStore(engine), engine.close


def _clock(clock: Clock | None, url: str) -> Clock:
    """The clock to sleep by, and for memory:// to count by. A server has its own."""
    checked = check_clock(clock)
    scheme = scheme_of(url)
    if scheme != MEMORY and not isinstance(checked, SystemClock):
        raise InvalidRule(
            f"{scheme}://… counts by the server's clock, and {type(checked).__name__} would not move it. "
            "Leave clock out, or use memory://, which counts by any clock."
        )
    return checked


def _read(url: str, ruled: bool = False, given: Given | None = None) -> tuple[str | None, Options]:
    """Return the URL of a server, or None for this process; and what is put around it."""
    plain, chosen = url_options.split_for_rulebook(url) if ruled else url_options.split(url)
    if given is not None:
        chosen = chosen.with_given(given._asdict())
    if chosen.prefetch_units is not None and chosen.prefetch is None:
        raise InvalidRule(
            "prefetch_units has no effect without prefetch. Write prefetch=100ms&prefetch_units=500."
        )
    if scheme_of(url) == MEMORY:
        return None, chosen
    if given is not None and not ruled and chosen.nodes is not None and chosen.fallback != "local":
        raise InvalidRule(
            f"nodes has no effect without fallback=local. Write fallback=local&nodes={chosen.nodes}."
        )
    require("The Redis engine", "redis", "redis", "hiredis")
    return plain, chosen
