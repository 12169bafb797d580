"""Prefetching in real time: without traffic, on event loops, and by processes on a real server."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headgate.clock import ManualClock
from headgate.engines.layers.prefetch import AsyncPrefetchEngine, PrefetchEngine, guarantee, max_prefetch
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter, Limiter
from tests.engines.layers.prefetch_harness import (
    COLD,
    PROCESSES,
    PrefetchProcesses,
    RecordingEngine,
    start_processes,
)
from tests.servers import RedisServer


def _soon(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _watchers() -> int:
    return sum(thread.name == "headgate-prefetch" for thread in threading.enumerate())


def test_a_thread_gives_back_in_time_and_ends_on_close() -> None:
    before = _watchers()
    inner = MemoryEngine()
    with Limiter("1000/day fixed", PrefetchEngine(inner, hold_us=30_000)) as limiter:
        for _ in range(50):
            limiter.take("k")
        assert _watchers() == before + 1
        _soon(lambda: Limiter("1000/day fixed", inner).peek("k").remaining == 950)
    assert _watchers() == before


def test_the_thread_does_not_keep_its_engine_alive() -> None:
    before = _watchers()
    limiter: Limiter | None = Limiter("1000/day fixed", PrefetchEngine(MemoryEngine()))
    for _ in range(50):
        assert limiter is not None
        limiter.take("k")
    limiter = None
    gc.collect()
    _soon(lambda: _watchers() == before)


def test_many_threads_share_one_stock() -> None:
    inner = MemoryEngine()
    engine = PrefetchEngine(inner)
    limiter, passed = Limiter("5000/day fixed", engine), []

    def hammer() -> None:
        passed.append(sum(limiter.take("k").allowed for _ in range(2000)))

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    assert sum(passed) == 5000


async def test_awaited_it_is_the_same() -> None:
    clock = ManualClock()
    warehouse = RecordingEngine(clock)
    engine = AsyncPrefetchEngine(AsyncMemoryEngine(warehouse), clock=clock)
    limiter = AsyncLimiter("1000/day fixed", engine, clock=clock)
    plain = Limiter("1000/day fixed", warehouse, clock=clock)
    decisions = [await limiter.take("k") for _ in range(40)]
    assert warehouse.costs == [1, 1, 1, 5, 10, 20, 40][: len(warehouse.costs)]
    assert (await limiter.peek("k")).remaining == 960
    await limiter.refund(decisions[-1])
    clock.advance(0.1)
    await engine.give_back_expired()
    assert plain.peek("k").remaining == 961
    await limiter.set_limit("900/day fixed", "k")
    assert (await limiter.take("k")).remaining == 860
    await limiter.reset("k")
    both = await AsyncLimiter("5/s; 9/s log", engine, clock=clock).take("k")
    assert both.remaining == 4
    [await limiter.take("k") for _ in range(40)]
    await limiter.close()
    assert Limiter("900/day fixed", warehouse, clock=clock, name="1000/day fixed").peek("k").remaining == 860


async def test_a_timer_gives_back_in_time() -> None:
    inner = MemoryEngine()
    limiter = AsyncLimiter("1000/day fixed", AsyncPrefetchEngine(AsyncMemoryEngine(inner), hold_us=30_000))
    for _ in range(50):
        await limiter.take("k")
    deadline = time.monotonic() + 10
    while Limiter("1000/day fixed", inner).peek("k").remaining != 950:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    await limiter.close()


async def test_leases_that_are_used_up_before_their_time_do_not_pile_up() -> None:
    warehouse = RecordingEngine()
    engine = AsyncPrefetchEngine(AsyncMemoryEngine(warehouse), hold_us=10_000, units=5)
    limiter = AsyncLimiter("1000000/day fixed", engine)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        for _ in range(100):
            await limiter.take("k")
        await asyncio.sleep(0.001)
    leases = sum(cost > 1 for cost in warehouse.costs)
    assert engine._hot_keys.pending_count < leases / 2
    await limiter.close()


def test_several_event_loops_share_an_engine() -> None:
    inner = MemoryEngine()
    engine = AsyncPrefetchEngine(AsyncMemoryEngine(inner), hold_us=10_000_000)
    limiter = AsyncLimiter("1000/day fixed", engine)

    async def take() -> None:
        for _ in range(50):
            await limiter.take("k")

    asyncio.run(take())
    asyncio.run(take())
    assert engine.prefetched > 80  # the second loop went on with what the first one had prefetched
    asyncio.run(engine.close())
    assert Limiter("1000/day fixed", inner).peek("k").remaining == 900


# Real servers --------------------------------------------------------------------------------------------------


def test_unused_units_are_back_in_redis_on_close(server: RedisServer) -> None:
    engine = PrefetchEngine(RedisEngine(server.unix_url), hold_us=60_000_000)
    with Limiter("1000/365d fixed", engine) as limiter, Limiter("1000/365d fixed", server.unix_url) as plain:
        for _ in range(50):
            limiter.take("k")
        assert plain.peek("k").remaining < 950
        engine.close()
        assert plain.peek("k").remaining == 950


@pytest.fixture(scope="module")
def processes() -> Iterator[PrefetchProcesses]:
    with start_processes() as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("text", ["20000/s burst 4000", "10000/500ms fixed"])
def test_four_processes_keep_the_law(text: str, processes: PrefetchProcesses, redis_server: RedisServer) -> None:
    epoch_us = (time.time_ns() - time.monotonic_ns()) // 1000
    shifts = processes.work(redis_server.unix_url, text, 2)
    limit = parse(text)
    admitted = sorted(at_us for shift in shifts for at_us in shift.admitted_us)
    more = PROCESSES * max_prefetch(limit)
    assert f"at most {more} units" in guarantee(limit, nodes=PROCESSES)
    # An instant is written down after its decision: each process may bring one call from before a span into it.
    late = PROCESSES
    if text.endswith("fixed"):
        windows = [(at_us + epoch_us) // 500_000 for at_us in admitted]
        assert max(windows.count(window) for window in set(windows)) <= 10_000 + late
    else:
        # Over the span between any two: units - rate * length <= burst + what leases add.
        lowest = float("inf")
        for number, at_us in enumerate(admitted):
            lowest = min(lowest, number - 0.02 * at_us)
            assert number + 1 - 0.02 * at_us - lowest <= 4000 + more + late
    assert sum(shift.prefetched for shift in shifts) > 1000
    cold = sum(shift.cold_admitted for shift in shifts)
    assert cold > PROCESSES
    assert {shift.cold_remaining for shift in shifts} == {int(COLD.split("/")[0]) - cold}
    assert [shift.lost for shift in shifts] == [0] * PROCESSES
