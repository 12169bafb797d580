"""nginx's histograms and totals: names and bounds of a Python process, samples of all workers, bounded memory."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headgate.telemetry.prometheus import (
    DELAY_BUCKETS_S,
    ENGINE_SAMPLES,
    ENGINE_TOTALS,
    LATENCY_BUCKETS_S,
    PrometheusMetrics,
)
from tests.nginx.gateway_harness import NginxGateway
from tests.nginx.telemetry.counts_harness import METRICS, flood, scrape
from tests.servers import RedisServer
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers

RULES: dict[str, Any] = {
    "rules": [
        {"name": "everybody", "when": {"path": "/"}, "limit": "1000/hour fixed"},
        {"name": "slow", "when": {"path": "/slow"}, "limit": "2/s queue 5"},
        {"name": "hot", "when": {"path": "/hot"}, "limit": "10000/hour", "prefetch": {"for": "10s"}},
    ]
}
BOUNDS = {
    "decision_seconds": LATENCY_BUCKETS_S,
    "delay_seconds": DELAY_BUCKETS_S,
    **{name: bounds for name, (_, bounds) in ENGINE_SAMPLES.items()},
}


def buckets(gate: NginxGateway, name: str) -> dict[float, float]:
    """The buckets of a histogram: how many samples are at most each bound."""
    metrics = {key: value for key, value in scrape(gate).items() if key.startswith(f"{name}_bucket ")}
    return {float(key.split()[1]): value for key, value in metrics.items()}


def wait_for_count(gate: NginxGateway, name: str, least: int) -> None:
    """Waits for samples: those of other workers come once a second."""
    until(lambda: None if scrape(gate)[f"{name}_count"] >= least else f"{name}: {scrape(gate)}", 20)


def test_names_and_bounds_are_those_of_a_python_process(redis_server: RedisServer) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry=registry)
    described = {each.name: each.documentation for each in registry.collect()}
    metrics.close()
    with NginxGateway(RULES, redis_server.url, server=METRICS) as gate:
        text = gate.get("/metrics").body.decode()
        for name, bounds in BOUNDS.items():
            assert list(buckets(gate, name)) == [*bounds, float("inf")]
            assert f"# HELP headgate_{name} {described[f'headgate_{name}']}\n" in text
            assert f"# TYPE headgate_{name} histogram\n" in text
        for name, help_text in ENGINE_TOTALS.items():
            if name not in ("breaker_opened_total", "lost_surcharges_total"):  # nginx makes no surcharges
                assert f"# HELP headgate_{name} {help_text}\n" in text
                assert scrape(gate)[name] == 0.0


def test_one_decision_and_one_round_trip_in_16_are_measured(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, redis_server.url, server=METRICS, workers=3) as gate:
        flood(gate, 400)
        wait_for_count(gate, "decision_seconds", 25)
        for name in ("decision_seconds", "round_trip_seconds", "batch_requests"):
            metrics = scrape(gate)
            assert 400 // 16 <= metrics[f"{name}_count"] <= 400 // 16 + 3  # each worker measures its first
            counts = [value for key, value in metrics.items() if key.startswith(f"{name}_bucket ")]
            assert all(less <= more for less, more in pairwise(counts))
            assert counts[-1] == metrics[f"{name}_count"]
            assert metrics[f"{name}_sum"] > 0
        assert scrape(gate)["batch_requests_sum"] >= scrape(gate)["batch_requests_count"]


def test_every_delay_is_in_the_histogram_and_remains_after_a_reload(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, redis_server.url, server=METRICS) as gate:
        for _ in range(4):
            gate.get("/slow")
        delayed = scrape(gate)["delayed_total slow"]
        assert delayed >= 1
        metrics = scrape(gate)
        assert metrics["delay_seconds_count"] == delayed
        assert 0 < metrics["delay_seconds_sum"] <= 4 * 2.5
        gate.reload()
        until(lambda: None if scrape(gate)["delay_seconds_count"] == delayed else "forgotten", 20)


def test_units_that_are_left_of_a_rule_for_all_calls(redis_server: RedisServer) -> None:
    by_user = {"name": "users", "key": "header.x-user", "missing": "skip", "limit": "7/hour fixed"}
    rules = {"rules": [RULES["rules"][0], by_user]}
    with NginxGateway(rules, redis_server.url, server=METRICS) as gate:
        assert "remaining_units everybody 1000/hour fixed" not in scrape(gate)
        for _ in range(3):
            gate.get("/", {"X-User": "ann"})
        metrics = {name: value for name, value in scrape(gate).items() if name.startswith("remaining_units")}
        assert metrics == {"remaining_units everybody 1000/hour fixed": 997.0}


def test_prefetched_units_are_counted(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, redis_server.url, server=METRICS) as gate:
        for _ in range(30):
            gate.get("/hot")
        metrics = scrape(gate)
        assert metrics["prefetched_units_total"] == metrics["decided_by_total hot prefetch"] >= 10.0


def test_samples_of_a_worker_are_bounded() -> None:
    """A worker that could not move its samples for long has MAX_SAMPLES of each kind, not all."""
    lua = """
      local measurements = require "resty.headgate.engines.measurements"
      for i = 1, 5000 do measurements.observe("round_trip_seconds", i) end
      local samples = measurements.samples.round_trip_seconds
      ngx.say(#samples, " ", samples.number)
      samples.number = 0
    """
    server = f"location = /fill {{ access_by_lua_block {{ return }} content_by_lua_block {{ {lua} }} }}"
    with NginxGateway(RULES, server=server) as gate:
        assert gate.get("/fill").body == b"1024 1024\n"
