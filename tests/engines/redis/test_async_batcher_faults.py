"""A channel whose callers leave, whose link is slow or cut, whose server hangs and whose loop ends: all the others
get their own answers, nothing is charged twice, and nothing is left behind."""

import asyncio
import gc
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.errors import EngineUnavailable
from headgate.limiter import AsyncLimiter
from tests.engines.redis.batcher_harness import charge_keys, is_answer_of, outcome, until_answered, used_units
from tests.servers import Proxy, RedisServer


@pytest.mark.parametrize("text", ["10000/day", "10000/day log"])
async def test_cancelled_callers_do_not_shift_the_replies_of_others(text: str, redis_server: RedisServer) -> None:
    chance = random.Random(7)
    with Proxy(redis_server) as link:
        async with AsyncLimiter(text, link.url) as limiter:
            await charge_keys(limiter, 200)
            link.delay(2)
            survivors = 0
            for _ in range(15):
                tasks = [asyncio.create_task(limiter.peek(f"key {n}")) for n in range(200)]
                for _ in range(3):
                    await asyncio.sleep(chance.random() * 0.004)
                    for task in chance.sample(tasks, 30):
                        task.cancel()
                answers = await asyncio.gather(*tasks, return_exceptions=True)
                for n, answer in enumerate(answers):
                    if not isinstance(answer, asyncio.CancelledError):
                        survivors += 1
                        assert is_answer_of(10_000, n, answer)
            assert 1000 < survivors < 3000
            link.heal()
            assert is_answer_of(10_000, 5, await limiter.peek("key 5"))


async def test_a_deadline_passes_and_the_next_callers_get_their_replies(redis_server: RedisServer) -> None:
    async with AsyncLimiter("10000/day", f"{redis_server.url}?deadline=150ms") as limiter:
        await charge_keys(limiter, 100)
        for paused in (0.05, 0.4):
            redis_server.pause()
            try:
                began = time.monotonic()
                # More than may be on their way at once: some are never sent.
                answers = await asyncio.gather(*(outcome(limiter, f"key {n % 100}", 0) for n in range(800)))
                took = time.monotonic() - began
                await asyncio.sleep(paused)
            finally:
                redis_server.resume()
            assert all(isinstance(answer, EngineUnavailable) for answer in answers)
            assert all("no answer within the timeout" in str(answer) for answer in answers)
            assert 0.1 < took < 5.0
            await until_answered(limiter)
            for n, answer in enumerate(await asyncio.gather(*(limiter.peek(f"key {n}") for n in range(100)))):
                assert is_answer_of(10_000, n, answer)


