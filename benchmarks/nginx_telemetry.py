"""Measures the requests a second that are left in nginx when its decisions are counted.

The gate as it is: counts by rule, hot and distinct keys, histograms, recent records, two writes to Redis a second.
Beside it the same gate whose counting functions are replaced by empty ones, and which takes no records. wrk asks
both in turns of a second, on one worker with a core of its own; each round has new processes, because what LuaJIT
makes of the same Lua differs from start to start.

What counts is requests by CPU time of the worker: what other programs take of a busy machine is not in it.
"""

import time
from contextlib import ExitStack
from statistics import fmean
from typing import Any

from benchmarks.interleaved_runs import SPEED, Samples, median, ratio
from benchmarks.nginx import MAIN, pin_workers, run_wrk
from benchmarks.report import BenchmarkReport, figure
from tests.nginx.gateway_harness import push
from tests.servers import Nginx, RedisServer
from tests.servers.wait_until import until

PLAIN, COUNTED = "without counts", "with counts"
PER_CPU_SECOND = "per_cpu_second"
TURNS, WARMING, LEAST = 6, 2, 0.93
CASES = {"Redis, one rule": "/one", "shared dict": "/shared", "Redis, 99 % denied": "/denied"}

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "one", "when": {"path": "/one"}, "key": "address", "limit": "1000000/s"},
        {"name": "shared", "when": {"path": "/shared"}, "key": "address", "limit": "1000000/s", "where": "node"},
        {"name": "denied", "when": {"path": "/denied"}, "key": "address", "limit": "60/minute burst 1"},
    ]
}
NO_COUNTS = """
local counts = require "resty.headgate.telemetry.decision_counts"
counts.count_single, counts.count_several = function() end, function() end
require("resty.headgate.engines.measurements").begin = function() return nil end
require("resty.headgate.telemetry.recent_records").wants = function() return false end
"""
HTTP = """
access_log off;
lua_shared_dict headgate 20m;
map "" $headgate_status { default ""; }
log_format gate $headgate_status;
init_by_lua_block { %(first)s require("resty.headgate").init { redis = "%(url)s?deadline=1s" } }
init_worker_by_lua_block { require("resty.headgate").start() }
"""
SERVER = 'access_by_lua_block { require("resty.headgate").access() }\n' + "".join(
    f"location = {path} {{ echo ok; }}\n" for path in CASES.values()
)


def answer(report: BenchmarkReport) -> None:
    rows = []
    for case, path in CASES.items():
        samples: Samples = {PLAIN: [], COUNTED: []}
        for number in range(report.rounds(5)):
            with RedisServer() as server:
                push(BOOK, server.url)
                _round(report, case, path, server, number, samples)
        by_time, by_cpu = (ratio(samples, COUNTED, PLAIN, what) for what in (SPEED, PER_CPU_SECOND))
        report.target(f"counted, {case}", by_cpu, at_least=LEAST)
        speeds = (figure(median(samples, name, SPEED)) for name in samples)
        rows.append([case, *speeds, figure(by_time), figure(by_cpu)])
    report.table(["requests/s", PLAIN, COUNTED, "of plain", "of plain, by the worker's CPU time"], rows)


def worker_cpu_s(gate: Nginx) -> float:
    """The CPU time that the worker of a gate has used, in seconds."""
    until(lambda: None if gate.worker_pids else "no worker", 10)
    [pid] = gate.worker_pids
    return time.clock_gettime((~pid << 3) | 2)  # the clock of a process; /proc counts hundredths of a second


def _round(
    report: BenchmarkReport, case: str, path: str, server: RedisServer, number: int, samples: Samples
) -> None:
    with ExitStack() as stack:
        gates = {}
        for name, first in ((PLAIN, NO_COUNTS), (COUNTED, "")):
            http = HTTP % {"first": first, "url": server.url}
            gates[name] = stack.enter_context(Nginx(SERVER, http, main=MAIN))
            pin_workers(gates[name], server, 1)
        turns: Samples = {name: [] for name in gates}
        for turn in range(WARMING + TURNS):
            order = list(gates) if (turn + number) % 2 else list(gates)[::-1]
            for name in order:
                before_s = worker_cpu_s(gates[name])
                sample = run_wrk(gates[name].url + path, 1)
                sample[PER_CPU_SECOND] = sample["count"] / (worker_cpu_s(gates[name]) - before_s)
                if turn >= WARMING:
                    turns[name].append(sample)
    for name, runs in turns.items():
        whole = {what: fmean(turn[what] for turn in runs) for what in runs[0]}
        samples[name].append(whole)
        report.keep(case=case, subject=name, round=number, **whole)
