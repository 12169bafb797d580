"""Plays the flash sale with wrk on both nginx of the shop: a few visitors, then the rush.

      0 s   calm             60 requests a second
    1/5     the doors open   5,000 a second, as far as the machine can: nearly all want the phone,
                             and two of five are one bot's
    end     silence          what is under way ends, the logs are written, and everything is counted

Law: every number is counted by somebody who was there. Sales and refusals by the access logs of both nginx,
arrivals by the backend, questions by Redis, requests once more and their times by wrk.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.nginx.demo import shop_servers
from tests.nginx.demo.log_counts import ITEM_RULE, LogCounts
from tests.nginx.wrk_flood import decision_calls
from tests.servers import RedisServer
from tests.servers.nginx import NginxReply
from tests.servers.server_programs import command
from tests.servers.wait_until import until

SECONDS = 15
GATES = 2
CALM_PART = 0.2  # of the time, until the doors open
CALM, RUSH = 30, 2500  # requests a second at each nginx
BOT_PART, OTHERS_PART = 0.4, 0.03  # of all requests: the bot's; and those for anything but the phone

_SCRIPT = Path(__file__).with_name("buyers.lua")
_CONNECTIONS = 50
_LEAD = 0.5  # seconds until wrk stands ready
_SILENCE = 1  # seconds at the end in which nobody asks any more
_TRIES = 500
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


class SaleCounts(NamedTuple):
    """The counts of a sale at one moment."""

    seconds: float
    gates: tuple[LogCounts, ...]
    arrived: Counter[str]  # at the backend, by item
    questions: int  # to Redis: all EVALSHA since the sale began, the heartbeats of both nginx among them

    @property
    def both(self) -> LogCounts:
        return sum(self.gates, LogCounts())


class WrkReport(NamedTuple):
    """The results that wrk prints for one nginx."""

    requests: int
    refused: int  # Non-2xx
    broken: int  # connections
    p99_ms: float


class SaleResult(NamedTuple):
    """The final counts of a sale, when all is over and written down."""

    seconds: float
    opened: SaleCounts  # when the doors were open
    counts: SaleCounts
    wrk_reports: list[WrkReport]
    visits: int
    page: NginxReply  # what a refused buyer got

    def a_second(self, item: str) -> float:
        """Returns how many requests for the item reached the backend per second since the doors opened."""
        sold = self.counts.arrived[item] - self.opened.arrived[item]
        return sold / (self.seconds - self.opened.seconds)


def local_refusals(counts: SaleCounts) -> int:
    """Refusals at an item's limit that nginx made by itself: shed, or still in its memory.

    Redis passes each sale, so its other answers were refusals (or answers to heartbeats, two a second).
    """
    both = counts.both
    by_redis = counts.questions - both.sold.total()
    return max(0, both.refused[ITEM_RULE] - max(0, by_redis))


class GatewaySale:
    """All servers, from start to end, and the buyers: `with GatewaySale(4) as sale: ending = sale.play(show)`."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds, self.doors = seconds, seconds * CALM_PART
        self._stack = ExitStack()
        self._buyers: list[subprocess.Popen[str]] = []
        self._begun, self._before = 0.0, 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.server = stack.enter_context(RedisServer(shop_servers.kind()))
            shop_servers.push(self.server.url)
            self.backend = shop_servers.backend()
            stack.callback(self.backend.stop)
            self.backend.start()
            self.gates = [shop_servers.ShopNginx(self.server.url, self.backend.url) for _ in range(GATES)]
            for gate in self.gates:
                stack.callback(gate.stop)
            for gate in self.gates:
                gate.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        """All processes of the sale."""
        nginx = [self.backend, *self.gates]
        workers = [pid for one in nginx for pid in (one.pid, *one.worker_pids)]
        return [self.server.pid, *workers, *(wrk.pid for wrk in self._buyers)]

    def play(self, show: Callable[[SaleCounts], None], every: float = 1.0) -> SaleResult:
        """The whole sale. Every so many seconds it is shown how it stands."""
        self._begin()
        opened = page = None
        visits = 0
        for number in range(1, ceil(self.seconds / every) + 1):
            time.sleep(max(0.0, self._begun + number * every - time.time()))
            counts = self._look()
            show(counts)
            if opened is None and counts.seconds >= self.doors:
                opened = counts
            if page is None and counts.seconds >= (self.doors + self.seconds) / 2:
                page, visits = self._visit()
        reports = [_parse_report(wrk.communicate()[0]) for wrk in self._buyers]
        self._await_logs(sum(each.requests for each in reports) + visits)
        assert opened is not None
        assert page is not None
        return SaleResult(self.seconds, opened, self._look(), reports, visits, page)

    def _begin(self) -> None:
        """Buyers come, to both nginx."""
        self._before = decision_calls(self.server)
        self._begun = time.time() + _LEAD
        settings = {
            "BEGINS": self._begun,
            "DOORS": self._begun + self.doors,
            "ENDS": self._begun + self.seconds,
            "CALM_MS": _CONNECTIONS / CALM * 1000,
            "RUSH_MS": _CONNECTIONS / RUSH * 1000,
            "BOT": BOT_PART,
            "OTHERS": OTHERS_PART,
        }
        words = ["-t1", f"-c{_CONNECTIONS}", f"-d{ceil(self.seconds + _LEAD + _SILENCE)}s", "--latency"]
        line = [str(command("wrk", "wrk")), *words, "-s", str(_SCRIPT)]
        for seed, gate in enumerate(self.gates):
            environment = {f"SALE_{name}": f"{value:.6f}" for name, value in {**settings, "SEED": seed}.items()}
            wrk = subprocess.Popen(
                [*line, gate.url], env=os.environ | environment, stdout=subprocess.PIPE, text=True
            )
            self._stack.callback(_end, wrk)
            self._buyers.append(wrk)

    def _look(self) -> SaleCounts:
        """Returns how it stands. Logs are written ten times a second, so they may be that much behind."""
        tallies = tuple(gate.look() + LogCounts() for gate in self.gates)
        passed = min(self.seconds, max(0.0, time.time() - self._begun))
        return SaleCounts(
            passed,
            tallies,
            shop_servers.backend_arrivals(self.backend),
            decision_calls(self.server) - self._before,
        )

    def _visit(self) -> tuple[NginxReply, int]:
        """Go there in person until refused, each time as somebody else: what that buyer sees, and the visits."""
        for number in range(1, _TRIES + 1):
            reply = self.gates[0].get("/buy/phone", {"Cookie": f"uid=visitor-{number}"}, "POST")
            if reply.status != 200:
                return reply, number
        raise RuntimeError(f"{_TRIES} visitors in a row were sold a phone: nobody is refused")

    def _await_logs(self, came: int) -> None:
        def missing() -> str | None:
            logged = sum(gate.look().requests.total() for gate in self.gates)
            return None if logged >= came else f"{came} requests came, and the access logs have {logged}"

        until(missing, 10)


def _end(wrk: subprocess.Popen[str]) -> None:
    with wrk:
        wrk.terminate()


def _parse_report(text: str) -> WrkReport:
    requests = re.search(r"(\d+) requests in ", text)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s|m)\b", text)
    if requests is None or p99 is None:
        raise RuntimeError(f"wrk says nothing of requests or of their times:\n{text}")
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = re.search(r"Socket errors: (.*)", text)
    return WrkReport(
        int(requests[1]),
        0 if refused is None else int(refused[1]),
        0 if broken is None else sum(map(int, re.findall(r"\d+", broken[1]))),
        float(p99[1]) * _UNITS[p99[2]],
    )
