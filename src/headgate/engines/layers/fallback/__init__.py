"""The fallback layer: answers every call, also when the engine does not.

engines             the layer, sync and async: a fast path, and flows for the rest
flows               what happens instead, step by step, and the laws
degraded_answers    the answer to each charge without the engine, by the fallback of its rule
slots_in_outage     the same for slots
breaker             when to stop calling the engine, and when to try again
limit_share         a limit, divided among processes that cannot reach each other
description         states in words how processes share a limit
membership          how many processes share the limits
shard               one part of the engine: its breaker, the local counts, what is unsettled
settlement          where a share starts, and how accounts are settled when the engine is back
"""

from headgate.engines.layers.fallback.engines import AsyncFallbackEngine, FallbackEngine

__all__ = ["AsyncFallbackEngine", "FallbackEngine"]
