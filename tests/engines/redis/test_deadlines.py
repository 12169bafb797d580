"""Every request has its own deadline: the shortest of its rules, never longer than the engine's, over a slow
connection to a real server.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate.algorithms.decision import REMAINING, Outcome
from headgate.algorithms.lockout import Lockout
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.deadlines import shortest_deadline
from headgate.engines.layers.denial_cache import AsyncDenialCacheEngine, DenialCacheEngine
from headgate.engines.layers.fallback import AsyncFallbackEngine, FallbackEngine
from headgate.engines.layers.prefetch import AsyncPrefetchEngine, PrefetchEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.pool_state import PoolState, PoolWaiter
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable
from headgate.limit_syntax import parse
from tests.servers import Cluster, Proxy, RedisServer

DAY = parse("1000/day fixed")
SHORT, LONG = 0.15, 2.0
HURRIED, PATIENT, COUNTING = (
    ChargeOptions("hurried", deadline=SHORT),
    ChargeOptions("patient", deadline=60.0),
    ChargeOptions("counting", deadline=SHORT, lockout=Lockout(100, 1_000_000, 1_000_000)),
)


@pytest.fixture
def link(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server) as proxy:
        yield proxy


def took(work: Callable[[], object]) -> float:
    """Returns how long it takes until nobody is waited for any more."""
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="no answer within the timeout"):
        work()
    return time.monotonic() - began


async def atook(work: Any) -> float:
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="no answer within the timeout"):
        await work
    return time.monotonic() - began


def hurried(seconds: float) -> bool:
    return 0.9 * SHORT < seconds < SHORT + 1.0


def test_of_several_the_shortest() -> None:
    engine = MemoryEngine()
    meters = [engine.meter(DAY, "n", terms) for terms in (None, ChargeOptions("r"), PATIENT, HURRIED)]
    assert shortest_deadline(meters[:2]) is None
    assert shortest_deadline(meters) == SHORT
    assert shortest_deadline(meters[:3]) == 60.0


def test_a_rule_waits_no_longer_than_its_deadline(link: Proxy) -> None:
    engine = RedisEngine(link.url, deadline=LONG)
    rules = [engine.meter(DAY, name, terms) for name, terms in (("h", HURRIED), ("p", PATIENT), ("c", COUNTING))]
    h, p, c = rules
    assert [meter.decide("k", 1)[REMAINING] for meter in rules] == [999, 999, 999]
    link.swallow()
    assert hurried(took(lambda: h.decide("k", 1)))
    assert hurried(took(lambda: c.decide("k", 1)))
    assert hurried(took(lambda: h.decide("k", 1, 1_000_000)))
    assert hurried(took(lambda: h.reset("k")))
    assert hurried(took(lambda: engine.decide_all([(p, "k", 1), (h, "k", 1)])))
    assert took(lambda: p.decide("k", 1)) > 0.9 * LONG
    engine.close()


async def test_nor_does_it_awaited(link: Proxy) -> None:
    engine = AsyncRedisEngine(link.url, deadline=LONG)
    rules = [engine.meter(DAY, name, terms) for name, terms in (("h", HURRIED), ("p", PATIENT), ("c", COUNTING))]
    h, p, c = rules
    assert [(await meter.decide("k", 1))[REMAINING] for meter in rules] == [999, 999, 999]
    link.swallow()
    assert hurried(await atook(h.decide("k", 1)))
    assert hurried(await atook(c.decide("k", 1)))
    assert hurried(await atook(h.decide("k", 1, 1_000_000)))
    assert hurried(await atook(h.reset("k")))
    assert hurried(await atook(engine.decide_all([(p, "k", 1), (h, "k", 1)])))
    link.heal()
    link.cut()
    await asyncio.sleep(0.1)
    link.swallow()
    assert await atook(p.decide("k", 1)) > 0.9 * LONG
    await engine.close()


def test_a_deadline_is_at_most_the_engines(link: Proxy) -> None:
    engine = RedisEngine(link.url, deadline=SHORT)
    meter = engine.meter(DAY, "p", PATIENT)
    meter.decide("k", 1)
    link.swallow()
    assert hurried(took(lambda: meter.decide("k", 1)))
    engine.close()


def test_a_short_deadline_fails_no_call_with_a_longer_one(link: Proxy) -> None:
    """The answer takes longer than some wait, and they all want the same two lines."""
    engine = RedisEngine(link.url, deadline=LONG)
    short, long = engine.meter(DAY, "n", HURRIED), engine.meter(DAY, "n")
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda _: long.decide("warm", 0), range(24)))
        link.delay(150)  # a round trip of 0.3 s

        def outcome(n: int) -> object:
            time.sleep(0.005 * n)
            began = time.monotonic()
            try:
                return (short if n % 2 else long).decide(f"key {n}", 1)
            except EngineUnavailable:
                return time.monotonic() - began

        answers = list(threads.map(outcome, range(12)))
    assert all(isinstance(answer, float) and hurried(answer) for answer in answers[1::2])
    assert all(isinstance(answer, tuple) and answer[REMAINING] == 999 for answer in answers[::2])
    engine.close()


def test_those_in_a_hurry_keep_nobody_from_the_lines(link: Proxy) -> None:
    """Many who are in a hurry come again and again, and still whoever is not gets an answer every time."""
    engine = RedisEngine(link.url, deadline=LONG)
    short, long = engine.meter(DAY, "n", ChargeOptions("h", deadline=1.0)), engine.meter(DAY, "n")
    long.decide("warm", 0)
    link.delay(2)
    ends = time.monotonic() + 1.5

    def asks(n: int) -> tuple[int, float]:
        count, longest = 0, 0.0
        while (began := time.monotonic()) < ends:
            (long if n < 3 else short).decide(f"key {n}", 0)
            count, longest = count + 1, max(longest, time.monotonic() - began)
        return count, longest

    with ThreadPoolExecutor(24) as threads:
        seen = list(threads.map(asks, range(24)))
    assert all(longest < 0.8 for _, longest in seen)
    patient, others = [sum(count for count, _ in part) / len(part) for part in (seen[:3], seen[3:])]
    assert patient > others / 4
    engine.close()


def test_the_caller_with_the_most_time_left_gets_the_connection() -> None:
    state = PoolState(1)
    state.entries[0].connection = object()
    patient, near, late, hurried = [PoolWaiter(left) for left in (10.0, 1.004, 0.5, 0.1)]
    state.waiting += [patient, near, late, hurried]
    # Whoever is in a hurry leaves the connection to one who is not.
    assert state.claim_for_batch(hurried) is patient
    assert state.entries[0].user is None
    batch: list[PoolWaiter] = []
    state.take_batch(PoolWaiter(1.0), batch)
    assert batch == [near, late, hurried]
    assert state.waiting == [patient]


async def test_nor_in_a_channel_that_is_shared(link: Proxy) -> None:
    engine = AsyncRedisEngine(link.url, deadline=LONG)
    short, long = engine.meter(DAY, "n", HURRIED), engine.meter(DAY, "n")
    await long.decide("warm", 0)
    link.delay(150)

    async def one(n: int) -> Outcome:
        return await (short if n % 2 else long).decide(f"key {n}", 1)

    answers = await asyncio.gather(*(one(n) for n in range(40)), return_exceptions=True)
    assert all(isinstance(answer, EngineUnavailable) for answer in answers[1::2])
    assert all(isinstance(answer, tuple) and answer[REMAINING] == 999 for answer in answers[::2])
    link.heal()
    assert (await long.decide("key 2", 0))[REMAINING] == 999
    await engine.close()


async def test_a_request_past_its_deadline_is_not_sent(link: Proxy) -> None:
    engine = AsyncRedisEngine(link.url, deadline=LONG)
    short, long = engine.meter(DAY, "n", HURRIED), engine.meter(DAY, "n")
    await long.decide("warm", 0)
    link.delay(400)
    ahead = []
    for n in range(8):  # as many units as may be on their way, and more
        ahead.append(asyncio.ensure_future(long.decide(f"ahead {n}", 1)))
        await asyncio.sleep(0.01)
    with pytest.raises(EngineUnavailable, match="it was not sent"):
        await short.decide("key", 1)
    assert [(await one)[REMAINING] for one in ahead] == [999] * 8
    link.heal()
    assert (await long.decide("key", 0))[REMAINING] == 1000
    await engine.close()


def test_the_deadline_of_the_engine_changes(link: Proxy) -> None:
    """Shorter, for lines that are open already; and longer, for the same ones."""
    engine = RedisEngine(link.url, deadline=LONG)
    stack = FallbackEngine(DenialCacheEngine(PrefetchEngine(engine, hold_us=None)), fallback=None)
    meter = stack.meter(DAY, "n")
    meter.decide("k", 1)
    stack.set_deadline(SHORT)
    assert engine.deadline == SHORT
    link.swallow()
    assert hurried(took(lambda: meter.decide("k", 1)))
    link.heal()
    for _ in range(8):  # both lines
        meter.decide("k", 1)
    stack.set_deadline(LONG)
    link.delay(150)
    meter.decide("k", 1)
    engine.execute_all([meter.meter.meter.meter.builder.reset("k") for _ in range(4)])
    stack.close()


async def test_a_new_deadline_applies_to_waiting_calls(link: Proxy) -> None:
    engine = AsyncRedisEngine(link.url, deadline=30.0)
    stack = AsyncFallbackEngine(AsyncDenialCacheEngine(AsyncPrefetchEngine(engine, hold_us=None)), fallback=None)
    meter = stack.meter(DAY, "n")
    await meter.decide("k", 1)
    link.swallow()
    began = time.monotonic()
    waiting = asyncio.ensure_future(meter.decide("k", 1))
    await asyncio.sleep(0.01)
    stack.set_deadline(SHORT)
    await atook(waiting)
    assert hurried(time.monotonic() - began)
    assert hurried(await atook(meter.decide("k", 1)))
    link.heal()
    link.cut()
    await asyncio.sleep(0.1)
    stack.set_deadline(LONG)
    link.delay(150)
    await meter.decide("k", 1)
    await stack.close()


def test_a_stack_without_a_server_has_no_deadline() -> None:
    FallbackEngine(DenialCacheEngine(PrefetchEngine(MemoryEngine()))).set_deadline(SHORT)


@pytest.mark.servers
def test_in_a_cluster(cluster: Cluster) -> None:
    keys = ["a", "b", "c", "d", "e"]
    with cluster.faulty_link(cluster.master_of("a")) as link:
        engine = RedisEngine(cluster.url, deadline=LONG)
        h, p = engine.meter(DAY, "h", HURRIED), engine.meter(DAY, "p", PATIENT)
        for key in keys:
            p.decide(key, 1)
        h.decide("a", 1)
        link.delay(60_000)
        assert hurried(took(lambda: h.decide("a", 1)))
        assert hurried(took(lambda: engine.decide_all([(p, key, 1) for key in keys] + [(h, "a", 1)])))
        engine.close()


@pytest.mark.servers
async def test_in_a_cluster_awaited(cluster: Cluster) -> None:
    keys = ["a", "b", "c", "d", "e"]
    with cluster.faulty_link(cluster.master_of("a")) as link:
        engine = AsyncRedisEngine(cluster.url, deadline=LONG)
        h, p = engine.meter(DAY, "h", HURRIED), engine.meter(DAY, "p", PATIENT)
        for key in keys:
            await p.decide(key, 1)
        await h.decide("a", 1)
        link.delay(60_000)
        assert hurried(await atook(h.decide("a", 1)))
        assert hurried(await atook(engine.decide_all([(p, key, 1) for key in keys] + [(h, "a", 1)])))
        await engine.close()
