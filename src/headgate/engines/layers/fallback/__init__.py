"""The fallback: an answer for every call, also when the engine gives none.

engines   the two engines, sync and async: a straight way, and the long one, which is a flow
flows     what is done instead, step by step, and the laws
answers   what each charge is answered without the engine, by its own rule
breaker   when to stop asking, and when to ask again
share     a limit, divided among those who must do without each other
members   who they are
shard     one part of the engine: its breaker, what this process counts in its place, what it owes
shares    where a share starts, and how accounts are settled when the engine is back
slots     the same for slots
"""

from headgate.engines.layers.fallback.engines import AsyncFallbackEngine, FallbackEngine

__all__ = ["AsyncFallbackEngine", "FallbackEngine"]
