"""Callers that are cancelled while their request is under way: the place, slot or ticket in its reply is given
back, on one server, on a cluster, and through every layer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import EngineUnavailable, RateLimited
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import Cluster, Proxy, RedisServer
from tests.servers.wait_until import until

CALLERS = 300
WAY_MS = 20.0

WaitingCall = Callable[[], Awaitable[Any]]


async def cancelled(waiting_call: WaitingCall, callers: int = CALLERS) -> None:
    """So many ask, wave after wave, and every one of them is cancelled while its question is on the way: before it
    was sent, while the server decides, while the answer comes, or in the very turn in which it has come."""
    left = 0
    for wave in range(10):
        tasks = [asyncio.ensure_future(waiting_call()) for _ in range(callers // 10)]
        await asyncio.sleep(wave * WAY_MS / 9000)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            left += isinstance(result, asyncio.CancelledError)
            if hasattr(result, "release"):  # it has come before that
                await result.release()
    assert left >= callers // 10


async def settled(look: Callable[[], Awaitable[object]], seconds: float = 30) -> None:
    """Returns when the look finds nothing to complain about."""
    end = time.monotonic() + seconds
    while (complaint := await look()) is not None:
        assert time.monotonic() < end, complaint
        await asyncio.sleep(0.01)


async def next_place(limiter: AsyncLimiter, key: str = "key") -> object:
    """Returns a complaint if the next place is more than a minute away."""
    place = await limiter.reserve(key)
    await place.cancel()
    if not place or place.decision.degraded:
        return place
    return None if place.delay <= 60 else f"the next place is {place.delay:.0f} s away"


@pytest.mark.parametrize("text", ["1/minute", "1/minute; 1/minute burst 2", "1/minute fixed", "1/minute smooth"])
@pytest.mark.parametrize("options", ["?deadline=5s", "?denial_cache=on&prefetch=100ms&fallback=deny&deadline=5s"])
async def test_a_wait_that_is_cancelled_keeps_no_place(text: str, options: str, redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        async with AsyncLimiter(text, link.url + options) as limiter:
            await limiter.take("key")
            link.delay(WAY_MS / 2)
            await cancelled(lambda: limiter.wait("key"))
            link.heal()
            await settled(lambda: next_place(limiter))


@pytest.mark.parametrize("text", ["1/minute", "1/minute fixed", "1/minute smooth", "1/minute log"])
async def test_waiters_that_hang_up_in_the_order_of_their_places_keep_none(
    text: str, redis_server: RedisServer
) -> None:
    """All but the last have somebody behind them when they leave."""
    async with AsyncLimiter(text, redis_server.url) as limiter:
        await limiter.take("key")
        places = [await limiter.reserve("key") for _ in range(100)]
        assert 90 * 60 < places[-1].delay <= 100 * 60
        tasks = [asyncio.ensure_future(limiter.wait("key")) for _ in range(100)]
        await limiter.peek("key")
        for place in places:
            await place.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settled(lambda: next_place(limiter))


@pytest.mark.parametrize("text", ["1/minute", "1/minute fixed", "1/minute smooth"])
async def test_no_place_is_given_back_twice(text: str, redis_server: RedisServer) -> None:
    """Somebody stays in the middle of those who leave: its place is not given to anybody else."""
    async with AsyncLimiter(text, redis_server.url) as limiter:
        await limiter.take("key")
        places = [await limiter.reserve("key") for _ in range(21)]
        stays = places.pop(10)
        for place in places:
            await place.cancel()
        served = stays.decision.outcome[5] / 1e6 + stays.delay

        async def look() -> object:
            place = await limiter.reserve("key")
            await place.cancel()
            after = place.decision.outcome[5] / 1e6 + place.delay - served
            assert after > 59
            return None if after < 61 else f"the next place is {after:.0f} s behind the one that stays"

        await settled(look)
        await look()


async def test_callers_that_hang_up_one_after_the_other_keep_no_place(redis_server: RedisServer) -> None:
    """Each asks before the one before it has been answered, and leaves on the way or while it waits."""
    with Proxy(redis_server) as link:
        async with AsyncLimiter("1/minute", link.url) as limiter:
            await limiter.take("key")
            link.delay(WAY_MS / 4)
            tasks: list[asyncio.Future[Any]] = []
            for number in range(CALLERS):
                tasks.append(asyncio.ensure_future(limiter.wait("key")))
                await asyncio.sleep(0.001)
                tasks[number // 2].cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            link.heal()
            await settled(lambda: next_place(limiter))


async def test_a_reservation_that_is_cancelled_on_a_cluster_keeps_no_place(cluster: Cluster) -> None:
    rules = {
        "rules": [
            {"name": "user", "limit": "1/minute", "key": "user", "missing": "deny"},
            {"name": "plan", "limit": "1/minute", "key": "plan", "missing": "deny"},
        ],
    }
    call = {"user": "ann", "plan": "free"}
    async with AsyncRuleLimiter(rules, cluster.url) as limiter, AsyncLimiter("1/minute", cluster.url) as alone:
        await limiter.check(call)
        await alone.take("key")
        waiting_calls: list[WaitingCall] = [lambda: limiter.reserve(call), lambda: alone.wait("key")]
        for waiting_call in waiting_calls:
            for turns in range(12):
                tasks = [asyncio.ensure_future(waiting_call()) for _ in range(10)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        async def look() -> object:
            decision = await limiter.reserve(call)
            await limiter.cancel(decision)
            return None if decision.delay <= 60 else f"the next place is {decision.delay:.0f} s away"

        await settled(look)
        await settled(lambda: next_place(alone))


@pytest.mark.parametrize("options", ["?deadline=5s", "?fallback=deny&deadline=5s"])
@pytest.mark.parametrize("timeout", [0.0, 30.0])
async def test_a_slot_whose_caller_left_is_free_again_at_once(
    options: str, timeout: float, redis_server: RedisServer
) -> None:
    with Proxy(redis_server) as link:
        async with AsyncLimiter("40 slots ttl 1h", link.url + options) as limiter:
            await limiter.peek("key")
            link.delay(WAY_MS / 2)
            await cancelled(lambda: limiter.acquire("key", timeout))
            link.heal()

            async def look() -> object:
                free = (await limiter.peek("key")).remaining
                return None if free == 40 else f"{free} of 40 slots are free"

            await settled(look)


async def test_a_ticket_whose_waiter_left_holds_nobody_up(redis_server: RedisServer) -> None:
    """A ticket lives for a second by itself: so the next in line is asked for before that."""
    with Proxy(redis_server) as link:
        async with AsyncLimiter("1 slot ttl 1h", f"{link.url}?deadline=5s") as limiter:
            lease = await limiter.acquire("key")
            link.delay(WAY_MS)
            tasks = [asyncio.ensure_future(limiter.acquire("key", 30)) for _ in range(5)]
            await asyncio.sleep(WAY_MS / 2000)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await limiter.peek("key")  # the tickets were drawn, and given up
            await limiter.peek("key")
            with pytest.raises(RateLimited) as refused:
                await limiter.acquire("key")
            assert refused.value.decision.outcome[6] == 1  # the next in line
            await lease.release()


async def test_the_charges_of_a_cancelled_check_are_given_back(redis_server: RedisServer) -> None:
    rules = {
        "rules": [
            {"name": "exports", "limit": "5 slots ttl 1h", "key": "user", "missing": "deny"},
            {"name": "uploads", "limit": "5 slots ttl 1h", "key": "user", "missing": "deny"},
            {"name": "calls", "limit": "100000/day", "key": "user", "missing": "deny"},
        ],
    }
    call = {"user": "ann"}
    with Proxy(redis_server) as link:
        async with AsyncRuleLimiter(rules, link.url) as limiter:
            await limiter.peek(call)
            link.delay(WAY_MS / 4)
            await cancelled(lambda: limiter.check(call), 50)
            link.heal()

            async def look() -> object:
                free = [each.remaining for each in (await limiter.peek(call)).verdicts][:2]
                return None if free == [5, 5] else f"{free} slots are free"

            await settled(look)


@pytest.mark.parametrize("question", ["wait", "acquire"])
async def test_an_answer_that_comes_too_late_is_given_back(question: str, redis_server: RedisServer) -> None:
    """A late reply is not waited for, as after a cancellation."""
    with Proxy(redis_server) as link:
        limiter = AsyncLimiter("1/minute", f"{link.url}?deadline=500ms")
        slots = AsyncLimiter("1 slot ttl 1h", f"{link.url}?deadline=500ms")
        await limiter.take("key")
        await slots.peek("key")
        link.delay(1000, "replies")
        for _ in range(3):
            with pytest.raises(EngineUnavailable):
                await (limiter.wait("key") if question == "wait" else slots.acquire("key"))
        link.heal()

        async def look() -> object:
            try:
                free = (await slots.peek("key")).remaining
                return await next_place(limiter) if free == 1 else "the slot is taken"
            except EngineUnavailable as why:
                return why

        await settled(look)
        await limiter.close()
        await slots.close()


async def test_closing_waits_for_what_is_to_be_given_back(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        async with AsyncLimiter("1 slot ttl 1h", link.url) as limiter:
            await limiter.peek("key")
            link.delay(WAY_MS)
            task = asyncio.ensure_future(limiter.acquire("key"))
            await asyncio.sleep(WAY_MS / 1000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with AsyncLimiter("1 slot ttl 1h", redis_server.url) as limiter:
            await limiter.acquire("key")


async def test_a_take_whose_caller_left_stays_charged(redis_server: RedisServer) -> None:
    """A caller with a timeout often goes on without an answer; its next calls must be right."""
    with Proxy(redis_server) as link:
        async with AsyncLimiter("100/day", link.url) as limiter:
            await limiter.take("key")
            link.delay(5 * WAY_MS)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(limiter.take("key"), WAY_MS / 1000)
            link.heal()

            async def look() -> object:
                left = (await limiter.peek("key")).remaining
                return None if left == 96 else f"{left} are left"

            await settled(look)


async def test_units_prefetched_for_a_cancelled_caller_serve_others(
    redis_server: RedisServer,
) -> None:
    """Its own unit stays charged; the others lie here for whoever asks next, and go back in the end."""
    with Proxy(redis_server) as link:
        async with AsyncLimiter("1000/day", f"{link.url}?prefetch=10s&prefetch_units=500&deadline=5s") as limiter:
            for _ in range(3):  # the next one makes the key hot
                await limiter.take("key")
            link.delay(WAY_MS)
            task = asyncio.ensure_future(limiter.take("key"))
            await asyncio.sleep(WAY_MS / 1000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            link.heal()
        async with AsyncLimiter("1000/day", redis_server.url) as other:
            assert (await other.peek("key")).remaining == 996


async def test_a_guard_that_is_cancelled_while_it_serves_a_delay_gives_its_place_back(
    redis_server: RedisServer,
) -> None:
    async with AsyncLimiter("1/s queue 50", redis_server.url) as limiter:

        async def guarded() -> None:
            async with limiter.guard("key"):
                pass

        await guarded()
        tasks = [asyncio.ensure_future(guarded()) for _ in range(40)]
        await settled(lambda: _remaining(limiter, range(30)))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settled(lambda: _remaining(limiter, range(45, 52)))


async def _remaining(limiter: AsyncLimiter, expected: range) -> object:
    left = (await limiter.peek("key")).remaining
    return None if left in expected else f"{left} are left"


@pytest.mark.parametrize("text", ["1/minute", "1/minute fixed", "1/minute smooth", "1/minute log"])
def test_threads_that_leave_in_the_order_of_their_places_keep_none(text: str, redis_server: RedisServer) -> None:
    """All but the last have somebody behind them when they leave."""

    def next_place() -> str | None:
        place = limiter.reserve("key")
        place.cancel()
        return None if place.delay <= 60 else f"the next place is {place.delay:.0f} s away"

    with Limiter(text, f"{redis_server.url}?deadline=5s") as limiter:
        limiter.take("key")
        for place in [limiter.reserve("key") for _ in range(100)]:
            place.cancel()
        until(next_place, 30)


def test_a_thread_that_is_answered_too_late_keeps_no_place(redis_server: RedisServer) -> None:
    """One after the other gives up by its deadline; the answers come later, and are given back."""
    with Proxy(redis_server) as link, Limiter("1/minute", f"{link.url}?deadline=200ms") as limiter:
        limiter.take("key")
        link.delay(150)  # there and back take longer than the deadline
        for _ in range(5):
            with pytest.raises(EngineUnavailable, match="no answer within the timeout"):
                limiter.reserve("key")
        link.heal()

        with Limiter("1/minute", redis_server.url) as direct:

            def missing() -> (
                str | None
            ):  # only looks: a place of its own would stand behind those that are given back
                wait = direct.peek("key").reset_after
                return None if wait <= 60 else f"the next place is {wait:.0f} s away"

            until(missing, 20)


def test_a_thread_that_is_answered_too_late_keeps_no_slot(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("1 slots ttl 60s", f"{link.url}?deadline=200ms") as limiter:
        limiter.peek("key")
        link.delay(150)
        with pytest.raises(EngineUnavailable, match="no answer within the timeout"):
            limiter.acquire("key")
        link.heal()
        with Limiter("1 slots ttl 60s", redis_server.url) as direct:
            until(lambda: None if direct.peek("key").allowed else "the slot is held by nobody", 20)
