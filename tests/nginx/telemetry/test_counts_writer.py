"""nginx writes its counts to Redis, where Python reads them: once a second, and each count once."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

import pytest

import headgate
from headgate.telemetry.decision_counts import DecisionCounts
from headgate.telemetry.shared_counts import SharedCounts
from tests.nginx.gateway_harness import NginxGateway
from tests.nginx.telemetry.counts_harness import METRICS, flood
from tests.servers import RedisServer
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers

RULES: dict[str, Any] = {"rules": [{"name": "all", "limit": "30/hour"}]}
GONE, BACK = "counts cannot be written to Redis", "counts are written to Redis at"


def read(url: str) -> dict[str, DecisionCounts]:
    with SharedCounts(url) as counts:
        return counts.last(minutes=10)


def wait_for_calls(url: str, allowed: int, refused: int) -> DecisionCounts:
    def missing() -> str | None:
        counted = read(url).get("all", DecisionCounts())
        return None if (counted.allowed, counted.refused) == (allowed, refused) else f"Redis has {counted}"

    until(missing, 30)
    return read(url)["all"]


def test_two_gateways_are_merged_and_each_writes_once_a_second(redis_server: RedisServer) -> None:
    began = time.monotonic()
    with (
        NginxGateway(RULES, redis_server.url, workers=3) as one,
        NginxGateway(None, redis_server.url, workers=2) as two,
    ):
        statuses = flood(one, 40) + flood(two, 20)
        assert statuses == {200: 30, 429: 30}
        wait_for_calls(redis_server.url, 30, 30)
        with SharedCounts(redis_server.url) as counts:
            assert counts.last(seconds=120)["all"].calls == 60
            names = [writer.name for writer in counts.writers()]
            assert {writer.version for writer in counts.writers()} == {headgate.__version__}
        assert len(names) == 2
        assert {name.rpartition(":")[2] for name in names} == {str(one.pid), str(two.pid)}
        assert all(name.startswith("nginx@") for name in names)
        writes = redis_server.call("EVAL", WRITES, 0)
        assert isinstance(writes, list)
        elapsed = time.monotonic() - began
        assert all(1 <= int(str(each)) <= elapsed + 2 for each in writes), (writes, elapsed)


DEGRADED = """
local name, calls
for _, key in ipairs(redis.call("KEYS", "hg2:{counts}:g:*")) do
  local member = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
  assert(#member == 2 and (not name or name == member[1]))
  name, calls = member[1], (calls or 0) + member[2]
end
return {string.match(name, "^nginx@(.*)"), calls}
"""
WRITES = """
local numbers = {}
for _, key in ipairs(redis.call("KEYS", "hg2:{counts}:w:*")) do
  numbers[#numbers + 1] = tonumber(redis.call("HGET", key, "seq"))
end
return numbers
"""


def test_an_outage_loses_nothing_and_is_logged_once(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, f"{redis_server.url}?deadline=100ms&fallback=allow", workers=2) as gate:
        assert flood(gate, 4) == {200: 4}
        wait_for_calls(redis_server.url, 4, 0)
        redis_server.stop()  # it keeps nothing: the first four are gone
        assert flood(gate, 20) == {200: 20}
        until(lambda: None if GONE in gate.log else "not noticed", 20)
        assert flood(gate, 20) == {200: 20}
        redis_server.start()
        until(lambda: None if BACK in gate.log else "not written again", 30)
        counts = wait_for_calls(redis_server.url, 40, 0)
        assert counts.by_fallback == 40
        assert redis_server.call("EVAL", DEGRADED, 0) == [f"{socket.gethostname()}:{gate.pid}".encode(), 40]
        assert (gate.log.count(GONE), gate.log.count(BACK)) == (1, 1)


def test_a_write_whose_reply_is_late_counts_once(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, f"{redis_server.url}?deadline=100ms&fallback=allow", workers=2) as gate:
        assert flood(gate, 4) == {200: 4}
        wait_for_calls(redis_server.url, 4, 0)
        redis_server.pause()
        try:
            assert flood(gate, 20) == {200: 20}
            until(lambda: None if GONE in gate.log else "not noticed", 20)
        finally:
            redis_server.resume()
        until(lambda: None if BACK in gate.log else "not written again", 30)
        wait_for_calls(redis_server.url, 24, 0)
        time.sleep(2.5)  # two more writes, if there were any
        assert read(redis_server.url)["all"].calls == 24


def test_a_graceful_exit_writes_the_rest(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, redis_server.url, workers=3) as gate:
        assert flood(gate, 20) == {200: 20}
        os.kill(gate.pid, signal.SIGQUIT)
        wait_for_calls(redis_server.url, 20, 0)


def test_a_missing_right_is_logged_once_and_changes_no_decision(redis_server: RedisServer) -> None:
    redis_server.call("ACL", "SETUSER", "default", "-hincrby")
    try:
        with NginxGateway(RULES, redis_server.url, server=METRICS, workers=2) as gate:
            assert flood(gate, 40) == {200: 30, 429: 10}
            until(lambda: None if "counts are not shared" in gate.log else "not noticed", 20)
            assert set(flood(gate, 8)) == {429}
            time.sleep(2.5)
            assert gate.log.count("counts are not shared") == 1
            assert "ACL SETUSER <user> +hget +hset +hincrby" in gate.log
    finally:
        redis_server.call("ACL", "SETUSER", "default", "+hincrby")
