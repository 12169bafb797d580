"""Engines by URL: memory://, redis://host:port/db, rediss://, valkey://, unix:///path/to.sock, redis+cluster://,
redis+sentinel://; with whatever is put around them, by the URL's options or by keywords (see options.py).

The order is fixed: fallback( memo( lease( the engine ) ) ). What is inside decides, what is around it spares a
round trip or stands in when there is no answer.

`ruled`: whoever asks has a rulebook, and its rules may choose fallback and lease each for itself. So both stand
around a server in any case, and do nothing for a rule that does not want them, unless the URL says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from headgate.clock import Clock, SystemClock
from headgate.engine import options
from headgate.engine.awaited import AwaitedEngine
from headgate.engine.fallback import AsyncFallbackEngine, FallbackEngine
from headgate.engine.fallback.members import AsyncMembers, Members
from headgate.engine.lease import AsyncLeaseEngine, LeaseEngine
from headgate.engine.local import LocalEngine
from headgate.engine.memo import AsyncMemoEngine, MemoEngine
from headgate.engine.options import Options
from headgate.engine.port import AsyncEngine, Engine
from headgate.errors import InvalidRule

if TYPE_CHECKING:
    from headgate.engine.redis.editions import Archive

_ONE = ("redis", "rediss", "valkey", "valkeys")
_REDIS = (
    *(*_ONE, "unix", "redis+unix", "valkey+unix"),
    *(f"{scheme}+{kind}" for scheme in _ONE for kind in ("cluster", "sentinel")),
)

_LARGE = 1.0  # seconds that a paper may take at least: it is larger than an answer

# A process is one member of those who share a server's limits, however many engines it opens.
_members: WeakValueDictionary[tuple[str, str], Members] = WeakValueDictionary()
_async_members: WeakValueDictionary[tuple[str, str], AsyncMembers] = WeakValueDictionary()


def open_engine(
    url: str, *, prefix: str = "hg", clock: Clock | None = None, ruled: bool = False, **given: Any
) -> Engine:
    """The engine that a URL stands for, with what is put around it: deadline, fallback, memo, lease, lease_units,
    nodes."""
    plain, chosen = _read(url, given)
    clock = clock or SystemClock()
    ruled = ruled and plain is not None
    engine: Engine = LocalEngine(clock)
    members = Members(count=chosen.nodes)
    if plain is not None:
        from headgate.engine.redis.blocking import RedisEngine

        engine = RedisEngine(plain, prefix=prefix, clock=clock, deadline=chosen.patience)
        if (ruled or chosen.fallback == "local") and chosen.nodes is None:
            joined = _members.get((plain, prefix))
            if joined is None:
                voice = RedisEngine(plain, prefix=prefix)
                joined = _members[plain, prefix] = Members(voice.beat, voice.leave, done=voice.close)
            members = joined
    if ruled or chosen.lease is not None:
        engine = LeaseEngine(engine, hold_us=chosen.hold_us, units=chosen.lease_units, clock=clock)
    if chosen.memo:
        engine = MemoEngine(engine, clock=clock)
    if ruled or chosen.fallback is not None:
        engine = FallbackEngine(
            engine, fallback=chosen.fallback, members=members, clock=clock, deadline=chosen.patience
        )
    return engine


def open_async_engine(
    url: str, *, prefix: str = "hg", clock: Clock | None = None, ruled: bool = False, **given: Any
) -> AsyncEngine:
    """The same, awaited."""
    plain, chosen = _read(url, given)
    clock = clock or SystemClock()
    ruled = ruled and plain is not None
    engine: AsyncEngine = AwaitedEngine(LocalEngine(clock))
    members = AsyncMembers(count=chosen.nodes)
    if plain is not None:
        from headgate.engine.redis.awaiting import AsyncRedisEngine

        engine = AsyncRedisEngine(plain, prefix=prefix, clock=clock, deadline=chosen.patience)
        if (ruled or chosen.fallback == "local") and chosen.nodes is None:
            joined = _async_members.get((plain, prefix))
            if joined is None:
                voice = AsyncRedisEngine(plain, prefix=prefix)
                joined = _async_members[plain, prefix] = AsyncMembers(voice.beat, voice.leave, done=voice.close)
            members = joined
    if ruled or chosen.lease is not None:
        engine = AsyncLeaseEngine(engine, hold_us=chosen.hold_us, units=chosen.lease_units, clock=clock)
    if chosen.memo:
        engine = AsyncMemoEngine(engine, clock=clock)
    if ruled or chosen.fallback is not None:
        engine = AsyncFallbackEngine(
            engine, fallback=chosen.fallback, members=members, clock=clock, deadline=chosen.patience
        )
    return engine


def open_archive(url: str, prefix: str = "hg") -> tuple[Archive, Callable[[], None]]:
    """Where papers lie that all who share a server read, such as published rulebooks; and what closes it."""
    plain, chosen = _read(url, {})
    if plain is None:
        raise InvalidRule("memory:// is this process alone: nothing can be published there.")
    from headgate.engine.redis.blocking import RedisEngine
    from headgate.engine.redis.editions import Archive

    engine = RedisEngine(plain, prefix=prefix, deadline=max(chosen.deadline or 0, _LARGE))
    return Archive(engine), engine.close


def _read(url: str, given: dict[str, Any]) -> tuple[str | None, Options]:
    """The URL of a server, or None for this process; and what is put around it."""
    scheme = _scheme(url)
    plain, chosen = options.split(url)
    chosen = chosen.with_given(given)
    if scheme == "memory":
        return None, chosen
    if find_spec("redis") is None or find_spec("hiredis") is None:
        raise InvalidRule("The Redis engine needs redis and hiredis: pip install 'headgate[redis]'.")
    return plain, chosen


def _scheme(url: str) -> str:
    scheme, colon, _ = url.partition("://")
    if not colon:
        raise InvalidRule("What was given is not an engine. Write memory:// or redis://host:6379/0.")
    if scheme not in ("memory", *_REDIS):
        near = get_close_matches(scheme, ("memory", *_REDIS), 1)
        hint = f"Did you mean {near[0]}://?" if near else f"Known: memory, {', '.join(_REDIS)}."
        raise InvalidRule(f"{scheme}://… is not an engine. Write memory:// or redis://host:6379/0. {hint}")
    return scheme
