"""Engines by URL: memory://, redis://host:port/db, rediss://, valkey://, unix:///path/to.sock, redis+cluster://,
redis+sentinel://; with whatever is put around them, by the URL's options or by keywords (see options.py).

The order is fixed: fallback( memo( lease( the engine ) ) ). What is inside decides, what is around it spares a
round trip or stands in when there is no answer.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from headgate.clock import Clock, SystemClock
from headgate.engine import options
from headgate.engine.awaited import AwaitedEngine
from headgate.engine.local import LocalEngine
from headgate.engine.port import AsyncEngine, Engine
from headgate.errors import InvalidRule

_ONE = ("redis", "rediss", "valkey", "valkeys")
_REDIS = (
    *(*_ONE, "unix", "redis+unix", "valkey+unix"),
    *(f"{scheme}+{kind}" for scheme in _ONE for kind in ("cluster", "sentinel")),
)


def open_engine(url: str, *, prefix: str = "hg", clock: Clock | None = None, **given: Any) -> Engine:
    """The engine that a URL stands for, with what is put around it: deadline, fallback, memo, lease, lease_units,
    nodes."""
    scheme = _scheme(url)
    plain, chosen = options.split(url)
    chosen = chosen.with_given(given)
    clock = clock or SystemClock()
    if scheme == "memory":
        return LocalEngine(clock)
    _need_redis()
    from headgate.engine.redis.blocking import RedisEngine

    return RedisEngine(plain, prefix=prefix, clock=clock, deadline=chosen.patience)


def open_async_engine(url: str, *, prefix: str = "hg", clock: Clock | None = None, **given: Any) -> AsyncEngine:
    """The same, awaited."""
    scheme = _scheme(url)
    plain, chosen = options.split(url)
    chosen = chosen.with_given(given)
    clock = clock or SystemClock()
    if scheme == "memory":
        return AwaitedEngine(LocalEngine(clock))
    _need_redis()
    from headgate.engine.redis.awaiting import AsyncRedisEngine

    return AsyncRedisEngine(plain, prefix=prefix, clock=clock, deadline=chosen.patience)


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
