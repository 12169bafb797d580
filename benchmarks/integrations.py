"""How much of an application's speed does a limit cost, and how does it compare with slowapi and fastapi-limiter?

wrk with 32 connections calls one uvicorn on loopback, subject after subject, in rounds. uvicorn has a core of its
own; wrk and Redis share the other. Every response is "hello"; nothing is refused.
"""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

import httpx

from benchmarks.interleave import SPEED, Samples, median, ratio
from benchmarks.nginx import _wrk
from benchmarks.report import BenchmarkReport, figure
from benchmarks.servers import pinned_server
from tests.servers.redis_server import free_port

SECONDS = 2
TURNS = 2
STARLETTE = ("starlette_alone", "starlette_in_memory", "starlette_on_redis")
FASTAPI = ("fastapi_alone", "fastapi_on_redis", "slowapi_on_redis", "fastapi_limiter_on_redis")
START_TIMEOUT_S = 30


class _BenchmarkServer:
    """One application in a uvicorn of its own, on the last core."""

    def __init__(self, name: str, redis_url: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        words = ["-m", "uvicorn", f"benchmarks.integration_apps:{name}", "--factory", "--no-access-log"]
        self._process = subprocess.Popen(
            [sys.executable, *words, "--port", self.url.rpartition(":")[2], "--log-level", "warning"],
            env={**os.environ, "REDIS_URL": redis_url},
        )
        os.sched_setaffinity(self._process.pid, {max(os.sched_getaffinity(0))})

    def __enter__(self) -> "_BenchmarkServer":
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                assert httpx.get(self.url, trust_env=False).status_code == 200
                return self
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def load(self) -> dict[str, float]:
        """Runs wrk; returns its figures, and the CPU time that the server took for a request."""
        before = self._cpu_us()
        sample = _wrk(self.url, SECONDS)
        return {**sample, "cpu_us": (self._cpu_us() - before) / (sample[SPEED] * SECONDS)}

    def _cpu_us(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait()


def answer(report: BenchmarkReport) -> None:
    samples: Samples = {name: [] for name in (*STARLETTE, *FASTAPI)}
    core = min(os.sched_getaffinity(0))
    for number in range(report.rounds(5)):
        for names in (STARLETTE, FASTAPI):
            with pinned_server(core) as redis, ExitStack() as stack:
                servers = {name: stack.enter_context(_BenchmarkServer(name, redis.url)) for name in names}
                turns: Samples = {name: [] for name in names}
                for turn in range(1 + TURNS):  # the first one warms up
                    for name in (*names[number % len(names) :], *names[: number % len(names)]):
                        sample = servers[name].load()
                        if turn:
                            turns[name].append(sample)
            for name in names:
                whole = {what: fmean(turn[what] for turn in turns[name]) for what in turns[name][0]}
                samples[name].append(whole)
                report.keep(subject=name, round=number, **whole)
    rows = []
    for names in (STARLETTE, FASTAPI):
        for name in names:
            cells = [figure(median(samples, name, what)) for what in (SPEED, "p99_us", "cpu_us", "refused")]
            rows.append([name, cells[0], figure(ratio(samples, name, names[0], SPEED)), *cells[1:]])
    report.table(["", "requests/s", "of none", "p99 us", "server CPU us", "refused"], rows)
    report.target("Starlette in memory of none", ratio(samples, STARLETTE[1], STARLETTE[0], SPEED), at_least=0.8)
    report.target("Starlette on Redis of none", ratio(samples, STARLETTE[2], STARLETTE[0], SPEED), at_least=0.6)
    for peer in FASTAPI[2:]:
        report.target(f"FastAPI on Redis of {peer}", ratio(samples, FASTAPI[1], peer, SPEED), at_least=1.6)
        report.target(f"its p99 of {peer}'s", ratio(samples, FASTAPI[1], peer, "p99_us"), at_most=1)
