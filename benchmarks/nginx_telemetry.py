"""How many requests a second are left in nginx when its decisions are counted?

The gate as it is: counts by rule, hot and distinct keys, histograms, one write to Redis a second. Beside it the
same gate whose counting functions are replaced by empty ones. wrk asks both in turns of a second, on one worker
with a core of its own; each round has new processes, because what LuaJIT makes of the same Lua differs from start
to start.
"""

from contextlib import ExitStack
from statistics import fmean
from typing import Any

from benchmarks.interleave import SPEED, Samples, median, ratio
from benchmarks.nginx import MAIN, pin_workers, run_wrk
from benchmarks.report import BenchmarkReport, figure
from tests.nginx.gateway_harness import push
from tests.servers import Nginx, RedisServer

PLAIN, COUNTED = "without counts", "with counts"
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
        left = ratio(samples, COUNTED, PLAIN, SPEED)
        report.target(f"counted, {case}", left, at_least=LEAST)
        rows.append([case, *(figure(median(samples, name, SPEED)) for name in samples), figure(left)])
    report.table(["requests/s", PLAIN, COUNTED, "of plain"], rows)


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
                sample = run_wrk(gates[name].url + path, 1)
                if turn >= WARMING:
                    turns[name].append(sample)
    for name, found in turns.items():
        whole = {what: fmean(turn[what] for turn in found) for what in found[0]}
        samples[name].append(whole)
        report.keep(case=case, subject=name, round=number, **whole)
