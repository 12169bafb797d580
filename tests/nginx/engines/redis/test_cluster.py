"""A real cluster: which node answers for a key, slots that move, masters that die, charges on several nodes."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.engines.redis.keys import escape_key
from headgate.engines.redis.topology import slot
from headgate.limiter import Limiter
from tests.nginx.engines.redis.redis_harness import (
    NginxRedisEngine,
    NginxRedisError,
    RedisDriverNginx,
    keys_of_distinct_masters,
)
from tests.servers import Cluster, RedisServer
from tests.servers.cluster import slot_of

A, B, C = keys_of_distinct_masters()
LIMITS = {"one": "5/day", "two": "5/day fixed", "three": "2/day", "shadow": "9/day"}
TERMS = {"shadow": {"is_shadow": True}, "three": {"lockout": (2, 60_000_000, 600_000_000)}}


@pytest.fixture
def engine(gate: RedisDriverNginx, cluster: Cluster) -> NginxRedisEngine:
    return gate.engine(f"{cluster.url}?deadline=5s", LIMITS, TERMS)


@given(st.binary(max_size=300))
def test_the_slot_is_the_servers(gate: RedisDriverNginx, key: bytes) -> None:
    text = key.decode("utf-8", "replace")
    assert gate.call_driver("slot", key=text.encode().hex()) == slot(escape_key(text))


def test_every_key_has_its_node(engine: NginxRedisEngine, cluster: Cluster) -> None:
    for key in (A, B, C, A):
        engine.take("one", key)
        assert engine.do("shard", key=key) == f"127.0.0.1:{cluster.master_of(slot_of(key)).port}"
        assert cluster.master_of(slot_of(key)).call("EXISTS", f"hg2:tb:one:{{{key}}}") == 1


def test_python_and_nginx_count_together(engine: NginxRedisEngine, cluster: Cluster) -> None:
    with Limiter("5/day", cluster.url, name="one") as limiter:
        for key in (A, B):
            assert engine.take("one", key)[1] == 4
            assert limiter.take(key).remaining == 3


def test_a_cluster_of_valkeys(gate: RedisDriverNginx, valkey_cluster: Cluster) -> None:
    engine = gate.engine(valkey_cluster.url, LIMITS, TERMS)
    with Limiter("5/day", valkey_cluster.url, name="one") as limiter:
        assert engine.take("one", A)[1] == 4
        assert limiter.take(A).remaining == 3
    both = (("one", A, 1), ("two", B, 5), ("shadow", C, 1))
    assert [apart(each)[:2] for each in engine.decide(*both)] == [[1, 2], [1, 0], [1, 8]]
    assert [apart(each)[:2] for each in engine.decide(*both)] == [[1, 2], [0, 0], [1, 7]]


def test_plain_commands_find_their_node(engine: NginxRedisEngine, cluster: Cluster) -> None:
    cluster.master_of("hg2:rules").call("HSET", "hg2:rules", "version", "3")
    assert engine.do("command", words=["HGET", "hg2:rules", "version"]) == "3"


def test_a_slot_that_moved(engine: NginxRedisEngine, cluster: Cluster) -> None:
    assert engine.take("one", A)[1] == 4
    at = cluster.master_of(slot_of(A))
    to = next(node for node in cluster.masters() if node is not at)
    cluster.move_slot(slot_of(A), to)
    try:
        assert engine.take("one", A)[1] == 3  # MOVED
        assert engine.do("shard", key=A) == f"127.0.0.1:{to.port}"
        assert engine.take("one", B)[1] == 4
    finally:
        cluster.move_slot(slot_of(A), at)
    assert engine.take("one", A)[1] == 2


def test_a_slot_on_its_way(engine: NginxRedisEngine, cluster: Cluster) -> None:
    """The old master sends on what is not there any more: ASK, for this question only."""
    at = cluster.master_of(slot_of(B))
    to = next(node for node in cluster.masters() if node is not at)
    engine.take("one", B)
    to.call("SCRIPT", "FLUSH")
    move = cluster.moving_slot(slot_of(B), to)
    try:
        move.carry(f"hg2:tb:one:{{{B}}}")
        assert engine.take("one", B)[1] == 3
        assert engine.do("shard", key=B) == f"127.0.0.1:{at.port}"
        assert engine.take("one", B)[1] == 2
    finally:
        move.finish()
        cluster.move_slot(slot_of(B), at)


def test_counts_of_which_some_have_gone(engine: NginxRedisEngine, cluster: Cluster) -> None:
    """Neither master has all keys of the question: TRYAGAIN, until the move is done."""
    at = cluster.master_of(slot_of(C))
    to = next(node for node in cluster.masters() if node is not at)
    engine.decide(("one", C, 1), ("two", C, 1))
    move = cluster.moving_slot(slot_of(C), to)
    try:
        move.carry(f"hg2:tb:one:{{{C}}}")
        # The deadline may pass while the last of many tries waits for its reply.
        with pytest.raises(NginxRedisError, match=r"TRYAGAIN|no reply in time"):
            engine.decide(("one", C, 1), ("two", C, 1), deadline=1)
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(engine.decide, ("one", C, 1), ("two", C, 1))
            time.sleep(0.1)
            move.finish()
            assert [each[:2] for each in future.result()] == [[1, 3], [1, 3]]
    finally:
        if cluster.master_of(slot_of(C)) is at:
            move.finish()
        cluster.move_slot(slot_of(C), at)


def test_one_looks_for_all(gate: RedisDriverNginx, cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.call("CONFIG", "RESETSTAT")
    engine = gate.engine(f"{cluster.url}?deadline=5s", {"one": "15/day"})
    answer = engine.do("decide_many", charges=engine.charges(("one", A, 1)), commit=1, times=30)
    assert sum(each["answers"][0][0] for each in answer) == 15
    looks = [node.info("commandstats").get("cmdstat_cluster|slots", "calls=0,") for node in cluster.nodes]
    assert sum(int(look.partition("=")[2].partition(",")[0]) for look in looks) == 1


def test_one_slot_is_one_round(engine: NginxRedisEngine, cluster: Cluster) -> None:
    outcomes = engine.decide(("one", A, 1), ("two", A, 1), ("shadow", A, 1))
    assert [each[:2] for each in outcomes] == [[1, 4], [1, 4], [1, 8]]


def apart(outcome: object) -> list[int]:
    """Unwraps outcomes that several slots decided."""
    assert isinstance(outcome, dict)
    assert outcome["cross_slot"] is True
    slots: list[int] = outcome["list"]
    return slots


def test_all_or_none_on_several(engine: NginxRedisEngine) -> None:
    both = (("one", A, 1), ("two", B, 1))
    assert [apart(each)[:2] for each in engine.decide(*both)] == [[1, 4], [1, 4]]
    outcomes = engine.decide(*both, commit=0)
    assert [apart(each)[:2] for each in outcomes] == [[1, 4], [1, 4]]
    refused = engine.decide(("one", A, 1), ("two", B, 5))
    assert [apart(each)[:2] for each in refused] == [[1, 4], [0, 4]]
    assert engine.take("one", A, 0)[1] == 4


def test_a_shadow_in_another_slot_keeps_the_decision_atomic(engine: NginxRedisEngine) -> None:
    """One live group: nothing to agree on, and it is as atomic as alone."""
    both = (("one", A, 5), ("shadow", B, 1))
    assert [each[:2] for each in engine.decide(*both)] == [[1, 0], [1, 8]]
    assert [each[:2] for each in engine.decide(*both)] == [[0, 0], [1, 7]]
    three = (("one", A, 1), ("two", C, 1), ("shadow", B, 1))
    assert [apart(each)[:2] for each in engine.decide(*three)] == [[0, 0], [1, 5], [1, 6]]
    assert engine.take("two", C, 0)[1] == 5
    mixed = (("two", A, 1), ("shadow", A, 1), ("two", C, 1), ("shadow", C, 1))
    assert [apart(each)[:2] for each in engine.decide(*mixed)] == [[1, 4], [1, 8], [1, 4], [1, 8]]


def test_refusals_are_counted_once(engine: NginxRedisEngine) -> None:
    both = (("three", A, 3), ("one", B, 1))
    assert [apart(each)[0] for each in engine.decide(*both)] == [0, 1]
    assert [apart(each)[0] for each in engine.decide(*both)] == [-3, 1]
    assert engine.take("one", B, 0)[1] == 5


def test_taken_back_where_one_refuses_after_all(gate: RedisDriverNginx, cluster: Cluster) -> None:
    """Many at once on two counts, of which one is small: what passed at the large one only has been given back."""
    engine = gate.engine(cluster.url, {"large": "400/day fixed", "small": "30/day fixed"})
    both = engine.charges(("large", A, 1), ("small", B, 1))
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(engine.do, "decide_many", charges=both, commit=1, times=40) for _ in range(4)]
        replies = [each["answers"] for many in futures for each in many.result()]
    passed = sum(all(apart(outcome)[0] == 1 and apart(outcome)[2] == 0 for outcome in each) for each in replies)
    assert passed <= 30
    left = 400 - engine.take("large", A, 0)[1], 30 - engine.take("small", B, 0)[1]
    assert left[0] == left[1] <= 30


@pytest.fixture(scope="module")
def mortal() -> Iterator[Cluster]:
    with Cluster(node_timeout_ms=1000, full_coverage=False) as cluster:
        yield cluster


def test_a_master_that_was_killed(gate: RedisDriverNginx, mortal: Cluster) -> None:
    engine = gate.engine(f"{mortal.url}?deadline=15s", LIMITS, TERMS)
    for key in (A, B, C):
        engine.take("one", key)
    victim = mortal.master_of(slot_of(A))
    victim.kill()
    with pytest.raises(NginxRedisError) as unreachable:
        engine.take("one", A, deadline=0.1)
    assert unreachable.value.kind in {"unreachable", "refused", "timeout"}
    assert engine.take("one", B)[0] == 1, "the others go on"
    outcomes = engine.decide(("one", B, 1), ("shadow", A, 1), deadline=3)
    assert outcomes[0][0] == 1, "who is aside is in nobody's way"
    assert outcomes[1]["degraded"] is True
    began = time.monotonic()
    assert engine.take("one", A)[0] == 1
    assert time.monotonic() - began < 15
    assert engine.do("shard", key=A) != f"127.0.0.1:{victim.port}"
    mortal.heal()


def test_a_paused_master_holds_up_nobody_else(gate: RedisDriverNginx, mortal: Cluster) -> None:
    mortal.heal()
    engine = gate.engine(mortal.url, LIMITS, TERMS)
    for key in (A, B, C):
        engine.take("two", key)
    with mortal.faulty_link(mortal.master_of(slot_of(C))) as link:
        engine = gate.engine(f"{mortal.url}?deadline=10s", LIMITS, TERMS)
        engine.take("two", C)
        link.swallow()
        began = time.monotonic()
        outcomes = engine.decide(("one", B, 1), ("shadow", C, 1), deadline=9)
        assert time.monotonic() - began < 6
        assert outcomes[0][0] == 1
        assert outcomes[1]["degraded"] is True
        with pytest.raises(NginxRedisError) as late:
            engine.decide(("one", B, 1), ("two", C, 1), deadline=0.2)
        assert late.value.kind == "timeout"
        assert time.monotonic() - began < 15


def test_a_cluster_that_is_not_there(gate: RedisDriverNginx) -> None:
    engine = gate.engine("redis+cluster://127.0.0.1:1,127.0.0.1:2", LIMITS, TERMS)
    with pytest.raises(NginxRedisError, match="no node could tell") as unreachable:
        engine.take("one", A)
    assert unreachable.value.kind == "unreachable"


def test_a_node_of_a_cluster_is_not_all_of_it(gate: RedisDriverNginx, cluster: Cluster) -> None:
    """Its keys are counted there; any other is told how to write the URL."""
    node = cluster.master_of(slot_of(A))
    engine = gate.engine(node.url, LIMITS)
    assert engine.take("one", A)[0] == 1
    theirs = next(key for key in (B, C) if cluster.master_of(slot_of(key)) is not node)
    with pytest.raises(
        NginxRedisError, match=r"it is a node of a cluster \(MOVED .*\)\. Write redis\+cluster://127"
    ) as caught:
        engine.take("one", theirs)
    assert str(caught.value).endswith(f"Write redis+cluster://127.0.0.1:{node.port} as the engine's URL.")


def test_not_a_cluster(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    engine = gate.engine(f"redis+cluster://127.0.0.1:{redis_server.port}?deadline=300ms", LIMITS)
    with pytest.raises(NginxRedisError, match=r"cluster support disabled") as caught:
        engine.take("one", A)
    assert str(caught.value).endswith(f"Write redis://127.0.0.1:{redis_server.port} as the engine's URL.")
