"""An nginx with all its workers is one member among Python processes and other gateways."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headgate import Limiter
from headgate.engines.layers.fallback import FallbackEngine
from headgate.engines.redis.sync_engine import RedisEngine
from tests.nginx.gateway_harness import NginxGateway, push
from tests.servers import RedisServer
from tests.servers.wait_until import until

KEY = "hg2:members"
PLACE = """
location = /replies { content_by_lua_block { ngx.print(ngx.shared.headgate:get("m:replies") or "") } }
location = /id { content_by_lua_block { ngx.print(ngx.shared.headgate:get("m:id") or "") } }
"""
TTL = 5.0


def rule(limit: str) -> dict[str, Any]:
    return {"name": "api", "limit": limit, "when": {"path": "/"}}


@contextmanager
def gateway(
    server: RedisServer, limit: str | None = "10/day fixed", options: str = "", **more: Any
) -> Iterator[NginxGateway]:
    book = None if limit is None else {"rules": [rule(limit)]}
    url = f"{server.url}?fallback=local&deadline=500ms{options}"
    with NginxGateway(book, url, options="denial_cache = false, shed = false", server=PLACE, **more) as gate:
        yield gate


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


def ids(server: RedisServer) -> list[str]:
    """The living, in the order of their ranks."""
    members = server.call("ZRANGEBYSCORE", KEY, "(0", "+inf")
    assert isinstance(members, list)
    return sorted((name.decode()[1:] for name in members if isinstance(name, bytes)), key=int)


def place(gate: NginxGateway) -> tuple[int, int]:
    """Computes count and rank as the gate does: of the heartbeat replies with the highest count, the latest."""
    beats = [
        tuple(map(int, beat.split())) for beat in gate.get("/replies").body.decode().split(",") if beat.strip()
    ]
    count, rank = max(beats, key=lambda beat: beat[0], default=(0, 0))
    return count, rank


def id_of(gate: NginxGateway) -> str:
    return gate.get("/id").body.decode()


def await_members(server: RedisServer, count: int, seconds: float = 10) -> None:
    until(lambda: None if len(ids(server)) == count else f"{len(ids(server))} members", seconds)


def await_place(gate: NginxGateway, count: int, rank: int | None = None, seconds: float = 10) -> None:
    def missing() -> str | None:
        current = place(gate)
        fine = current[0] == count and (rank is None or current[1] == rank)
        return None if fine else f"{current}, not {count}, {rank}"

    until(missing, seconds)


@contextmanager
def python(server: RedisServer, limit: str) -> Iterator[tuple[Limiter, FallbackEngine]]:
    """A Python process's limiter, on the same count as the gate's rule."""
    with Limiter(limit, f"{server.url}?fallback=local&deadline=500ms", name="api") as limiter:
        assert isinstance(limiter.engine, FallbackEngine)
        limiter.peek("all")
        yield limiter, limiter.engine


def await_python(engine: FallbackEngine, count: int) -> None:
    until(lambda: None if engine.members.count == count else f"Python has heard of {engine.members.count}", 10)


def admitted(gate: NginxGateway, count: int) -> int:
    statuses = Counter(gate.get("/").status for _ in range(count))
    assert set(statuses) <= {200, 429}
    return statuses[200]


def test_all_workers_are_one_member_that_beats_once_a_second(server: RedisServer) -> None:
    with gateway(server, workers=3) as gate:
        await_members(server, 1)
        assert ids(server) == [id_of(gate)]
        assert 0 < int(id_of(gate)) <= 2**48
        await_place(gate, 1, 0)
        time.sleep(3)  # by then the counts of these requests are written, which takes ZADD, too
        server.call("CONFIG", "RESETSTAT")
        time.sleep(4)
        zadds = server.info("commandstats").get("cmdstat_zadd", "calls=0,")
        assert 2 <= int(zadds.split("calls=")[1].split(",")[0]) <= 5


def test_a_reload_keeps_the_member(server: RedisServer) -> None:
    with gateway(server, workers=2) as gate:
        await_members(server, 1)
        before = id_of(gate)
        gate.reload()
        until(lambda: None if len(gate.worker_pids) == 2 else "old workers live", 10)
        for _ in range(10):
            time.sleep(0.2)
            assert ids(server) == [before]
        assert id_of(gate) == before


def test_nginx_that_quits_takes_itself_out_and_one_that_is_killed_is_forgotten(server: RedisServer) -> None:
    with gateway(server) as first, gateway(server, None) as second:
        await_members(server, 2)
        os.kill(first.pid, signal.SIGQUIT)
        await_members(server, 1, 2)
        assert ids(server) == [id_of(second)]
        for pid in [second.pid, *second.worker_pids]:
            os.kill(pid, signal.SIGKILL)
        await_members(server, 0, TTL + 3)


def test_gates_and_python_count_each_other(server: RedisServer) -> None:
    with gateway(server) as first, gateway(server, None) as second:
        with python(server, "10/day fixed") as (_, engine):
            await_members(server, 3)
            await_place(first, 3)
            await_place(second, 3)
            await_python(engine, 3)
            time.sleep(1.5)  # one more beat of each, with nobody coming or going
            ranks = {
                id_of(first): place(first)[1],
                id_of(second): place(second)[1],
                engine.members.id: engine.members.position[1] or 0,
            }
            assert sorted(ranks, key=lambda name: ranks[name]) == ids(server)
            assert sorted(ranks.values()) == [0, 1, 2]
        await_members(server, 2, 3)  # it has taken itself out


@pytest.mark.parametrize("limit", [10, 11])
def test_cut_off_they_admit_the_limit_together(server: RedisServer, limit: int) -> None:
    text = f"{limit}/day fixed"
    with gateway(server, text) as gate, python(server, text) as (limiter, engine):
        await_place(gate, 2)
        await_python(engine, 2)
        time.sleep(1.5)  # one more beat of each; and a worker reads its place twice a second
        rank = place(gate)[1]
        assert {rank, engine.members.rank} == {0, 1}
        server.kill()
        here = admitted(gate, 2 * limit)
        there = sum(limiter.take("all").allowed for _ in range(2 * limit))
        assert here == limit // 2 + (rank < limit % 2)
        assert here + there == limit


def test_a_stated_number_of_nodes_sends_no_requests(server: RedisServer) -> None:
    with gateway(server, "10/day fixed", "&nodes=4") as gate:
        assert admitted(gate, 1) == 1
        time.sleep(1.5)
        assert server.call("EXISTS", KEY) == 0
        server.kill()
        assert admitted(gate, 10) == 2  # rank 3 of 4: of 3, 3, 2 and 2 the last


@pytest.mark.parametrize(("believed", "share"), [(False, 3), (True, 10)])
def test_a_count_that_falls_is_believed_after_five_beats(server: RedisServer, believed: bool, share: int) -> None:
    with gateway(server) as gate:
        engine = RedisEngine(server.url)
        for other in ("1", "2"):
            engine.heartbeat(other)
        engine.close()
        await_place(gate, 3, 2)
        server.call("DEL", KEY)
        forgotten_at = time.monotonic()
        await_members(server, 1)
        if believed:
            await_place(gate, 1, 0)
            assert 3.5 < time.monotonic() - forgotten_at < 10
        else:
            assert "1        0," in gate.get("/replies").body.decode()
        time.sleep(0.6)  # a worker reads its place twice a second
        server.kill()
        assert admitted(gate, 20) == share


def test_a_count_that_rises_is_believed_at_once(server: RedisServer) -> None:
    with gateway(server) as gate, python(server, "10/day fixed"):
        await_members(server, 2)
        await_place(gate, 2, None, 3)
        time.sleep(0.6)
        server.kill()
        assert admitted(gate, 20) == 5


def test_when_redis_is_gone_the_place_stays_and_the_log_says_so_once(server: RedisServer) -> None:
    with gateway(server) as gate:
        engine = RedisEngine(server.url)
        engine.heartbeat("1")
        await_place(gate, 2, 1)
        engine.close()
        server.kill()
        until(lambda: None if "have not received a heartbeat of this nginx" in gate.log else "not told", 15)
        assert place(gate) == (2, 1)
        assert "it stays number 2 of 2" in gate.log
        assert admitted(gate, 10) == 5
        server.start()
        push({"rules": [rule("10/day fixed")]}, server.url)
        await_members(server, 1)
        assert gate.log.count("have not received a heartbeat of this nginx") == 1
