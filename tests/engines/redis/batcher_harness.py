"""Harness of batcher tests: charges keys so that each reply shows whose it is.

Key n is charged with n units beforehand: whoever hears another's answer can tell.
"""

import asyncio
import time

from headgate.algorithms.decision import Decision
from headgate.errors import CorruptState, EngineUnavailable
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import RedisServer

GENEROUS = 3.0  # a busy machine may take its time


def used_units(server: RedisServer, text: str, key: str, amount: int) -> int:
    """Returns how much of the limit is spent, as somebody else sees it."""
    with Limiter(text, server.unix_url) as outside:
        return amount - outside.peek(key).remaining


async def outcome(limiter: AsyncLimiter, key: str, cost: int = 1) -> object:
    """A Decision, or the error."""
    try:
        return await limiter.take(key, cost)
    except (CorruptState, EngineUnavailable) as error:
        return error


async def charge_keys(limiter: AsyncLimiter, count: int) -> None:
    """Key n has n units less than all."""
    await asyncio.gather(*(limiter.take(f"key {n}", n) for n in range(count)))


def is_answer_of(limiter_amount: int, n: int, answer: object) -> bool:
    return isinstance(answer, Decision) and (answer.remaining, answer.key) == (limiter_amount - n, f"key {n}")


async def until_answered(limiter: AsyncLimiter, key: str = "key 0") -> None:
    """A server that comes back may take its time on a busy machine."""
    by = time.monotonic() + GENEROUS
    while isinstance(await outcome(limiter, key, 0), EngineUnavailable):
        assert time.monotonic() < by
        await asyncio.sleep(0.01)