async def test_a_server_that_fell_silent_is_called_anew(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        async with AsyncLimiter("10/day", f"{link.url}?deadline=50ms") as limiter:
            await limiter.take("key")
            link.delay(60_000)
            assert isinstance(await outcome(limiter, "key"), EngineUnavailable)
            link.heal()  # for those who come anew
            await until_answered(limiter, "key")
            assert link.opened == 2
            assert (await limiter.peek("key")).remaining == 9


async def test_replies_byte_by_byte(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        async with AsyncLimiter("10000/day", f"{link.url}?deadline=60s") as limiter:
            await charge_keys(limiter, 20)
            link.trickle(0.1, "replies")
            answers = await asyncio.gather(*(limiter.peek(f"key {n}") for n in range(20)))
            assert all(is_answer_of(10_000, n, answer) for n, answer in enumerate(answers))


async def test_a_reply_cut_in_the_middle(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        async with AsyncLimiter("10000/day", f"{link.url}?deadline=5s") as limiter:
            await charge_keys(limiter, 20)
            link.trickle(2, "replies")
            tasks = [asyncio.create_task(outcome(limiter, f"key {n}")) for n in range(20)]
            await asyncio.sleep(0.1)
            link.cut()
            link.heal()
            lost = await asyncio.gather(*tasks)
            assert all(isinstance(answer, EngineUnavailable) for answer in lost)
            answers = await asyncio.gather(*(limiter.take(f"key {n}", 0) for n in range(20)))
            # What was lost was charged, once; whoever comes next hears nothing of the other half.
            assert [answer.remaining for answer in answers] == [10_000 - n - 1 for n in range(20)]


async def test_a_request_that_lost_its_reply_is_not_sent_again(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        async with AsyncLimiter("100/day", f"{link.url}?deadline=200ms") as limiter:
            await asyncio.gather(*(limiter.peek("key") for _ in range(3)))
            await limiter.peek("lone")
            link.swallow("replies")
            assert isinstance(await outcome(limiter, "lone"), EngineUnavailable)
            batch = await asyncio.gather(*(outcome(limiter, "key") for _ in range(10)))
            assert all(isinstance(answer, EngineUnavailable) for answer in batch)
            link.cut()
            await asyncio.sleep(0.05)
            assert used_units(redis_server, "100/day", "lone", 100) == 1
            assert used_units(redis_server, "100/day", "key", 100) == 10


@pytest.mark.parametrize("login", ["", "password"])
async def test_a_connection_that_died_while_idle_is_replaced(login: str) -> None:
    """Also where somebody has to be let in first."""
    with RedisServer(password=login or None) as server, Proxy(server) as link:
        async with AsyncLimiter("1000/day", link.url) as limiter:
            await limiter.take("key")
            for round_ in range(6):
                link.cut()
                if round_ % 3 == 0:
                    await outcome(limiter, "key")  # cut at this very moment: it may be lost
                    continue
                if round_ % 3 == 1:
                    await asyncio.sleep(0.02)
                else:
                    _busy(0.03)
                assert await limiter.take("key")  # no error, and one charge
            assert all(await asyncio.gather(*(limiter.take("other") for _ in range(50))))
            assert used_units(server, "1000/day", "other", 1000) == 50
            assert 5 <= used_units(server, "1000/day", "key", 1000) <= 7
            server.kill()
            server.start()
            await until_answered(limiter)
            assert await limiter.take("key")


async def test_a_server_that_dies_during_the_login(redis_server: RedisServer) -> None:
    with RedisServer(password="x") as server, Proxy(server) as link:
        async with AsyncLimiter("10/day", f"{link.url}?deadline=300ms") as limiter:
            link.swallow("replies")
            assert "no answer within the timeout" in str(await outcome(limiter, "key"))
            link.cut()
            link.heal()
            await until_answered(limiter)
            link.await_open(1)


def test_many_loops_one_after_the_other_leave_nothing_open(redis_server: RedisServer) -> None:
    """None of them closes the engine: asyncio.run does, by ending the loop."""
    limiter = AsyncLimiter("1000/hour", redis_server.url)

    async def crowd() -> int:
        return sum(map(bool, await asyncio.gather(*(limiter.take("key") for _ in range(5)))))

    assert asyncio.run(crowd()) == 5
    gc.collect()
    before = _open_files()
    assert [asyncio.run(crowd()) for _ in range(20)] == [5] * 20
    assert _open_files() <= before + 1
    assert int(redis_server.info("clients")["connected_clients"]) <= 3
    engine = limiter.engine
    assert isinstance(engine, AsyncRedisEngine)
    assert len(engine._loops) <= 2


@pytest.mark.parametrize("steps", range(8))
def test_a_loop_that_ends_while_it_connects_leaves_no_error(
    steps: int, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleaning up after asyncio.run() has cancelled its tasks may begin a connection that nobody waits for."""
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: errors.append(error.exc_value))
    limiter = AsyncLimiter("5/hour", redis_server.url)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # which is told of each task that did not end
    task = loop.create_task(limiter.take("key"))
    for _ in range(steps):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    del loop, limiter, task
    gc.collect()
    warnings = (ResourceWarning, RuntimeWarning)  # whoever closes a loop by hand gets these from asyncio
    assert [error for error in errors if not isinstance(error, warnings)] == []


def test_a_loop_closed_by_hand_is_forgotten(redis_server: RedisServer) -> None:
    limiter = AsyncLimiter("1000/hour", redis_server.url)
    engine = limiter.engine
    assert isinstance(engine, AsyncRedisEngine)
    for _ in range(5):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(limiter.take("key"))
        loop.run_until_complete(engine.close())
        loop.close()
        assert len(engine._loops) == 1


def test_several_loops_at_once(server: RedisServer) -> None:
    limiter = AsyncLimiter("300/hour", server.unix_url)

    async def crowd() -> int:
        rounds = [await asyncio.gather(*(limiter.take("key") for _ in range(20))) for _ in range(5)]
        return sum(map(bool, chain(*rounds)))

    with ThreadPoolExecutor(4) as pool:
        passed = list(pool.map(lambda _: asyncio.run(crowd()), range(4)))
    assert sum(passed) == 300


async def test_closed_and_used_again(redis_server: RedisServer) -> None:
    limiter = AsyncLimiter("100/hour", redis_server.url)
    assert (await limiter.take("key")).remaining == 99
    await limiter.close()
    assert (await limiter.take("key")).remaining == 98
    waiting = [asyncio.create_task(outcome(limiter, "other")) for _ in range(3)]
    await asyncio.sleep(0)
    await limiter.close()  # while they are on their way
    await asyncio.gather(*waiting)
    opening = AsyncLimiter("100/hour", f"{redis_server.url}?deadline=20s")
    first = asyncio.create_task(outcome(opening, "new"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(opening.close())  # while it opens
    await asyncio.sleep(0)
    began = time.monotonic()
    assert await opening.take("new")
    assert time.monotonic() - began < 10
    await asyncio.gather(first, closing)
    await asyncio.gather(limiter.close(), opening.close())


async def test_nothing_is_left_behind_by_failures() -> None:
    """Two hundred times the link is cut, refused or silent: tasks, timers and files stay as few as they were."""
    with RedisServer() as server, Proxy(server) as link:
        async with AsyncLimiter("100000/day", f"{link.url}?deadline=30ms") as limiter:
            sizes = {}
            for cycle in range(1, 201):
                await asyncio.gather(*(outcome(limiter, f"key {n}") for n in range(3)))
                link.cut()
                if cycle % 20 == 0:
                    link.refuse()
                    await outcome(limiter, "key")
                    link.heal()
                await outcome(limiter, "key")
                if cycle in (50, 200):
                    link.cut()
                    await asyncio.sleep(0.05)
                    await until_answered(limiter)
                    loop = asyncio.get_running_loop()
                    timers = sum(not timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]
                    sizes[cycle] = (_open_files(), threading.active_count(), len(asyncio.all_tasks()), timers)
                    assert link.open == 1
            few, many = sizes[50], sizes[200]
            assert all(after <= before + 1 for before, after in zip(few, many, strict=True)), sizes


def _busy(seconds: float) -> None:
    """The loop does something else, and hears nothing meanwhile."""
    time.sleep(seconds)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
