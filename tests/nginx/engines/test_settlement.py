"""Accounts after an outage: Redis is charged with what the shares of all workers admitted, once.

A real nginx of several workers, and a real Redis that is cut off, or killed and started empty.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.nginx.engines.outage_harness import GONE, OutageLoad, await_back, ready_gateway, rule, statuses
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import Proxy, RedisServer
from tests.servers.wait_until import until

LIMIT = 100_000
WORKERS = 3


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


def remaining(gate: NginxGateway) -> int:
    """Returns what remains after one more call."""
    [left] = re.findall(r";r=(\d+)", gate.get("/").headers["ratelimit"])
    return int(left)


def used_units(server: RedisServer, key: str) -> int:
    """The units used in a stored fixed window."""
    state = server.call("GET", key)
    assert isinstance(state, bytes)
    return int(state.split(b":")[1])


def cut_off(link: Proxy, gate: NginxGateway) -> None:
    """Nothing reaches Redis any more, and the breaker is open."""
    link.refuse()
    link.cut()
    until(lambda: None if statuses(gate, 1) and GONE in gate.log else "not noticed", 5)


def test_admissions_of_all_workers_in_an_outage_are_settled_once(server: RedisServer) -> None:
    with Proxy(server) as link, ready_gateway(link, rule(limit=f"{LIMIT}/day fixed"), workers=WORKERS) as gate:
        assert remaining(gate) == LIMIT - 1
        with OutageLoad(gate, 6) as load:
            time.sleep(0.3)
            link.refuse()
            link.cut()
            time.sleep(0.8)
            link.heal()
            until(lambda: None if "answers again after" in gate.log else "not back", 10)
            time.sleep(0.2)
        assert {seen.status for seen in load.seen} == {200}
        # Two requests of a worker may have been cut off after they had reached Redis: those were charged twice.
        admitted, left = len(load.seen) + 2, remaining(gate)
        assert LIMIT - admitted - 2 * WORKERS <= left <= LIMIT - admitted


def test_a_redis_that_lost_its_memory_learns_what_was_admitted_without_it(server: RedisServer) -> None:
    with ready_gateway(server, rule(limit="20/day fixed"), workers=WORKERS) as gate:
        assert statuses(gate, 1) == [200]
        server.kill()
        assert Counter(statuses(gate, 30)) == {200: 20, 429: 10}
        server.start()
        await_back(gate)
        assert set(statuses(gate, 30)) == {429}


def test_a_count_that_nobody_uses_is_settled_in_the_background(server: RedisServer) -> None:
    keyed = rule(limit="20/day fixed", key="header.user", missing="one")
    with Proxy(server) as link, ready_gateway(link, keyed) as gate:
        assert statuses(gate, 1, user="ada") == [200]
        cut_off(link, gate)
        assert statuses(gate, 5, user="bob") == [200] * 5
        assert server.call("EXISTS", "hg2:fw:api:{header.user=bob}") == 0
        link.heal()
        until(lambda: None if server.call("EXISTS", "hg2:fw:api:{header.user=bob}") else "not settled", 5)
        assert used_units(server, "hg2:fw:api:{header.user=bob}") == 5


def test_refunded_units_of_a_share_are_not_settled(server: RedisServer) -> None:
    """A rule that another one refuses holds nothing, neither in its share nor in Redis afterwards."""
    rules = [
        rule("first", "100000/day fixed", when={"path": "/b"}, prefetch={"for": "100ms", "units": 1}),
        rule("refused", "100000/hour", when={"path": "/b"}, fallback="deny"),
    ]
    with Proxy(server) as link, ready_gateway(link, *rules) as gate:
        assert statuses(gate, 1) == [200]
        link.refuse()
        link.cut()
        until(lambda: None if statuses(gate, 1, "/b") == [429] and GONE in gate.log else "not noticed", 5)
        assert set(statuses(gate, 20, "/b")) == {429}
        link.heal()
        until(lambda: None if statuses(gate, 1, "/b") == [200] else "refused", 5)
        assert used_units(server, "hg2:fw:first:{all}") <= 5


def test_while_accounts_are_settled_a_call_must_pass_its_share_too(server: RedisServer) -> None:
    """The share is used up, and Redis came back empty: nothing passes while others may still decide alone, nor
    after that."""
    with Proxy(server) as link, ready_gateway(link, rule(limit="5/day fixed")) as gate:
        assert statuses(gate, 1) == [200]
        cut_off(link, gate)
        statuses(gate, 10)
        server.call("DEL", "hg2:fw:api:{all}")
        link.heal()
        until(lambda: None if server.call("EXISTS", "hg2:fw:api:{all}") else "not settled", 5)
        assert set(statuses(gate, 10)) == {429}
        await_back(gate)
        assert set(statuses(gate, 10)) == {429}
