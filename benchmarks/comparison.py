"""Compares limiters of web applications: their behaviour, and how many lines a program needs.

Each program of comparison_programs runs in a real server on a real Redis, and is called as clients call it. A cell
of the table is what was seen. `--write` puts the table into docs/explanation/comparison.md.

The probes:
    lines            lines of the program that are not blank, above its mark
    refuses          five requests pass, the sixth gets a 429; with Retry-After, or without
    fields           an allowed response says what is left; so does the 500 of an exception that nobody handles
    forged           another X-Forwarded-For in each request gets no fresh limit, without any proxy configured
    refused is free  under 4/hour and 2 in two seconds, two refusals leave the hour's count alone
    default          a default limit holds for a route of an included router or blueprint
    slow Redis       a request without limits is answered at once while another one waits for Redis (async only)
    Redis is down    the status of a limited request then
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks.report import BenchmarkReport
from tests.servers import RedisServer
from tests.servers.redis_server import free_port

PROGRAMS = Path(__file__).with_name("comparison_programs")
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "comparison.md"
MARK = "# --- for the probes ---"
BEGIN, END = "<!-- begin: python -m benchmarks comparison --write -->\n", "<!-- end -->\n"
START_TIMEOUT_S = 30
REQUEST_TIMEOUT_S = 20
WINDOW_S = 2.1
PAUSE_MS = 2000
NOT_APPLICABLE = "-"
FIELDS = re.compile(r"(x-)?ratelimit", re.I)


class ComparedProgram(NamedTuple):
    """A limiter, the package that it comes from, and its program."""

    name: str
    package: str
    module: str
    is_async: bool = False


SUBJECTS = (
    ComparedProgram("headgate, FastAPI", "headgate", "headgate_fastapi", True),
    ComparedProgram("slowapi", "slowapi", "slowapi_fastapi", True),
    ComparedProgram("fastapi-limiter", "fastapi-limiter", "fastapi_limiter_fastapi", True),
    ComparedProgram("headgate, Flask", "headgate", "headgate_flask"),
    ComparedProgram("Flask-Limiter", "Flask-Limiter", "flask_limiter_flask"),
    ComparedProgram("throttled-py", "throttled-py", "throttled_flask"),
    ComparedProgram("headgate, Django", "headgate", "headgate_django"),
    ComparedProgram("django-ratelimit", "django-ratelimit", "django_ratelimit_django"),
    ComparedProgram("django-smart-ratelimit", "django-smart-ratelimit", "smart_ratelimit_django"),
    ComparedProgram("headgate, REST framework", "headgate", "headgate_drf"),
    ComparedProgram("REST framework", "djangorestframework", "rest_framework_drf"),
)
FRAMEWORKS = ("FastAPI", "Flask", "Django", "uvicorn", "granian", "redis")
HEAD = (
    *("", "version", "lines", "refuses the sixth", "fields on 200", "fields on 500"),
    *("forged address is refused", "a refusal is free", "default reaches included routes"),
    *("slow Redis blocks no other", "Redis is down"),
)


def answer(report: BenchmarkReport) -> None:
    rows = []
    for subject in SUBJECTS:
        rows.append([subject.name, version(subject.package), str(count_lines(subject.module)), *_probe(subject)])
        report.keep(subject=subject.name, cells=rows[-1])
        report.say(", ".join(rows[-1]))
    report.table(HEAD, rows)
    if report.write:
        write_table(rows)
        report.say(f"written to {PAGE.name}")


def count_lines(module: str) -> int:
    """Returns the lines of a program that are not blank, above its mark."""
    program, mark, _ = (PROGRAMS / f"{module}.py").read_text("utf-8").partition(MARK)
    assert mark, f"{module} has no mark"
    return sum(bool(line.strip()) for line in program.splitlines())


def write_table(rows: list[list[str]]) -> None:
    """Puts the table between the marks of the page."""
    lines = [" | ".join(cells) for cells in (HEAD, ["---"] * len(HEAD), *rows)]
    page = PAGE.read_text("utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    table = "".join(f"| {line.lstrip()} |\n" for line in lines)
    ran_with = ", ".join(f"{name} {version(name)}" for name in FRAMEWORKS)
    PAGE.write_text(f"{before}{BEGIN}{table}\nSeen with {ran_with}.\n{END}{after}", "utf-8")


def _probe(subject: ComparedProgram) -> list[str]:
    with RedisServer("redis") as redis:
        with _serve(subject, "app", redis.url) as client:
            cells = [
                _refuses(client, redis),
                *_fields(client, redis),
                _forged(client, redis),
                _refused_is_free(client, redis),
            ]
        default = NOT_APPLICABLE if subject.module.endswith(("_django", "_drf")) else "no default limits"
        if "app_with_default" in (PROGRAMS / f"{subject.module}.py").read_text("utf-8"):
            redis.call("FLUSHALL")
            with _serve(subject, "app_with_default", redis.url) as client:
                statuses = [client.get("/included/item").status_code for _ in range(3)]
                default = "yes" if statuses == [200, 200, 429] else f"**no**: {statuses}"
        with _serve(subject, "app", redis.url) as client:
            slow = _slow_redis(client, redis) if subject.is_async else NOT_APPLICABLE
            client.get("/")
            redis.stop()
            down = _down(client)
    return [*cells, default, slow, down]


@contextmanager
def _serve(subject: ComparedProgram, app: str, redis_url: str) -> Iterator[httpx.Client]:
    port, module = str(free_port()), f"{PROGRAMS.parent.name}.{PROGRAMS.name}.{subject.module}:{app}"
    words = ["-m", "uvicorn", module, "--no-proxy-headers", "--log-level", "critical", "--port", port]
    if not subject.is_async:
        words = [
            "-m",
            "granian",
            module,
            "--interface",
            "wsgi",
            "--blocking-threads",
            "4",
            "--no-log",
            "--port",
            port,
        ]
    environment = {**os.environ, "REDIS_URL": redis_url}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, *words], env=environment, stdout=quiet, stderr=quiet)
    try:
        address = f"http://127.0.0.1:{port}"
        _await_start(address, process)
        close = {"Connection": "close"}  # a server closes it anyway after an exception that nobody handles
        with httpx.Client(base_url=address, headers=close, trust_env=False, timeout=REQUEST_TIMEOUT_S) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


def _await_start(address: str, process: subprocess.Popen[bytes]) -> None:
    """Waits until the server answers a path that no limit knows."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        assert process.poll() is None, "the program ended"
        try:
            httpx.get(f"{address}/nowhere", trust_env=False, timeout=REQUEST_TIMEOUT_S)
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline, "the program does not answer"
            time.sleep(0.1)


