"""The fallback where Redis answers and refuses, answers too late for some, gives slots, or changes places."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.nginx.engines.outage_harness import (
    AGAIN,
    BACK,
    GONE,
    PLENTY,
    SLOW,
    await_back,
    ready_gateway,
    rule,
    statuses,
)
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import Cluster, Proxy, RedisServer, Sentinels
from tests.servers.cluster import slot_of
from tests.servers.raw_redis_client import ErrorReply
from tests.servers.wait_until import until


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


# A server that answers, and refuses.


def _replica(server: RedisServer) -> None:
    server.call("REPLICAOF", "127.0.0.1", 1)


def _stale(server: RedisServer) -> None:
    server.call("CONFIG", "SET", "replica-serve-stale-data", "no")
    server.call("REPLICAOF", "127.0.0.1", 1)


def _locked(server: RedisServer) -> None:
    server.call("CONFIG", "SET", "requirepass", "secret")
    server.password = "secret"
    server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def _unlocked(server: RedisServer) -> None:
    server.call("CONFIG", "SET", "requirepass", "")
    server.password = None


REFUSALS: dict[str, tuple[Callable[[RedisServer], object], Callable[[RedisServer], object]]] = {
    "OOM": (
        lambda server: server.call("CONFIG", "SET", "maxmemory", 1),
        lambda server: server.call("CONFIG", "SET", "maxmemory", 0),
    ),
    "is a replica": (_replica, lambda server: server.call("REPLICAOF", "NO", "ONE")),
    "MASTERDOWN": (_stale, lambda server: server.call("REPLICAOF", "NO", "ONE")),
    "NOAUTH": (_locked, _unlocked),
    "evalsha": (
        lambda server: server.call("ACL", "SETUSER", "default", "-evalsha"),
        lambda server: server.call("ACL", "SETUSER", "default", "+evalsha"),
    ),
}


@pytest.mark.parametrize("word", REFUSALS)
def test_a_server_that_refuses_is_one_line_until_it_does_not(server: RedisServer, word: str) -> None:
    refuse, restore = REFUSALS[word]
    with ready_gateway(server, rule(), rule("wide", "1000000/hour", when={"path": "/wide"})) as gate:
        assert statuses(gate, 1, "/wide") == [200]
        refuse(server)
        assert Counter(statuses(gate, 10)) == {200: 5, 429: 5}
        for _ in range(15):  # some probes; of the last kind they are answered, and still nothing is decided
            time.sleep(0.1)
            assert gate.get("/wide").status in (200, 429)
        assert gate.log.count(GONE) == 1
        assert word in gate.log
        assert AGAIN not in gate.log
        restore(server)
        assert await_back(gate) < BACK + 0.5
        assert statuses(gate, 1)[0] in (200, 429)
        assert (gate.log.count(GONE), gate.log.count(AGAIN)) == (1, 1)


def test_a_server_that_takes_no_writes_is_left_alone(server: RedisServer) -> None:
    with ready_gateway(server, rule(limit="1000/hour"), url="&nodes=1") as gate:
        assert statuses(gate, 1) == [200]
        server.call("CONFIG", "SET", "maxmemory", 1)
        server.call("CONFIG", "RESETSTAT")
        for _ in range(40):
            time.sleep(0.05)
            assert statuses(gate, 1) == [200]
        calls = int(re.findall(r"calls=(\d+)", server.info("commandstats")["cmdstat_evalsha"])[0])
        assert (
            calls <= 3 + 2 * 7
        )  # what opens the breaker, and in two seconds some probes, each with a peek before it


def test_a_corrupt_key_affects_no_other_key(server: RedisServer) -> None:
    with ready_gateway(server, rule(limit="3/day fixed", key="header.user", missing="deny")) as gate:
        assert statuses(gate, 1, user="ada") == [200]
        server.call("RPUSH", "hg2:fw:api:{header.user=bob}", "not", "ours")
        assert Counter(statuses(gate, 6, user="bob")) == {200: 3, 429: 3}  # by its share
        assert statuses(gate, 3, user="ada") == [200, 200, 429]  # by Redis
        assert GONE not in gate.log
        assert (
            gate.log.count("the key hg2:fw:api:{header.user=bob} holds a value that headgate did not write") == 1
        )


@pytest.mark.parametrize(
    ("word", "passed"), [("allow", {200: 6}), ("deny", {429: 6}), ("local", {200: 3, 429: 3})]
)
def test_an_unreadable_value_is_logged_and_its_key_falls_back(
    server: RedisServer, word: str, passed: dict[int, int]
) -> None:
    """Each rule does what its fallback says for that key alone, and the log names the key."""
    limits = rule(limit="3/day fixed", key="header.user", missing="deny", fallback=word)
    with ready_gateway(server, limits) as gate:
        server.call("SET", "hg2:fw:api:{header.user=bob}", "hello")
        assert Counter(statuses(gate, 6, user="bob")) == passed
        assert Counter(statuses(gate, 4, user="ada")) == {200: 3, 429: 1}  # by Redis
        assert server.call("GET", "hg2:fw:api:{header.user=bob}") == b"hello"
        assert GONE not in gate.log
        assert (
            gate.log.count("the key hg2:fw:api:{header.user=bob} holds a value that headgate did not write") == 1
        )


# Deadlines.


def test_a_question_from_before_says_nothing_about_now(server: RedisServer) -> None:
    """It fails when its own time is over, and by then all is well again."""
    rules = [
        rule("hasty", "1000/hour", when={"path": "/hasty"}, deadline="100ms"),
        rule("patient", "1000/hour", when={"path": "/patient"}, deadline="4s"),
    ]
    with Proxy(server) as link, ready_gateway(link, *rules, deadline=4) as gate:
        assert statuses(gate, 2, "/hasty") == [200, 200]
        link.swallow("replies")
        patient = threading.Thread(target=gate.get, args=["/patient"])
        patient.start()
        time.sleep(0.3)
        assert statuses(gate, 3, "/hasty") == [200, 200, 200]
        link.heal()
        await_back(gate, target="/hasty")
        assert patient.is_alive()
        patient.join()
        assert statuses(gate, 2, "/hasty") == [200, 200]
        assert (gate.log.count(GONE), gate.log.count(AGAIN)) == (1, 1)


# Slots.


@contextmanager
def holding(gate: NginxGateway, count: int) -> Iterator[None]:
    """So many requests hold what they have got."""
    gate.get("/shut")
    holders = [threading.Thread(target=gate.get, args=["/slow"]) for _ in range(count)]
    for holder in holders:
        holder.start()
    until(lambda: None if gate.get("/in").body == b"%d" % count else "not all are in", 10)
    yield
    gate.get("/open")
    for holder in holders:
        holder.join()


def await_quick(gate: NginxGateway) -> None:
    """The slots that a request held return after its response, and so does the one it holds itself."""
    until(lambda: None if gate.get("/quick").status == 200 else "no slot is free", 5)
    time.sleep(0.8)


def test_slots_of_a_share_are_held_and_come_back(server: RedisServer) -> None:
    slots = rule("slots", "2 slots", when={"path": ["/slow", "/quick"]})
    with ready_gateway(server, slots, server=SLOW) as gate:
        assert statuses(gate, 1, "/quick") == [200]
        server.kill()
        for _ in range(3):
            with holding(gate, 2):
                assert statuses(gate, 2, "/quick") == [429, 429]
            await_quick(gate)


def test_a_slot_goes_back_to_whoever_gave_it(server: RedisServer) -> None:
    slots = rule("slots", "1 slots", when={"path": ["/slow", "/quick"]})
    wide = rule("wide", "1000000/hour", when={"path": "/wide"})
    with ready_gateway(server, slots, wide, server=SLOW) as gate:
        await_quick(gate)
        server.pause()
        assert set(statuses(gate, 3, "/wide")) == {
            200
        }  # had it asked for a slot, that would be lost until its ttl
        with holding(gate, 1):
            assert statuses(gate, 1, "/quick") == [429]  # the share has but one
            server.resume()
            await_back(gate, target="/wide")
            await_quick(gate)  # Redis has one as well
        with holding(gate, 1):  # of Redis
            server.pause()
            assert set(statuses(gate, 3, "/wide")) == {200}
            await_quick(gate)  # the share has its own again
        assert statuses(gate, 1, "/quick") == [200]
        server.resume()
        await_back(gate, 2, "/wide")
        await_quick(gate)  # Redis has been told at last


# Servers that change places.


def test_after_a_failover_the_new_master_decides() -> None:
    with Sentinels() as watched, ready_gateway(watched, rule(limit=PLENTY)) as gate:
        assert statuses(gate, 2) == [200, 200]
        watched.kill_master()
        began = time.monotonic()
        while gate.log.count(AGAIN) == 0 and time.monotonic() - began < 20:
            assert statuses(gate, 1) == [200]
        watched.await_ok()
        assert gate.log.count(GONE) == gate.log.count(AGAIN) == 1
        before = watched.master.call("GET", "hg2:tb:api:{all}")
        assert statuses(gate, 1) == [200]
        assert watched.master.call("GET", "hg2:tb:api:{all}") != before


def test_a_node_that_is_gone_degrades_its_keys_only() -> None:
    with Cluster(masters=3, replicas=0, full_coverage=False, node_timeout_ms=60_000) as cluster:
        gone, fine = cluster.nodes[0], cluster.nodes[2]
        users = [f"u{number}" for number in range(100)]
        ours = [user for user in users if slot_of(f"header.user={user}") < 16_384 // 3]
        others = [user for user in users if slot_of(f"header.user={user}") >= 2 * 16_384 // 3 + 1]
        with ready_gateway(cluster, rule(limit="2/day fixed", key="header.user", missing="deny")) as gate:
            assert statuses(gate, 1, user=others[0]) + statuses(gate, 1, user=ours[0]) == [200, 200]
            gone.pause()
            assert statuses(gate, 3, user=ours[1]) == [200, 200, 429]
            assert statuses(gate, 3, user=others[1]) == [200, 200, 429]
            assert fine.call("EXISTS", f"hg2:fw:api:{{header.user={others[1]}}}") == 1
            assert gate.log.count(GONE) == 1
            gone.resume()
            await_back(gate, user=ours[2])
            assert statuses(gate, 2, user=ours[0])[:1] == [200]
            with pytest.raises(ErrorReply):
                fine.call("EXISTS", f"hg2:fw:api:{{header.user={ours[0]}}}")
