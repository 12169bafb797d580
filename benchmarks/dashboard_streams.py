"""Measures what the dashboard costs a service: five clients of its live stream, and pages of 1,000 rules.

A service of one worker has a core of its own; wrk, Redis and the clients have the other. Turns of a second
without and with the clients alternate, and ratios are formed within each pair. Then 100,000 keys of 1,000 rules
are counted, and the overview is loaded; and while every rule is called each second, the CPU time of the service
with one client, less that without, is divided by the updates that the client got.
"""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from urllib.parse import urlencode

from benchmarks.interleaved_runs import SPEED, last_core
from benchmarks.report import BenchmarkReport, figure, thousands
from benchmarks.service import check_calls, run_wrk
from benchmarks.service_processes import cpu_us, pin
from benchmarks.service_rules import BOOK
from tests.servers import RedisServer
from tests.servers.redis_server import free_port
from tests.service.service_harness import Service

CLIENTS = 5
PAIRS = 24
ENGINES = "memory", "Redis"
RULES, KEYS = 1000, 100_000
VIEWS = 9
STRETCH_S = 5.0
TOKEN = "a token for benchmarks 0123456789"
_RULE = {"key": "user", "missing": "deny", "limit": "9/s"}
MANY_RULES = {
    "rules": [{"name": f"rule-{number}", "when": {"path": f"/{number}"}, **_RULE} for number in range(RULES)]
}
EACH_KEY = """
local n = {first}
request = function()
  n = n + 1
  local body = '{{"attributes": {{"path": "/' .. n % {rules} .. '", "user": "user-' .. n .. '"}}}}'
  return wrk.format("POST", "/v1/check", nil, body)
end
"""


def answer(report: BenchmarkReport) -> None:
    report.table(
        ["engine", "decisions/s", f"with {CLIENTS} clients", "ratio"],
        [_streams(report, engine) for engine in ENGINES],
    )
    report.table(
        [f"{RULES:,} rules, {KEYS:,} keys", "first view, ms", "later views, ms", "KB", "an update, ms of CPU"],
        [_pages(report, engine) for engine in ENGINES],
    )


def _streams(report: BenchmarkReport, engine: str) -> list[str]:
    """Compares the speed without and with clients of the live stream."""
    pairs = []
    with service(BOOK, engine) as (served, cookie):
        check_calls(served.http)  # to warm up
        for number in range(report.rounds(PAIRS)):
            speeds = {}
            for with_clients in (False, True) if number % 2 else (True, False):
                with ExitStack() as stack:
                    for _ in range(CLIENTS if with_clients else 0):
                        stack.enter_context(StreamClient(str(served.settings["admin"]), cookie))
                    speeds[with_clients] = check_calls(served.http)[SPEED]
            pairs.append((speeds[False], speeds[True]))
            report.keep(engine=engine, round=number, without=speeds[False], streamed=speeds[True])
    ratio = median(streamed / plain for plain, streamed in pairs)
    report.target(f"decisions a second with {CLIENTS} clients, {engine}", ratio, at_least=0.95)
    plain, streamed = (median(each) for each in zip(*pairs, strict=True))
    return [engine, thousands(plain), thousands(streamed), figure(ratio)]


def _pages(report: BenchmarkReport, engine: str) -> list[str]:
    with service(MANY_RULES, engine) as (served, cookie):
        calls = 0
        while calls < KEYS:
            calls += int(run_wrk(served.http, "/v1/check", EACH_KEY.format(first=calls, rules=RULES))["count"])
        time.sleep(2)  # until counts are in Redis
        views = [_view(str(served.settings["admin"]), cookie) for _ in range(VIEWS)]
        alone_us, _ = _paced_cpu_us(served)
        with StreamClient(str(served.settings["admin"]), cookie) as client:
            watched_us, updates = _paced_cpu_us(served, client)
    first_ms, later_ms = views[0][0], median(ms for ms, _ in views[1:])
    work_ms = (watched_us - alone_us) / 1000 / max(1, updates)
    report.keep(engine=engine, views=views, alone_us=alone_us, watched_us=watched_us, updates=updates)
    report.target(f"first view of {RULES:,} rules, ms, {engine}", first_ms, at_most=1000)
    report.target(f"work of an update of {RULES:,} rules, ms, {engine}", work_ms, at_most=100)
    return [engine, figure(first_ms), figure(later_ms), figure(views[0][1] / 1000), figure(work_ms)]


def _view(admin: str, cookie: str) -> tuple[float, int]:
    """Loads the overview; returns the milliseconds and its bytes."""
    connection = http.client.HTTPConnection(admin, timeout=20)
    began = time.perf_counter()
    connection.request("GET", "/dashboard/", headers={"Cookie": cookie})
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, response.status
    connection.close()
    return 1000 * (time.perf_counter() - began), len(body)


def _paced_cpu_us(served: Service, client: "StreamClient | None" = None) -> tuple[float, int]:
    """Calls each rule once a second for a while; returns the CPU time of the service, and a client's updates."""
    connection = http.client.HTTPConnection(served.http, timeout=20)
    before_us, updates = cpu_us([served.pid]), client.updates if client else 0
    began = time.monotonic()
    for number in range(int(STRETCH_S * RULES)):
        time.sleep(max(0.0, began + number / RULES - time.monotonic()))
        body = f'{{"attributes": {{"path": "/{number % RULES}", "user": "user-{number}"}}}}'
        connection.request("POST", "/v1/check", body)
        connection.getresponse().read()
    connection.close()
    return cpu_us([served.pid]) - before_us, (client.updates if client else 0) - updates


class StreamClient:
    """A client that reads the live stream in a thread, and counts its updates."""

    def __init__(self, admin: str, cookie: str) -> None:
        host, _, port = admin.rpartition(":")
        self.updates = 0
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._socket.sendall(f"GET /dashboard/live HTTP/1.1\r\nHost: {admin}\r\nCookie: {cookie}\r\n\r\n".encode())
        head = self._socket.recv(65_536)
        assert head.startswith(b"HTTP/1.1 200"), head
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        try:
            while received := self._socket.recv(1 << 20):
                self.updates += received.count(b'data: {"now"')
        except OSError:
            return

    def __enter__(self) -> "StreamClient":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


@contextmanager
def service(book: object, engine: str) -> Iterator[tuple[Service, str]]:
    """Starts a service on a core of its own, and logs in; yields it and the session's cookie."""
    assert isinstance(book, dict)
    with ExitStack() as stack:
        url = stack.enter_context(RedisServer()).url if engine == "Redis" else "memory://"
        admin = f"127.0.0.1:{free_port()}"
        served = stack.enter_context(Service(book, engine=url, grpc="off", admin=admin, admin_token=TOKEN))
        pin([served.pid], [last_core()])
        connection = http.client.HTTPConnection(admin, timeout=20)
        form = urlencode({"token": TOKEN, "user": "benchmark"})
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/dashboard/login", form, headers)
        cookie = connection.getresponse().getheader("set-cookie") or ""
        connection.close()
        yield served, cookie.partition(";")[0]
