"""Four processes, each with another client, call a server that limits: together they keep its limit, in order, and
after a 429 all of them wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import combinations
from typing import Any, NamedTuple

import pytest

from headgate.http.headers import headers
from headgate.limiter import Limiter
from tests.integrations.outbound_clients import CLIENTS
from tests.integrations.server_harness import serve
from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.slow]

RATE = 40  # calls per second, of the partner and of the limiter that the clients share
TASKS = 12  # calls that each process makes at once
SECONDS = 8.0
REFUSED_CALL, RETRY_AFTER_S = 80, 3
# A call that was on its way when the 429 was answered arrives within milliseconds; a busy machine gets a second.
ON_THE_WAY_S = 1.0
ORDER_MARGIN_S = 0.5  # between two calls, so that the order in which they asked, and arrived, is beyond doubt


class Arrival(NamedTuple):
    at: float
    number: str
    status: int


class LimitedPartner:
    """A server that limits: it counts by its own limiter, states it in its fields, and once refuses on purpose."""

    def __init__(self) -> None:
        # It forgives what arrives bunched: a second's worth.
        self.limiter = Limiter(f"{RATE}/s burst {RATE}")
        self.arrivals: list[Arrival] = []
        self.refused_at = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        at, decision = time.time(), self.limiter.take("everybody")
        status, fields = (200 if decision else 429), headers(decision)
        if len(self.arrivals) == REFUSED_CALL:
            status, fields, self.refused_at = 429, [("Retry-After", str(RETRY_AFTER_S))], at
        self.arrivals.append(Arrival(at, scope["path"][1:], status))
        encoded = [(name.lower().encode(), value.encode()) for name, value in fields]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": b""})


def test_four_processes_keep_the_limit_and_the_order_and_the_pause(redis_server: RedisServer) -> None:
    redis_server.flush()
    partner = LimitedPartner()
    with serve(partner) as url:
        command = [sys.executable, "-m", "tests.integrations.outbound_worker"]
        words = [f"{RATE}/s burst 1", f"{redis_server.url}?deadline=10s", url, str(TASKS), str(SECONDS)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        processes = [
            subprocess.Popen(
                [*command, kind, *words], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
            )
            for kind in CLIENTS
        ]
        printed = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    called_at = {
        call["number"]: call["called_at"] for text in printed for call in map(json.loads, text.splitlines())
    }
    arrivals = partner.arrivals
    assert len(arrivals) == len(called_at) > REFUSED_CALL + RATE
    assert {number.rpartition("-")[0].rpartition("-")[0] for number in called_at} == set(CLIENTS)
    _keeps_the_limit(arrivals)
    _nobody_calls_in_the_pause(arrivals, partner.refused_at)
    _are_served_in_order(arrivals, called_at)


def _keeps_the_limit(arrivals: list[Arrival]) -> None:
    """The other side sees no more than its limit, and refuses nothing but what it refuses on purpose (2 %)."""
    elapsed = arrivals[-1].at - arrivals[0].at
    assert len(arrivals) <= 1.02 * (RATE * (elapsed - RETRY_AFTER_S) + RATE)
    refused = sum(arrival.status == 429 for arrival in arrivals) - 1
    assert refused <= 0.02 * len(arrivals)


def _nobody_calls_in_the_pause(arrivals: list[Arrival], refused_at: float) -> None:
    assert refused_at
    paused = [each for each in arrivals if refused_at + ON_THE_WAY_S < each.at < refused_at + RETRY_AFTER_S]
    assert paused == []
    assert any(each.at >= refused_at + RETRY_AFTER_S for each in arrivals), "they go on after it"


def _are_served_in_order(arrivals: list[Arrival], called_at: dict[str, float]) -> None:
    overtaken = [
        (earlier.number, later.number)
        for earlier, later in combinations(arrivals, 2)
        if called_at[earlier.number] > called_at[later.number] + ORDER_MARGIN_S
        and later.at > earlier.at + ORDER_MARGIN_S
    ]
    assert overtaken == []
