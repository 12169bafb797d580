"""GET /metrics of a real service, of one worker and of several, as a real Prometheus sees it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.servers import RedisServer
from tests.servers.prometheus import Prometheus
from tests.servers.wait_until import until
from tests.service.service_harness import Service

pytestmark = pytest.mark.servers

BOOK = {"rules": [{"name": "login", "key": "user", "missing": "skip", "limit": "2/hour", "candidate": "1/hour"}]}
DECISIONS = "sum by (rule, outcome) (headgate_decisions_total)"


@contextmanager
def scraped(workers: int) -> Iterator[tuple[Service, Prometheus]]:
    with (
        RedisServer() as server,
        Service(BOOK, engine=f"{server.url}?deadline=5s", workers=workers) as service,
        Prometheus({"checks": service.http}) as prometheus,
    ):
        yield service, prometheus


@pytest.mark.parametrize("workers", [1, 3])
def test_every_check_is_counted(workers: int) -> None:
    with scraped(workers) as (service, prometheus):
        answers = [service.check(user=f"user {number % 4}")["allowed"] for number in range(40)]
        expected = {
            "outcome=allowed,rule=login": answers.count(True),
            "outcome=refused,rule=login": answers.count(False),
        }

        def missing() -> str | None:
            seen = prometheus.query(DECISIONS)
            live = {labels: number for labels, number in seen.items() if "candidate" not in labels}
            return None if live == expected and len(seen) == 4 else f"{seen}, not {expected}"

        until(missing, 60)


def test_a_worker_that_dies_takes_no_count_along() -> None:
    with scraped(2) as (service, prometheus):
        for number in range(40):
            service.check(user=str(number))
        until(lambda: None if sum(prometheus.query(DECISIONS).values()) == 80 else "not all are counted", 60)
        os.kill(_worker(service), signal.SIGKILL)
        for number in range(40):
            service.check(user=f"again {number}")
        until(lambda: None if sum(prometheus.query(DECISIONS).values()) == 160 else "not all are counted", 60)


def _worker(service: Service) -> int:
    """The process of one worker."""
    with open(f"/proc/{service.pid}/task/{service.pid}/children") as children:
        return int(children.read().split()[0])
