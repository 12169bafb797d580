"""A server that forgets its scripts, goes away and comes back: the next request is answered."""

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.algorithms.decision import Charge
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import KINDS, RedisServer


@pytest.fixture(params=KINDS)
def restartable_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server that the test may stop."""
    with RedisServer(request.param) as server:
        yield server


def every_verb(limiter: Limiter) -> None:
    taken = limiter.take("key")
    assert taken
    limiter.refund(taken)
    assert limiter.take_all([Charge("key"), Charge("other", "50/hour log"), Charge("third", "50/hour sliding")])
    reservation = limiter.reserve("key")
    reservation.cancel()
    limiter.set_limit("20/s", "key")
    limiter.set_limit("10/s")
    limiter.reset("key")
    assert limiter.take("key", 10)
    limiter.reset("key")


def slots(limiter: Limiter) -> None:
    with limiter.acquire("key") as lease:
        assert lease.renew()
        assert limiter.peek("key").remaining == 1


def test_forgotten_scripts_are_taught_again(server: RedisServer) -> None:
    with Limiter("10/s", server.unix_url) as limiter, Limiter("2 slots", server.unix_url) as held:
        for _ in range(3):
            every_verb(limiter)
            slots(held)
            server.call("SCRIPT", "FLUSH", "SYNC")


async def test_forgotten_scripts_are_taught_again_awaited(server: RedisServer) -> None:
    limiter = AsyncLimiter("10/s", server.unix_url)
    for _ in range(3):
        taken = await limiter.take("key", 10)
        assert taken
        await limiter.refund(taken)
        server.call("SCRIPT", "FLUSH", "SYNC")
    await limiter.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_server_that_came_back(end: str, restartable_server: RedisServer) -> None:
    with Limiter("10/s", restartable_server.url) as limiter, Limiter("2 slots", restartable_server.url) as held:
        every_verb(limiter)
        slots(held)
        getattr(restartable_server, end)()
        restartable_server.start()
        assert limiter.take("key", 10)  # new, and empty
        limiter.reset("key")
        every_verb(limiter)
        slots(held)


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_server_that_came_back_awaited(end: str, restartable_server: RedisServer) -> None:
    limiter = AsyncLimiter("10/s", restartable_server.url)
    # Several connections, all of which will be dead.
    assert all(await asyncio.gather(*(limiter.take("key") for _ in range(5))))
    getattr(restartable_server, end)()
    restartable_server.start()
    assert sum(map(bool, await asyncio.gather(*(limiter.take("key") for _ in range(12))))) == 10
    await limiter.close()


def test_idle_connections_of_many_threads_are_replaced(restartable_server: RedisServer) -> None:
    limiter = Limiter("1000/hour", RedisEngine(restartable_server.url))

    def crowd() -> list[bool]:
        barrier = threading.Barrier(6)

        def visitor() -> list[bool]:
            barrier.wait()
            return [limiter.take("key").allowed for _ in range(20)]

        with ThreadPoolExecutor(6) as pool:
            visits = [pool.submit(visitor) for _ in range(6)]
        return [allowed for visit in visits for allowed in visit.result()]

    assert crowd() == [True] * 120
    restartable_server.kill()
    restartable_server.start()
    assert crowd() == [True] * 120
    limiter.close()


def test_several_event_loops_one_after_the_other_and_at_once(server: RedisServer) -> None:
    limiter = AsyncLimiter("100/hour", AsyncRedisEngine(server.unix_url))

    async def crowd() -> int:
        decisions = await asyncio.gather(*(limiter.take("key") for _ in range(30)))
        await limiter.close()
        return sum(decision.allowed for decision in decisions)

    assert [asyncio.run(crowd()), asyncio.run(crowd())] == [30, 30]
    with ThreadPoolExecutor(3) as pool:
        passed = [pool.submit(lambda: asyncio.run(crowd())) for _ in range(3)]
    assert sum(each.result() for each in passed) == 40


def test_a_fork_does_not_share_its_parents_connection(server: RedisServer) -> None:
    engine = RedisEngine(server.unix_url)
    limiter = Limiter("100/hour", engine)
    limiter.take("key")
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()

    def child() -> None:
        allowed = [limiter.take("key").allowed for _ in range(30)]
        answers.put((allowed, sum(pool.idle for pool in engine._pools.values())))
        os._exit(0)

    children = [fork.Process(target=child) for _ in range(2)]
    for process in children:
        process.start()
    ours = [limiter.take("key").allowed for _ in range(30)]
    theirs = [answers.get() for _ in children]
    for process in children:
        process.join(10)
    assert ours == [True] * 30
    assert theirs == [([True] * 30, 1)] * 2  # by one connection of its own each
    assert limiter.peek("key").remaining == 9
    limiter.close()
