"""Finds the server that owns a key, without any server: URLs, slots and redirects."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.decision import Receipt
from headgate.engines.redis import cross_slot, redirects
from headgate.engines.redis.errors import (
    ClusterBusy,
    ConnectFailed,
    NoScript,
    ReadOnlyReplica,
    Redirected,
    ServerError,
    TimedOut,
    WrongType,
    not_charged,
    parse_error_reply,
)
from headgate.engines.redis.keys import escape_key
from headgate.engines.redis.protocol import RedisRequest, RequestBuilder
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.topology import ClusterTopology, SentinelTopology, SingleServer, slot, topology
from headgate.engines.url import open_engine
from headgate.errors import InvalidRule
from headgate.flow import run
from headgate.limit_syntax import parse
from tests.servers.cluster import slot_of


def test_one_server() -> None:
    one = topology("redis://me:p%2Fw@h:1234/5")
    address = one.node(b"key")
    assert isinstance(one, SingleServer)
    assert address is not None
    assert (address.host, address.port, address.login, address.db) == ("h", 1234, ("me", "p/w"), 5)
    assert [word.count(b"\r\n") for word in address.handshake_commands] == [7, 5]  # AUTH me p/w, SELECT 5
    assert topology("redis://:secret@[::1]:6379").node(b"").handshake_commands[0].count(b"\r\n") == 5  # type: ignore[union-attr]
    unix = topology("unix://me:secret@/a/socket?db=2").node(b"")
    assert unix is not None
    assert (unix.path, unix.login, unix.db, str(unix)) == ("/a/socket", ("me", "secret"), 2, "/a/socket")


@pytest.mark.parametrize("scheme", ["redis", "valkey", "rediss", "valkeys"])
def test_several_seeds(scheme: str) -> None:
    found = topology(f"{scheme}+cluster://me:secret@a,b:7001,[::1]:7002")
    assert isinstance(found, ClusterTopology)
    assert [(seed.host, seed.port) for seed in found._seeds] == [("a", 6379), ("b", 7001), ("::1", 7002)]
    assert all(seed.login == ("me", "secret") for seed in found._seeds)
    assert all((seed.tls is not None) == (scheme in ("rediss", "valkeys")) for seed in found._seeds)
    assert found.node(b"key") is None  # nobody has been asked yet


def test_sentinels_have_their_login() -> None:
    found = topology("redis+sentinel://me:secret@a,b:5/my%20master/3?sentinel_username=w&sentinel_password=x%2Fy")
    assert isinstance(found, SentinelTopology)
    assert [(watcher.host, watcher.port) for watcher in found._sentinels] == [("a", 26379), ("b", 5)]
    assert all((watcher.login, watcher.db) == (("w", "x/y"), 0) for watcher in found._sentinels)
    assert (found._template.login, found._template.db, found._name) == (("me", "secret"), 3, "my master")


BAD = [
    *("redis://me:hunter2@h:70000/0", "redis://me:hunter2@h:port/0", "redis://me:hunter2@[::1/0"),
    *(
        "redis://me:hunter2/3@h/0",
        "redis://me:99/hunter2@h",
        "redis://me:99?hunter2@h/0",
        "redis://me:hunter2#3@h",
    ),
    *("redis://me:hunter2@h/zero", "redis://me:hunter2@h/-1", "redis://me:hunter2@h?db=x"),
    *("redis+cluster://me:hunter2@h:x", "redis+cluster://me:hunter2@a,,b", "redis+cluster://me:hunter2@h/1"),
    *("redis+cluster://me:hun/ter2@h:1", "redis+cluster://me:hunter2@", "redis+cluster://"),
    *("redis+sentinel://me:hunter2@h", "redis+sentinel://me:hunter2@h/m/x", "redis+sentinel://me:99/hunter2@h/m"),
    *("rediss://me:hunter2@h?ssl_cert_reqs=bogus", "rediss://me:hunter2@h?ssl_ca_certs=/no/such/file"),
    *("rediss://me:hunter2@h?ssl_ciphers=none", "rediss://me:hunter2@h?ssl_min_version=9"),
    *("rediss://me:hunter2@h?ssl_certfile=/etc/hosts&ssl_keyfile=/etc/hosts",),
]


@pytest.mark.parametrize("url", BAD)
def test_a_url_that_cannot_be_read_gets_a_sentence_without_the_password(url: str) -> None:
    with pytest.raises(InvalidRule, match=r"[Ww]rite .*://") as refused:
        open_engine(url)
    error: BaseException | None = refused.value
    while error is not None:
        assert "hunter2" not in f"{error} {error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_an_address_never_prints_the_password() -> None:
    address = ServerAddress.parse("redis://me:hunter2@h:1/0")
    found = topology("redis+cluster://me:hunter2@h:1")
    assert "hunter2" not in f"{address!r} {address} {found.text} {vars(found)!r}"


def test_one_place_is_one_address() -> None:
    """Addresses are equal by their host and port, whichever login they have and wherever they were learned."""
    seed = ServerAddress.parse("redis://h:1")
    assert seed == seed.at("h", 1)
    assert len({seed, seed.at("h", 1), seed.at("h", 2), ServerAddress(path="/h")}) == 3
    assert seed != "h:1"


@given(st.text(min_size=1))
def test_the_slot_is_the_servers(key: str) -> None:
    assert slot(escape_key(key)) == slot_of(RequestBuilder(parse("1/s"), "n", "hg").key(key))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("MOVED 3999 10.0.0.1:6381", Redirected),
        ("ASK 3999 ::1:6381", Redirected),
        ("TRYAGAIN Multiple keys request during rehashing of slot", ClusterBusy),
        ("CLUSTERDOWN The cluster is down", ClusterBusy),
        ("LOADING Redis is loading the dataset in memory", ClusterBusy),
        ("MASTERDOWN Link with MASTER is down", ClusterBusy),
        ("READONLY You can't write against a read only replica.", ReadOnlyReplica),
        ("ERR Error running script: @user_script:1: -READONLY You can't write", ReadOnlyReplica),
        ("NOSCRIPT No matching script.", NoScript),
        ("WRONGTYPE Operation against a key", WrongType),
        ("MOVED to nowhere", ServerError),
        ("MOVED", ServerError),
        ("ASK", ServerError),
        ("", ServerError),
    ],
)
def test_error_replies_are_classified(text: str, kind: type[ServerError]) -> None:
    trouble = parse_error_reply(text)
    assert type(trouble) is kind
    assert str(trouble) == text
    assert not_charged(trouble) == (kind not in (ServerError, WrongType))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        *(("MOVED 7 h:1", ("h", 1)), ("MOVED 7 ::1:2", ("::1", 2))),
        *(("MOVED 7 :3", ("me", 3)), ("MOVED 7 ?:4", ("me", 4))),
    ],
)
def test_a_redirect_without_a_host_means_the_same_host(text: str, place: tuple[str, int]) -> None:
    cluster = ClusterTopology([ServerAddress("me", 1)])
    error = parse_error_reply(text)
    assert isinstance(error, Redirected)
    to = cluster.follow_redirect(error, ServerAddress("me", 1))
    assert (to.host, to.port) == place
    assert (error.slot, error.is_temporary) == (7, False)


Answers = dict[str, Any]


def asking(answers: Answers) -> tuple[Callable[[ServerAddress, bytes], Any], list[str]]:
    """Servers by name, and in which order they were asked."""
    hosts: list[str] = []

    def execute(address: ServerAddress, words: bytes) -> Any:
        hosts.append(address.host)
        answer = answers[address.host]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return execute, hosts


def test_a_cluster_is_discovered_from_any_node_that_replies() -> None:
    """One is dead, one hangs, one was thrown out of the cluster; the fourth tells, and is asked first later."""
    seeds = [ServerAddress(name) for name in ("dead", "hung", "lost", "good")]
    cluster = ClusterTopology(seeds)
    slots = [[0, 8191, [b"a", 1, b"id"], [b"r", 1, b"id"]], [8192, 16383, [None, 2, b"id"]]]
    execute, hosts = asking(
        {"dead": ConnectFailed("refused"), "hung": TimedOut("late"), "lost": [], "good": slots}
    )
    run(cluster.discover(execute))
    assert hosts == ["dead", "hung", "lost", "good"]
    assert (str(cluster._owners[0]), str(cluster._owners[16383])) == ("a:1", "good:2")
    cluster.suspect(ServerAddress("a", 1))
    hosts.clear()
    run(cluster.discover(execute))
    assert hosts == ["good"]


def test_no_node_knows_the_slots() -> None:
    cluster = ClusterTopology([ServerAddress("dead"), ServerAddress("lost")])
    execute, _ = asking({"dead": ConnectFailed("refused"), "lost": []})
    with pytest.raises(
        ConnectFailed, match=r"no node could tell \(dead:6379: refused; lost:6379: it knows of no slots\)"
    ):
        run(cluster.discover(execute))


def test_sentinels_are_tried_in_turn() -> None:
    found = topology("redis+sentinel://hung,new,good/m")
    execute, hosts = asking({"hung": TimedOut("late"), "new": None, "good": [b"h", b"7"]})
    run(found.discover(execute))
    assert hosts == ["hung", "new", "good"]
    assert str(found.node(b"")) == "h:7"
    found.suspect(ServerAddress("other", 1))
    assert str(found.node(b"")) == "h:7"
    found.suspect(ServerAddress("h", 7))
    assert found.node(b"") is None
    hosts.clear()
    run(found.discover(execute))
    assert hosts == ["good"]


def test_nodes_that_send_us_in_circles_are_not_stormed() -> None:
    cluster = ClusterTopology([ServerAddress("a", 1), ServerAddress("b", 1)])
    cluster._owners = [ServerAddress("a", 1)] * 16384
    cluster._stale = False
    sent: list[str] = []
    slept: list[float] = []

    def send(address: ServerAddress, question: RedisRequest, for_now: bool) -> Any:
        sent.append(address.host)
        if len(slept) == 3:
            return "at last"
        raise parse_error_reply(f"MOVED 0 {'b' if address.host == 'a' else 'a'}:1")

    request = RedisRequest(b"", None)
    flow = redirects.send_with_redirects(cluster, lambda: None, send, slept.append, request, float("inf"))
    assert run(flow) == "at last"
    assert len(sent) == redirects.MAX_IMMEDIATE_REDIRECTS + 3 + 1


FACTS = [1, 9, 0, 1000, 0, 10**15, 0]


def test_a_calendar_that_turned_between_asking_and_charging() -> None:
    """One group of a call has a new month each time it is asked, the other was charged: it is taken back, and
    nothing is decided."""
    questions = RequestBuilder(parse("10/month fixed"), "n", "hg")
    groups = [[(questions, "a", 1)], [(questions, "b", 1)]]
    rounds: list[list[RedisRequest]] = []

    def execute_all(all_questions: list[RedisRequest], deadlines: list[float | None]) -> list[Any]:
        rounds.append(all_questions)
        replies: Any = [[FACTS], [FACTS]], [[FACTS], [[-2, 10**15]]], [[[-2, 10**15]]], [FACTS]
        return replies[len(rounds) - 1]  # type: ignore[no-any-return]

    with pytest.raises(ClusterBusy):
        run(cross_slot.decide_across_slots(execute_all, groups, None, 10**15))  # type: ignore[arg-type]
    receipt = Receipt(1, 10**15, 1000, 0, 0)
    assert rounds[3] == [questions.refund("a", 1, receipt, False, 10**15)]
