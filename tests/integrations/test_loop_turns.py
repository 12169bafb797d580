"""Requests that a batch of replies wakes go on over several turns of the loop, in order, and all of them do."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.integrations.asgi import RateLimitMiddleware, limit
from headgate.integrations.loop_turns import RESUMED_PER_TURN, go_on_in_turn
from headgate.integrations.request_parts import RequestParts
from headgate.integrations.request_record import RequestRecord
from tests.servers import RedisServer

SCOPE = {"type": "http", "path": "/", "headers": [], "method": "GET", "client": ("192.0.2.7", 4711)}
REQUESTS = 64


class _TurnCounter:
    """Counts the turns of the running loop until it is stopped."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        self._handle = self._loop.call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


def _record() -> RequestRecord:
    return RequestRecord(RequestParts("GET", "/", "", (), None, None), exempt=False)


async def _never(*args: Any) -> Any:
    raise AssertionError("nothing is received or sent here")


async def _requests_by_turn(engine: Any) -> Counter[int]:
    """Calls an application many times at once; returns how many requests reached it in each turn of the loop."""
    by_turn: Counter[int] = Counter()
    counter = _TurnCounter()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        by_turn[counter.number] += 1

    limited = RateLimitMiddleware(app, engine=engine, limits=[limit("1000000/s")], prefix="turns")
    await limited(dict(SCOPE), _never, _never)  # connects
    by_turn.clear()
    await asyncio.gather(*(limited(dict(SCOPE), _never, _never) for _ in range(REQUESTS)))
    counter.stop()
    await limited.limits.close()
    return by_turn


def test_requests_of_one_batch_go_on_in_several_turns(redis_server: RedisServer) -> None:
    by_turn = asyncio.run(_requests_by_turn(f"{redis_server.url}?deadline=5s"))
    assert by_turn.total() == REQUESTS
    # Those that the turn before has released, and those that came before this one was full.
    assert max(by_turn.values()) <= 2 * RESUMED_PER_TURN


@pytest.mark.parametrize("in_memory", ["memory://", AsyncMemoryEngine(MemoryEngine())])
def test_in_memory_nothing_waits_for_another_turn(in_memory: Any) -> None:
    assert len(asyncio.run(_requests_by_turn(in_memory))) == 1


@pytest.mark.parametrize("in_memory", ["memory://", AsyncMemoryEngine(MemoryEngine())])
def test_in_memory_it_decides_without_a_loop_of_asyncio(in_memory: Any) -> None:
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    call = RateLimitMiddleware(app, engine=in_memory, limits=[limit("5/s")])(dict(SCOPE), _never, _never)
    with pytest.raises(StopIteration):  # it has returned, as in a loop of trio
        call.send(None)
    assert reached == ["/"]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.sets(st.integers(0, 39)))
def test_all_go_on_in_order_but_those_that_were_cancelled(count: int, cancelled: set[int]) -> None:
    async def main() -> list[int]:
        order: list[int] = []
        reply = asyncio.get_running_loop().create_future()

        async def request(number: int) -> None:
            await go_on_in_turn(_record(), reply)
            order.append(number)

        tasks = [asyncio.ensure_future(request(number)) for number in range(count)]
        await asyncio.sleep(0)
        reply.set_result(None)
        await asyncio.sleep(0)  # the first ones go on, the others wait for their turn
        for number in cancelled:
            if number < count:
                tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    order = asyncio.run(main())
    assert order == sorted(order)
    assert set(order) >= set(range(count)) - cancelled


def test_requests_that_hold_something_go_on_at_once() -> None:
    async def main() -> int:
        reply = asyncio.get_running_loop().create_future()
        finished: list[None] = []

        async def request() -> None:
            record = _record()
            record.holdings = (object(),)
            await go_on_in_turn(record, reply)
            finished.append(None)

        tasks = [asyncio.ensure_future(request()) for _ in range(3 * RESUMED_PER_TURN)]
        await asyncio.sleep(0)
        reply.set_result(None)
        await asyncio.sleep(0)
        in_one_turn = len(finished)
        await asyncio.wait(tasks)
        return in_one_turn

    assert asyncio.run(main()) == 3 * RESUMED_PER_TURN


def test_loops_that_run_by_turns_do_not_wake_each_other() -> None:
    loops = [asyncio.new_event_loop() for _ in range(2)]
    finished: list[int] = []
    replies = [loop.create_future() for loop in loops]

    async def request(number: int) -> None:
        await go_on_in_turn(_record(), replies[number])
        finished.append(number)

    async def requests(number: int) -> None:
        waiting = [asyncio.ensure_future(request(number)) for _ in range(3 * RESUMED_PER_TURN)]
        await asyncio.sleep(0)
        replies[number].set_result(None)
        await asyncio.sleep(0)  # the loop pauses while some wait
        tasks.extend(waiting)

    tasks: list[asyncio.Future[None]] = []
    for number, loop in enumerate(loops):
        loop.run_until_complete(requests(number))
    for loop in loops:
        of_loop = [task for task in tasks if task.get_loop() is loop]
        loop.run_until_complete(asyncio.wait(of_loop))
        loop.close()
    assert finished.count(0) == finished.count(1) == 3 * RESUMED_PER_TURN
