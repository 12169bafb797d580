"""nginx's /metrics: a real Prometheus scrapes all workers together; outages and rejected rulebooks show."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nginx.gateway_harness import NginxGateway
from tests.nginx.telemetry.counts_harness import METRICS, flood, scrape
from tests.servers import RedisServer
from tests.servers.prometheus import Prometheus
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers

RULES: dict[str, Any] = {"rules": [{"name": "login", "limit": "20/hour fixed"}]}


def test_prometheus_sees_every_request(redis_server: RedisServer) -> None:
    with (
        NginxGateway(RULES, redis_server.url, server=METRICS, workers=3) as gate,
        Prometheus({"nginx": f"127.0.0.1:{gate.port}"}) as prometheus,
    ):
        statuses = flood(gate, 60)
        assert statuses == {200: 20, 429: 40}
        expected = {
            "outcome=allowed,rule=login": statuses[200],
            "outcome=refused,rule=login": statuses[429],
        }

        def missing() -> str | None:
            series = prometheus.query("sum by (rule, outcome) (headgate_decisions_total)")
            return None if series == expected else f"{series}, not {expected}"

        until(missing, 60)
        decided = prometheus.query("sum by (rule) (headgate_decided_by_total)")
        assert decided == {"rule=login": 60.0}
        assert prometheus.query("sum(headgate_rulebook_version)") == {"": 1.0}
        units = prometheus.query("max by (rule, limit) (headgate_limit_units)")
        assert units == {"limit=20/hour fixed,rule=login": 20.0}
        assert prometheus.query("sum(headgate_breakers_open)") == {"": 0.0}


def test_an_outage_shows_and_ends(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, redis_server.url, server=METRICS) as gate:
        assert gate.get("/").status == 200
        before = scrape(gate)
        names = ("breakers_open", "breaker_opened_total", "degraded_seconds_total")
        assert [before[name] for name in names] == [0.0, 0.0, 0.0]
        redis_server.stop()
        for _ in range(4):
            assert gate.get("/").status == 200
        gone = scrape(gate)
        assert (gone["breakers_open"], gone["breaker_opened_total"]) == (1.0, 1.0)
        redis_server.start()
        until(lambda: None if gate.get("/").status and scrape(gate)["breakers_open"] == 0.0 else "not back", 30)
        after = scrape(gate)
        assert after["breaker_opened_total"] == 1.0
        assert after["degraded_seconds_total"] >= gone["degraded_seconds_total"] >= 0.0
        assert scrape(gate)["degraded_seconds_total"] == after["degraded_seconds_total"]


def test_a_rejected_rulebook_is_counted_once_and_versions_show(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, redis_server.url, server=METRICS, workers=3) as gate:
        assert scrape(gate)["rulebook_rejected_total"] == 0.0
        # A worker that reads the broken version first would have none.
        until(lambda: None if all(scrape(gate)["rulebook_version"] for _ in range(50)) else "a worker is late", 60)
        good = redis_server.call("HGET", "hg2:rules", "1")
        assert isinstance(good, bytes)
        redis_server.call("HSET", "hg2:rules", "2", '{"document":"no JSON"}', "version", "2", "at_us", "2")
        until(lambda: None if scrape(gate)["rulebook_rejected_total"] else "not rejected yet", 20)
        until(lambda: None if gate.log.count("version 2 of the rulebook cannot") == 3 else "a worker is late", 20)
        assert scrape(gate)["rulebook_rejected_total"] == 1.0
        assert scrape(gate)["rulebook_version"] == 1.0
        redis_server.call("HSET", "hg2:rules", "3", good, "version", "3", "at_us", "3")
        until(lambda: None if scrape(gate)["rulebook_version"] == 3.0 else "not followed yet", 20)


def test_without_a_rulebook_there_are_metrics_and_no_counts(redis_server: RedisServer) -> None:
    with NginxGateway(None, redis_server.url, server=METRICS) as gate:
        assert gate.get("/").status == 200
        metrics = scrape(gate)
        assert metrics["rulebook_version"] == 0.0
        assert not [name for name in metrics if name.startswith("decisions_total")]
