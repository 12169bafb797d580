"""Faults under load: workers, servers, rulebooks, files, memory. No error page, no lost count, no more admitted
than stated.

Load is wrk's, on one nginx with the whole gateway; what became of each request is told by the access log.
"""

import json
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.nginx.engines.outage_harness import AGAIN, GONE
from tests.nginx.gateway_harness import NginxGateway, push
from tests.nginx.wrk_load import distinct_key_requests, remaining_units, requests_by_status, run_wrk
from tests.servers import BASE_US, Cluster, DrivenClock, Proxy, RedisServer, Sentinels
from tests.servers.wait_until import until

PATIENT = "?deadline=5s"  # a busy machine is no outage


def book(limit: str = "1000000/day fixed", **more: Any) -> dict[str, Any]:
    return {"rules": [{"name": "api", "limit": limit, **more}]}


def by_user(limit: str, **more: Any) -> dict[str, Any]:
    return book(limit, key="header.x-user", missing="one", **more)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(params=["redis", "shared"])
def where(request: pytest.FixtureRequest) -> Iterator[str | None]:
    if request.param == "shared":
        yield None
    else:
        with RedisServer() as running:
            yield running.url + PATIENT


def kill_a_worker(gate: NginxGateway) -> None:
    os.kill(gate.worker_pids[0], signal.SIGKILL)
    until(lambda: None if len(gate.worker_pids) >= 2 else "a worker is missing", 5)


# Workers.


def test_reloads_under_load_lose_no_count(where: str | None) -> None:
    with NginxGateway(book(), where, workers=2) as gate:
        assert remaining_units(gate) == 999_999
        with run_wrk(gate, 3):
            for _ in range(3):
                gate.reload()
                time.sleep(0.5)
        statuses = requests_by_status(gate)
        assert set(statuses) == {"200 PASSED"}
        assert statuses.total() > 500
        assert remaining_units(gate) == 1_000_000 - statuses.total() - 1


def refused_after_a_kill(gate: NginxGateway, statuses: Counter[str]) -> None:
    """Checks that only requests that waited for a lock of the killed worker were refused."""
    assert set(statuses) <= {"200 PASSED", "429 REJECTED"}
    if statuses["429 REJECTED"]:
        assert "held the lock" in gate.log


def test_killed_workers_take_no_count_along(where: str | None) -> None:
    """Requests in killed workers were charged but not logged. A lock that such a worker held is soon free."""
    with NginxGateway(book(), where, workers=2) as gate:
        assert remaining_units(gate) == 999_999
        with run_wrk(gate, 3):
            for _ in range(3):
                kill_a_worker(gate)
                time.sleep(0.4)
        statuses = requests_by_status(gate)
        assert statuses["200 PASSED"] > 500
        refused_after_a_kill(gate, statuses)
        assert 0 <= 1_000_000 - statuses["200 PASSED"] - 1 - remaining_units(gate) <= 3 * 16


HELD = """
location = /sleep { content_by_lua_block { ngx.send_headers() ngx.flush(true) ngx.sleep(6) ngx.say("slept") } }
location = /unlogged { log_by_lua_block { local nothing } content_by_lua_block { ngx.say("ok") } }
"""


def test_a_worker_leaves_though_a_slot_never_came_back(where: str | None) -> None:
    """A location with a log phase of its own does not tell us that a request has ended."""
    with NginxGateway(book("2 slots ttl 2s"), where, server=HELD) as gate:
        assert gate.get("/unlogged").status == 200
        before = set(gate.worker_pids)
        gate.reload()
        until(lambda: None if not before & set(gate.worker_pids) else "the worker stays", 5)


