"""A cluster under load that moves slots, loses masters and forgets scripts.

Whoever is sent on, or told to try again, has not been charged, and asks again; whoever got no answer may have
been, and does not. So at the end, for every key: the allowed answers <= what was charged <= those and the
unanswered ones. The reason for its length: all its stories are told of one cluster, and by the same few helpers.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest

from headgate.algorithms.decision import Charge, Decision
from headgate.engines.redis import redirects
from headgate.engines.redis.protocol import RequestBuilder
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import KINDS, Cluster, RedisServer
from tests.servers.cluster import ClusterNode, slot_of
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers

PLENTY = "100000/year"  # of which no unit comes back meanwhile
GENEROUS = 5.0


@pytest.fixture(params=KINDS)
def any_cluster(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue("cluster" if request.param == "redis" else "valkey_cluster")
    return cluster


def keys_of(cluster: Cluster) -> list[str]:
    """A key for each master."""
    return [next(key for key in names() if cluster.master_of(key) is master) for master in cluster.masters()]


def names() -> Iterator[str]:
    return (f"key {n}".replace(" ", "") for n in count())


def in_slot(slot: int, wanted: int) -> list[str]:
    matching = (key for key in names() if slot_of(key) == slot)
    return [next(matching) for _ in range(wanted)]


def redis_key(text: str, key: str) -> bytes:
    return RequestBuilder(parse(text), text, "hg").key(key)


def used(cluster: Cluster, key: str) -> int:
    with Limiter(PLENTY, f"{cluster.url}?deadline=5s") as outside:
        return 100_000 - outside.peek(key).remaining


class ClusterLoad:
    """Many who take all the time, in threads and in tasks, and what they heard."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.allowed: Counter[str] = Counter()
        self.unanswered: Counter[str] = Counter()
        self.others: list[BaseException] = []
        self._done = threading.Event()

    @contextmanager
    def on(self, url: str, *, threads: int = 6, tasks: int = 24) -> Iterator["ClusterLoad"]:
        with Limiter(PLENTY, url) as limiter, ThreadPoolExecutor(threads + 1) as pool:
            running = [pool.submit(self._takes, limiter, n) for n in range(threads)]
            running.append(pool.submit(lambda: asyncio.run(self._tasks(url, tasks))))
            try:
                yield self
            finally:
                self._done.set()
            for each in running:
                each.result()

    def _takes(self, limiter: Limiter, seed: int) -> None:
        chance = random.Random(seed)
        while not self._done.is_set():
            key = chance.choice(self.keys)
            self._count_result(key, partial(limiter.take, key))
            time.sleep(0.001)

    async def _tasks(self, url: str, tasks: int) -> None:
        async def takes(seed: int) -> None:
            chance = random.Random(-seed)
            while not self._done.is_set():
                key = chance.choice(self.keys)
                try:
                    decision = await limiter.take(key)
                except Exception as error:
                    self._count_result(key, partial(_raised, error))
                else:
                    self._count_result(key, partial(_same, decision))
                await asyncio.sleep(0.005)

        async with AsyncLimiter(PLENTY, url) as limiter:
            await asyncio.gather(*(takes(n) for n in range(tasks)))

    _one = threading.Lock()

    def _count_result(self, key: str, take: Callable[[], Decision]) -> None:
        try:
            allowed = take().allowed
        except EngineUnavailable:
            with self._one:
                self.unanswered[key] += 1
        except BaseException as error:
            self.others.append(error)
        else:
            with self._one:
                self.allowed[key] += allowed


def _raised(error: BaseException) -> Decision:
    raise error


def _same(decision: Decision) -> Decision:
    return decision


def test_the_verbs(any_cluster: Cluster) -> None:
    keys = keys_of(any_cluster)
    with Limiter("5/day", any_cluster.url) as limiter, Limiter("1 slot", any_cluster.url) as held:
        for key in keys:
            taken = limiter.take(key, 2)
            assert (taken.remaining, taken.atomic) == (3, True)
            limiter.refund(taken, 1)
            assert limiter.peek(key).remaining == 4
            limiter.reserve(key).cancel()
            limiter.set_limit("6/day", key)
            limiter.set_limit("5/day", key)
            with held.acquire(key) as lease:
                assert lease.renew()
            limiter.reset(key)
            assert limiter.peek(key).remaining == 5
        engine = limiter.engine
        assert isinstance(engine, RedisEngine)
        assert len({engine.shard(key) for key in keys}) == 3


