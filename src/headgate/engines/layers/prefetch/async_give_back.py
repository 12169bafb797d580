"""Gives prefetched units back to the engine."""

from __future__ import annotations

from headgate.clock import Clock
from headgate.engines.layers.prefetch.prefetched_batches import HotKeys
from headgate.engines.layers.prefetch.prefetched_units import PrefetchedUnits
from headgate.errors import CorruptState, EngineUnavailable


async def give_back(hot_keys: HotKeys, batch: PrefetchedUnits) -> None:
    """Gives back what is left of a removed batch. No answer is no caller's error: the limit refills by itself."""
    try:
        await batch.meter.refund(batch.key, batch.unready, batch.receipt)
    except BaseException as error:
        with hot_keys.lock:
            hot_keys.lost_units += batch.unready
        if not isinstance(error, CorruptState | EngineUnavailable):
            raise
    finally:
        with hot_keys.lock:
            batch.demand.in_transit -= 1


async def give_back_expired(hot_keys: HotKeys, clock: Clock, *, closing: bool = False) -> int | None:
    """Gives back expired batches, or all; returns the microseconds until the next, None if nothing is held."""
    for batch in hot_keys.remove_expired(clock.now_us(), closing=closing):
        await give_back(hot_keys, batch)
    return hot_keys.due_us(clock.now_us())
