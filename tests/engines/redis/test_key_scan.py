"""Scans of all counts find everything once, change nothing and block no other client."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate import Limiter
from headgate.algorithms import ALGORITHMS
from headgate.algorithms.decision import REMAINING
from headgate.engines.redis import keys
from headgate.engines.redis.key_scan import RedisKey, RedisKeyScan
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limit_syntax import parse
from tests.servers import Cluster, RedisServer

LIMITS = {
    "token_bucket": "10/minute",
    "leaky_bucket": "10/minute queue 9 nodelay",
    "fixed_window": "10/minute fixed",
    "sliding_window": "10/minute sliding",
    "sliding_log": "10/minute log",
    "smooth": "10/minute smooth",
}


def walked(
    url: str, begins: str = "", most: int = 100_000, prefix: str = "hg"
) -> tuple[list[RedisKey], RedisKeyScan]:
    engine = RedisEngine(url, prefix=prefix)
    survey = RedisKeyScan(engine, begins, most, pause=0)
    try:
        return list(survey), survey
    finally:
        survey.close()
        engine.close()


def commands_of(server: RedisServer) -> set[str]:
    stats = server.call("INFO", "commandstats")
    assert isinstance(stats, bytes)
    return {line.split(":")[0].removeprefix("cmdstat_") for line in stats.decode().splitlines() if ":" in line}


def test_every_algorithm_is_found_by_its_name_and_key(server: RedisServer) -> None:
    assert set(LIMITS) == set(ALGORITHMS)
    for name, limit in LIMITS.items():
        with Limiter(limit, server.url, name=f"of {name}") as limiter:
            limiter.take("ann")
    with Limiter("3 slots", server.url, name="of slots") as slots:
        slots.acquire("ann")
        keys, survey = walked(server.url)
    assert {(each.algorithm, each.name, each.key) for each in keys} == {
        *((name, f"of {name}", "ann") for name in LIMITS),
        ("slots", "of slots", "ann"),
    }
    assert all(each.size and each.ttl_ms and each.ttl_ms > 0 and each.is_readable for each in keys)
    assert (survey.key_count, survey.stopped) == (7, False)


def test_foreign_keys_are_not_listed(server: RedisServer) -> None:
    server.call("SET", "hg2:tb:nonsense", "1")
    server.call("SET", "hg2:xx:name:{key}", "1")
    server.call("SET", "hg2:oe:rule:{key}", "1")
    server.call("SET", "other", "1")
    with Limiter("10/minute", server.url, prefix="shop") as limiter:
        limiter.take("ann")
    assert walked(server.url)[0] == []
    assert [each.key for each in walked(server.url, prefix="shop")[0]] == ["ann"]


def test_strange_keys_are_listed_verbatim_and_long_ones_by_their_hash(server: RedisServer) -> None:
    strange = ["a b", "%41", "{x}", "ключ", "a:b|c=d", "\udc80", "\n"]
    with Limiter("10/minute", server.url, name="a:b {c}") as limiter:
        for key in strange:
            limiter.take(key)
        limiter.take("x" * 300)
    keys, _ = walked(server.url)
    assert {each.name for each in keys} == {"a:b {c}"}
    assert {each.key for each in keys if each.is_readable} == set(strange)
    assert [each.key[:2] for each in keys if not each.is_readable] == ["%#"]


def test_a_name_narrows_it_also_where_it_is_special(server: RedisServer) -> None:
    for name in ("login", "login#1", "logout", "a*b", "a%b", "a b", "a[b"):
        with Limiter("10/minute", server.url, name=name) as limiter:
            limiter.take("ann")
    assert {each.name for each in walked(server.url, "login")[0]} == {"login", "login#1"}
    assert {each.name for each in walked(server.url, "a*b")[0]} == {"a*b"}
    assert {each.name for each in walked(server.url, "a%")[0]} == {"a%b"}
    assert {each.name for each in walked(server.url, "a b")[0]} == {"a b"}
    assert {each.name for each in walked(server.url, "a[b")[0]} == {"a[b"}


def test_a_scan_stops_at_the_given_number_of_keys(server: RedisServer) -> None:
    with Limiter("10/minute", server.url) as limiter:
        for number in range(30):
            limiter.take(f"k{number}")
    keys, survey = walked(server.url, most=20)
    assert (len(keys), survey.stopped) == (20, True)
    assert walked(server.url, most=30)[1].stopped is False


def test_thousands_are_found_once_each_and_nothing_is_written(server: RedisServer) -> None:
    with Limiter("10/minute", server.url) as limiter:
        for number in range(2500):
            limiter.take(f"k{number}")
    server.call("CONFIG", "RESETSTAT")
    keys, _ = walked(server.url)
    assert sorted(each.key for each in keys) == sorted(f"k{number}" for number in range(2500))
    used = commands_of(server)
    assert {"scan", "pttl"} <= used
    assert not used & {"keys", "unlink", "del", "set", "expire", "pexpire", "touch"}


@pytest.mark.parametrize("limit", LIMITS.values())
def test_many_are_looked_at_together_and_none_is_charged(server: RedisServer, limit: str) -> None:
    with Limiter(limit, server.url) as limiter:
        limiter.take("x" * 300)
        for number in range(450):
            limiter.take(f"k{number}")
        server.call("SCRIPT", "FLUSH")
        engine = RedisEngine(server.url)
        survey = RedisKeyScan(engine, pause=0)
        counts = [(count, parse(limit)) for count in survey]
        remaining = {outcome[REMAINING] for outcome in survey.peek(counts) if outcome}
        assert remaining == {limiter.peek("k7").remaining}
        assert survey.peek([(counts[0][0], parse("3 slots"))]) == [None], "of another algorithm"
        survey.close()
        engine.close()


def test_every_master_of_a_cluster_is_scanned_and_no_key_listed_twice(cluster: Cluster) -> None:
    with Limiter("10/minute", cluster.url) as limiter:
        for number in range(200):
            limiter.take(f"k{number}")
    for master in cluster.masters():
        master.call("WAIT", 1, 5000)  # the replicas have it too
    keys, _ = walked(cluster.url)
    assert sorted(each.key for each in keys) == sorted(f"k{number}" for number in range(200))
    assert len({each.at for each in keys}) == 3


@given(name=st.text(min_size=1), key=st.text(min_size=1, max_size=60))
@example(name="a:b", key="}{")
def test_a_key_is_read_back_as_it_was_named(name: str, key: str) -> None:
    parsed = keys.parse("hg", keys.build_key(keys.key_head("hg", "token_bucket", name), key))
    assert parsed is not None
    assert parsed.name == name
    short = len(key.encode("utf-8", "surrogatepass")) <= keys.MAX_KEY_BYTES
    assert parsed.key == key if short else parsed.key[:2] == "%#"
    assert parsed.initials == b"tb"


@pytest.mark.parametrize(
    "name", [b"", b"hg2:members", b"hg2:rules", b"hg1:tb:n:{k}", b"tb:n:{k}", b"xhg2:tb:n:{k}", b"hg2:tb:n:{\xff}"]
)
def test_names_of_other_keys_are_not_parsed(name: bytes) -> None:
    assert keys.parse("hg", name) is None
