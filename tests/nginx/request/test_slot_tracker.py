"""Slots in nginx: a request that passes holds one until it ends, however it ends."""

import os
import signal
import socket
import threading
import time
from typing import Any

import pytest

from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer
from tests.servers.wait_until import until

BOOK: dict[str, Any] = {"rules": [{"name": "slots", "when": {"path": "/w/**"}, "limit": "2 slots ttl 3s"}]}
PAGES = """
location /w/sleep { content_by_lua_block { ngx.sleep(tonumber(ngx.var.arg_s)) ngx.say("slept") } }
location /w/fail { content_by_lua_block { error("on purpose") } }
location /w/gone { proxy_pass http://127.0.0.1:1; }
location /w/moved { error_page 404 = /w/page; content_by_lua_block { ngx.exit(404) } }
location /w/page { content_by_lua_block { ngx.say("page") } }
location /w/ok { content_by_lua_block { ngx.say("ok") } }
"""


@pytest.fixture(params=["redis", "shared"])
def where(request: pytest.FixtureRequest, redis_server: RedisServer) -> str | None:
    return redis_server.url if request.param == "redis" else None


def sleeping(gate: NginxGateway, seconds: float) -> list[threading.Thread]:
    """Two requests that hold both slots."""

    def sleep() -> None:
        while gate.get(f"/w/sleep?s={seconds}").status != 200:
            time.sleep(0.05)

    threads = [threading.Thread(target=sleep) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: None if gate.get("/w/ok").status == 429 else "a slot is free", 5)
    return threads


def asking(gate: NginxGateway, target: str) -> list[socket.socket]:
    """Two connections whose requests hold both slots."""
    links = []
    for _ in range(2):
        link = socket.create_connection(("127.0.0.1", gate.port))
        link.sendall(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        links.append(link)
    time.sleep(0.4)  # who asked in between would hold a slot
    assert gate.get("/w/ok").status == 429
    return links


def free(gate: NginxGateway) -> None:
    until(lambda: None if gate.get("/w/ok").status == 200 else "no slot is free", 2)


def test_two_at_once_and_no_third(where: str | None) -> None:
    with NginxGateway(BOOK, where, server=PAGES) as gate:
        threads = sleeping(gate, 1.5)
        reply = gate.get("/w/ok")
        assert reply.status == 429
        assert reply.headers["ratelimit-policy"] == '"slots";q=2;qu="concurrent-requests"'
        for thread in threads:
            thread.join()
        free(gate)


@pytest.mark.parametrize("target", ["/w/ok", "/w/fail", "/w/gone", "/w/moved"])
def test_however_it_ends(where: str | None, target: str) -> None:
    with NginxGateway(BOOK, where, server=PAGES) as gate:
        for _ in range(6):
            gate.get(target)
            free(gate)


def test_a_client_that_goes_away(where: str | None) -> None:
    with NginxGateway(BOOK, where, server=PAGES) as gate:
        links = asking(gate, "/w/sleep?s=1.5")
        for link in links:
            link.close()
        time.sleep(1.6)
        free(gate)


def test_a_long_request_keeps_its_slot(where: str | None) -> None:
    """Longer than the ttl of 3 s: it is renewed."""
    with NginxGateway(BOOK, where, server=PAGES) as gate:
        threads = sleeping(gate, 5)
        for _ in range(9):
            assert gate.get("/w/ok").status == 429
            time.sleep(0.5)
        for thread in threads:
            thread.join()
        free(gate)


def test_a_worker_that_is_killed_gives_its_slots_back_by_their_ttl(where: str | None) -> None:
    with NginxGateway(BOOK, where, server=PAGES) as gate:
        links = asking(gate, "/w/sleep?s=30")
        for pid in gate.worker_pids:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
        assert gate.get("/w/ok").status == 429
        time.sleep(3.2)
        free(gate)
        for link in links:
            link.close()


def test_requests_that_end_unseen(where: str | None) -> None:
    """A configuration without our log phase: it is told, and no slot is renewed for ever."""
    unseen = PAGES.replace("{ content_by_lua_block", "{ log_by_lua_block { local nothing } content_by_lua_block")
    with NginxGateway(BOOK, where, server=unseen) as gate:
        links = asking(gate, "/w/sleep?s=1")
        time.sleep(1)
        for link in links:
            link.close()
        for _ in range(1000):
            gate.get("/w/ok")
        until(lambda: None if gate.get("/w/ok").status == 200 else "no slot is free", 10)
        line = "requests end without our log phase, so slots are not renewed any more. Write log_by_lua"
        assert gate.log.count(line) == 1


def test_a_slot_that_another_rule_refuses_goes_back(where: str | None) -> None:
    few = {"name": "few", "when": {"path": "/w/**"}, "key": "argument.u", "missing": "skip", "limit": "1/hour"}
    with NginxGateway({"rules": [*BOOK["rules"], few]}, where, server=PAGES) as gate:
        statuses = [gate.get("/w/ok?u=1").status for _ in range(5)]
        assert statuses == [200] + [429] * 4
        free(gate)
