"""A real Prometheus scrapes real processes: one application, and several workers in multiprocess mode."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from headgate import AsyncLimiter, Limiter
from headgate.telemetry.prometheus import PrometheusMetrics
from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer
from tests.servers.prometheus import Prometheus
from tests.servers.redis_server import free_port
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers

APP = """
from flask import Flask
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from headgate import Limiter
from headgate.telemetry.prometheus import PrometheusMetrics

app = Flask(__name__)
limiter = Limiter("3/hour", name="login", observers=[PrometheusMetrics()])

@app.get("/login")
def login():
    return ("in", 200) if limiter.take("ann") else ("wait", 429)

@app.get("/metrics")
def metrics():
    registry = REGISTRY
    if values.ValueClass.__name__ != "MutexValue":
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        list(REGISTRY.collect())
    return generate_latest(registry), 200, {"content-type": CONTENT_TYPE_LATEST}
"""


@contextmanager
def served(folder: Path, workers: int) -> Iterator[str]:
    """The application in gunicorn, with so many workers; yields its address."""
    (folder / "metered_app.py").write_text(APP)
    address = f"127.0.0.1:{free_port()}"
    environment = {"PATH": "", "PYTHONPATH": f"{folder}:{ROOT / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    if workers > 1:
        (folder / "shared").mkdir()
        environment["PROMETHEUS_MULTIPROC_DIR"] = str(folder / "shared")
    command = [sys.executable, "-m", "gunicorn", "--workers", str(workers), "--bind", address]
    command += ["--pid", str(folder / "pid"), "metered_app:app"]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: _missing(address), 60)
            yield address
        finally:
            server.terminate()


def _missing(address: str) -> str | None:
    try:
        status = httpx.get(f"http://{address}/metrics").status_code
    except httpx.TransportError as error:
        return f"no answer: {error}"
    return None if status == 200 else f"it answers {status}"


@pytest.mark.parametrize("workers", [1, 3])
def test_prometheus_sees_every_call(tmp_path: Path, workers: int) -> None:
    with served(tmp_path, workers) as address, Prometheus({"shop": address}) as prometheus:
        # A connection for each call, so that all workers get some.
        statuses = [httpx.get(f"http://{address}/login").status_code for _ in range(250)]
        expected = {
            "outcome=allowed,rule=login": statuses.count(200),
            "outcome=refused,rule=login": statuses.count(429),
        }
        assert 3 <= statuses.count(200) <= 3 * workers

        def missing() -> str | None:
            seen = prometheus.query("sum by (rule, outcome) (headgate_decisions_total)")
            return None if seen == expected else f"{seen}, not {expected}"

        until(missing, 60)
        assert set(prometheus.query("max by (rule) (headgate_limit_units)").values()) == set()
        assert sum(prometheus.query("headgate_decision_seconds_count").values()) >= 1


async def test_round_trips_to_a_server() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry=registry)

    def sample(name: str) -> float:
        return registry.get_sample_value(f"headgate_{name}") or 0

    with RedisServer() as server:
        limiter = Limiter("1000/s", f"{server.url}?deadline=5s", observers=[metrics])
        async with AsyncLimiter("1000/s", f"{server.url}?deadline=5s", observers=[metrics]) as awaited:
            limiter.take("ann")
            await awaited.take("ann")  # loads the script
            metrics.move_counts()
            before = sample("batch_requests_sum"), sample("round_trip_seconds_count")
            await asyncio.gather(*(awaited.take(f"key {number}") for number in range(50)))
            metrics.move_counts()
        limiter.close()
    assert min(before) >= 2
    assert sample("batch_requests_sum") - before[0] == 50
    assert 1 <= sample("round_trip_seconds_count") - before[1] < 50, "several requests shared a round trip"
