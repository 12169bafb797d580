"""Slots that a block holds for longer than their ttl, on real servers: they are renewed, and a lost one is
reported to its holder.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
from headgate.errors import InvalidCharge, LeaseLost, RateLimited
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import DrivenClock, RedisServer
from tests.servers.wait_until import until

SLOT = "1 slot ttl 3s"
LONG_S = 7.0  # a block that outlasts the ttl
BRIEF = "1 slot ttl 1s"  # one that is to be lost
SURE_S = 20.0


def rules(text: str) -> dict[str, Any]:
    return {"rules": [{"name": "exports", "limit": text}, {"name": "uploads", "limit": "2 slots ttl 1h"}]}


def blocks(url: str, text: str = SLOT) -> dict[str, Callable[[], Any]]:
    """Every way to hold a slot around a block."""
    limiter, ruled = Limiter(text, url), RuleLimiter(rules(text), url)
    return {
        "acquire": lambda: limiter.acquire("acquired"),
        "guard": lambda: limiter.guard("guarded"),
        "hold": lambda: ruled.hold({}),
    }


def async_blocks(url: str, text: str = SLOT) -> dict[str, Callable[[], Any]]:
    limiter, ruled = AsyncLimiter(text, url), AsyncRuleLimiter(rules(text), url)
    return {
        "acquire": lambda: _AcquiredSlot(limiter),
        "guard": lambda: limiter.guard("guarded"),
        "hold": lambda: ruled.hold({}),
    }


class _AcquiredSlot:
    """async with await limiter.acquire(...), as one step."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self._limiter = limiter

    async def __aenter__(self) -> Any:
        self._lease = await self._limiter.acquire("acquired")
        return await self._lease.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._lease.__aexit__(*error)


def test_a_block_that_outlasts_the_ttl_keeps_its_slot(redis_server: RedisServer) -> None:
    mine, others = blocks(redis_server.url), blocks(redis_server.url)
    with mine["acquire"]() as lease, mine["guard"]() as guarded, mine["hold"]() as held:
        end = time.monotonic() + LONG_S
        while time.monotonic() < end:
            for other in others.values():
                with pytest.raises(RateLimited), other():
                    raise AssertionError("two hold the slot")
            assert [each.lost for each in (lease, guarded, held)] == [False, False, False]
            time.sleep(0.1)
    for other in others.values():
        with other() as held:
            assert not held.lost


async def test_awaited_it_is_the_same(redis_server: RedisServer) -> None:
    mine, others = async_blocks(redis_server.url), async_blocks(redis_server.url)
    async with mine["acquire"]() as lease, mine["guard"]() as guarded, mine["hold"]() as held:
        end = time.monotonic() + LONG_S
        while time.monotonic() < end:
            for other in others.values():
                with pytest.raises(RateLimited):
                    async with other():
                        raise AssertionError("two hold the slot")
            assert [each.lost for each in (lease, guarded, held)] == [False, False, False]
            await asyncio.sleep(0.1)
    for other in others.values():
        async with other() as held:
            assert not held.lost


