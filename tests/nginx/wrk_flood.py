"""Floods gateways with wrk, and measures how much was requested, admitted, and by whom."""

import math
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer
from tests.servers.server_programs import command

SCRIPT = Path(__file__).with_name("random_arrivals.lua")

# The log of a gateway that is flooded: one line for each request.
HTTP = "log_format flood '$msec $request_time $pid $connection $status';"
SERVER = "access_log flood.log flood buffer=256k flush=1s;"


class FloodRequest(NamedTuple):
    at: float  # epoch seconds of its arrival, to the millisecond
    worker: Hashable
    connection: Hashable
    passed: bool


class Flood(NamedTuple):
    requests: list[FloodRequest]  # by arrival
    script_calls: int  # while it lasted

    def after(self, seconds: float) -> list[FloodRequest]:
        """Returns the requests from the first whole second after so much time until the last whole second."""
        start = math.ceil(self.requests[0].at + seconds)
        end = math.floor(self.requests[-1].at)
        return [request for request in self.requests if start <= request.at < end]


def flood(
    gates: Sequence[NginxGateway],
    server: RedisServer,
    seconds: float,
    *,
    rate: int = 10_000,
    connections: int = 64,
) -> Flood:
    """About so many requests a second (fewer if the machine has no time), at random, on all gates together."""
    before = decision_calls(server)
    begun = [_length(gate) for gate in gates]
    words = [str(command("wrk", "wrk")), "-t1", f"-c{connections}", f"-d{seconds:.0f}s", "-s", str(SCRIPT)]
    pause_ms = max(1, round(connections * len(gates) / rate * 1000))
    environment = {**os.environ, "FLOOD_PAUSE_MS": str(pause_ms)}
    running = [subprocess.Popen([*words, gate.url], stdout=subprocess.DEVNULL, env=environment) for gate in gates]
    for one in running:
        assert one.wait() == 0
    script_calls = decision_calls(server) - before
    time.sleep(1.5)  # until the logs are written
    requests = [request for gate, at in zip(gates, begun, strict=True) for request in _logged(gate, at)]
    return Flood(sorted(requests), script_calls)


def decision_calls(server: RedisServer) -> int:
    """Returns how many decisions the server was asked for, ever."""
    stats = server.info("commandstats").get("cmdstat_evalsha", "calls=0,")
    return int(stats.partition("calls=")[2].partition(",")[0])


def same_chance(requests: Iterable[FloodRequest], group: Callable[[FloodRequest], Hashable]) -> float:
    """The p-value of the guess that whether a request passes does not depend on its group (chi-square)."""
    arrived: Counter[Hashable] = Counter()
    passed: Counter[Hashable] = Counter()
    for request in requests:
        arrived[group(request)] += 1
        passed[group(request)] += request.passed
    share = passed.total() / arrived.total()
    chi_square = 0.0
    for one, count in arrived.items():
        for seen, part in ((passed[one], share), (count - passed[one], 1 - share)):
            chi_square += (seen - count * part) ** 2 / (count * part)
    return chi_square_tail(chi_square, len(arrived) - 1) if len(arrived) > 1 else 1.0


def chi_square_tail(value: float, freedom: int) -> float:
    """Returns how likely a chi-square of so many degrees of freedom is at least this."""
    half, x = freedom / 2, value / 2
    if x <= 0:
        return 1.0
    term = total = 1 / half
    n = half
    while abs(term) > abs(total) * 1e-15:  # the lower incomplete gamma function, as a series
        n += 1
        term *= x / n
        total += term
    return max(0.0, 1 - total * math.exp(-x + half * math.log(x) - math.lgamma(half)))


def tenth_of(span: float) -> Callable[[FloodRequest], Hashable]:
    """The tenth of a window or second in which a request arrived."""
    return lambda request: int(request.at % span / span * 10)


def _length(gate: NginxGateway) -> int:
    path = gate.folder / "flood.log"
    return path.stat().st_size if path.exists() else 0


def _logged(gate: NginxGateway, begun: int) -> Iterable[FloodRequest]:
    for line in (gate.folder / "flood.log").read_bytes()[begun:].decode().splitlines():
        ended, took, worker, connection, status = line.split()
        at = round(float(ended) - float(took), 3)
        yield FloodRequest(at, (gate.port, worker), (gate.port, worker, connection), status == "200")
