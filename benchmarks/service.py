"""Measures the check service, beside an empty application on the same servers.

One service, of one worker or two, has a core of its own (with two: both); wrk or h2load, Redis and nginx have the
other. Each round starts what it measures anew; those who are compared run side by side and take turns of a second.
The floors are empty: the same granian with an application that answers nothing, grpcio with a servicer that
reads the request and says OK; each in a process as Python makes it, and in one that is tuned as the service's are
(service/supervisor.py). Ratios are formed within each round.
"""

import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.interleaved_runs import SPEED, Samples, median, ratio
from benchmarks.report import BenchmarkReport, figure
from headgate.service.envoy.messages import RateLimitRequest
from headgate.service.envoy.rls import PATH
from tests.servers import Backend, Envoy, Nginx, RedisServer
from tests.servers.redis_server import free_port
from tests.servers.server_programs import command
from tests.servers.wait_until import until
from tests.service.documented_configs import cluster, filter_of
from tests.service.service_harness import Service

SECONDS = 1
TURNS = 3
STARTS = 2  # of Envoys in a round: what a request costs one differs by 2 % from start to start
CONNECTIONS = 64
BOOK: dict[str, Any] = {
    "rules": [
        {"name": f"rule-{number}", "when": {"path": f"/{number}"}, "limit": "1000000/s"} for number in range(4)
    ]
    + [{"name": "user", "key": "user", "missing": "skip", "limit": "1000000/s"}]
    + [{"name": f"d{number}", "key": f"d{number}", "missing": "skip", "limit": "1000000/s"} for number in range(4)]
    + [{"name": "address", "key": "address", "missing": "skip", "limit": "1000000/s"}]
}
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
RLS_EMPTY, RLS_MEMORY = "floor: empty servicer", "RLS, memory"
RLS_TUNED = "the same floor, tuned"
RLS_REDIS, RLS_FOUR = "RLS, Redis", "RLS, Redis, four descriptors"
ENVOY, QUOTA = "floor: Envoy without a limit", "Envoy under a quota"
UNLIMITED = "Envoy, told that there is no limit"


def answer(report: BenchmarkReport) -> None:
    one: Samples = {name: [] for name in SUBJECTS}
    two: Samples = {name: [] for name in (REDIS, RLS_REDIS)}
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
    for name, at_least in ((RLS_MEMORY, 10), (RLS_REDIS, 8)):
        for floor, called in ((RLS_EMPTY, ""), (RLS_TUNED, ", tuned")):
            of_floor = ratio(one, name, floor, SPEED)
            report.target(f"{name} of an empty servicer of grpcio{called}", of_floor, at_least=at_least)
    report.target("four descriptors, of one", ratio(one, RLS_FOUR, RLS_REDIS, SPEED), at_least=0.6)
    report.target(
        "Envoy under a quota, of Envoy without a limit", ratio(quotas, QUOTA, ENVOY, SPEED), at_least=0.9
    )
    _print_table(report, "Envoy, and what a request costs it.", quotas, FLOORS)
    report.say("Two workers, of one.")
    rows = []
    for name in (REDIS, RLS_REDIS):
        of_one = median(two, name, SPEED) / median(one, name, SPEED)
        rows.append([name, figure(median(two, name, SPEED)), figure(of_one)])
    report.table(["", "per second", "of one worker"], rows)


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
    RLS_MEMORY: RLS_EMPTY,
    RLS_REDIS: RLS_EMPTY,
    RLS_FOUR: RLS_EMPTY,
    QUOTA: ENVOY,
    UNLIMITED: ENVOY,
}


@contextmanager
def _floor(kind: str) -> Iterator[tuple[str, int]]:
    """An empty application; its address and its process."""
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.service_baselines", kind, address])
    try:
        until(lambda: None if _listens(address) else "not yet", 20)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


