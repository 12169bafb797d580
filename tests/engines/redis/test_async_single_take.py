"""A take that comes alone is decided as it is in a batch: the same outcomes for the same walk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.algorithms.decision import Outcome
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.protocol import RedisRequest, command
from headgate.limit_syntax import parse
from tests.servers import RedisServer

# Nothing comes back while a test runs, so the outcomes do not depend on how long it takes.
LIMITS = ("3/day", "4/day fixed", "4/day sliding", "4/day log")
FLUSH = RedisRequest(command("SCRIPT", "FLUSH", "SYNC"), None)  # the server forgets its scripts
Step = tuple[str, int]
STEPS = st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.integers(1, 5)), min_size=2, max_size=12)


def without_times(outcome: Outcome) -> tuple[bool, int, bool]:
    allowed, remaining, retry_us, *_ = outcome
    return allowed, remaining, retry_us is None


async def walk(
    url: str, text: str, name: str, steps: Sequence[Step], lost: bool
) -> tuple[list[Outcome], list[Outcome]]:
    """Takes the same steps one after the other, and all at once."""
    engine = AsyncRedisEngine(url, deadline=60.0)
    alone, together = (engine.meter(parse(text), f"{name} {kind}") for kind in ("alone", "together"))
    try:
        await alone.decide("warm", 1)
        if lost:
            await engine.ask(FLUSH)
        singles = [await alone.decide(key, cost) for key, cost in steps]
        return singles, list(await asyncio.gather(*(together.decide(key, cost) for key, cost in steps)))
    finally:
        await engine.close()


@pytest.mark.parametrize("text", LIMITS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, lost=st.booleans())
def test_takes_that_come_alone_are_decided_as_in_a_batch(
    text: str, steps: list[Step], lost: bool, server: RedisServer
) -> None:
    server.call("FLUSHALL")
    singles, batched = asyncio.run(walk(server.unix_url, text, "walk", steps, lost))
    assert [without_times(each) for each in singles] == [without_times(each) for each in batched]
