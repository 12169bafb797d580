"""A forked child has connections of its own: the parent's answers stay the parent's, and both go on.

Key n is charged with n units beforehand, so whoever hears another's answer can tell.
"""

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headgate.algorithms.decision import Charge
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import Cluster, RedisServer, TlsServer

# Newer Pythons warn of a fork in a process with threads. That is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

_fork = multiprocessing.get_context("fork")


class Child:
    """A forked process at work."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._answers = _fork.SimpleQueue()
        self._process = _fork.Process(target=self._run, args=[work])
        self._process.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._answers.put(work())
        except BaseException as error:
            self._answers.put(repr(error))

    def result(self) -> Any:
        self._process.join(20)
        assert self._process.exitcode == 0
        return self._answers.get()


def prepare(limiter: Limiter) -> None:
    for n in range(10):
        limiter.take(f"key {n}", n)


def asks(limiter: Limiter, n: int, times: int = 60) -> list[int]:
    """Returns the replies about key n as the numbers they belong to: only n is right."""
    return sorted({10_000 - limiter.peek(f"key {n}").remaining for _ in range(times)})


async def awaits(limiter: AsyncLimiter, n: int, times: int = 20) -> list[int]:
    """The same, alone and in batches."""
    replies: set[int] = set()
    for size in [1, 5] * times:
        decisions = await asyncio.gather(*(limiter.peek(f"key {n}") for _ in range(size)))
        replies |= {10_000 - decision.remaining for decision in decisions}
    return sorted(replies)


def test_children_of_a_process_with_busy_threads(server: RedisServer) -> None:
    """The threads are in the middle of asking when the children are made."""
    with Limiter("10000/day", server.url) as limiter:
        prepare(limiter)
        done = threading.Event()
        replies: dict[int, set[int]] = {n: set() for n in range(4)}

        def thread(n: int) -> None:
            while not done.is_set():
                replies[n].update(asks(limiter, n, 5))

        threads = [threading.Thread(target=thread, args=[n]) for n in range(4)]
        for each in threads:
            each.start()
        children = [Child(lambda n=n: asks(limiter, n)) for n in range(4, 10)]  # type: ignore[misc]
        results = [child.result() for child in children]
        done.set()
        for each in threads:
            each.join()
        assert results == [[n] for n in range(4, 10)]
        assert replies == {n: {n} for n in range(4)}
        assert asks(limiter, 3) == [3]


def test_a_child_with_tls() -> None:
    """Nothing that the child lets go of is said on the parent's line."""
    with TlsServer() as server, Limiter("10000/day", server.url) as limiter:
        prepare(limiter)
        for n in range(3):
            child = Child(lambda n=n: asks(limiter, n))  # type: ignore[misc]
            assert asks(limiter, 9) == [9]
            assert child.result() == [n]
            assert asks(limiter, 8) == [8]
        received = int(server.info("stats")["total_connections_received"])
        assert asks(limiter, 8) == [8]
        assert int(server.info("stats")["total_connections_received"]) - received <= 2  # those who look


async def test_a_child_of_a_running_loop(server: RedisServer) -> None:
    with Limiter("10000/day", server.url) as prepared:
        prepare(prepared)
    engine = AsyncRedisEngine(server.url)
    limiter = AsyncLimiter("10000/day", engine)
    assert await awaits(limiter, 1, 2) == [1]
    files = len(os.listdir("/proc/self/fd"))
    for n in range(2, 5):
        waiting = [asyncio.create_task(awaits(limiter, 9)) for _ in range(3)]
        await asyncio.sleep(0.005)  # questions are on their way
        child = Child(lambda n=n: asyncio.run(awaits(limiter, n)))  # type: ignore[misc]
        assert await asyncio.gather(*waiting) == [[9]] * 3
        assert await asyncio.to_thread(child.result) == [n]
        assert await awaits(limiter, 8) == [8]
    assert len(os.listdir("/proc/self/fd")) <= files + 12  # the children's queues
    await engine.close()


def test_a_child_of_a_process_whose_loops_have_ended(server: RedisServer) -> None:
    with Limiter("10000/day", server.url) as prepared:
        prepare(prepared)
    limiter = AsyncLimiter("10000/day", server.url)
    assert asyncio.run(awaits(limiter, 1, 2)) == [1]
    children = [Child(lambda n=n: asyncio.run(awaits(limiter, n))) for n in (2, 3)]  # type: ignore[misc]
    assert asyncio.run(awaits(limiter, 4)) == [4]
    assert [child.result() for child in children] == [[2], [3]]


def test_a_child_that_asks_several_nodes_of_a_cluster(cluster: Cluster) -> None:
    engine = RedisEngine(cluster.url)
    limiter = Limiter("1000/day", engine)
    charges = [Charge(f"key {n}") for n in range(6)]
    assert not limiter.take_all(charges).atomic
    children = [Child(lambda: [limiter.take_all(charges).allowed for _ in range(10)]) for _ in range(2)]
    assert [limiter.take_all(charges).allowed for _ in range(10)] == [True] * 10
    assert [child.result() for child in children] == [[True] * 10] * 2
    assert limiter.peek("key 0").remaining == 1000 - 31
    limiter.close()


def test_a_grandchild(redis_server: RedisServer) -> None:
    with Limiter("10000/day", redis_server.url) as limiter:
        prepare(limiter)

        def child() -> list[int]:
            mine = asks(limiter, 2)
            grandchild = Child(lambda: asks(limiter, 3))
            return [*mine, *asks(limiter, 4), *grandchild.result()]

        made = Child(child)
        assert asks(limiter, 1) == [1]
        assert made.result() == [2, 4, 3]