@contextmanager
def _running(kind: str, engine: str, workers: int) -> Iterator[tuple[str, list[int]]]:
    """Its address and its processes. `kind` is http, grpc, or empty- and what service_floors.py knows."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        if kind.startswith("empty-"):
            address, pid = stack.enter_context(_floor(kind.removeprefix("empty-")))
            pids = [pid]
        else:
            url = "memory://"
            if engine == "redis":
                server = stack.enter_context(RedisServer())
                os.sched_setaffinity(server.pid, cores[:1])
                url = server.url
            service = stack.enter_context(Service(BOOK, engine=url, workers=workers))
            address = service.http if kind == "http" else service.grpc
            pids = [service.pid, *(service.worker_pids if workers > 1 else [])]
        for pid in pids:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores[-1:] if workers == 1 else cores)
        yield address, pids


def _in_turn(names: Sequence[str], workers: int, number: int) -> dict[str, dict[str, float]]:
    """One sample of each, in this round."""
    turns: Samples = {name: [] for name in names}
    shift = number % len(names)
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(_running(SUBJECTS[name].kind, SUBJECTS[name].engine, workers))
            for name in names
        }
        for turn in range(TURNS + 1):
            for name in (*names[shift:], *names[:shift]):
                address, pids = running[name]
                before = sum(map(_cpu_us, pids))
                sample = SUBJECTS[name].load(address)
                sample["cpu_us"] = (sum(map(_cpu_us, pids)) - before) / sample.pop("count")
                if turn > 0:  # the first is to warm up
                    turns[name].append(sample)
    return {
        name: {what: fmean(turn[what] for turn in samples) for what in samples[0]}
        for name, samples in turns.items()
    }


def _cpu_us(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e6


def _core() -> list[str]:
    return ["taskset", "-c", str(min(os.sched_getaffinity(0)))]


def _wrk(address: str, path: str, script: str) -> dict[str, float]:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        words = [*_core(), str(command("wrk", "wrk")), "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "-s", file.name]
        output = subprocess.run(
            [*words, f"http://{address}{path}"], capture_output=True, text=True, check=True
        ).stdout
    count, speed = re.search(r"(\d+) requests in", output), re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert count, output
    assert speed, output
    assert "Non-2xx" not in output, output
    return {SPEED: float(speed[1]), "count": int(count[1])}


def _h2load(descriptors: int, address: str) -> dict[str, float]:
    request = RateLimitRequest(domain="bench")
    for number in range(descriptors):
        entry = request.descriptors.add().entries.add()
        entry.key, entry.value = f"d{number}", "10.0.0.1"
    body = request.SerializeToString()
    with tempfile.NamedTemporaryFile("wb") as file:
        file.write(b"\0" + struct.pack(">I", len(body)) + body)
        file.flush()
        words = [
            *_core(),
            str(command("h2load", "nghttp2-client")),
            "-D",
            str(SECONDS),
            "-c4",
            "-m24",
            "-d",
            file.name,
        ]
        words += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://{address}{PATH}"]
        output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    speed, count = (
        re.search(r"finished in \S+, ([\d.]+) req/s", output),
        re.search(r"(\d+) succeeded, 0 failed", output),
    )
    assert speed, output
    assert count, output
    return {SPEED: float(speed[1]), "count": int(count[1])}


def _post(address: str) -> dict[str, float]:
    return _wrk(address, "/v1/check", f"wrk.method = 'POST'\nwrk.body = [[{CHECK}]]\n")


def _get(address: str) -> dict[str, float]:
    return _wrk(
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
        for envoy in envoys.values():
            for thread in Path(f"/proc/{envoy.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores[-1:])
        began = time.monotonic()
        while time.monotonic() - began < 12:  # an engine that has just begun listens, and Envoy asks every 5 s
            for envoy in envoys.values():
                _wrk(envoy.address, "/", "")
        for name in (ENVOY, QUOTA, UNLIMITED, UNLIMITED, QUOTA, ENVOY) * TURNS:
            pid, before = envoys[name].pid, _cpu_us(envoys[name].pid)
            sample = _wrk(envoys[name].address, "/", "")
            sample["cpu_us"] = (_cpu_us(pid) - before) / sample.pop("count")
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
        return _wrk(f"127.0.0.1:{gate.port}", "/shop", "")


class ServiceSubject(NamedTuple):
    kind: str
    engine: str
    load: Callable[[str], dict[str, float]]


SUBJECTS = {
    EMPTY: ServiceSubject("empty-http", "", _post),
    TUNED: ServiceSubject("empty-tuned-http", "", _post),
    READING: ServiceSubject("empty-tuned-reading", "", _post),
    MEMORY: ServiceSubject("http", "memory", _post),
    REDIS: ServiceSubject("http", "redis", _post),
    EMPTY_AUTH: ServiceSubject("empty-http", "", _get),
    TUNED_AUTH: ServiceSubject("empty-tuned-http", "", _get),
    AUTH: ServiceSubject("http", "memory", _get),
    AUTH_REDIS: ServiceSubject("http", "redis", _get),
    BEHIND_EMPTY: ServiceSubject("empty-http", "", _behind),
    BEHIND: ServiceSubject("http", "memory", _behind),
    RLS_EMPTY: ServiceSubject("empty-grpc", "", partial(_h2load, 1)),
    RLS_TUNED: ServiceSubject("empty-tuned-grpc", "", partial(_h2load, 1)),
    RLS_MEMORY: ServiceSubject("grpc", "memory", partial(_h2load, 1)),
    RLS_REDIS: ServiceSubject("grpc", "redis", partial(_h2load, 1)),
    RLS_FOUR: ServiceSubject("grpc", "redis", partial(_h2load, 4)),
}
COMPARED = (
    (EMPTY, MEMORY, TUNED, REDIS, READING),
    (EMPTY_AUTH, AUTH, TUNED_AUTH, AUTH_REDIS),
    (BEHIND_EMPTY, BEHIND),
    (RLS_EMPTY, RLS_MEMORY, RLS_TUNED, RLS_REDIS, RLS_FOUR),
)
