"""Measures the check service, beside an empty application on the same server.

One service, of one worker or two, has a core of its own (with two: both); wrk, Redis and nginx have the other.
Each round starts what it measures anew; those who are compared run side by side and take turns of a second. The
floors are empty: the same granian with an application that answers nothing, in a process as Python makes it, and
in one that is tuned as the service's are (service/supervisor.py). Ratios are formed within each round. Envoy's
rate limit service is measured by rls.py.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import fmean
from typing import NamedTuple

from benchmarks.interleaved_runs import SPEED, Samples, median, ratio
from benchmarks.report import BenchmarkReport, figure
from benchmarks.service_processes import cpu_us, load_core, pin, running
from tests.servers import Backend, Envoy, Nginx
from tests.servers.server_programs import command
from tests.service.documented_configs import cluster, filter_of
from tests.service.service_harness import Service

SECONDS = 1
TURNS = 3
STARTS = 2  # of Envoys in a round: what a request costs one differs by 2 % from start to start
CONNECTIONS = 64
CHECK = '{"attributes": {"method": "GET", "path": "/shop", "user": "ann"}}'
FORWARDED = {
    "X-Original-Method": "GET",
    "X-Original-URI": "/shop",
    "X-Original-Host": "shop.example",
    "X-Forwarded-For": "192.0.2.7",
}
EMPTY, EMPTY_AUTH = "floor: empty application, POST", "floor: empty application, GET"
TUNED, TUNED_AUTH = "the same floor, tuned as the service is, POST", "the same floor, tuned as the service is, GET"
READING = "the same floor, tuned, reading its body"
MEMORY, REDIS = "check, memory", "check, Redis"
AUTH, AUTH_REDIS = "auth_request path, memory", "auth_request path, Redis"
BEHIND_EMPTY, BEHIND = "floor: nginx auth_request, empty body", "nginx auth_request, memory"
ENVOY, QUOTA = "floor: Envoy without a limit", "Envoy under a quota"
UNLIMITED = "Envoy, told that there is no limit"


def answer(report: BenchmarkReport) -> None:
    one: Samples = {name: [] for name in SUBJECTS}
    two: Samples = {REDIS: []}
    quotas: Samples = {ENVOY: [], QUOTA: [], UNLIMITED: []}
    for number in range(report.rounds(4)):
        for workers, samples in ((1, one), (2, two)):
            for names in COMPARED if workers == 1 else [(name,) for name in samples]:
                for name, sample in _in_turn(names, workers, number).items():
                    samples[name].append(sample)
                    report.keep(workers=workers, subject=name, round=number, **sample)
        for _ in range(STARTS):
            _envoys(quotas)
    for name, quota in quotas.items():
        for sample in quota:
            report.keep(subject=name, **sample)
    _print_table(report, "One worker.", one, FLOORS)
    for name, at_least in ((MEMORY, 0.6), (REDIS, 0.4)):
        for floor, called in ((EMPTY, ""), (TUNED, ", tuned"), (READING, ", tuned and reading")):
            of_floor = ratio(one, name, floor, SPEED)
            report.target(f"{name} of an empty application{called}", of_floor, at_least=at_least)
    for name, at_least in ((AUTH, 0.6), (AUTH_REDIS, 0.4)):
        for floor, called in ((EMPTY_AUTH, ""), (TUNED_AUTH, ", tuned")):
            of_floor = ratio(one, name, floor, SPEED)
            report.target(f"{name} of an empty application{called}", of_floor, at_least=at_least)
    report.target("nginx's auth_request", ratio(one, BEHIND, BEHIND_EMPTY, SPEED), at_least=0.8)
    report.target(
        "Envoy under a quota, of Envoy without a limit", ratio(quotas, QUOTA, ENVOY, SPEED), at_least=0.9
    )
    _print_table(report, "Envoy, and what a request costs it.", quotas, FLOORS)
    report.say("Two workers, of one.")
    of_one = median(two, REDIS, SPEED) / median(one, REDIS, SPEED)
    report.table(["", "per second", "of one worker"], [[REDIS, figure(median(two, REDIS, SPEED)), figure(of_one)]])


def _print_table(report: BenchmarkReport, title: str, samples: Samples, floors: dict[str, str]) -> None:
    report.say(title)
    rows = []
    for name in samples:
        of_floor = figure(ratio(samples, name, floors[name], SPEED)) if name in floors else ""
        cells = [figure(median(samples, name, what)) for what in (SPEED, "cpu_us")]
        rows.append([name, *cells, of_floor])
    report.table(["", "per second", "CPU us", "of its floor"], rows)


FLOORS = {
    MEMORY: EMPTY,
    REDIS: EMPTY,
    AUTH: EMPTY_AUTH,
    AUTH_REDIS: EMPTY_AUTH,
    BEHIND: BEHIND_EMPTY,
    QUOTA: ENVOY,
    UNLIMITED: ENVOY,
}


def _in_turn(names: Sequence[str], workers: int, number: int) -> dict[str, dict[str, float]]:
    """One sample of each, in this round."""
    turns: Samples = {name: [] for name in names}
    shift = number % len(names)
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(running(SUBJECTS[name].kind, SUBJECTS[name].engine, workers))
            for name in names
        }
        for turn in range(TURNS + 1):
            for name in (*names[shift:], *names[:shift]):
                address, pids, _ = started[name]
                before = cpu_us(pids)
                sample = SUBJECTS[name].load(address)
                sample["cpu_us"] = (cpu_us(pids) - before) / sample.pop("count")
                if turn > 0:  # the first is to warm up
                    turns[name].append(sample)
    return {
        name: {what: fmean(turn[what] for turn in samples) for what in samples[0]}
        for name, samples in turns.items()
    }


def run_wrk(address: str, path: str, script: str) -> dict[str, float]:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        words = [
            *load_core(),
            str(command("wrk", "wrk")),
            "-t1",
            f"-c{CONNECTIONS}",
            f"-d{SECONDS}s",
            "-s",
            file.name,
        ]
        output = subprocess.run(
            [*words, f"http://{address}{path}"], capture_output=True, text=True, check=True
        ).stdout
    count, speed = re.search(r"(\d+) requests in", output), re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert count, output
    assert speed, output
    assert "Non-2xx" not in output, output
    return {SPEED: float(speed[1]), "count": int(count[1])}


def check_calls(address: str) -> dict[str, float]:
    return run_wrk(address, "/v1/check", f"wrk.method = 'POST'\nwrk.body = [[{CHECK}]]\n")


def _get(address: str) -> dict[str, float]:
    return run_wrk(
        address, "/auth/nginx", "".join(f"wrk.headers['{name}'] = '{FORWARDED[name]}'\n" for name in FORWARDED)
    )


def _envoys(samples: Samples) -> None:
    """Envoys on the service's core, before a backend in C: one on its own, one by quotas of a service on memory,
    and one that asks and is told that there is no limit. They take turns, and are there all the time: an Envoy
    that nobody asks does nothing."""
    cores = sorted(os.sched_getaffinity(0))
    book = {"rules": [{"name": "all", "when": {"domain": "edge"}, "limit": "1000000/s burst 2000000"}]}
    page = 'location / { content_by_lua_block { ngx.print("ok") } }'
    with ExitStack() as stack:
        backend, service = stack.enter_context(Nginx(page, "access_log off;")), stack.enter_context(Service(book))
        unused = stack.enter_context(Backend())
        unused.port = backend.port
        free = filter_of("rate_limit_quota")
        free["typed_config"]["domain"] = "free"
        filters = {ENVOY: [], QUOTA: [filter_of("rate_limit_quota")], UNLIMITED: [free]}
        envoys = {
            name: stack.enter_context(Envoy(filters[name], unused, clusters=[cluster(service.grpc)]))
            for name in filters
        }
        for pid in (*backend.worker_pids, service.pid):
            os.sched_setaffinity(pid, cores[:1])
        pin([envoy.pid for envoy in envoys.values()], cores[-1:])
        began = time.monotonic()
        while time.monotonic() - began < 12:  # an engine that has just begun listens, and Envoy asks every 5 s
            for envoy in envoys.values():
                run_wrk(envoy.address, "/", "")
        for name in (ENVOY, QUOTA, UNLIMITED, UNLIMITED, QUOTA, ENVOY) * TURNS:
            pids = [envoys[name].pid]
            before = cpu_us(pids)
            sample = run_wrk(envoys[name].address, "/", "")
            sample["cpu_us"] = (cpu_us(pids) - before) / sample.pop("count")
            samples[name].append(sample)


def _behind(address: str) -> dict[str, float]:
    server = """
      location / { auth_request /ask; content_by_lua_block { ngx.print("ok") } }
      location = /ask {
        internal; proxy_pass http://service/auth/nginx; proxy_http_version 1.1; proxy_set_header Connection "";
        proxy_pass_request_body off; proxy_set_header Content-Length "";
        proxy_set_header X-Original-Method $request_method; proxy_set_header X-Original-URI $request_uri;
        proxy_set_header X-Original-Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      }"""
    http = f"access_log off; upstream service {{ server {address}; keepalive 64; }}"
    with Nginx(server, http) as gate:
        for pid in gate.worker_pids:
            os.sched_setaffinity(pid, sorted(os.sched_getaffinity(0))[:1])
        return run_wrk(f"127.0.0.1:{gate.port}", "/shop", "")


class ServiceSubject(NamedTuple):
    kind: str
    engine: str
    load: Callable[[str], dict[str, float]]


SUBJECTS = {
    EMPTY: ServiceSubject("base-http", "", check_calls),
    TUNED: ServiceSubject("base-tuned-http", "", check_calls),
    READING: ServiceSubject("base-tuned-reading", "", check_calls),
    MEMORY: ServiceSubject("http", "memory", check_calls),
    REDIS: ServiceSubject("http", "redis", check_calls),
    EMPTY_AUTH: ServiceSubject("base-http", "", _get),
    TUNED_AUTH: ServiceSubject("base-tuned-http", "", _get),
    AUTH: ServiceSubject("http", "memory", _get),
    AUTH_REDIS: ServiceSubject("http", "redis", _get),
    BEHIND_EMPTY: ServiceSubject("base-http", "", _behind),
    BEHIND: ServiceSubject("http", "memory", _behind),
}
COMPARED = (
    (EMPTY, MEMORY, TUNED, REDIS, READING),
    (EMPTY_AUTH, AUTH, TUNED_AUTH, AUTH_REDIS),
    (BEHIND_EMPTY, BEHIND),
)
