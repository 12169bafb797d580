"""Measures the gate in nginx, beside nginx's own limit_req and the least that Lua could do.

wrk with 64 connections asks one nginx on loopback, subject after subject, in rounds; with one worker on a core of
its own (wrk and Redis have the other), and with two workers, who share both cores with them. Every answer is `echo
ok`. Each sample has an nginx of its own: what LuaJIT makes of the same Lua differs from start to start, and by
what was asked before. Those who are compared run side by side and take turns of a second, because the machine is
another one from second to second. Where nearly all is refused, turns last three seconds and the first three are to
warm up: a flood begins anew after a pause, its first moments are not what is asked for, and a gate that was never
flooded before spends its first ten seconds of flood on machine code, a piece at a time while everybody waits.

The floors are hand-written: GCRA on a shared dict, and EVALSHA of the minimal GCRA through lua-nginx-redis from
its pool. They match no rule, form no key, tell one number in a header, and know no fault. Two more do by hand what
ours has promised, and nothing else: on the shared dict they are exact over workers, charge a request once and tell
two headers; in Redis they ask for four counts at once. Nothing is logged, and no rule has slots, so the log phase
is nobody's.
"""

import os
import re
import subprocess
from contextlib import ExitStack
from statistics import fmean
from typing import Any

from benchmarks import minimal_limiters
from benchmarks.interleaved_runs import SPEED, Samples, median, ratio
from benchmarks.report import BenchmarkReport, figure
from tests.nginx.gateway_harness import push
from tests.servers import Nginx, RedisServer
from tests.servers.redis_server import free_port
from tests.servers.server_programs import command

TURNS = 3
CONNECTIONS = 64
PLENTY = "1000000/s"

NOTHING, DICT, REDIS = "floor: empty Lua", "floor: shared dict", "floor: Lua + Redis"
DICT_ALL, REDIS_FOUR = "floor: shared dict, all that is promised", "floor: Lua + Redis, four counts"
LIMIT_REQ, LIMIT_REQ_DENIED = "nginx limit_req", "nginx limit_req, 99 % denied"
ONE, FOUR = "headgate: Redis, one rule", "headgate: Redis, four rules"
PREFETCHED, SHARED = "headgate: prefetched", "headgate: shared dict"
DENIED, SHARED_DENIED = "headgate: Redis, 99 % denied", "headgate: shared dict, 99 % denied"

PATHS = {
    NOTHING: "/nothing",
    PREFETCHED: "/prefetched",
    DICT: "/dict",
    SHARED: "/shared",
    DICT_ALL: "/dict-all",
    LIMIT_REQ: "/own",
    SHARED_DENIED: "/shared-denied",
    LIMIT_REQ_DENIED: "/own-denied",
    DENIED: "/denied",
    FOUR: "/four",
    REDIS_FOUR: "/redis-four",
    REDIS: "/redis",
    ONE: "/one",
}
COMPARED = (  # for so many seconds each, after so many turns to warm up
    (1, 1, (NOTHING, PREFETCHED, DICT, SHARED, DICT_ALL, LIMIT_REQ)),
    (3, 3, (SHARED_DENIED, LIMIT_REQ_DENIED, DENIED)),
    (1, 1, (FOUR, REDIS, ONE, REDIS_FOUR)),
)


def _rule(name: str, path: str, limit: str = PLENTY, **more: Any) -> dict[str, Any]:
    return {"name": name, "when": {"path": path}, "key": "address", "limit": limit, **more}


