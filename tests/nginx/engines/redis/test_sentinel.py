"""Real sentinels: the master that they name, another one after a failover, and a login for each."""

import time
from collections.abc import Iterator

import pytest

from tests.nginx.engines.redis.redis_harness import NginxRedisError, RedisDriverNginx
from tests.servers import Sentinels
from tests.servers.wait_until import until

LIMITS = {"login": "100/day"}


@pytest.fixture(scope="module")
def mortal() -> Iterator[Sentinels]:
    with Sentinels(password="open-sesame", sentinel_password="watch", user="ada", sentinel_user="eve") as running:
        yield running


def test_the_master_that_they_name(gate: RedisDriverNginx, mortal: Sentinels) -> None:
    engine = gate.engine(mortal.url, LIMITS)
    assert engine.take("login", "ada")[1] == 99
    assert mortal.master.call("EXISTS", "hg2:tb:login:{ada}") == 1
    with pytest.raises(NginxRedisError, match='knows no master called "other"'):
        gate.engine(mortal.url.replace("/mymaster/", "/other/"), LIMITS).take("login", "ada")


def test_a_failover(gate: RedisDriverNginx, mortal: Sentinels) -> None:
    """The old master is a replica by then, and says so: the question finds the new one within its time."""
    engine = gate.engine(f"{mortal.url}&deadline=20s", LIMITS)
    engine.take("login", "bob")
    before = mortal.master
    until(lambda: None if mortal.replicas[0].call("EXISTS", "hg2:tb:login:{bob}") else "not copied yet", 5)
    mortal.failover()
    assert engine.take("login", "bob")[1] == 98
    assert mortal.master is not before


def test_a_master_that_was_killed(gate: RedisDriverNginx, mortal: Sentinels) -> None:
    engine = gate.engine(f"{mortal.url}&deadline=20s", LIMITS)
    engine.take("login", "eve")
    mortal.kill_master()
    with pytest.raises(NginxRedisError) as unreachable:
        engine.take("login", "eve", deadline=0.1)
    assert unreachable.value.kind in {"unreachable", "timeout"}
    began = time.monotonic()
    assert engine.take("login", "eve")[0] == 1
    assert time.monotonic() - began < 20
    mortal.heal()


def test_a_replica_that_is_named_as_the_master(gate: RedisDriverNginx, mortal: Sentinels) -> None:
    """It says itself what it is; a denial from its old count would not have told."""
    mortal.heal()
    mortal.await_ok()
    replica = mortal.replicas[0]
    for sentinel in mortal.sentinels:
        sentinel.call("SENTINEL", "MONITOR", "misled", "127.0.0.1", replica.port, 3)
    try:
        engine = gate.engine(mortal.url.replace("/mymaster/", "/misled/"), LIMITS)
        with pytest.raises(NginxRedisError, match="says that it is a replica") as refused:
            engine.take("login", "zoe", 101, deadline=1.5)
        assert refused.value.kind == "refused"
    finally:
        for sentinel in mortal.sentinels:
            sentinel.call("SENTINEL", "REMOVE", "misled")


def test_a_replica_in_the_url(gate: RedisDriverNginx, mortal: Sentinels) -> None:
    mortal.heal()
    mortal.await_ok()
    engine = gate.engine(mortal.url, LIMITS)
    replica = mortal.replicas[0]
    other = gate.engine(f"redis://:open-sesame@127.0.0.1:{replica.port}", LIMITS)
    with pytest.raises(NginxRedisError, match=r"it is a replica and takes no writes\. Name the master") as refused:
        other.take("login", "zoe")
    assert (refused.value.kind, refused.value.retry) == ("refused", "read_only_replica")
    assert engine.take("login", "zoe")[1] == 99


def test_no_sentinel_answers(gate: RedisDriverNginx) -> None:
    engine = gate.engine("redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster", LIMITS)
    began = time.monotonic()
    with pytest.raises(NginxRedisError, match="no sentinel could tell") as unreachable:
        engine.take("login", "ada")
    assert unreachable.value.kind == "unreachable"
    assert time.monotonic() - began < 10
