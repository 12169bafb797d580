"""A fast path for charges that are decided again and again: bound once, past layers that do nothing about them.

A layer looks at the charges of every call, and most have nothing to do: no rule has a fallback, no key is
prefetched. So what decides is looked up once. The in-memory engine needs no coroutine at all.

Gain: a tenth of the CPU time of a rate limit request of Envoy, with all of gRPC.

    go by the engine as ever    charges with a fallback, under a denial cache, of units that are prefetched

Law (tests/engines/test_bound_charges.py): outcomes are those of the engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from headgate.algorithms.decision import Outcome
from headgate.engines.memory.async_engine import AsyncMemoryEngine, AsyncMemoryMeter
from headgate.engines.port import AsyncEngine, AsyncMeter

AsyncCharge = tuple[AsyncMeter, str, int]


def bind(engine: AsyncEngine, charges: Sequence[AsyncCharge]) -> Callable[[], Awaitable[Any]]:
    """Returns a function that decides these charges together: the outcome of one charge, a list of others."""
    if not charges:
        return _no_outcomes
    if len(charges) > 1:
        return _bind_several(engine, charges)
    meter, key, cost = charges[0]
    if not isinstance(engine, AsyncMemoryEngine):
        from headgate.engines.layers.fallback.async_engine import AsyncFallbackEngine, AsyncFallbackMeter

        sends_heartbeats = isinstance(engine, AsyncFallbackEngine) and engine.is_member
        if isinstance(meter, AsyncFallbackMeter) and meter.fallback is None and not sends_heartbeats:
            meter = meter.meter
    return partial(meter.decide, key, cost)


def bind_now(engine: AsyncEngine, charges: Sequence[AsyncCharge]) -> Callable[[], Any] | None:
    """Returns a function that does so without waiting; None if the engine may have to wait."""
    if not isinstance(engine, AsyncMemoryEngine):
        return None
    if not charges:
        return list
    inner = [(meter.meter, key, cost) for meter, key, cost in charges if isinstance(meter, AsyncMemoryMeter)]
    if len(inner) != len(charges):
        return None
    if len(inner) != 1:
        return partial(engine.engine.decide_all, inner)
    meter, key, cost = inner[0]
    return partial(meter.decide, key, cost)


def _bind_several(engine: Any, charges: Sequence[AsyncCharge]) -> Callable[[], Awaitable[list[Outcome]]]:
    if isinstance(engine, AsyncMemoryEngine):
        return partial(engine.decide_all, charges)
    from headgate.engines.layers.fallback import AsyncFallbackEngine
    from headgate.engines.layers.fallback.routing import has_no_fallback
    from headgate.engines.layers.prefetch import AsyncPrefetchEngine
    from headgate.engines.redis.async_engine import AsyncRedisEngine

    if isinstance(engine, AsyncFallbackEngine):
        # A member makes sure, at each call, that heartbeats are sent on its event loop.
        if engine.is_member or not has_no_fallback(charges):
            return partial(engine.decide_all, charges)
        engine, charges = engine.inner, _inner(charges)
    if isinstance(engine, AsyncPrefetchEngine):
        engine, charges = engine.inner, _inner(charges)
    bound = engine.bind_takes(charges) if isinstance(engine, AsyncRedisEngine) else None
    return bound or partial(engine.decide_all, charges)


async def _no_outcomes() -> list[Outcome]:
    return []


def _inner(charges: Sequence[Any]) -> list[AsyncCharge]:
    return [(meter.meter, key, cost) for meter, key, cost in charges]
