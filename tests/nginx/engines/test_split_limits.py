"""Limits split among a stated number of nginx: each has the rate divided by the number, and at least one unit."""

import time
from collections.abc import Iterator

import pytest

from headgate.engines.redis.sync_engine import RedisEngine
from tests.nginx.engines.outage_harness import ready_gateway, rule, statuses
from tests.servers import RedisServer
from tests.servers.wait_until import until


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.mark.parametrize("limit", ["2/s queue 0", "2/s burst 1", "2/s fixed", "2/s sliding", "2/s log"])
def test_the_rate_of_a_split_limit_is_divided_whatever_its_burst(server: RedisServer, limit: str) -> None:
    """Of 2/s, each of 40 has one unit in 20 s: with windows cut on the epoch, at most two in any such span."""
    with ready_gateway(server, rule(limit=limit, where="split", nodes=40)) as gate:
        passed = 0
        for _ in range(4):
            passed += statuses(gate, 2).count(200)
            time.sleep(1.1)
        assert 1 <= passed <= (2 if limit.endswith("fixed") else 1)


def test_a_split_limit_follows_the_number_of_members(server: RedisServer) -> None:
    others = RedisEngine(server.url)
    with ready_gateway(server, rule(limit="8/year", where="split")) as gate:
        for _ in range(3):
            for other in ("1", "2", "3"):
                others.heartbeat(other)
            time.sleep(1)
        assert statuses(gate, 6).count(200) == 2
    others.close()


@pytest.mark.parametrize(
    "limit", ["2/s queue 0", "2/s burst 1", "2/s fixed", "2/month fixed in Asia/Tokyo", "2/s smooth"]
)
def test_with_stated_nodes_nginx_admits_its_share_in_an_outage(server: RedisServer, limit: str) -> None:
    with ready_gateway(server, rule(limit=limit), url="&nodes=40") as gate:
        until(lambda: None if 429 in statuses(gate, 3) else "no rule is in force", 10)
        server.kill()
        passed = 0
        for _ in range(4):
            passed += statuses(gate, 2).count(200)
            time.sleep(1.1)
        assert 1 <= passed <= (2 if limit.endswith("fixed") else 1)