async def test_the_verbs_awaited(any_cluster: Cluster) -> None:
    keys = keys_of(any_cluster)
    async with AsyncLimiter("50/day", any_cluster.url) as limiter, AsyncLimiter("1 slot", any_cluster.url) as held:
        decisions = await asyncio.gather(*(limiter.take(key) for key in keys for _ in range(50)))
        assert all(decisions)
        assert not any(await asyncio.gather(*(limiter.take(key) for key in keys)))
        await limiter.refund(decisions[0])
        assert (await limiter.peek(keys[0])).remaining == 1
        async with await held.acquire(keys[1]) as lease:
            assert await lease.renew()
        any_cluster.script_flush()
        assert await limiter.take(keys[0])


def test_forgotten_scripts_on_all_nodes(any_cluster: Cluster) -> None:
    keys = keys_of(any_cluster)
    done = threading.Event()

    def flush() -> None:
        while not done.is_set():
            any_cluster.script_flush()

    load = ClusterLoad(keys)
    with load.on(f"{any_cluster.url}?deadline=5s", threads=3, tasks=12):
        flusher = threading.Thread(target=flush)
        flusher.start()
        time.sleep(0.4)
        done.set()
        flusher.join()
    assert (load.others, load.unanswered) == ([], Counter())
    assert all(used(any_cluster, key) == load.allowed[key] > 0 for key in keys)


