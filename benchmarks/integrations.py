"""Measures how much of an application's speed a limit costs, beside slowapi and fastapi-limiter.

wrk with 64 connections calls one server on loopback, subject after subject, in rounds: uvicorn, then granian. The
server has a core of its own; wrk and Redis share the other. Every response is "hello"; nothing is refused. By
hand: a middleware of ten lines that takes from an AsyncLimiter and adds the two fields, and does nothing else.

wrk calls as fast as it is answered, so each subject has another load in its p99. Hence h2load calls the FastAPI
applications once more, all at the same OFFERED_PER_SECOND.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

import httpx

from benchmarks.interleaved_runs import SPEED, Samples, median, ratio
from benchmarks.nginx import CONNECTIONS, run_wrk
from benchmarks.redis_process import pinned_server
from benchmarks.report import BenchmarkReport, figure
from tests.servers.redis_server import free_port
from tests.servers.server_programs import command

SECONDS = 2
TURNS = 2
OFFERED_PER_SECOND = 1000  # which every one of them can answer
SERVERS = {
    "uvicorn": ["-m", "uvicorn", "--factory", "--no-access-log", "--log-level", "warning"],
    "granian": ["-m", "granian", "--factory", "--interface", "asgi", "--log-level", "warning"],
}
STARLETTE = ("starlette_alone", "starlette_in_memory", "starlette_on_redis", "starlette_by_hand_on_redis")
FASTAPI = ("fastapi_alone", "fastapi_on_redis", "slowapi_on_redis", "fastapi_limiter_on_redis")
EVEN = ("even_p50_us", "even_p99_us")
START_TIMEOUT_S = 30


class _BenchmarkServer:
    """One application in a server of its own, on the last core."""

    def __init__(self, server: str, name: str, redis_url: str) -> None:
        port = str(free_port())
        self.url = f"http://127.0.0.1:{port}"
        core = str(max(os.sched_getaffinity(0)))
        words = [*SERVERS[server], "--port", port, f"benchmarks.integration_apps:{name}"]
        self._process = subprocess.Popen(
            ["taskset", "-c", core, sys.executable, *words], env={**os.environ, "REDIS_URL": redis_url}
        )

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
        sample = run_wrk(self.url, SECONDS)
        assert sample[SPEED], "no request was answered: the machine has no time for the server"
        return {**sample, "cpu_us": (self._cpu_us() - before) / (sample[SPEED] * SECONDS)}

    def load_evenly(self) -> dict[str, float]:
        """Runs h2load at a rate; returns percentiles of how long requests took."""
        count, rate = OFFERED_PER_SECOND * SECONDS, OFFERED_PER_SECOND / CONNECTIONS
        core = str(min(os.sched_getaffinity(0)))
        with tempfile.NamedTemporaryFile("r") as log:
            words = ["taskset", "-c", core, str(command("h2load", "nghttp2-client")), "--h1", "-t1"]
            words += [f"-c{CONNECTIONS}", "-r1", "--rate-period=1ms"]  # one after the other, not all at once
            words += [f"-n{count}", f"--rps={rate}", f"--log-file={log.name}", self.url]
            subprocess.run(words, capture_output=True, check=True)
            took_us = sorted(int(line.split()[2]) for line in log)
        return {"even_p50_us": took_us[len(took_us) // 2], "even_p99_us": took_us[len(took_us) * 99 // 100]}

    def _cpu_us(self) -> float:
        """Returns the CPU time of the server and of its workers."""
        ticks, pids = 0, [self._process.pid]
        while pids:
            folder = Path(f"/proc/{pids.pop()}")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            pids += [
                int(pid) for task in (folder / "task").iterdir() for pid in (task / "children").read_text().split()
            ]
        return ticks * 1e6 / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait()


def answer(report: BenchmarkReport) -> None:
    for server in SERVERS:
        _answer_for(report, server)


def _answer_for(report: BenchmarkReport, server: str) -> None:
    samples: Samples = {name: [] for name in (*STARLETTE, *FASTAPI)}
    core = min(os.sched_getaffinity(0))
    for number in range(report.rounds(5)):
        for names in (STARLETTE, FASTAPI):
            with pinned_server(core) as redis, ExitStack() as stack:
                servers = {name: stack.enter_context(_BenchmarkServer(server, name, redis.url)) for name in names}
                turns: Samples = {name: [] for name in names}
                for turn in range(1 + TURNS):  # the first one warms up
                    for name in (*names[number % len(names) :], *names[: number % len(names)]):
                        sample = servers[name].load()
                        if turn and names is FASTAPI:
                            sample |= servers[name].load_evenly()
                        if turn:
                            turns[name].append(sample)
            for name in names:
                whole = {what: fmean(turn[what] for turn in turns[name]) for what in turns[name][0]}
                samples[name].append(whole)
                report.keep(server=server, subject=name, round=number, **whole)
    rows = []
    for names in (STARLETTE, FASTAPI):
        for name in names:
            cells = [figure(median(samples, name, what)) for what in (SPEED, "p99_us", "cpu_us", "refused")]
            rows.append([name, cells[0], figure(ratio(samples, name, names[0], SPEED)), *cells[1:]])
    report.table([server, "requests/s", "of none", "p99 us", "server CPU us", "refused"], rows)
    rows = [[name, *(figure(median(samples, name, what)) for what in EVEN)] for name in FASTAPI]
    report.table([f"{server}, {OFFERED_PER_SECOND:,} requests/s", "p50 us", "p99 us"], rows)
    in_memory, on_redis = (ratio(samples, name, STARLETTE[0], SPEED) for name in STARLETTE[1:3])
    report.target(f"{server}: Starlette in memory of none", in_memory, at_least=0.8)
    report.target(f"{server}: Starlette on Redis of none", on_redis, at_least=0.6)
    for peer in FASTAPI[2:]:
        speed, p99 = (ratio(samples, FASTAPI[1], peer, what) for what in (SPEED, "p99_us"))
        report.target(f"{server}: FastAPI on Redis of {peer}", speed, at_least=1.6)
        report.target(f"{server}: its p99 of {peer}'s", p99, at_most=1)
        even_p99 = ratio(samples, FASTAPI[1], peer, EVEN[1])
        report.target(f"{server}: its p99 of {peer}'s, at the same load", even_p99, at_most=1)
