"""Overrides in Redis: how they are stored and listed. (Their meaning: contract/test_charge_options.py)"""

import string
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.engines import overrides
from headgate.engines.redis import keys as redis_keys
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.overrides import SCAN_COUNT, OverrideRequestBuilder, OverrideScan
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.engines.redis.topology import ClusterTopology as Nodes
from headgate.errors import EngineUnavailable
from headgate.flow import run
from headgate.limit_syntax import parse, parse_all
from tests.servers import Cluster, RedisServer

TEXTS = "10/s burst 20; 7/month fixed in Asia/Shanghai; 3/s fixed; 1.5/s smooth warmup 2s; 4/s queue 3 delay 1"


def test_stored_is_what_the_script_needs_and_what_people_read(redis_server: RedisServer) -> None:
    engine = RedisEngine(redis_server.unix_url, prefix="shop")
    engine.overrides("api").set("anna", TEXTS, ttl=90)
    stored = cast(bytes, redis_server.call("GET", "shop2:oe:api:{anna}")).decode()
    assert stored.split("\n") == [
        "token_bucket 1 100000 20 428|10/s burst 20",
        "calendar 7|7/month fixed in Asia/Shanghai",
        "fixed_window 3 1000000 0 0 0 0 0 0|3/s fixed",
        "smooth 1.5 2000000 3.0|1.5/s smooth warmup 2s",
        "leaky_bucket 4000 3000 1000|4/s queue 3 delay 1",
    ]
    assert 89_000 < cast(int, redis_server.call("PTTL", "shop2:oe:api:{anna}")) <= 90_000
    assert engine.overrides("api").get("anna") == overrides.unpack(stored) == TEXTS
    engine.overrides("api").set("anna", "1/s")
    assert redis_server.call("PTTL", "shop2:oe:api:{anna}") == -1
    engine.close()


@given(st.sampled_from(TEXTS.split("; ")), st.sampled_from([*TEXTS.split("; "), "8/week fixed", "9/s log"]))
def test_an_effective_override_has_the_algorithm_and_windows_of_the_rule(rule: str, text: str) -> None:
    limit, override = parse(rule), parse(text)
    effective = limit.with_override(override)
    if effective is not None:
        assert effective.algorithm == limit.algorithm
        assert parse(effective.text) == effective
    assert (effective is None) == (
        override.algorithm != limit.algorithm or ("week" in text or "month" in text) > ("month" in rule)
    )


@given(st.text(st.characters(codec=None, exclude_categories=[]), min_size=1, max_size=50))
def test_unescape_restores_an_escaped_key(key: str) -> None:
    assert redis_keys.unescape_key(redis_keys.escape_key(key)) == key


def test_rules_with_glob_characters_in_their_names_have_separate_overrides(redis_server: RedisServer) -> None:
    engine = RedisEngine(redis_server.unix_url)
    for rule in ("a", "a*", "a?", "[ab]", "a\\", "b"):
        engine.overrides(rule).set(f"key of {rule}", "1/s")
    for rule in ("a", "a*", "a?", "[ab]", "a\\", "b"):
        assert list(engine.overrides(rule).list()) == [(f"key of {rule}", "1/s")]
    long = "x" * 300
    engine.overrides("b").set(long, "2/s")
    assert engine.overrides("b").get(long) == "2/s"
    assert ("%#", "2/s") in [(key[:2], text) for key, text in engine.overrides("b").list()]
    engine.close()


async def test_many_are_listed_page_by_page(redis_server: RedisServer) -> None:
    engine, awaited = RedisEngine(redis_server.unix_url), AsyncRedisEngine(redis_server.unix_url)
    packed = overrides.pack(parse_all("10/s"))
    program = "for i = 1, ARGV[1] do redis.call('SET', 'hg2:oe:api:{' .. i .. '}', ARGV[2]) end"
    redis_server.call("EVAL", program, 0, 5 * SCAN_COUNT, packed)
    redis_server.call("EVAL", program.replace("oe", "tb"), 0, 5 * SCAN_COUNT, "1")
    listed = list(engine.overrides("api").list())
    assert sorted(listed) == sorted((str(n), "10/s") for n in range(1, 5 * SCAN_COUNT + 1))
    assert len(list(engine.overrides("api").list(limit=SCAN_COUNT + 1))) == SCAN_COUNT + 1
    assert len([each async for each in awaited.overrides("api").list()]) == 5 * SCAN_COUNT
    redis_server.call("CONFIG", "RESETSTAT")
    assert len(list(engine.overrides("api").list(limit=3))) == 3
    stats = cast(bytes, redis_server.call("INFO", "commandstats")).decode()
    assert "cmdstat_scan:calls=1," in stats  # as far as is asked for, and no further
    engine.close()
    await awaited.close()


async def test_every_master_of_a_cluster_lists_its_overrides(cluster: Cluster) -> None:
    engine, awaited = RedisEngine(cluster.url, deadline=5), AsyncRedisEngine(cluster.url, deadline=5)
    keys = [f"tenant {letter} {{x}}" for letter in string.ascii_letters]
    for n, key in enumerate(keys):
        assert engine.overrides("api").set(key, f"{n + 1}/s")
    wanted = sorted((key, f"{n + 1}/s") for n, key in enumerate(keys))
    assert sorted(engine.overrides("api").list()) == wanted
    assert sorted([each async for each in awaited.overrides("api").list()]) == wanted
    assert await awaited.overrides("api").unset(keys[0])
    assert await awaited.overrides("api").get(keys[0]) is None
    assert len(list(engine.overrides("api").list(7))) == 7
    engine.close()
    await awaited.close()


def test_a_key_that_the_scan_returns_twice_is_listed_once() -> None:
    """A table that grows while it is walked shows a key again; so does a slot that moves on."""
    one, two = (ServerAddress("127.0.0.1", port) for port in (1, 2))
    names = [b"hg2:oe:api:{%d}" % n for n in range(4)]
    pages = {one: [[b"7", names[:2]], [b"0", [names[1], names[2]]]], two: [[b"0", [*names, names[3]]]]}
    servers = Nodes([one, two])
    servers._masters = [one, two]
    scan = OverrideScan(
        OverrideRequestBuilder("api", "hg"),
        servers,
        lambda address, question: pages[address].pop(0),
        lambda questions: [b"token_bucket 1 1 1|1/s"] * len(questions),
    )
    listed: list[str] = []
    while not scan.finished:
        listed += [key for key, _ in run(scan.next_page())]
    assert listed == ["0", "1", "2", "3"]


async def test_an_unreachable_server_raises_engine_unavailable() -> None:
    engine, awaited = RedisEngine("redis://127.0.0.1:1"), AsyncRedisEngine("redis://127.0.0.1:1")
    with pytest.raises(EngineUnavailable, match="the connection failed"):
        engine.overrides("api").get("anna")
    with pytest.raises(EngineUnavailable, match="the connection failed"):
        list(engine.overrides("api").list())
    with pytest.raises(EngineUnavailable, match="the connection failed"):
        [each async for each in awaited.overrides("api").list()]
    engine.close()
    await awaited.close()
