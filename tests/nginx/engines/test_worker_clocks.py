"""Floods a gate of 1, 2 and 4 workers by wrk, and compares what it admits with its limit by the real time.

Each worker of nginx has a cached clock of its own, milliseconds behind the real time when the machine is busy. A
count that was judged by them saw time pass twice.

The lower bound is judged only on what was offered. Arrivals are counted in time bins of BIN_US. A bin is busy if
more came in it than the bucket can give, so the bucket was empty at some instant of it. Between two busy bins in a
row the bucket cannot have been full, so no unit was lost there: that time must have been used.
"""

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.nginx.engines.outage_harness import ready_gateway
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer
from tests.servers.redis_server import free_port
from tests.servers.server_programs import command
from tests.servers.wait_until import until

RATE, BURST = 1000, 10
BIN_US = 5000
FULL = BURST + RATE * BIN_US // 1_000_000  # units that one bin can give at most
OFFERED_S = 2.0  # busy time that a run needs
MAX_FLOODS = 10

RULE = {"name": "api", "limit": f"{RATE}/s burst {BURST}", "when": {"path": "/counted"}}
SERVER = """
listen 127.0.0.1:{port} reuseport;
add_header X-Worker $pid always;
rewrite_by_lua_block {{
  if ngx.var.uri ~= "/counted" then return end
  local seen, clock = ngx.shared.seen, require "resty.headgate.clock"
  local bin = math.floor(clock.monotonic_us() / {bin_us})
  seen:incr("arrived " .. bin, 1, 0)
  seen:incr("worker " .. ngx.worker.pid(), 1, 0)
}}
location = /counted {{ content_by_lua_block {{
  local bin = math.floor(require("resty.headgate.clock").monotonic_us() / {bin_us})
  ngx.shared.seen:incr("passed " .. bin, 1, 0)
  ngx.say("ok")
}} }}
location = /reset {{ content_by_lua_block {{ ngx.shared.seen:flush_all() }} }}
location = /seen {{ content_by_lua_block {{
  local seen = ngx.shared.seen
  for _, name in ipairs(seen:get_keys(0)) do ngx.say(name, " ", seen:get(name)) end
}} }}
"""


class BinnedFlood(NamedTuple):
    elapsed_s: float
    arrived: Counter[int]  # by bin
    passed: Counter[int]
    workers: Counter[int]  # requests of each

    @property
    def offered_s(self) -> float:
        """Seconds of which every unit was asked for: runs of busy bins, without the ends of each."""
        busy = {number for number, count in self.arrived.items() if count >= FULL}
        inner = [number for number in busy if number - 1 in busy and number + 1 in busy]
        return len(inner) * BIN_US / 1_000_000

    def largest_excess(self) -> float:
        """Units by which the fullest span of bins exceeds what the rate gives in it."""
        first, last = min(self.passed), max(self.passed)
        largest = excess = 0.0
        for number in range(first, last + 1):
            excess = max(0.0, excess) + self.passed[number] - RATE * BIN_US / 1_000_000
            largest = max(largest, excess)
        return largest


@contextmanager
def on_shared_dict(workers: int) -> Iterator[NginxGateway]:
    port = free_port()
    with NginxGateway({"rules": [RULE]}, **counting(port), workers=workers) as gate:
        await_workers(gate, port, workers)
        yield gate


@contextmanager
def on_shares(workers: int) -> Iterator[NginxGateway]:
    """Redis is gone, and fallback=local decides."""
    port = free_port()
    with RedisServer() as server, ready_gateway(server, RULE, **counting(port), workers=workers) as gate:
        await_workers(gate, port, workers)
        server.kill()
        yield gate


def counting(port: int) -> dict[str, Any]:
    """Returns the configuration by which a gate counts arrivals and admitted requests."""
    server = SERVER.format(port=port, bin_us=BIN_US)
    return {"server": server, "http": "lua_shared_dict seen 8m;", "log": False}


def await_workers(gate: NginxGateway, port: int, workers: int) -> None:
    """Wait until every worker follows the rulebook. Their connections are spread evenly over the second port."""
    gate.port = port
    following = set()

    def missing() -> str | None:
        reply = gate.get("/counted")
        if "ratelimit" in reply.headers:
            following.add(reply.headers["x-worker"])
        return None if len(following) == workers else f"{len(following)} of {workers} workers follow the rulebook"

    until(missing, 20)
    gate.get("/reset")


PLACES = {"shared dict": on_shared_dict, "fallback=local": on_shares}


def flood(gate: NginxGateway) -> BinnedFlood:
    """Floods until enough was offered to judge it."""
    wrk = [str(command("wrk", "wrk")), "-t1", "-c64", "-d3s", f"{gate.url}/counted"]
    began = time.time()
    for _ in range(MAX_FLOODS):
        subprocess.run(wrk, stdout=subprocess.DEVNULL, check=True)
        flooded = seen(gate, began)
        if flooded.offered_s >= OFFERED_S:
            return flooded
    pytest.fail("the machine had no time to offer enough: nothing was shown")


def seen(gate: NginxGateway, began: float) -> BinnedFlood:
    counts: dict[str, Counter[int]] = {"arrived": Counter(), "passed": Counter(), "worker": Counter()}
    for line in gate.get("/seen").body.decode().splitlines():
        kind, number, count = line.split()
        counts[kind][int(number)] = int(count)
    return BinnedFlood(time.time() - began, counts["arrived"], counts["passed"], counts["worker"])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("place", PLACES)
def test_any_number_of_workers_admits_the_limit(place: str, workers: int) -> None:
    with PLACES[place](workers) as gate:
        flooded = flood(gate)
    admitted = flooded.passed.total()
    assert admitted <= BURST + RATE * flooded.elapsed_s
    assert admitted >= 0.97 * RATE * flooded.offered_s
    # A unit is counted a moment after it was given: at most one in each worker is on its way.
    assert flooded.largest_excess() <= BURST + workers
    assert len(flooded.workers) == workers, "a worker had nothing to do: nothing was shown"
