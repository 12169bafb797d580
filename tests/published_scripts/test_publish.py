"""Publishing loads the scripts, stores their SHA1 where gateways look, and reports problems."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headgate import EngineUnavailable
from headgate.engines.redis.published_scripts import SCRIPT_NAMES, publish
from tests.published_scripts.evalsha_client import KEY, EvalshaClient
from tests.servers import KINDS, Cluster, Kind, RedisServer, Sentinels
from tests.servers.raw_redis_client import ErrorReply
from tests.servers.wait_until import until

AT_ONCE = ["repl-diskless-sync-delay 0"]  # so that a replica need not wait


def test_the_sha1_is_stored_and_the_script_is_loaded(server: RedisServer) -> None:
    for script in publish(server.url):
        assert server.call("GET", script.key) == script.sha.encode()
        assert server.call("SCRIPT", "EXISTS", script.sha) == [1]
        assert server.call("TTL", script.key) == -1
    assert [script.key for script in publish(server.url)] == [f"lua:sha1:{name}" for name in SCRIPT_NAMES]


def test_publishing_again_keeps_the_counts(driven_server: RedisServer) -> None:
    gateway = EvalshaClient(driven_server)
    gateway.limiter("init", 1, 1)
    gateway.limiter("acquire", 1)
    publish(driven_server.url)
    assert gateway.limiter("acquire", 1) == -1


def test_after_the_scripts_were_flushed_publishing_brings_them_back(server: RedisServer) -> None:
    gateway = EvalshaClient(server)
    server.call("SCRIPT", "FLUSH")
    assert str(gateway.limiter("init", 1, 1)).startswith("NOSCRIPT")
    publish(server.url)
    assert gateway.limiter("init", 1, 1) == 1


def test_a_missing_right_is_named() -> None:
    rules = ["user gate on >secret ~* +@connection +get +set +hkeys +hset"]
    with RedisServer(config=rules) as server:
        url = f"redis://gate:secret@127.0.0.1:{server.port}/0"
        with pytest.raises(EngineUnavailable, match=r"lacks the right to run script\|load") as refused:
            publish(url)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_failover_the_scripts_are_there(kind: Kind) -> None:
    """A replica does not get them from its master, and gateways call by the SHA1 alone."""
    with RedisServer(kind, config=AT_ONCE) as master, replica_of(master) as replica:
        publish(master.url)
        EvalshaClient(master).limiter("init", 3, 1)
        until(lambda: None if replica.call("EXISTS", KEY) else "the replica lags", 30)
        master.kill()
        replica.call("REPLICAOF", "NO", "ONE")
        for name, words in (("rate_limiter", ("acquire", 1)), ("token_bucket", (1,))):
            sha = replica.call("GET", f"lua:sha1:{name}")
            assert isinstance(sha, bytes)
            assert replica.call("EVALSHA", sha, 1, KEY, *words) in (1, -1)


def test_behind_sentinels_and_in_a_cluster_every_server_has_them(sentinels: Sentinels, cluster: Cluster) -> None:
    for url, servers in ((sentinels.url, sentinels.nodes), (cluster.url, cluster.nodes)):
        for server in servers:
            server.call("SCRIPT", "FLUSH", "SYNC")
        for script in publish(url):
            assert [server.call("SCRIPT", "EXISTS", script.sha) for server in servers] == [[1]] * len(servers)


def test_an_unreachable_replica_is_a_warning() -> None:
    warnings: list[str] = []
    with RedisServer(config=AT_ONCE) as master, replica_of(master) as replica:
        replica.pause()
        published = publish(f"{master.url}?deadline=300ms", warnings.append)
        replica.resume()
        assert master.call("SCRIPT", "EXISTS", *(script.sha for script in published)) == [1] * len(SCRIPT_NAMES)
    (warning,) = warnings
    assert warning.startswith(
        "A replica did not get the scripts; publish again when it is back. Redis at 127.0.0.1:"
    )


def test_a_missing_right_to_list_replicas_is_a_warning() -> None:
    warnings: list[str] = []
    rules = ["user gate on >secret ~* +script|load +get +set +hkeys +hset"]
    with RedisServer(config=rules) as server:
        publish(f"redis://gate:secret@127.0.0.1:{server.port}/0", warnings.append)
    (warning,) = warnings
    assert "did not get the scripts" in warning
    assert "lacks the right to run role" in warning


def test_after_noscript_a_gateway_finds_the_script_text(server: RedisServer) -> None:
    """As docs/how-to/gateways.md says."""
    sha = publish(server.url)[0].sha
    server.call("SCRIPT", "FLUSH", "SYNC")
    with pytest.raises(ErrorReply, match="NOSCRIPT"):
        server.call("EVALSHA", sha, 1, KEY, "acquire", 1)
    text = server.call("HGET", "hg2:scripts", sha)
    assert isinstance(text, bytes)
    assert server.call("SCRIPT", "LOAD", text) == sha.encode()
    assert server.call("EVALSHA", sha, 1, KEY, "acquire", 1) == -1


@contextmanager
def replica_of(master: RedisServer) -> Iterator[RedisServer]:
    """A replica in sync."""
    with RedisServer(master.kind) as replica:
        replica.call("REPLICAOF", "127.0.0.1", master.port)
        until(lambda: None if str(replica.port) in str(master.call("ROLE")) else "it is not in sync", 30)
        yield replica


def test_an_unreachable_server_is_reported_without_its_password() -> None:
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:1 "):
        publish("redis://:secret@127.0.0.1:1/0")