def _yes(seen: bool) -> str:
    return "yes" if seen else "**no**"


def _refuses(client: httpx.Client, redis: RedisServer) -> str:
    responses = _six_requests(client, redis)
    if responses[5].status_code != 429:  # a minute may have ended meanwhile
        responses = _six_requests(client, redis)
    statuses = [each.status_code for each in responses]
    if statuses != [200] * 5 + [429]:
        return f"**no**: {statuses}"
    if "retry-after" in responses[0].headers:
        return "yes, Retry-After also on 200"
    return "yes" if "retry-after" in responses[5].headers else "yes, no Retry-After"


def _six_requests(client: httpx.Client, redis: RedisServer) -> list[httpx.Response]:
    redis.call("FLUSHALL")
    return [client.get("/") for _ in range(6)]


def _fields(client: httpx.Client, redis: RedisServer) -> list[str]:
    redis.call("FLUSHALL")
    cells = []
    for path, status in (("/", 200), ("/fail", 500)):
        response = client.get(path)
        assert response.status_code == status, (path, response.status_code)
        cells.append(_yes(any(map(FIELDS.match, response.headers))))
    return cells


def _forged(client: httpx.Client, redis: RedisServer) -> str:
    redis.call("FLUSHALL")
    responses = [client.get("/", headers={"X-Forwarded-For": f"203.0.113.{number}"}) for number in range(6)]
    return _yes(responses[-1].status_code == 429)


def _refused_is_free(client: httpx.Client, redis: RedisServer) -> str:
    redis.call("FLUSHALL")
    first = [client.get("/two").status_code for _ in range(4)]
    time.sleep(WINDOW_S)
    later = [client.get("/two").status_code for _ in range(2)]
    if first != [200, 200, 429, 429]:
        return f"**no**: {first}"
    return _yes(later == [200, 200])


def _slow_redis(client: httpx.Client, redis: RedisServer) -> str:
    redis.call("FLUSHALL")
    client.get("/")
    redis.call("CLIENT", "PAUSE", str(PAUSE_MS), "ALL")
    waiting = threading.Thread(target=client.get, args=["/"])
    waiting.start()
    time.sleep(0.3)
    started = time.monotonic()
    client.get("/free")
    took_ms = (time.monotonic() - started) * 1000
    waiting.join()
    return _yes(took_ms < PAUSE_MS / 4)


def _down(client: httpx.Client) -> str:
    try:
        return str(client.get("/").status_code)
    except httpx.TimeoutException:
        return f"no answer in {REQUEST_TIMEOUT_S} s"