def test_a_held_slot_survives_a_reload(server: RedisServer) -> None:
    """Its worker is leaving, and stays until the request has ended: longer than the ttl."""
    with NginxGateway(book("2 slots ttl 2s"), server.url + PATIENT, server=HELD) as gate:
        began_s = time.monotonic()
        with ExitStack() as opened:
            links = [opened.enter_context(socket.create_connection(("127.0.0.1", gate.port))) for _ in range(2)]
            for link in links:
                link.sendall(b"GET /sleep HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            heads = [link.recv(1000) for link in links]
            assert [head[:13] for head in heads] == [b"HTTP/1.1 200 "] * 2
            gate.reload()
            while time.monotonic() < began_s + 3.5:
                assert gate.get("/").status == 429
                time.sleep(0.2)
            for link in links:
                assert b"slept" in link.makefile("rb").read()
        until(lambda: None if gate.get("/").status == 200 else "a slot is held", 5)


# Servers.


def admitted(gate: NginxGateway, at_least: int, at_most: int) -> None:
    statuses = requests_by_status(gate)
    assert set(statuses) <= {"200 PASSED", "429 REJECTED"}, statuses
    assert at_least <= statuses["200 PASSED"] <= at_most


def test_a_redis_that_restarts_empty_admits_at_most_the_stated_bound(server: RedisServer) -> None:
    """Once by Redis, once by the share, once more by a Redis that has forgotten."""
    with NginxGateway(book("400/day fixed"), server.url, workers=2) as gate:
        with run_wrk(gate, 4):
            time.sleep(0.5)
            server.kill()
            time.sleep(1)
            server.start()
        admitted(gate, 400, 1200)


def test_a_failover_under_load_admits_at_most_the_stated_bound() -> None:
    """A replica may have missed what was written last: that is less than once more."""
    with Sentinels() as watched, NginxGateway(book("400/day fixed"), watched.url, workers=2) as gate:
        with run_wrk(gate, 4):
            time.sleep(0.5)
            watched.kill_master()
            watched.await_ok()
        admitted(gate, 400, 1200)


def test_a_cluster_failover_under_load_admits_at_most_the_stated_bound() -> None:
    with Cluster() as cluster, NginxGateway(by_user("1/day fixed"), cluster.url, workers=2) as gate:
        with run_wrk(gate, 4, distinct_key_requests(pause_ms=10)):
            time.sleep(0.5)
            cluster.kill_master()
            cluster.await_ok()
        statuses = requests_by_status(gate)
        assert set(statuses) == {"200 PASSED"}
        begun = statuses.total()
        with run_wrk(gate, 1, distinct_key_requests(pause_ms=10)):  # the same once more
            pass
        again = requests_by_status(gate, begun)
        assert set(again) <= {"200 PASSED", "429 REJECTED"}
        assert again["429 REJECTED"] > again.total() / 2


def test_a_redis_that_takes_no_more_connections(server: RedisServer) -> None:
    with NginxGateway(book("200/day fixed"), server.url) as gate, server_line(server) as order:
        assert gate.get("/").status == 200
        order("CONFIG SET maxclients 1", "CLIENT KILL TYPE normal SKIPME yes")
        with run_wrk(gate, 2):
            pass
        admitted(gate, 200, 201)  # by its share
        assert gate.log.count(GONE) == 1
        assert "max number of clients reached" in gate.log
        order("CONFIG SET maxclients 1000")
        until(lambda: (gate.get("/"), None if AGAIN in gate.log else "it is not back")[1], 5)


@contextmanager
def server_line(server: RedisServer) -> Iterator[Callable[..., None]]:
    """A connection that is kept."""
    with socket.create_connection(("127.0.0.1", server.port), 5) as link:

        def order(*lines: str) -> None:
            for line in lines:
                link.sendall(line.encode() + b"\r\n")
                assert link.recv(100)[:1] in b"+:"

        yield order


def test_a_slow_redis_holds_up_nobody(server: RedisServer) -> None:
    """30 ms for an answer, of 50 ms that it may take: whoever must connect first is too late."""
    with Proxy(server) as link, NginxGateway(by_user("5/day fixed"), f"{link.url}?deadline=50ms") as gate:
        assert gate.get("/").status == 200
        link.delay(15)
        slowest = 0.0
        with run_wrk(gate, 3, distinct_key_requests()):
            for _ in range(40):
                began = time.monotonic()
                assert gate.get("/").status in (200, 429)
                slowest = max(slowest, time.monotonic() - began)
                time.sleep(0.02)
        assert set(requests_by_status(gate)) <= {"200 PASSED", "429 REJECTED"}
        assert slowest < 1
        assert isinstance(decided := server.call("DBSIZE"), int)
        assert decided > 50


# Books.


def broken(server: RedisServer) -> Iterator[Callable[[], object]]:
    """Everything that can be wrong with what was pushed."""
    for version, text in enumerate(("", "{", '{"document": 7}', '{"document": "{}"}', "null"), 2):
        yield lambda v=version, t=text: server.call("HSET", "hg2:rules", str(v), t, "version", str(v))  # type: ignore[misc]
    yield lambda: server.call("HSET", "hg2:rules", "version", "x" * 1000, "at_us", "never")
    yield lambda: server.call("SET", "hg2:scripts", "no hash")
    yield lambda: server.call("SCRIPT", "FLUSH")
    yield lambda: server.call("FLUSHALL")
    yield lambda: server.call("SET", "hg2:rules", "no hash")


def test_a_book_that_breaks_under_load_is_followed_as_it_was(server: RedisServer) -> None:
    with NginxGateway(book(), server.url + PATIENT, workers=2) as gate:
        assert remaining_units(gate) == 999_999
        time.sleep(0.5)
        with run_wrk(gate, 5):
            for do in broken(server):
                do()
                time.sleep(0.4)
            server.call("FLUSHALL")
            push(book("1000/day fixed"), server.url)
            time.sleep(1)
            assert gate.get("/").headers["ratelimit-policy"] == '"api";q=1000;w=86400'
        statuses = Counter(line.rpartition(" ")[0] for line in gate.lines(0))
        assert set(statuses) <= {"200 PASSED api", "429 REJECTED api"}


def test_a_file_that_is_being_written_is_followed_as_it_was() -> None:
    with NginxGateway(book(), workers=2) as gate:
        assert remaining_units(gate) == 999_999
        text, chance = gate.bundle.read_bytes(), random.Random(7)
        with run_wrk(gate, 4):
            for turn in range(12):
                gate.bundle.write_bytes(text[: chance.randrange(len(text))])
                if turn % 4 == 1:
                    gate.reload()
                if turn % 4 == 3:
                    kill_a_worker(gate)
                time.sleep(0.2)
        refused_after_a_kill(gate, requests_by_status(gate))
        assert {line.split()[2] for line in gate.lines(0)} == {"api"}
        assert "cannot be followed" in gate.log


def _without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda limit: limit.pop(name)


SPOILED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no algorithm": _without("algorithm"),
    "an algorithm of tomorrow": lambda limit: limit.update(algorithm="crystal_ball"),
    "no numbers": _without("numbers"),
    "too few numbers": lambda limit: limit.update(numbers=["1"]),
    "no quota": _without("quota"),
    "no fresh": _without("fresh"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_bundle_that_cannot_be_counted_by_is_refused_whole(how: str) -> None:
    with NginxGateway(book("3/day")) as gate:
        assert remaining_units(gate) == 2
        bundle = json.loads(gate.bundle.read_text())
        SPOILED[how](bundle["limits"]["3/day"])
        gate.bundle.write_text(json.dumps(bundle))
        until(lambda: None if "cannot be followed" in gate.log else "not read", 5)
        assert [gate.get("/").status for _ in range(4)] == [200, 200, 429, 429]
        assert "undecided" not in gate.log


@pytest.mark.parametrize("stored", ["", "{", "[]", '{"rules": {}, "limits": {}, "scripts": 7}', "\0\0\0"])
def test_a_broken_cached_rulebook_is_logged(tmp_path: Path, stored: str) -> None:
    path = tmp_path / "kept.json"
    path.write_text(stored)
    with RedisServer() as server:
        server.stop()
        with NginxGateway(None, server.url, options=f'keep = "{path}"') as gate:
            assert gate.get("/").status == 200
            assert "the saved bundle cannot be followed" in gate.log
            server.start()
            push(book(), server.url)
            until(lambda: None if "ratelimit" in gate.get("/").headers else "not followed", 5)
            until(lambda: None if "api" in path.read_text() else "not kept", 5)


def test_an_unwritable_cache_file_is_logged_once(server: RedisServer) -> None:
    with NginxGateway(book(), server.url, options='keep = "/proc/nobody-writes-here"') as gate:
        assert remaining_units(gate) == 999_999
        push(book("7/day"), server.url)
        until(lambda: None if remaining_units(gate) < 7 else "not followed", 5)
        assert gate.log.count("the bundle was not saved: /proc/nobody-writes-here") == 1


# Memory, connections, rules, time.


def test_a_full_dict_never_lets_all_pass() -> None:
    with NginxGateway(by_user("2/day fixed"), room="256k", workers=2) as gate:
        assert gate.get("/").status == 200
        with run_wrk(gate, 3, distinct_key_requests(pause_ms=0), 32):
            pass
        statuses = requests_by_status(gate)
        assert set(statuses) == {"200 PASSED", "429 REJECTED"}
        assert statuses["200 PASSED"] < 5000
        assert "new keys are counted together" in gate.log
        begun = statuses.total()
        gate.reload()
        with run_wrk(gate, 1, distinct_key_requests(10**9)):
            pass
        assert requests_by_status(gate, begun)["200 PASSED"] == 0


def test_ten_thousand_idle_connections() -> None:
    with NginxGateway(book("50/day fixed"), connections=12_000) as gate:
        links = []
        for turn in range(10_000):
            link = socket.create_connection(
                ("127.0.0.1", gate.port), source_address=(f"127.5.0.{turn % 4 + 1}", 0)
            )
            link.sendall(b"GET / HTTP/1.1\r\nHo")
            links.append(link)
        assert Counter(gate.get("/").status for _ in range(60)) == {200: 50, 429: 10}
        for link in links:
            link.close()


def test_many_rules_are_followed(where: str | None) -> None:
    seconds = {}
    for count in (10, 1000):
        rules = [
            {"name": f"r{n}", "when": {"path": f"/p{n}/*"}, "limit": f"{n + 10**6}/day"} for n in range(count)
        ]
        with NginxGateway({"rules": rules}, where, room="50m") as gate:
            assert gate.get("/p7/x").headers["ratelimit-policy"] == '"r7";q=1000007;w=86400'
            began = time.monotonic()
            for _ in range(200):
                assert gate.get("/p7/x").status == 200
            seconds[count] = time.monotonic() - began
    sys.stderr.write(f"{seconds[1000] / seconds[10]:.2f} times as long with 1000 rules as with 10\n")


def test_a_clock_that_steps_back_mints_nothing() -> None:
    with DrivenClock(BASE_US) as clock, NginxGateway(book("5/minute"), driven=clock) as gate:
        assert [gate.get("/").status for _ in range(6)] == [200] * 5 + [429]
        clock.advance_us(-3600 * 1_000_000)
        time.sleep(0.1)
        assert [gate.get("/").status for _ in range(3)] == [429] * 3
        clock.advance_us(12 * 1_000_000)  # a fifth of a minute after that: one more, and nobody waits for an hour
        time.sleep(0.1)
        assert [gate.get("/").status for _ in range(2)] == [200, 429]


MEMORY = """
location = /memory { access_by_lua_block { local nothing } content_by_lua_block {
  collectgarbage() collectgarbage() ngx.print(math.floor(collectgarbage("count"))) } }
"""


def test_new_keys_leave_nothing_in_a_worker(server: RedisServer) -> None:
    rules: list[dict[str, Any]] = [
        {"name": "api", "key": ["header.x-user", "path", "argument.q", "cookie.sid"], "limit": "2/hour"},
        {"name": "slots", "key": "header.x-user", "limit": "2 slots ttl 10s"},
        {"name": "here", "key": "header.x-user", "where": "node", "limit": "5/s"},
    ]
    bundle = {"rules": [{**one, "missing": "one"} for one in rules]}
    with NginxGateway(bundle, server.url + PATIENT, room="50m", server=MEMORY) as gate:
        sizes = []
        for turn, seconds in enumerate((1, 1, 3)):
            with run_wrk(gate, seconds, distinct_key_requests(turn * 10**6, 0)):
                pass
            time.sleep(0.7)
            sizes.append(int(gate.get("/memory").body))
        assert requests_by_status(gate)["200 PASSED"] > 1000
        # Hot keys of ten seconds come and go (200 kB); 100 bytes for each key and rule would be several megabytes.
        assert sizes[2] - sizes[1] < 800  # kilobytes
