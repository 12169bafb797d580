"""Reads the metrics of a real nginx, and sends it requests that all its workers get."""

from __future__ import annotations

import re
import threading
from collections import Counter

from headgate.gateway.nginx_conf import NginxOptions, render_conf
from headgate.rules.rule import Rulebook
from tests.nginx.gateway_harness import NginxGateway
from tests.servers.wait_until import until


def _printed_location() -> str:
    """The location for Prometheus that `headgate nginx conf` prints as a comment."""
    text = render_conf(Rulebook(), NginxOptions(package_path="/lua"))
    lines = text[text.index("  # location = /metrics {") :].partition("\n\n")[0].splitlines()
    return "\n".join(line.replace("# ", "", 1) for line in lines)


METRICS = _printed_location()

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
