"""Clusters, sentinels and TLS servers of the tests do what a test tells them."""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from tests.servers import KINDS, Cluster, Kind, Sentinels, TlsServer
from tests.servers.cluster import SLOTS, ClusterNode, slot_of
from tests.servers.raw_redis_client import ErrorReply, Reply, send_commands
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers
each_kind = pytest.mark.parametrize("kind", KINDS)
each_cluster = pytest.mark.parametrize("name", ["cluster", "valkey_cluster"])
ONCE = Retry(NoBackoff(), 0)


# Clusters


@each_cluster
def test_a_cluster_serves_every_slot_and_every_master_has_a_replica(
    name: str, request: pytest.FixtureRequest
) -> None:
    cluster: Cluster = request.getfixturevalue(name)
    masters = cluster.masters()
    assert [len(cluster.replicas_of(master)) for master in masters] == [1, 1, 1]
    assert {cluster.master_of(slot) for slot in (0, SLOTS // 2, SLOTS - 1)} == set(masters)
    assert all(b"cluster_state:ok" in _bytes(node.call("CLUSTER", "INFO")) for node in cluster.nodes)
    seeds = urlsplit(cluster.url).netloc.split(",")
    assert seeds == [f"127.0.0.1:{node.port}" for node in cluster.nodes]
    assert (urlsplit(cluster.url).scheme, urlsplit(cluster.url).path) == ("redis+cluster", "/0")


@pytest.mark.parametrize("key", ["a", "a{b}c", "{}a", "a{b", "a}b{c}d{e}", "{{a}}b", "ä{ö}"])
def test_the_slot_of_a_key_is_the_servers(cluster: Cluster, key: str) -> None:
    assert slot_of(key) == cluster.nodes[0].call("CLUSTER", "KEYSLOT", key)
    assert cluster.master_of(key).call("SET", key, "1") == b"OK"


def test_a_client_finds_its_way_and_a_wrong_node_names_the_right_one(cluster: Cluster) -> None:
    with RedisCluster(host="127.0.0.1", port=cluster.nodes[-1].port) as client:
        client.set("a", "1")
    master = cluster.master_of("a")
    wrong = next(node for node in cluster.masters() if node is not master)
    assert master.call("GET", "a") == b"1"
    with pytest.raises(ErrorReply, match=f"MOVED {slot_of('a')} 127.0.0.1:{master.port}"):
        wrong.call("GET", "a")


@pytest.mark.parametrize("turn", ["first", "second"])
@each_cluster
def test_each_test_finds_a_cluster_empty(name: str, turn: str, request: pytest.FixtureRequest) -> None:
    cluster: Cluster = request.getfixturevalue(name)
    assert [master.call("DBSIZE") for master in cluster.masters()] == [0, 0, 0]
    for key in "abcdef":
        cluster.master_of(key).call("SET", key, turn)


def test_scripts_are_forgotten_everywhere(cluster: Cluster) -> None:
    digests = [_bytes(node.call("SCRIPT", "LOAD", "return 1")) for node in cluster.nodes]
    cluster.script_flush()
    assert all(node.call("SCRIPT", "EXISTS", digests[0]) == [0] for node in cluster.nodes)


@each_cluster
def test_a_moving_slot_redirects_then_replies_try_again_then_moved(
    name: str, request: pytest.FixtureRequest
) -> None:
    cluster: Cluster = request.getfixturevalue(name)
    slot, source = slot_of("{a}"), cluster.master_of("{a}")
    target = next(node for node in cluster.masters() if node is not source)
    for key in ("{a}1", "{a}2"):
        source.call("SET", key, key)
    with cluster.moving_slot(slot, target) as move:
        assert sorted(move.keys()) == [b"{a}1", b"{a}2"]
        assert source.call("MGET", "{a}1", "{a}2") == [b"{a}1", b"{a}2"]
        with pytest.raises(ErrorReply, match=f"ASK {slot} 127.0.0.1:{target.port}"):
            source.call("GET", "{a}3")
        move.carry("{a}1")
        with pytest.raises(ErrorReply, match=f"ASK {slot} 127.0.0.1:{target.port}"):
            source.call("GET", "{a}1")
        assert _asking(target, "GET", "{a}1") == b"{a}1"
        with pytest.raises(ErrorReply, match="TRYAGAIN"):
            _asking(target, "MGET", "{a}1", "{a}2")
        with pytest.raises(ErrorReply, match=f"MOVED {slot} 127.0.0.1:{source.port}"):
            target.call("GET", "{a}1")
    assert cluster.master_of(slot) is target
    assert target.call("MGET", "{a}1", "{a}2") == [b"{a}1", b"{a}2"]
    for node in cluster.nodes:
        if node is not target:
            with pytest.raises(ErrorReply, match=f"MOVED {slot} 127.0.0.1:{target.port}"):
                node.call("GET", "{a}1")
    with pytest.raises(ValueError, match="already"):
        cluster.move_slot(slot, target)
    cluster.move_slot(slot, source)
    assert source.call("GET", "{a}2") == b"{a}2"


@each_kind
def test_a_killed_master_has_an_heir_within_seconds(kind: Kind) -> None:
    with Cluster(kind, full_coverage=False) as cluster:
        heir = cluster.replicas_of(cluster.masters()[0])[0]
        cluster.masters()[0].call("SET", "b", "1")
        until(lambda: None if heir.call("DBSIZE") == 1 else "the replica has not got the key", 5)
        killed = cluster.kill_master(0)
        survivors = cluster.masters()
        assert (killed.alive, len(survivors)) == (False, 2)
        with pytest.raises(RuntimeError, match="no live node serves slot 0 now"):
            cluster.master_of(0)
        until(lambda: None if _serves_on(cluster, "a") and heir in cluster.masters() else "there is no heir", 10)
        cluster.await_ok()
        assert cluster.masters() == [heir, *survivors]
        assert heir.call("GET", "b") == b"1"
        cluster.heal()
        assert cluster.replicas_of(heir) == [killed]
        cluster.failover(killed)
        assert cluster.masters() == [killed, *survivors]
        assert killed.call("GET", "b") == b"1"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    with Cluster(password="a@b") as cluster:
        yield cluster


def test_a_cluster_may_have_a_password(guarded: Cluster) -> None:
    source, target, _ = guarded.masters()
    assert urlsplit(guarded.url).netloc.startswith(f":a%40b@127.0.0.1:{guarded.nodes[0].port},")
    with pytest.raises(ErrorReply, match="NOAUTH"):
        send_commands(source.unix_path, ("GET", "b"))
    source.call("SET", "b", "1")
    guarded.move_slot(slot_of("b"), target)
    assert target.call("GET", "b") == b"1"


def test_a_node_can_be_put_behind_a_faulty_link(guarded: Cluster) -> None:
    _, far, near = guarded.masters()
    slot = slot_of("a")
    assert guarded.master_of(slot) is near
    with guarded.faulty_link(near) as link:
        with pytest.raises(ErrorReply, match=f"MOVED {slot} 127.0.0.1:{link.port}"):
            far.call("GET", "a")
        link.swallow()
        with (
            redis.Redis(port=link.port, socket_timeout=0.1, retry=ONCE) as client,
            pytest.raises(redis.TimeoutError),
        ):
            client.ping()
        assert guarded.master_of(slot) is near
    with pytest.raises(ErrorReply, match=f"MOVED {slot} 127.0.0.1:{near.port}"):
        far.call("GET", "a")


def test_a_hanging_master_has_an_heir_too(guarded: Cluster) -> None:
    first = guarded.masters()[0]
    [heir] = guarded.replicas_of(first)
    first.pause()
    guarded.await_ok(seconds=10)
    assert guarded.master_of(0) is heir
    guarded.heal()
    assert guarded.replicas_of(heir) == [first]
    guarded.restart(first)
    assert guarded.masters()[0] is heir


# Sentinels


def test_sentinels_name_the_master(sentinels: Sentinels) -> None:
    watchers = [("127.0.0.1", sentinel.port) for sentinel in sentinels.sentinels]
    assert sentinels.url == f"redis+sentinel://{','.join(f'{host}:{port}' for host, port in watchers)}/mymaster/0"
    finder = Sentinel(watchers)
    assert finder.discover_master("mymaster") == ("127.0.0.1", sentinels.master.port)
    assert finder.discover_slaves("mymaster") == [("127.0.0.1", node.port) for node in sentinels.replicas]
    for found in finder.sentinels:
        found.close()


@pytest.mark.parametrize("turn", ["first", "second"])
def test_each_test_finds_a_watched_master_empty(sentinels: Sentinels, turn: str) -> None:
    assert sentinels.master.call("DBSIZE") == 0
    sentinels.master.call("SET", "left behind", turn)


def test_sentinels_fail_over_on_command_and_when_the_master_dies() -> None:
    secrets = {"user": "me", "password": "a@b", "sentinel_user": "watcher", "sentinel_password": "c&d"}
    with Sentinels("redis", **secrets) as watched:  # type: ignore[arg-type]  # a dict of words
        given = urlsplit(watched.url)
        assert (given.username, given.path) == ("me", "/mymaster/0")
        assert parse_qs(given.query) == {"sentinel_username": ["watcher"], "sentinel_password": ["c&d"]}
        assert send_commands(watched.master.unix_path, ("AUTH", "me", "a@b"), ("PING",))[-1] == b"PONG"
        assert send_commands(watched.sentinels[0].unix_path, ("AUTH", "watcher", "c&d"), ("PING",))[-1] == b"PONG"
        first, [second] = watched.master, watched.replicas
        with pytest.raises(ErrorReply, match="NOAUTH"):
            send_commands(first.unix_path, ("PING",))
        watched.failover()
        assert _named_by_all(watched) == second.port
        assert watched.replicas == [first]
        assert watched.kill_master() is second
        watched.await_ok(seconds=15)
        assert _named_by_all(watched) == first.port
        watched.heal()
        assert (watched.master, watched.replicas) == (first, [second])


def test_sentinels_watch_over_valkey_and_one_of_them_may_die() -> None:
    with Sentinels("valkey", replicas=2) as watched:
        watched.master.call("SET", "a", "1")
        assert watched.master.call("WAIT", 2, 5000) == 2
        watched.sentinels[0].kill()
        killed = watched.kill_master()
        watched.await_ok(seconds=15)
        assert watched.master is not killed
        assert watched.master.call("GET", "a") == b"1"
        watched.restart(watched.sentinels[0])
        assert _named_by_all(watched) == watched.master.port


# TLS


def test_tls_requires_a_client_certificate() -> None:
    with TlsServer(password="a@b") as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        stranger = f"{server.url.partition('?')[0]}?ssl_ca_certs={server.certificates.authority}"
        with redis.Redis.from_url(stranger, retry=ONCE) as client, pytest.raises(redis.ConnectionError):
            client.ping()
        with redis.Redis(port=server.port, retry=ONCE) as in_the_clear, pytest.raises(redis.ConnectionError):
            in_the_clear.ping()
        server.restart()
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()


def test_tls_without_client_certificates() -> None:
    with TlsServer(client_certificates=False) as server:
        assert "ssl_certfile" not in server.url
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        unverified = server.url.partition("?")[0]
        with (
            redis.Redis.from_url(unverified, retry=ONCE) as client,
            pytest.raises(redis.ConnectionError, match="CERTIFICATE"),
        ):
            client.ping()


def _serves_on(cluster: Cluster, key: str) -> bool:
    return cluster.master_of(key).call("SET", key, "1") == b"OK"


def _asking(node: ClusterNode, *words: str) -> Reply:
    return send_commands(node.unix_path, ("ASKING",), words)[-1]


def _named_by_all(watched: Sentinels) -> int:
    """The port of the master, on which all sentinels must agree."""
    replies = [sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster") for sentinel in watched.sentinels]
    [(host, port)] = {(_bytes(reply[0]), _bytes(reply[1])) for reply in replies if isinstance(reply, list)}
    assert host == b"127.0.0.1"
    return int(port)


def _bytes(reply: Reply) -> bytes:
    assert isinstance(reply, bytes)
    return reply