@pytest.mark.parametrize("way", ["acquire", "guard", "hold"])
def test_a_killed_server_loses_the_slot_and_raises_at_the_holder(way: str) -> None:
    with RedisServer() as server:
        block = blocks(f"{server.url}?deadline=1s", BRIEF)[way]

        def lose(by: Callable[[], None], error: Exception | None = None) -> None:
            with block() as held:
                by()
                until(lambda: None if held.lost else "nobody noticed", SURE_S)
                if error is not None:
                    raise error

        with pytest.raises(LeaseLost, match="somebody else may hold"):
            lose(server.kill)
        server.restart()
        with pytest.raises(KeyError) as raised:
            lose(server.restart, KeyError())  # it has forgotten everything
        assert any("somebody else may hold" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("way", ["acquire", "guard", "hold"])
async def test_a_killed_server_raises_at_the_async_holder(way: str) -> None:
    with RedisServer() as server:
        block = async_blocks(f"{server.url}?deadline=1s", BRIEF)[way]

        async def lose(by: Callable[[], None], error: Exception | None = None) -> None:
            async with block() as held:
                by()
                end = time.monotonic() + SURE_S
                while not held.lost:
                    assert time.monotonic() < end
                    await asyncio.sleep(0.01)
                if error is not None:
                    raise error

        with pytest.raises(LeaseLost, match="somebody else may hold"):
            await lose(server.kill)
        server.restart()
        with pytest.raises(KeyError) as raised:
            await lose(server.restart, KeyError())
        assert any("somebody else may hold" in note for note in raised.value.__notes__)


def test_a_server_that_is_away_for_less_than_the_ttl_loses_nothing(redis_server: RedisServer) -> None:
    limiter = Limiter("1 slot ttl 9s", f"{redis_server.url}?deadline=100ms")
    with limiter.acquire("key") as lease:
        for _ in range(3):
            redis_server.pause()
            time.sleep(1.5)
            redis_server.resume()
            before = lease.expires_at
            until(lambda: None if lease.expires_at > before else "it was not renewed", SURE_S)  # noqa: B023
            assert not lease.lost


def test_an_engine_that_says_no_ends_it(driven_redis: RedisServer) -> None:
    """The clock of the server alone decides: by it the lease ended long ago."""
    clock: DrivenClock = driven_redis.clock
    limiter = Limiter("1 slot ttl 3s", driven_redis.url)

    def work() -> None:
        with limiter.acquire("key") as lease:
            clock.advance_us(4_000_000)
            until(lambda: None if lease.lost else "nobody noticed", SURE_S)
            assert not lease

    with pytest.raises(LeaseLost):
        work()
    with pytest.raises(LeaseLost), limiter.acquire("key"):  # found out by releasing it
        clock.advance_us(4_000_000)


@pytest.mark.parametrize("found_out_by", ["renewing", "releasing"])
@pytest.mark.parametrize("how", ["reset", "restart"])
def test_a_slot_that_the_engine_forgot_is_not_reported_as_late(
    how: str, found_out_by: str, redis_server: RedisServer
) -> None:
    limiter = Limiter("1 slot ttl 20s", redis_server.url)

    def work() -> None:
        with limiter.acquire("key") as lease:
            if how == "reset":
                limiter.reset("key")
            else:
                redis_server.restart()
            if found_out_by == "renewing":
                until(lambda: None if lease.lost else "nobody noticed", SURE_S)

    with pytest.raises(LeaseLost, match="the engine forgot it before its ttl of 20 s was over") as raised:
        work()
    assert "longer ttl" not in str(raised.value)


async def test_a_slot_renewed_too_late_is_reported_as_expired(redis_server: RedisServer) -> None:
    """The task keeps its event loop busy: the slot has expired when the engine is asked."""
    async with AsyncLimiter(BRIEF, redis_server.url) as limiter:
        lease = await (await limiter.acquire("key")).__aenter__()
        asyncio.get_running_loop().call_soon(time.sleep, 1.5)
        await asyncio.sleep(0.2)
        with pytest.raises(LeaseLost, match=r"not renewed within its ttl of 1 s.*Give slots a longer ttl"):
            await lease.__aexit__(None, None, None)


def test_many_leases_are_renewed_by_few_threads(redis_server: RedisServer) -> None:
    limiter = Limiter("200 slots ttl 3s", redis_server.url)
    leases = [limiter.acquire("key") for _ in range(200)]
    for lease in leases:
        lease.__enter__()
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        assert limiter.peek("key").remaining == 0
        time.sleep(0.2)
    assert 0 < [each.name for each in threading.enumerate()].count("headgate-renewal") <= 8
    for lease in leases:
        lease.__exit__(None, None, None)
    assert limiter.peek("key").remaining == 200


def test_a_server_that_hangs_does_not_hold_up_the_leases_of_others(redis_server: RedisServer) -> None:
    with RedisServer() as hanging:
        stuck = Limiter("20 slots ttl 1s", f"{hanging.url}?deadline=30s")
        limiter = Limiter(SLOT, redis_server.url)
        leases = [stuck.acquire("key") for _ in range(3)]
        for lease in leases:
            lease.__enter__()
        hanging.pause()
        try:
            with limiter.acquire("key") as lease:
                time.sleep(LONG_S)
                assert not lease.lost
            assert all(each.lost for each in leases)
        finally:
            hanging.resume()
            for each in leases:
                with pytest.raises(LeaseLost):
                    each.__exit__(None, None, None)


def test_a_forked_child_leaves_renewing_to_its_parent(redis_server: RedisServer) -> None:
    limiter = Limiter(SLOT, redis_server.url)
    with limiter.acquire("key") as lease:
        time.sleep(0.5)  # the thread is there
        child = os.fork()
        if not child:
            try:  # it renews what is its own
                with Limiter(SLOT, redis_server.url, name="child").acquire("key") as child_lease:
                    time.sleep(LONG_S)
                    os._exit(1 if child_lease.lost else 0)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not lease.lost
    with limiter.acquire("key"):
        pass


def test_a_forked_child_does_not_renew_what_its_dead_parent_held(redis_server: RedisServer) -> None:
    limiter = Limiter(SLOT, redis_server.url)
    holder = os.fork()
    if not holder:
        with limiter.acquire("key"):
            time.sleep(0.5)  # the thread is there
            os.fork()
            time.sleep(SURE_S)
            os._exit(0)
    until(lambda: _held(limiter), SURE_S)
    time.sleep(LONG_S)
    with pytest.raises(RateLimited):
        limiter.acquire("key")
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    limiter.acquire("key", timeout=SURE_S).release()


def _held(limiter: Limiter) -> str | None:
    return None if not limiter.peek("key").remaining else "nobody holds it"


def test_released_in_the_block_nothing_is_lost(redis_server: RedisServer) -> None:
    limiter, ruled = Limiter(SLOT, redis_server.url), RuleLimiter(rules(SLOT), redis_server.url)
    with limiter.acquire("key") as lease, ruled.hold({}) as held:
        assert lease.release()
        assert ruled.release(held)
        time.sleep(1.5)  # long enough to be renewed
        assert not lease.lost
        assert not held.lost


def test_a_coroutine_function_is_refused_with_a_sentence(redis_server: RedisServer) -> None:
    limiter = Limiter(SLOT, redis_server.url)

    async def work() -> None: ...

    async def works() -> AsyncIterator[int]:
        yield 1

    class AsyncCallable:
        async def __call__(self) -> None: ...

    for function in (work, works, AsyncCallable()):
        with pytest.raises(InvalidCharge, match="use AsyncLimiter"):
            limiter.guard("key")(function)


def test_a_generator_holds_its_slot_until_it_ends(redis_server: RedisServer) -> None:
    limiter = Limiter(SLOT, redis_server.url)

    @limiter.guard("key")
    def parts() -> Iterator[int]:
        got = yield 1
        assert got == "sent"
        yield 2

    for _ in range(2):
        running: Any = parts()
        assert next(running) == 1
        with pytest.raises(RateLimited):
            next(iter(parts()))
        assert running.send("sent") == 2
        with pytest.raises(StopIteration):
            next(running)
    running = parts()
    next(running)
    running.close()
    with limiter.acquire("key"):
        pass


async def test_an_async_generator_holds_its_slot_until_it_ends(redis_server: RedisServer) -> None:
    limiter = AsyncLimiter(SLOT, redis_server.url)
    thrown: list[str] = []

    @limiter.guard("key")
    async def parts() -> AsyncIterator[int]:
        try:
            got = yield 1
            assert got == "sent"
            yield 2
        except KeyError:
            thrown.append("thrown")
            yield 3
        finally:
            thrown.append("ended")

    for _ in range(2):
        running: Any = parts()
        assert await anext(running) == 1
        with pytest.raises(RateLimited):
            await anext(parts())
        assert await running.asend("sent") == 2
        with pytest.raises(StopAsyncIteration):
            await anext(running)
    running = parts()
    await anext(running)
    assert await running.athrow(KeyError) == 3
    await running.aclose()
    assert thrown == ["ended", "ended", "thrown", "ended"]
    async with await limiter.acquire("key"):
        pass

    def plain() -> Any:
        yield 1

    with pytest.raises(InvalidCharge, match="use Limiter"):
        limiter.guard("key")(plain)
    await limiter.close()