BOOK = {
    "rules": [
        _rule("one", "/one"),
        *(_rule(f"four-{number}", "/four") for number in range(4)),
        _rule("prefetched", "/prefetched", prefetch="100ms"),
        _rule("shared", "/shared", where="node"),
        _rule("denied", "/denied", "60/minute burst 1"),
        _rule("shared-denied", "/shared-denied", "60/minute burst 1", where="node"),
    ]
}
MAIN = "load_module /usr/share/nginx/modules/ngx_http_echo_module.so;"
HTTP = """
access_log off;
lua_shared_dict headgate 20m;
lua_shared_dict floor 20m;
map "" $headgate_status { default ""; }
log_format gate $headgate_status;
init_by_lua_block { require("resty.headgate").init { redis = "%(url)s?deadline=1s" } }
init_worker_by_lua_block { require("resty.headgate").start() }
limit_req_zone $binary_remote_addr zone=plenty:10m rate=1000000r/s;
limit_req_zone $binary_remote_addr zone=few:10m rate=60r/m;
limit_req_status 429; limit_req_log_level info;
server {
  listen 127.0.0.1:%(floors)d backlog=4096;
location = /nothing { access_by_lua_block { local _ = 1 } echo ok; }
location = /own { access_by_lua_block { local _ = 1 } limit_req zone=plenty burst=1000000 nodelay; echo ok; }
location = /own-denied { access_by_lua_block { local _ = 1 } limit_req zone=few burst=1 nodelay; echo ok; }
location = /dict { access_by_lua_block {
  local dict, key, now = ngx.shared.floor, ngx.var.remote_addr, ngx.now() * 1000000
  local dry = dict:get(key) or now
  if dry < now then dry = now end
  local after = dry + 1 - now
  if after > 60000000 then return ngx.exit(429) end
  dict:set(key, now + after, 60)
  ngx.header["RateLimit-Remaining"] = math.floor(60000000 - after)
} echo ok; }
location = /dict-all { access_by_lua_block {
  local var, dict = ngx.var, ngx.shared.floor
  if var.headgate_status ~= "" or var.uri ~= "/dict-all" then return end
  local key = var.remote_addr
  if dict:incr("lock", 1, 0) ~= 1 then return ngx.exit(503) end
  local now = ngx.now() * 1000000
  local dry = dict:get(key) or now
  if dry < now then dry = now end
  local after = dry + 1 - now
  if after <= 60000000 then dict:set(key, now + after, 60) end
  dict:set("lock", 0)
  if after > 60000000 then return ngx.exit(429) end
  var.headgate_status = "PASSED"
  ngx.header["RateLimit-Policy"] = '"floor";q=60000000;w=60'
  ngx.header["RateLimit"] = '"floor";r=' .. math.floor(60000000 - after) .. ";t=" .. math.ceil(after / 1000000)
} echo ok; }
location = /redis-four { access_by_lua_block {
  local redis = require("nginx.redis"):new()
  redis:set_timeout(1000)
  if not redis:connect("127.0.0.1", %(port)d) then return ngx.exit(503) end
  local key = "floor:{" .. ngx.var.remote_addr .. "}" .. ngx.var.uri
  local answer = redis:evalsha("%(four)s", 4, key .. 1, key .. 2, key .. 3, key .. 4, 1, 60000000)
  if not answer then return ngx.exit(503) end
  redis:set_keepalive(60000, 256)
  if answer[1][1] == 0 then return ngx.exit(429) end
  ngx.header["RateLimit-Remaining"] = answer[1][2]
} echo ok; }
location = /redis { access_by_lua_block {
  local redis = require("nginx.redis"):new()
  redis:set_timeout(1000)
  if not redis:connect("127.0.0.1", %(port)d) then return ngx.exit(503) end
  local key = "floor:" .. ngx.var.remote_addr .. ngx.var.uri
  local answer = redis:evalsha("%(sha)s", 1, key, 1, 60000000)
  if not answer then return ngx.exit(503) end
  redis:set_keepalive(60000, 256)
  if answer[1] == 0 then return ngx.exit(429) end
  ngx.header["RateLimit-Remaining"] = answer[2]
} echo ok; }
}
"""
GATE = 'access_by_lua_block { require("resty.headgate").access() }\n' + "".join(
    f"location = {path} {{ echo ok; }}\n" for name, path in PATHS.items() if name.startswith("headgate")
)


def answer(report: BenchmarkReport) -> None:
    for workers in (1, 2):
        samples: Samples = {name: [] for name in PATHS}
        for number in range(report.rounds(5)):
            with RedisServer() as server:
                _round(report, workers, number, server, samples)
        _print_table(report, workers, samples)


