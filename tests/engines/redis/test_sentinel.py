"""A master that sentinels name changes, dies and comes back as a replica: callers follow it."""

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.algorithms.decision import Charge
from headgate.engines.redis import topology
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import Sentinels
from tests.servers.wait_until import until


def test_the_verbs(sentinels: Sentinels) -> None:
    with Limiter("5/day", sentinels.url) as limiter, Limiter("1 slot", sentinels.url) as held:
        taken = limiter.take("key", 2)
        limiter.refund(taken, 1)
        assert limiter.peek("key").remaining == 4
        together = limiter.take_all([Charge("key"), Charge("other", "7/day log")])
        assert (together.allowed, together.atomic) == (True, True)
        with held.acquire("key") as lease:
            assert lease.renew()
        limiter.reset("key")
        assert limiter.peek("key").remaining == 5
    master = sentinels.master
    assert len(master.call("KEYS", "hg2:*")) >= 1  # type: ignore[arg-type]


async def test_takes_that_come_together_share_a_round_trip(sentinels: Sentinels) -> None:
    async with AsyncLimiter("100/day", sentinels.url) as limiter:
        await asyncio.gather(*(limiter.take("warm") for _ in range(3)))
        sentinels.master.call("CONFIG", "RESETSTAT")
        assert all(await asyncio.gather(*(limiter.take("key") for _ in range(100))))
        assert not await limiter.take("key")
        assert sentinels.master.info("commandstats")["cmdstat_evalsha"].startswith(("calls=2,", "calls=3,"))


async def test_a_client_connected_to_a_replica_finds_the_master(sentinels: Sentinels) -> None:
    replica = sentinels.replicas[0].port
    with Limiter("10/day", sentinels.url) as limiter:
        async with AsyncLimiter("10/day", sentinels.url) as awaited:
            for each in (limiter, awaited):
                assert isinstance(each.engine, RedisEngine | AsyncRedisEngine)
                found = each.engine.topology
                assert isinstance(found, topology.SentinelTopology)
                found._master = found._template.at("127.0.0.1", replica)
            assert limiter.take("key").remaining == 9
            assert (await awaited.take("key")).remaining == 8


async def test_a_name_that_no_sentinel_knows(sentinels: Sentinels) -> None:
    url = sentinels.url.replace(f"/{sentinels.name}/", "/nobody/") + "?deadline=300ms"
    sentence = r'no sentinel could tell \(127.0.0.1:\d+: it knows no master called "nobody"'
    with Limiter("1/s", url) as limiter, pytest.raises(EngineUnavailable, match=sentence):
        limiter.take("key")
    async with AsyncLimiter("1/s", url) as awaited:
        with pytest.raises(EngineUnavailable, match=sentence):
            await awaited.take("key")


async def test_a_sentinel_that_hangs_and_one_that_is_dead(sentinels: Sentinels) -> None:
    hung, *others = sentinels.sentinels
    ports = [1, hung.port, *(other.port for other in others)]
    url = f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{sentinels.name}/0?deadline=1s"
    hung.pause()
    try:
        with Limiter("10/day", url) as limiter:
            assert limiter.take("key").remaining == 9
        async with AsyncLimiter("10/day", url) as awaited:
            assert (await awaited.take("key")).remaining == 8
    finally:
        hung.resume()


def test_the_master_dies_under_load() -> None:
    """With passwords on both sides. Errors are EngineUnavailable only, nobody is charged twice, and service is
    back with the heir; then the dead one comes back as a replica and whoever still holds it is sent on."""
    servers = {"user": "clerk", "password": "open-sesame"}
    watchers = {"sentinel_user": "eye", "sentinel_password": "shut-eye"}
    with Sentinels(**servers, **watchers) as sentinels:  # type: ignore[arg-type]
        url = f"{sentinels.url}&deadline=300ms"
        _wrong_passwords(sentinels)
        allowed: Counter[str] = Counter()
        unanswered: Counter[str] = Counter()
        others: list[BaseException] = []
        done = threading.Event()

        def threads(limiter: Limiter, n: int) -> None:
            while not done.is_set():
                try:
                    allowed[f"thread {n}"] += limiter.take(f"thread {n}").allowed
                except EngineUnavailable:
                    unanswered[f"thread {n}"] += 1
                except BaseException as error:
                    others.append(error)
                time.sleep(0.002)

        async def tasks() -> None:
            async def task(n: int) -> None:
                while not done.is_set():
                    try:
                        allowed[f"task {n}"] += (await limiter.take(f"task {n}")).allowed
                    except EngineUnavailable:
                        unanswered[f"task {n}"] += 1
                    except BaseException as error:
                        others.append(error)
                    await asyncio.sleep(0.005)

            async with AsyncLimiter("100000/day", url) as limiter:
                await asyncio.gather(*(task(n) for n in range(8)))

        with ThreadPoolExecutor(5) as pool, Limiter("100000/day", url) as limiter:
            running = [pool.submit(threads, limiter, n) for n in range(4)]
            running.append(pool.submit(lambda: asyncio.run(tasks())))
            until(lambda: None if len(allowed) == 12 and min(allowed.values()) > 20 else "no service", 5)
            victim = sentinels.kill_master()
            until(lambda: None if sentinels.master is not victim else "no heir yet", 10)
            _goes_on(allowed)
            victim.start()  # it comes as a replica, sooner or later
            _goes_on(allowed)
            done.set()
            for each in running:
                each.result()
        assert others == []
        sentinels.await_ok(10)
        with Limiter("100000/day", sentinels.url) as outside:
            for key in allowed:
                spent = 100_000 - outside.peek(key).remaining
                assert allowed[key] - 100 <= spent <= allowed[key] + unanswered[key]


def _goes_on(allowed: Counter[str]) -> None:
    so_far = Counter(allowed)
    until(lambda: None if all(allowed[key] > so_far[key] + 10 for key in so_far) else "no service", 10)


def _wrong_passwords(sentinels: Sentinels) -> None:
    for right, wrong in (("open-sesame", "hunter2"), ("shut-eye", "hunter3")):
        url = f"{sentinels.url.replace(right, wrong)}&deadline=300ms"
        with Limiter("1/s", url) as limiter:
            with pytest.raises(EngineUnavailable, match="refused the user or the password") as refused:
                limiter.take("key")
            assert wrong not in str(refused.value)
