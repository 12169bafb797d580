"""nginx counts what it decides, by rule: all workers together, whoever decided, over reloads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nginx.gateway_harness import NginxGateway
from tests.nginx.telemetry.counts_harness import METRICS, flood, outcomes, scrape, wait_for
from tests.servers import RedisServer

pytestmark = pytest.mark.servers

RULES: dict[str, Any] = {
    "rules": [
        {"name": "all", "limit": "30/hour; 1000/hour fixed", "candidate": "10/hour"},
        {"name": "later", "limit": "20/hour", "mode": "shadow"},
    ]
}


@pytest.fixture(params=["redis", "shared"])
def where(request: pytest.FixtureRequest, redis_server: RedisServer) -> str | None:
    return redis_server.url if request.param == "redis" else None


def test_counts_are_what_clients_saw_over_all_workers_and_a_reload(where: str | None) -> None:
    with NginxGateway(RULES, where, server=METRICS, workers=3) as gate:
        statuses = flood(gate, 40)
        gate.reload()
        statuses += flood(gate, 20)
        assert statuses == {200: 30, 429: 30}
        expected = {
            "all allowed": 30.0,
            "all refused": 30.0,
            "all candidate_allowed": 10.0,
            "all candidate_refused": 50.0,
            "later shadow_allowed": 20.0,
            "later shadow_refused": 40.0,
        }
        wait_for(gate, expected)
        assert outcomes(gate, "decided_by_total") == {"all engine": 60.0}
        assert outcomes(gate, "near_limit_total") == {"all": 6.0}  # 5, 4, 3, 2, 1 and 0 of 30 are left


def test_requests_without_a_rule_or_a_key_are_counted_too(where: str | None) -> None:
    rules = {
        "rules": [
            {"name": "users", "when": {"path": "/x"}, "key": "header.x-user", "missing": "deny", "limit": "9/s"},
            {"name": "slow", "when": {"path": "/slow"}, "limit": "2/s queue 5"},
        ]
    }
    with NginxGateway(rules, where, server=METRICS) as gate:
        assert [gate.get(path).status for path in ("/", "/", "/x", "/slow", "/slow")] == [200, 200, 429, 200, 200]
        assert outcomes(gate) == {" allowed": 2.0, "slow allowed": 2.0, "users refused": 1.0}
        delayed = [line for line in gate.lines(5) if " DELAYED " in line]
        assert outcomes(gate, "delayed_total") == {"slow": len(delayed)}


def test_each_layer_is_named(redis_server: RedisServer) -> None:
    rules = {
        "rules": [
            {"name": "day", "when": {"path": "/day"}, "limit": "1/day fixed"},
            {"name": "hot", "when": {"path": "/hot"}, "limit": "10000/hour", "prefetch": {"for": "10s"}},
            {"name": "plain", "when": {"path": "/plain"}, "limit": "2/day fixed"},
        ]
    }
    with NginxGateway(rules, f"{redis_server.url}?fallback=allow", server=METRICS) as gate:
        assert [gate.get("/day").status for _ in range(4)] == [200, 429, 429, 429]
        assert [gate.get("/hot").status for _ in range(30)] == [200] * 30
        layers = outcomes(gate, "decided_by_total")
        assert (layers["day engine"], layers["day denial_cache"]) == (2.0, 2.0)
        assert layers["hot engine"] + layers["hot prefetch"] == 30.0
        assert layers["hot prefetch"] >= 10.0
        redis_server.stop()
        assert [gate.get("/plain").status for _ in range(4)] == [200] * 4
        metrics = scrape(gate)
        assert metrics["decisions_total plain allowed"] == metrics["decided_by_total plain fallback"] == 4.0
        assert "decided_by_total plain engine" not in metrics
        redis_server.start()
