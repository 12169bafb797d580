"""Calls of one event loop share a round trip and are decided independently: each gets its own reply, whatever
happens to others, to scripts, to the server or to the connection.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import pytest

from headgate.algorithms.decision import Charge
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.protocol import RequestBuilder
from headgate.engines.redis.script_assembly import algorithm_script
from headgate.errors import CorruptState
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter
from tests.engines.redis.batcher_harness import outcome, used_units
from tests.servers import BASE_US, RedisServer

STRINGS = ["1000/hour", "700/s", "1000/hour fixed", "1000/hour sliding", "1000/s queue 1000", "1000/hour smooth"]
LIMITS = [*STRINGS, "1000/hour log"]


def calls(server: RedisServer, command: str = "evalsha") -> int:
    stats = server.info("commandstats").get(f"cmdstat_{command}", "calls=0,")
    return int(stats.removeprefix("calls=").partition(",")[0])


def key_of(text: str, key: str) -> bytes:
    return RequestBuilder(parse(text), text, "hg").key(key)


@contextmanager
def flushing(server: RedisServer) -> Iterator[None]:
    """The server forgets its scripts, again and again."""
    done = threading.Event()

    def flush() -> None:
        while not done.is_set():
            server.call("SCRIPT", "FLUSH", "SYNC")

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


async def test_calls_that_come_together_share_a_round_trip(server: RedisServer) -> None:
    async with AsyncLimiter("100/hour", server.unix_url) as limiter:
        await asyncio.gather(*(limiter.take("warm") for _ in range(3)))
        before = calls(server)
        decisions = await asyncio.gather(*(limiter.take(f"key {n % 10}") for n in range(128)))
        assert calls(server) - before <= 2
    assert all(decisions)
    left = Counter((decision.key, decision.remaining) for decision in decisions)
    assert set(left.values()) == {1}  # every charge saw all those before it, and no two the same
    assert {used_units(server, "100/hour", f"key {n}", 100) for n in range(8)} == {13}


async def test_a_lone_call_is_one_call_of_the_lone_script(server: RedisServer) -> None:
    async with AsyncLimiter("100/hour", server.unix_url) as limiter:
        await limiter.take("key")
        server.call("SCRIPT", "FLUSH", "SYNC")
        server.call("SCRIPT", "LOAD", algorithm_script("take", "token_bucket").text)
        before, loads = calls(server), calls(server, "script|load")
        assert [(await limiter.take("key")).remaining for _ in range(5)] == [98, 97, 96, 95, 94]
        assert (calls(server) - before, calls(server, "script|load") - loads) == (5, 0)


@pytest.mark.parametrize("text", ["1000/hour", "1000/hour fixed", "1000/hour sliding", "1000/hour log"])
async def test_a_key_that_comes_often_in_one_batch(text: str, server: RedisServer) -> None:
    """Fifty charges on one key in one script call, with costs, and others in between."""
    costs = [1 + n % 3 for n in range(50)]
    async with AsyncLimiter(text, server.unix_url) as limiter:
        await asyncio.gather(*(limiter.peek("warm") for _ in range(3)))
        before = calls(server)
        pairs = [(limiter.take("key", cost), limiter.take(f"other {n}")) for n, cost in enumerate(costs)]
        decisions = (await asyncio.gather(*chain(*pairs)))[::2]
        assert calls(server) - before <= 2
        assert [decision.remaining for decision in decisions] == [1000 - sum(costs[: n + 1]) for n in range(50)]
        refused, passed, full = await asyncio.gather(
            limiter.take("key", 2000), limiter.take("other", 5), limiter.peek("key")
        )
        assert (refused.allowed, passed.allowed, full.remaining) == (False, True, 1000 - sum(costs))


@pytest.mark.parametrize("text", LIMITS)
async def test_together_is_the_same_as_one_after_the_other(text: str, driven_server: RedisServer) -> None:
    """The same questions at the same instants, once in batches and once one by one: the same outcomes."""
    walk = random.Random(text)
    steps = []
    for _ in range(12):
        batch = [(f"key {walk.randrange(5)}", walk.choice((0, 1, 1, 1, 3, 250, 700, 5000))) for _ in range(20)]
        steps.append((walk.choice((0, 1, 999, 10**6, 10**9)), batch))

    async def answers(together: bool) -> list[object]:
        driven_server.flush()
        driven_server.clock.set_us(BASE_US)
        outcomes: list[object] = []
        async with AsyncLimiter(text, driven_server.unix_url) as limiter:
            await limiter.peek("warm")
            for pause_us, batch in steps:
                driven_server.clock.advance_us(pause_us)
                if together:
                    decisions = await asyncio.gather(*(limiter.take(key, cost) for key, cost in batch))
                else:
                    decisions = [await limiter.take(key, cost) for key, cost in batch]
                outcomes += [decision.outcome for decision in decisions]
                outcomes.append(sorted((key, driven_server.call("DUMP", key)) for key in _keys(driven_server)))
        return outcomes

    assert await answers(together=True) == await answers(together=False)


def _keys(server: RedisServer) -> list[bytes]:
    names = server.call("KEYS", "hg2:*")
    assert isinstance(names, list)
    return [key for key in names if isinstance(key, bytes)]


async def test_limits_and_verbs_mixed_in_one_turn(server: RedisServer) -> None:
    engine = AsyncRedisEngine(server.unix_url)
    limiters = [AsyncLimiter(text, engine) for text in LIMITS]
    held, month = AsyncLimiter("2 slots", engine), AsyncLimiter("9/month fixed in Asia/Shanghai", engine)
    taken = await limiters[0].take("refunded", 7)
    takes = [limiter.take(f"key {n}") for n in range(6) for limiter in limiters]
    decisions, together, reserved, lease, *_ = await asyncio.gather(
        asyncio.gather(*takes, month.take("key"), limiters[0].peek("d")),
        limiters[0].take_all([Charge("a"), Charge("b", "5/hour log")]),
        limiters[0].reserve("c"),
        held.acquire("key"),
        limiters[0].refund(taken),
        limiters[0].reset("e"),
    )
    assert all(decisions)
    assert (together.allowed, reserved.delay) == (True, 0)
    assert (await limiters[0].peek("refunded")).remaining == 1000
    assert (await held.peek("key")).remaining == 1
    await lease.release()
    await engine.close()


FOREIGN = {
    "a list": ("RPUSH", "x"),
    "a hash": ("HSET", "f", "v"),
    "a set": ("SADD", "x"),
    "a text": ("SET", "not a state of ours"),
}


@pytest.mark.parametrize("holding", FOREIGN)
@pytest.mark.parametrize("text", ["1000/hour", "700/s", "1000/hour fixed", "1000/hour log"])
async def test_a_foreign_value_fails_only_the_calls_of_its_key(
    text: str, holding: str, server: RedisServer
) -> None:
    verb, *value = FOREIGN[holding]
    server.call(verb, key_of(text, "alien"), *value)
    was = server.call("DUMP", key_of(text, "alien"))
    charges = [("alien", 1), ("a", 1), ("alien", 0), ("b", 2), ("alien", 5000), ("alien", 1), ("a", 1)]
    async with AsyncLimiter(text, server.unix_url) as limiter:
        await limiter.peek("warm")
        answers = await asyncio.gather(*(outcome(limiter, key, cost) for key, cost in charges))
    assert server.call("DUMP", key_of(text, "alien")) == was
    for (key, _), answer in zip(charges, answers, strict=True):
        assert isinstance(answer, CorruptState) == (key == "alien"), (key, answer)
    assert "holds a value that headgate did not write" in str(answers[0])
    if text != "700/s":
        assert (used_units(server, text, "a", 1000), used_units(server, text, "b", 1000)) == (2, 2)


async def test_scripts_forgotten_all_the_time(server: RedisServer) -> None:
    engine = AsyncRedisEngine(server.url, deadline=5)
    limiters = [AsyncLimiter(text, engine, name=text) for text in ("5000/day", "5000/day log")]
    with flushing(server):
        for _ in range(10):
            futures = [limiter.take(f"key {n % 60}") for n in range(120) for limiter in limiters]
            assert all(await asyncio.gather(*futures))
            assert all([await limiter.take("alone") for limiter in limiters])
    for limiter in limiters:
        assert (await limiter.peek("alone")).remaining == 5000 - 10
        assert (await limiter.peek("key 1")).remaining == 5000 - 20
    await engine.close()


async def test_a_missing_right_to_load_scripts_is_reported(redis_server: RedisServer) -> None:
    redis_server.call("ACL", "SETUSER", "reader", "reset", "on", ">secret", "~*", "+@all", "-script|load")
    try:
        redis_server.call("SCRIPT", "FLUSH", "SYNC")
        async with AsyncLimiter("5/hour", f"redis://reader:secret@127.0.0.1:{redis_server.port}") as limiter:
            answers = await asyncio.gather(*(outcome(limiter, "key") for _ in range(5)))
        assert all("lacks the right to run script|load" in str(answer) for answer in answers)
    finally:
        redis_server.call("ACL", "DELUSER", "reader")
