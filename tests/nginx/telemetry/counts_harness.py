"""Reads the metrics of a real nginx, and sends it requests that all its workers get."""

from __future__ import annotations

import re
import threading
from collections import Counter

from tests.nginx.gateway_harness import NginxGateway
from tests.servers.wait_until import until

METRICS = """
location = /metrics {
  access_by_lua_block { return }
  log_by_lua_block { return }
  content_by_lua_block { require("resty.headgate").metrics() }
}
"""

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def scrape(gate: NginxGateway) -> dict[str, float]:
    """The metrics of a gate: by name, and by name and label values, such as "decisions_total login refused"."""
    reply = gate.get("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    values = {}
    for line in reply.body.decode().splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            words = [name.removeprefix("headgate_"), *(value for _, value in _LABEL.findall(labels))]
            values[" ".join(words)] = float(value)
    return values


def outcomes(gate: NginxGateway, metric: str = "decisions_total") -> dict[str, float]:
    """The values of a metric with labels, by these."""
    return {name.partition(" ")[2]: value for name, value in scrape(gate).items() if name.startswith(f"{metric} ")}


def wait_for(gate: NginxGateway, expected: dict[str, float], metric: str = "decisions_total") -> None:
    """Waits until a metric has these values: the counts of other workers come once a second."""

    def missing() -> str | None:
        counts = outcomes(gate, metric)
        return None if counts == expected else f"{metric}: {counts}, not {expected}"

    until(missing, 20)


def flood(gate: NginxGateway, requests: int, target: str = "/", threads: int = 4) -> Counter[int]:
    """Sends requests on new connections, so that all workers get some; returns how many had which status."""
    statuses: Counter[int] = Counter()
    lock = threading.Lock()

    def send_requests() -> None:
        for _ in range(requests // threads):
            status = gate.get(target).status
            with lock:
                statuses[status] += 1

    running = [threading.Thread(target=send_requests) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return statuses
