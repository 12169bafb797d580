"""Engines by URL: memory://, redis://host:port/db, rediss://, valkey://, unix:///path/to.sock."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.util import find_spec

from headgate.clock import Clock
from headgate.engine.awaited import AwaitedEngine
from headgate.engine.local import LocalEngine
from headgate.engine.port import AsyncEngine, Engine
from headgate.errors import InvalidRule

_REDIS = ("redis", "rediss", "valkey", "valkeys", "unix", "redis+unix", "valkey+unix")


def open_engine(url: str, *, prefix: str, clock: Clock) -> Engine:
    if _scheme(url) == "memory":
        return LocalEngine(clock)
    _need_redis()
    from headgate.engine.redis.blocking import RedisEngine

    return RedisEngine(url, prefix=prefix, clock=clock)


def open_async_engine(url: str, *, prefix: str, clock: Clock) -> AsyncEngine:
    if _scheme(url) == "memory":
        return AwaitedEngine(LocalEngine(clock))
    _need_redis()
    from headgate.engine.redis.awaiting import AsyncRedisEngine

    return AsyncRedisEngine(url, prefix=prefix, clock=clock)


def _scheme(url: str) -> str:
    scheme, colon, _ = url.partition("://")
    if not colon:
        raise InvalidRule("What was given is not an engine. Write memory:// or redis://host:6379/0.")
    if scheme not in ("memory", *_REDIS):
        near = get_close_matches(scheme, ("memory", *_REDIS), 1)
        hint = f"Did you mean {near[0]}://?" if near else f"Known: memory, {', '.join(_REDIS)}."
        raise InvalidRule(f"{scheme}://… is not an engine. Write memory:// or redis://host:6379/0. {hint}")
    return scheme


def _need_redis() -> None:
    if find_spec("redis") is None or find_spec("hiredis") is None:
        raise InvalidRule("The Redis engine needs redis and hiredis: pip install 'headgate[redis]'.")
