"""A gate in front of a Redis that a test kills, stops, cuts off or makes refuse, and clients that keep asking."""

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from tests.nginx.gateway_harness import NginxGateway
from tests.servers import Cluster, Proxy, RedisServer, Sentinels
from tests.servers.wait_until import until

PLAIN = "denial_cache = false, shed = false"
DEADLINE = 0.3  # seconds: long enough to tell a wait from a busy machine
BACK = 2.0  # seconds after which Redis decides again
PLENTY = "100000/year"  # of which no unit comes back meanwhile
GONE = "each rule does what its fallback says until Redis answers again"
AGAIN = "answers again after"
# /slow stays until /open is asked; /in tells how many do.
SLOW = """
location = /slow { content_by_lua_block {
  local dict = ngx.shared.headgate
  dict:incr("t:in", 1, 0)
  repeat ngx.sleep(0.02) until dict:get("t:open")
  dict:incr("t:in", -1)
} }
location = /open { content_by_lua_block { ngx.shared.headgate:set("t:open", true) } }
location = /shut { content_by_lua_block { ngx.shared.headgate:delete("t:open") } }
location = /in { content_by_lua_block { ngx.print(ngx.shared.headgate:get("t:in") or 0) } }
"""


def rule(name: str = "api", limit: str = "5/day fixed", **more: Any) -> dict[str, Any]:
    return {"name": name, "limit": limit, **more}


def url_of(server: RedisServer | Proxy | Cluster | Sentinels, fallback: str, deadline: float, url: str) -> str:
    return f"{server.url}?fallback={fallback}&deadline={deadline}s{url}"


@contextmanager
def ready_gateway(
    engine: RedisServer | Proxy | Cluster | Sentinels, *rules: dict[str, Any], **more: Any
) -> Iterator[NginxGateway]:
    """A gate all of whose workers have the book."""
    settings: dict[str, Any] = {"options": PLAIN} | more
    url = url_of(
        engine, settings.pop("fallback", "local"), settings.pop("deadline", DEADLINE), settings.pop("url", "")
    )
    with NginxGateway({"rules": list(rules)}, url, **settings) as gate:
        if settings.get("workers", 1) > 1:
            time.sleep(0.5)  # every worker looks for it twice a second
        yield gate


def statuses(gate: NginxGateway, count: int, target: str = "/", **headers: str) -> list[int]:
    return [gate.get(target, headers).status for _ in range(count)]


def await_back(gate: NginxGateway, times: int = 1, target: str = "/", **headers: str) -> float:
    """Ask until the log says so often that Redis answers again; the seconds that took."""
    began = time.monotonic()

    def missing() -> str | None:
        gate.get(target, headers)
        return None if gate.log.count(AGAIN) >= times else "Redis is not asked yet"

    until(missing, 10)
    return time.monotonic() - began


class TimedReply(NamedTuple):
    at: float
    status: int
    seconds: float


class OutageLoad:
    """Clients that ask one after the other, each on a connection of its own that it keeps."""

    def __init__(self, gate: NginxGateway, clients: int, pause: float = 0.005) -> None:
        self.seen: list[TimedReply] = []
        self._gate, self._pause = gate, pause
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._send_requests) for _ in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _send_requests(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._gate.port, timeout=20)
        while not self._end.wait(self._pause):
            at = time.monotonic()
            connection.request("GET", "/")
            reply = connection.getresponse()
            reply.read()
            self.seen.append(TimedReply(at, reply.status, time.monotonic() - at))
        connection.close()
