"""A take that comes alone is decided as it is in a batch: the same outcomes for the same walk.

The server's clock stands still meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.algorithms.decision import Outcome
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.protocol import RedisRequest, command
from headgate.limit_syntax import parse
from tests.servers import RedisServer

LIMITS = ("3/s", "7/minute", "4/day fixed", "4/s sliding", "4/s log", "2/s queue 3 nodelay", "5/s smooth")
FLUSH = RedisRequest(command("SCRIPT", "FLUSH", "SYNC"), None)  # the server forgets its scripts
Step = tuple[str, int]
STEPS = st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.integers(1, 5)), min_size=2, max_size=12)


async def walk(
    url: str, text: str, name: str, steps: Sequence[Step], lost: bool
) -> tuple[list[Outcome], list[Outcome]]:
    """Takes the same steps one after the other, and all at once."""
    engine = AsyncRedisEngine(url, deadline=60.0)
    alone, together = (engine.meter(parse(text), f"{name} {kind}") for kind in ("alone", "together"))
    try:
        await alone.decide("warm", 1)
        if lost:
            await engine.execute(FLUSH)
        singles = [await alone.decide(key, cost) for key, cost in steps]
        return singles, list(await asyncio.gather(*(together.decide(key, cost) for key, cost in steps)))
    finally:
        await engine.close()


@pytest.mark.parametrize("text", LIMITS)
@settings(max_examples=25, deadline=None)
@given(steps=STEPS, lost=st.booleans())
def test_takes_that_come_alone_are_decided_as_in_a_batch(
    text: str, steps: list[Step], lost: bool, driven_redis: RedisServer
) -> None:
    driven_redis.call("FLUSHALL")
    singles, batched = asyncio.run(walk(driven_redis.unix_url, text, "walk", steps, lost))
    assert singles == batched
