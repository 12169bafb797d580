"""Scrapes while a rulebook is replaced, workers restart and nginx reloads: no call notices, no count is lost."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headgate import Limiter
from headgate.telemetry.prometheus import PrometheusMetrics
from tests.nginx.gateway_harness import NginxGateway
from tests.nginx.telemetry.counts_harness import METRICS, flood
from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.service.service_harness import Service
from tests.telemetry.background_scraper import BackgroundScraper, counters_of
from tests.telemetry.test_prometheus_scrapes import served

RELOADS = 5


def book(limit: str) -> dict[str, Any]:
    return {"rules": [{"name": "api", "limit": limit}]}


def all_are_counted(scraper: BackgroundScraper, calls: int, unreadable: str | None = None) -> None:
    """Waits until a scrape has every call, and looks whether all scrapes were good ones, or `unreadable`."""

    def missing() -> str | None:
        return (
            None if scraper.decisions() == calls else f"{scraper.decisions()} of {calls}; {scraper.problems[:3]}"
        )

    until(missing, 30)
    assert scraper.scrapes > RELOADS
    assert [each for each in scraper.problems if unreadable is None or not each.startswith(unreadable)] == []
    assert len(scraper.problems) <= scraper.scrapes / 4


def wait_for_more(scrapes: list[dict[str, float]], calls: list[int]) -> None:
    """Waits for another scrape, and another call."""
    scrapes_before, calls_before = len(scrapes), sum(calls)
    until(lambda: None if len(scrapes) > scrapes_before and sum(calls) > calls_before else "nothing more", 30)


def wait_for_limit(service: Service, limit: str) -> int:
    """Calls until an answer has the limit; returns how many calls that took."""
    answers: list[str] = []

    def missing() -> str | None:
        answers.append(str(service.check(user="ann")))
        return None if limit in answers[-1] else f"still {answers[-1]}"

    until(missing, 30)
    return len(answers)


def test_an_application_replaces_its_rulebook() -> None:
    registry = CollectorRegistry()
    limiter = Limiter.from_rules(book("5/hour"), observers=[PrometheusMetrics(registry=registry)])
    ended, calls = threading.Event(), [0, 0]
    scrapes: list[dict[str, float]] = []

    def scrape() -> None:
        while not ended.is_set():
            scrapes.append(counters_of(generate_latest(registry).decode()))

    def call(number: int) -> None:
        while not ended.is_set():
            limiter.check({})
            calls[number] += 1

    threads = [threading.Thread(target=scrape), *(threading.Thread(target=call, args=[each]) for each in (0, 1))]
    for thread in threads:
        thread.start()
    try:
        for number in range(40):
            limiter.replace(Limiter.from_rules(book(f"{number + 1}/hour")).rulebook)
            wait_for_more(scrapes, calls)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    last = counters_of(generate_latest(registry).decode())
    assert sum(value for name, value in last.items() if "decisions_total" in name) == sum(calls)
    for one, next_one in zip(scrapes, [*scrapes[1:], last], strict=True):
        assert all(next_one[name] >= value for name, value in one.items())


@pytest.mark.servers
def test_workers_of_an_application_restart(tmp_path: Path) -> None:
    with served(tmp_path, 2) as address, BackgroundScraper(f"http://{address}/metrics") as scraper:
        calls = 0
        for _ in range(RELOADS):
            for _ in range(10):
                assert httpx.get(f"http://{address}/login").status_code in (200, 429)
                calls += 1
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGHUP)
        # prometheus_client cannot read a file that a new worker has created, but not filled yet.
        all_are_counted(scraper, calls, unreadable="HTTPStatusError(\"Server error '500")


@pytest.mark.servers
def test_workers_of_the_service_follow_another_rulebook() -> None:
    with (
        RedisServer() as server,
        Service(book("1000/hour"), engine=f"{server.url}?deadline=5s", workers=2) as service,
        BackgroundScraper(f"{service.url}/metrics") as scraper,
    ):
        calls = 0
        for number in range(RELOADS):
            service.write(book(f"{2000 + number}/hour"))
            calls += wait_for_limit(service, f"{2000 + number}/hour")
        all_are_counted(scraper, calls)


@pytest.mark.servers
def test_nginx_reloads(redis_server: RedisServer) -> None:
    with (
        NginxGateway(book("1000/hour"), redis_server.url, server=METRICS, workers=2) as gate,
        BackgroundScraper(f"{gate.url}/metrics") as scraper,
    ):
        calls = 0
        for _ in range(RELOADS):
            statuses = flood(gate, 20)
            assert statuses == {200: 20}
            calls += 20
            gate.reload()
        all_are_counted(scraper, calls)