def test_a_slot_moves_under_load(any_cluster: Cluster) -> None:
    """ASK for what is not there, MOVED afterwards: no answer is lost, and none is charged twice."""
    source, target, other = any_cluster.masters()
    slot = 1234
    assert any_cluster.master_of(slot) is source
    moving = in_slot(slot, 4)
    load = ClusterLoad([*moving, *keys_of(any_cluster)])
    move = any_cluster.moving_slot(slot, target)
    try:
        with load.on(f"{any_cluster.url}?deadline=5s"):
            time.sleep(0.15)
            for key in move.keys()[:2]:
                move.carry(key)
                time.sleep(0.1)
            move.finish()
            time.sleep(0.15)
        assert (load.others, load.unanswered) == ([], Counter())
        assert {key: used(any_cluster, key) for key in load.keys} == load.allowed
        assert min(load.allowed.values()) > 5
        assert other.call("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
    finally:
        any_cluster.move_slot(slot, source)


async def test_a_key_that_is_on_its_way_is_answered_there(any_cluster: Cluster) -> None:
    """ASK: while the slot moves, and not only afterwards."""
    source, target, _ = any_cluster.masters()
    slot = 3456
    (key,) = in_slot(slot, 1)
    with any_cluster.moving_slot(slot, target), Limiter(PLENTY, any_cluster.url) as limiter:
        async with AsyncLimiter(PLENTY, any_cluster.url) as awaited:
            left = [limiter.take(key).remaining, (await awaited.take(key)).remaining, limiter.take(key).remaining]
            left += [
                decision.remaining for decision in await asyncio.gather(*(awaited.take(key) for _ in range(5)))
            ]
    assert left[:3] + sorted(left[3:], reverse=True) == [100_000 - n for n in range(1, 9)]
    any_cluster.move_slot(slot, source)


async def test_several_counts_of_one_key_that_is_half_way(any_cluster: Cluster) -> None:
    """TRYAGAIN: whoever takes both counts waits until they are together again, and is charged once."""
    source, target, _ = any_cluster.masters()
    slot = 2345
    (key,) = in_slot(slot, 1)
    url = f"{any_cluster.url}?deadline=5s"
    charges = [Charge(key, "50/day"), Charge(key, "60/day log")]
    try:
        with Limiter("50/day", url) as limiter, ThreadPoolExecutor(4) as pool:
            async with AsyncLimiter("50/day", url) as awaited:
                assert limiter.take_all(charges).atomic
                move = any_cluster.moving_slot(slot, target)
                move.carry(redis_key("50/day", key))
                waiting = [pool.submit(limiter.take_all, charges) for _ in range(4)]
                tasks = [asyncio.create_task(awaited.take_all(charges)) for _ in range(8)]
                await asyncio.sleep(0.2)
                assert not any(each.done() for each in waiting)
                assert not any(each.done() for each in tasks)
                await asyncio.to_thread(move.finish)
                decisions = [*await asyncio.gather(*tasks), *(each.result() for each in waiting)]
                assert all(decision.allowed and decision.atomic for decision in decisions)
                last = await awaited.take_all(charges)
                assert [verdict.remaining for verdict in last.verdicts] == [50 - 14, 60 - 14]
    finally:
        any_cluster.move_slot(slot, source)


def test_keys_of_several_slots_are_taken_all_or_none(any_cluster: Cluster) -> None:
    a, b, c = keys_of(any_cluster)
    with Limiter("5/day", any_cluster.url) as limiter:
        taken = limiter.take_all([Charge(a, cost=2), Charge(b, "7/day log"), Charge(c, "9/day fixed"), Charge(a)])
        assert (taken.allowed, taken.atomic) == (True, False)
        assert [(verdict.key, verdict.remaining) for verdict in taken.verdicts] == [(a, 2), (b, 6), (c, 8), (a, 2)]
        refused = limiter.take_all([Charge(b, "7/day log"), Charge(a, cost=3), Charge(c, "9/day fixed")])
        assert (refused.allowed, refused.atomic, refused.key) == (False, False, a)
        assert [verdict.allowed for verdict in refused.verdicts] == [True, False, True]
        assert refused.retry_after is not None
        assert refused.retry_after > 0
        assert [limiter.take_all([Charge(a), Charge(a, "8/day")]).atomic for _ in range(2)] == [True, True]
        left = limiter.take_all([Charge(a, cost=0), Charge(b, "7/day log", 0), Charge(c, "9/day fixed", 0)])
        assert [verdict.remaining for verdict in left.verdicts] == [0, 6, 8]  # the refused ones left no trace
        limiter.refund(taken)
        left = limiter.take_all([Charge(a, cost=0), Charge(b, "7/day log", 0), Charge(c, "9/day fixed", 0)])
        assert [verdict.remaining for verdict in left.verdicts] == [3, 7, 9]


@pytest.mark.parametrize("text", ["10/day", "10/day log", "10/day fixed", "10/day sliding"])
async def test_races_across_slots_leave_nothing_behind(text: str, cluster: Cluster) -> None:
    """A refused call gives back what it took in other slots: at the end exactly the allowed calls are charged."""
    a, b, c = keys_of(cluster)
    pairs = [[a, b], [b, a], [b, c], [c, a]]

    def charges(n: int) -> list[Charge]:
        return [Charge(key, text) for key in pairs[n % 4]]

    def tally(decisions: list[Decision]) -> Counter[str]:
        return Counter(verdict.key for decision in decisions if decision for verdict in decision.verdicts)

    # A busy machine may be late, and what is given back late is not yet there when the test looks.
    url = f"{cluster.url}?deadline=30s"
    with Limiter(text, url) as limiter, ThreadPoolExecutor(8) as pool:
        async with AsyncLimiter(text, url) as awaited:
            threads = [pool.submit(limiter.take_all, charges(n)) for n in range(24)]
            decisions = list(await asyncio.gather(*(awaited.take_all(charges(n)) for n in range(40))))
            decisions += [thread.result() for thread in threads]
        assert all(not decision.atomic for decision in decisions)
        taken = tally(decisions)
        charged = {key: 10 - limiter.peek(key).remaining for key in (a, b, c)}
        # A token bucket remembers eight refunds one by one. Of more it may keep a part, and never gives too much.
        net = {key: charged[key] - taken[key] for key in (a, b, c)}
        assert all(0 <= units <= (2 if text == "10/day" else 0) for units in net.values()), (charged, taken)
        assert max(charged.values()) <= 10
        # Whoever comes alone afterwards gets what is left, to the last unit.
        while limiter.take_all([Charge(a, text), Charge(b, text)]):
            taken.update((a, b))
        assert max(taken[a] + net[a], taken[b] + net[b]) == 10


async def test_a_node_that_hangs_is_nobody_elses_trouble(cluster: Cluster) -> None:
    """Calls that need it get their error in time, those that do not are answered; nothing is charged by halves."""
    a, b, c = keys_of(cluster)
    url = f"{cluster.url}?deadline=300ms"
    with Limiter("10/day", url) as limiter:
        async with AsyncLimiter("10/day", url) as awaited:
            for key in (a, b, c):
                assert limiter.take(key)
                assert await awaited.take(key)
            hung = cluster.masters()[1]
            hung.pause()
            try:
                began = time.monotonic()
                with pytest.raises(EngineUnavailable, match="no answer within the timeout"):
                    limiter.take_all([Charge(a), Charge(b), Charge(c)])
                with pytest.raises(EngineUnavailable, match="no answer within the timeout"):
                    await awaited.take_all([Charge(a), Charge(b), Charge(c)])
                with pytest.raises(EngineUnavailable, match="no answer within the timeout"):
                    limiter.take(b)
                assert time.monotonic() - began < 3 * 0.3 + 2
                await asyncio.sleep(0.15)  # the cluster is looked at anew, and who hangs is asked last
                assert limiter.take(a).remaining == 7
                assert (await awaited.take(c)).remaining == 7
            finally:
                hung.resume()


async def test_seeds_that_hang_or_are_dead(cluster: Cluster) -> None:
    """The first seeds are of no use; the first call is answered all the same, and within the deadline."""
    replica = next(node for node in cluster.nodes if node not in cluster.masters())
    seeds = [replica.port, 1, *(node.port for node in cluster.nodes if node is not replica)]
    url = f"redis+cluster://{','.join(f'127.0.0.1:{port}' for port in seeds)}?deadline=1s"
    alone = f"redis+cluster://127.0.0.1:{replica.port}?deadline=300ms"
    charges = [Charge("a"), Charge("b")]
    replica.pause()
    try:
        with Limiter("10/day", url) as limiter:
            assert limiter.take("key").remaining == 9
        async with AsyncLimiter("10/day", url) as awaited:
            assert (await awaited.take("key")).remaining == 8
        with Limiter("10/day", alone) as limiter, pytest.raises(EngineUnavailable):
            limiter.take_all(charges)
        async with AsyncLimiter("10/day", alone) as awaited:
            with pytest.raises(EngineUnavailable):
                await awaited.take_all(charges)
    finally:
        replica.resume()


def test_nodes_that_do_not_say_their_host(cluster: Cluster) -> None:
    """Then it is that of whoever was asked."""

    def call_it(kind: str) -> None:
        for node in cluster.nodes:
            node.call("CONFIG", "SET", "cluster-preferred-endpoint-type", kind)

    for kind in ("unknown-endpoint", "hostname"):
        call_it(kind)
        try:
            with Limiter("10/day", cluster.url) as limiter:
                keys = keys_of(cluster)
                assert all(limiter.take(key).remaining == 9 for key in keys)
                engine = limiter.engine
                assert isinstance(engine, RedisEngine)
                topology = engine.topology
                wrong = topology.node(keys[0].encode())
                topology._owners = [wrong] * 16384  # type: ignore[attr-defined]
                assert all(limiter.take(key).remaining == 8 for key in keys)  # by way of MOVED
        finally:
            call_it("ip")
        cluster.flush()


def test_not_a_cluster(redis_server: RedisServer) -> None:
    where = f"127.0.0.1:{redis_server.port}"
    with Limiter("1/s", f"redis+cluster://{where}?deadline=300ms") as limiter:
        with pytest.raises(EngineUnavailable, match="cluster support disabled") as refused:
            limiter.take("key")
        assert f"Redis at the cluster of {where} gave no decision" in str(refused.value)
        assert f"no node could tell ({where}: " in str(refused.value)
        assert f"Write redis://{where} as the engine's URL." in str(refused.value)


async def test_a_node_of_a_cluster_is_not_all_of_it(any_cluster: Cluster) -> None:
    """Its keys are counted there; any other is told how to write the URL."""
    node = any_cluster.masters()[0]
    mine, theirs, _ = keys_of(any_cluster)
    url = f"redis://127.0.0.1:{node.port}/0?deadline=2s"
    sentence = rf"it is a node of a cluster \(MOVED .*\)\. Write redis\+cluster://127\.0\.0\.1:{node.port} as the"
    with Limiter("10/day", url) as limiter:
        assert limiter.take(mine).remaining == 9
        with pytest.raises(EngineUnavailable, match=sentence):
            limiter.take(theirs)
    async with AsyncLimiter("10/day", url) as awaited:
        assert (await awaited.take(mine)).remaining == 8
        with pytest.raises(EngineUnavailable, match=sentence):
            await awaited.take(theirs)


def test_a_node_that_knows_no_slots_is_one_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last try has a second for its reply, however busy the machine is.
    monkeypatch.setattr(redirects, "RETRY_PAUSE_S", 2.0)
    sentence = r"it is a node of a cluster \(CLUSTERDOWN .*\)\. Write redis\+cluster://127\.0\.0\.1:"
    with (
        ClusterNode(config=["cluster-enabled yes"]) as lone,
        Limiter("1/s", f"{lone.url}?deadline=3s") as limiter,
        pytest.raises(EngineUnavailable, match=sentence),
    ):
        limiter.take("key")


def test_a_master_dies_under_load() -> None:
    """Errors are EngineUnavailable only; the heir goes on from what it was told; nobody is charged twice."""
    with Cluster(password="open-sesame", node_timeout_ms=700) as cluster:
        keys = keys_of(cluster)
        load = ClusterLoad(keys)
        with load.on(f"{cluster.url}?deadline=400ms"):
            until(
                lambda: None if all(load.allowed[key] > 5 for key in keys) else "few calls were served", GENEROUS
            )
            cluster.kill_master(0)
            until(lambda: None if len(cluster.masters()) == 3 else "it has no heir yet", 10)
            answered = Counter(load.allowed)

            def silent() -> str | None:
                still = [key for key in keys if load.allowed[key] < answered[key] + 20]
                return f"no service for {still}" if still else None

            until(silent, GENEROUS)
        assert load.others == []
        cluster.await_ok()
        for key in keys:
            spent = used(cluster, key)
            # The heir may not have heard of the last charges before its master died.
            assert load.allowed[key] - 100 <= spent <= load.allowed[key] + load.unanswered[key]