def _round(report: BenchmarkReport, workers: int, number: int, server: RedisServer, samples: Samples) -> None:
    one, four = (
        str(server.call("SCRIPT", "LOAD", text), "ascii")  # type: ignore[arg-type]
        for text in (minimal_limiters.MINIMAL_GCRA, minimal_limiters.FOUR_GCRA)
    )
    push(BOOK, server.url)
    settings = {"url": server.url, "port": server.port, "sha": one, "four": four}
    for seconds, warming, names in COMPARED:
        with ExitStack() as stack:
            urls: dict[str, str] = {}
            for name in names:
                port = free_port()
                gate = stack.enter_context(
                    Nginx(GATE, HTTP % {**settings, "floors": port}, main=MAIN, workers=workers)
                )
                pin_workers(gate, server, workers)
                urls[name] = (gate.url if name.startswith("headgate") else f"http://127.0.0.1:{port}") + PATHS[
                    name
                ]
            turns: Samples = {name: [] for name in names}
            shift = number % len(names)
            for turn in range(warming + TURNS):
                for name in names[shift:] + names[:shift]:
                    sample = run_wrk(urls[name], seconds)
                    if turn >= warming:
                        turns[name].append(sample)
        for name in names:
            whole = {what: fmean(turn[what] for turn in turns[name]) for what in turns[name][0]}
            samples[name].append(whole)
            report.keep(workers=workers, subject=name, round=number, **whole)


def pin_workers(gate: Nginx, server: RedisServer, workers: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    for pid in gate.worker_pids:
        os.sched_setaffinity(pid, cores[-1:] if workers == 1 else cores)
    os.sched_setaffinity(server.pid, cores[:1])


def run_wrk(url: str, seconds: int) -> dict[str, float]:
    core = str(min(os.sched_getaffinity(0)))
    words = ["taskset", "-c", core, str(command("wrk", "wrk")), "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s"]
    output = subprocess.run([*words, "--latency", url], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\d+) requests in", output)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    speed, p99 = re.search(r"Requests/sec:\s+([\d.]+)", output), re.search(r"99%\s+([\d.]+)(us|ms|s)", output)
    assert match, output
    assert speed, output
    assert p99, output
    return {
        SPEED: float(speed[1]),
        "count": float(match[1]),
        "p99_us": float(p99[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[p99[2]],
        "refused": int(refused[1]) / int(match[1]) if refused else 0.0,
    }


def _print_table(report: BenchmarkReport, workers: int, samples: Samples) -> None:
    report.say("One worker." if workers == 1 else "Two workers.")
    rows = []
    for name in PATHS:
        base = (
            REDIS if "Redis" in name and "denied" not in name else LIMIT_REQ_DENIED if "denied" in name else DICT
        )
        of_floor = figure(ratio(samples, name, base, SPEED))
        cells = [figure(median(samples, name, what)) for what in (SPEED, "p99_us", "refused")]
        rows.append([name, cells[0], of_floor, base.removeprefix("floor: "), *cells[1:]])
    report.table(["", "requests/s", "of", "this", "p99 us", "refused"], rows)

    def held(ours: str, floor: str, least: float) -> None:
        what = f"{ours} of {floor.removeprefix('floor: ')}, workers: {workers}"
        report.target(what, ratio(samples, ours, floor, SPEED), at_least=least)

    held(ONE, REDIS, 0.9)
    held(FOUR, REDIS, 0.7)
    held(FOUR, REDIS_FOUR, 0.7)
    held(PREFETCHED, DICT, 0.85)
    held(PREFETCHED, DICT_ALL, 0.85)
    held(SHARED, DICT, 0.9)
    held(SHARED, DICT_ALL, 0.9)
    held(DENIED, LIMIT_REQ_DENIED, 0.65)
    p99 = ratio(samples, DENIED, LIMIT_REQ_DENIED, "p99_us")
    report.target(f"p99 of {DENIED} of limit_req's, workers: {workers}", p99, at_most=2)
