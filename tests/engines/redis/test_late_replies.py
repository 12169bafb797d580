"""Replies long after the deadline: the slot or place that they bring is given back, even under other load."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate.engines.redis import silent_connections, sync_pool
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.protocol import RedisRequest, RequestBuilder
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import RedisServer
from tests.servers.exhausted_threads import no_thread_can_start
from tests.servers.wait_until import until

PAUSE_S = 2.5  # long enough for a connection to be given up
SURE_S = 20.0


def slots_missing(server: RedisServer, slots: int, key: str = "key") -> Callable[[], str | None]:
    """Returns a complaint if slots are missing, as another process sees them."""

    def missing() -> str | None:
        with Limiter(f"{slots} slots ttl 1h", server.url) as other:
            free = other.peek(key).remaining
        return None if free == slots else f"{free} of {slots} slots are free"

    return missing


def next_place_missing(server: RedisServer) -> str | None:
    """Returns a complaint if the queue holds places. It only peeks: a place that another process takes behind
    those that are being given back would keep them."""
    with Limiter("1/minute", server.url) as other:
        away = other.peek("key").retry_after
    return None if away is not None and away <= 60 else f"the next place is {away} s away"


def connections(server: RedisServer) -> int:
    """Returns how many clients the server has, besides the one that asks."""
    return int(server.info("clients")["connected_clients"]) - 1


async def test_a_task_that_is_answered_long_after_its_deadline_keeps_nothing(redis_server: RedisServer) -> None:
    options = "?deadline=200ms"
    slots = AsyncLimiter("5 slots ttl 1h", redis_server.url + options)
    queue = AsyncLimiter("1/minute", redis_server.url + options)
    await slots.peek("key")
    await queue.take("key")
    redis_server.pause()
    try:
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(slots.acquire("key", timeout)) for timeout in (0, 0, 1)
        ]
        tasks += [asyncio.ensure_future(queue.wait("key")) for _ in range(3)]
        await asyncio.sleep(0.05)
        tasks[0].cancel()
        tasks[3].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in results} == {asyncio.CancelledError, EngineUnavailable}
        await asyncio.sleep(PAUSE_S)
    finally:
        redis_server.resume()
    try:
        await asyncio.to_thread(until, slots_missing(redis_server, 5), SURE_S)
        await asyncio.to_thread(until, lambda: next_place_missing(redis_server), SURE_S)
    finally:
        await slots.close()
        await queue.close()


async def test_other_tasks_use_a_new_connection_meanwhile(redis_server: RedisServer) -> None:
    """Each reply reaches its own caller only, and the old connection ends with the last reply."""
    async with AsyncLimiter("3 slots ttl 1h", f"{redis_server.url}?deadline=200ms") as limiter:
        await limiter.peek("key")
        before = connections(redis_server)
        redis_server.pause()
        try:
            for _ in range(2):
                with pytest.raises(EngineUnavailable):
                    await limiter.acquire("key")
                await asyncio.sleep(PAUSE_S)
        finally:
            redis_server.resume()
        assert (await limiter.peek("other")).remaining == 3
        await asyncio.to_thread(until, slots_missing(redis_server, 3), SURE_S)
        await asyncio.to_thread(
            until, lambda: None if connections(redis_server) <= before else "an old connection is open", SURE_S
        )


@pytest.mark.parametrize("bound", ["LINGER_S", "MAX_LINGERING"])
async def test_a_server_that_stays_silent_keeps_few_connections(
    bound: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_connections, bound, 0)
    async with AsyncLimiter("3 slots ttl 1h", f"{redis_server.url}?deadline=100ms") as limiter:
        await limiter.peek("key")
        redis_server.pause()
        try:
            for _ in range(2):
                with pytest.raises(EngineUnavailable):
                    await limiter.acquire("key")
                await asyncio.sleep(PAUSE_S)
            assert isinstance(limiter.engine, AsyncRedisEngine)
            (only,) = limiter.engine._loops[asyncio.get_running_loop()].values()
            assert not only.silent_connections
        finally:
            redis_server.resume()


async def test_closing_ends_a_connection_that_waits_for_late_replies(redis_server: RedisServer) -> None:
    before = connections(redis_server)
    limiter = AsyncLimiter("3 slots ttl 1h", f"{redis_server.url}?deadline=200ms")
    await limiter.peek("key")
    redis_server.pause()
    try:
        with pytest.raises(EngineUnavailable):
            await limiter.acquire("key")
        await asyncio.sleep(PAUSE_S)
        began = time.monotonic()
        await limiter.close()
        assert time.monotonic() - began < 5
    finally:
        redis_server.resume()
    await asyncio.to_thread(
        until, lambda: None if connections(redis_server) <= before else "something is open", SURE_S
    )


async def test_closing_gives_back_what_comes_in_time(redis_server: RedisServer) -> None:
    limiter = AsyncLimiter("3 slots ttl 1h", f"{redis_server.url}?deadline=2s")
    await limiter.peek("key")
    redis_server.pause()
    try:
        with pytest.raises(EngineUnavailable):
            await limiter.acquire("key")
        await asyncio.sleep(PAUSE_S)
        closing = asyncio.ensure_future(limiter.close())
        await asyncio.sleep(0.1)
    finally:
        redis_server.resume()
    await closing
    assert slots_missing(redis_server, 3)() is None


@pytest.mark.parametrize("main", [True, False])
def test_a_thread_that_is_answered_long_after_its_deadline_keeps_nothing(
    main: bool, redis_server: RedisServer
) -> None:
    """In the main thread, which signals may interrupt, and in another, which waits in another way."""
    options = "?deadline=200ms"
    with (
        Limiter("5 slots ttl 1h", redis_server.url + options) as slots,
        Limiter("1/minute", redis_server.url + options) as queue,
    ):
        slots.peek("key")
        queue.take("key")

        def reserve() -> None:
            for _ in range(3):
                with pytest.raises(EngineUnavailable):
                    slots.acquire("key")
                with pytest.raises(EngineUnavailable):
                    queue.reserve("key")

        redis_server.pause()
        try:
            if main:
                reserve()
            else:
                with ThreadPoolExecutor(1) as another:
                    another.submit(reserve).result()
            time.sleep(PAUSE_S)
        finally:
            redis_server.resume()
        until(slots_missing(redis_server, 5), SURE_S)
        until(lambda: next_place_missing(redis_server), SURE_S)
        until(lambda: "something reads on" if lingering_of(slots) else None, SURE_S)


def lingering_of(limiter: Limiter) -> int:
    assert isinstance(limiter.engine, RedisEngine)
    (pool,) = limiter.engine._pools.values()
    return sum(thread.is_alive() for _, thread, _ in pool._lingering)


def test_threads_that_are_answered_late_keep_few_connections(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_pool, "MAX_LINGERING", 2)
    with Limiter("5 slots ttl 1h", f"{redis_server.url}?deadline=100ms") as limiter:
        limiter.peek("key")
        redis_server.pause()
        try:
            for _ in range(5):
                with pytest.raises(EngineUnavailable):
                    limiter.acquire("key")
            until(lambda: None if lingering_of(limiter) <= 2 else "too many read on", SURE_S)
        finally:
            redis_server.resume()


def test_closing_ends_what_waits_for_late_replies_of_threads(redis_server: RedisServer) -> None:
    before = connections(redis_server)
    limiter = Limiter("5 slots ttl 1h", f"{redis_server.url}?deadline=200ms")
    limiter.peek("key")
    redis_server.pause()
    try:
        with pytest.raises(EngineUnavailable):
            limiter.acquire("key")
        time.sleep(PAUSE_S)
        began = time.monotonic()
        limiter.close()
        assert time.monotonic() - began < 5
    finally:
        redis_server.resume()
    until(lambda: None if connections(redis_server) <= before else "something is open", SURE_S)


def test_closing_gives_back_what_comes_in_time_for_threads(redis_server: RedisServer) -> None:
    limiter = Limiter("3 slots ttl 1h", f"{redis_server.url}?deadline=2s")
    limiter.peek("key")
    redis_server.pause()
    try:
        with pytest.raises(EngineUnavailable):
            limiter.acquire("key")
        time.sleep(PAUSE_S)
        closing = threading.Thread(target=limiter.close)
        closing.start()
        time.sleep(0.1)
    finally:
        redis_server.resume()
    closing.join(SURE_S)
    assert slots_missing(redis_server, 3)() is None


def test_a_late_slot_is_given_back_by_the_next_thread_that_can_start(redis_server: RedisServer) -> None:
    with Limiter("5 slots ttl 1h", f"{redis_server.url}?deadline=5s") as limiter:
        limiter.peek("key")
        assert isinstance(limiter.engine, RedisEngine)
        late_replies, (question, reply) = limiter.engine._late_replies, request_slot(limiter.engine)
        with no_thread_can_start():
            late_replies.undo(question, reply)
        assert slots_missing(redis_server, 5)() == "4 of 5 slots are free"
        limiter.acquire("other").release()
        until(slots_missing(redis_server, 5), SURE_S)


def request_slot(engine: RedisEngine) -> tuple[RedisRequest, Any]:
    limit = parse("5 slots ttl 1h")
    question = RequestBuilder(limit, limit.text, "hg").acquire("key", None, wait=False)
    return question, engine.execute(question)
