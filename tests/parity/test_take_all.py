"""Several charges in one request, of mixed algorithms: the in-memory engine and the servers agree."""

import random

import pytest

from headgate.algorithms.limit import HORIZON_US, Limit
from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limit_syntax import parse
from tests.servers import BASE_US, RedisServer

LIMITS = [
    *("10/s burst 3", "123457/day burst 7", "6/s queue 3", "6/s queue 5 delay 2", "5/s fixed"),
    *("7/day fixed in Asia/Shanghai", "6/s sliding", "5/s log", "9/s smooth", "9/s smooth warmup 2s"),
]
KEYS = ("anna", "bob", "cy")


def among(rng: random.Random, limits: dict[str, Limit]) -> list[str]:
    """All limits, or those of one algorithm: plain charges of one algorithm have a script of their own."""
    if rng.random() < 0.5:
        return LIMITS
    algorithm = limits[rng.choice(LIMITS)].algorithm
    return [text for text in LIMITS if limits[text].algorithm == algorithm]


@pytest.mark.parametrize("seed", range(15))
def test_memory_and_servers_agree(seed: int, driven_server: RedisServer) -> None:
    rng = random.Random(seed)
    clock = ManualClock(BASE_US)
    local = MemoryEngine(clock)
    remote = RedisEngine(driven_server.unix_url, clock=clock, deadline=30)
    limits = {text: parse(text) for text in LIMITS}
    refused = 0
    for _ in range(80):
        clock.set_us(clock.now_us() + rng.choice((0, 0, 1, 999, 100_000, rng.randrange(700_000), 3_000_000)))
        driven_server.clock.set_us(clock.now_us())
        pool = [(text, key) for text in among(rng, limits) for key in KEYS]
        counts = rng.sample(pool, min(len(pool), rng.randrange(2, 6)))
        charges: list[tuple[Limit, str, str, int]] = [
            (limits[text], text, key, rng.choice((0, 1, 1, 1, 2, 3, 8))) for text, key in counts
        ]
        patience_us = rng.choice((None, None, None, 0, 400_000, HORIZON_US))
        here = local.decide_all(
            [(local.meter(limit, name), key, cost) for limit, name, key, cost in charges], patience_us
        )
        there = remote.decide_all(
            [(remote.meter(limit, name), key, cost) for limit, name, key, cost in charges], patience_us
        )
        assert here == there, charges
        refused += not all(outcome[0] for outcome in here)
    remote.close()
    assert 10 < refused < 70
