"""nginx writes a sample of its recent records to Redis, where Python reads them with those of other processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headgate.telemetry import recent_records
from headgate.telemetry.decision_record import Record
from headgate.telemetry.recent_records import RecentRecordsReader
from tests.nginx.gateway_harness import NginxGateway
from tests.nginx.telemetry.counts_harness import flood
from tests.servers import RedisServer
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers

RULES: dict[str, Any] = {
    "rules": [
        {
            "name": "login",
            "when": {"path": "/login"},
            "key": "header.x-user",
            "missing": "deny",
            "limit": "2/hour",
        },
        {"name": "search", "when": {"path": "/search"}, "limit": "100/hour", "candidate": "1/hour"},
    ]
}
GONE, BACK = "recent records cannot be written to Redis", "recent records are written to Redis at"


def wait_for_records(url: str, number: int, **options: Any) -> list[Record]:
    """The records, once there are so many."""
    reader = RecentRecordsReader(url)
    found: list[Record] = []

    def missing() -> str | None:
        found[:] = reader.records(**options)
        return None if len(found) == number else f"Redis has {len(found)} records"

    until(missing, 30)
    reader.close()
    return found


def test_records_of_all_workers_are_read_by_python(redis_server: RedisServer) -> None:
    ann = {"x-user": "ann"}
    with NginxGateway(RULES, redis_server.url, workers=2) as gate:
        assert [gate.get("/login", ann).status for _ in range(4)] == [200, 200, 429, 429]
        assert [gate.get("/search").status for _ in range(3)] == [200] * 3
        assert gate.get("/login").status in (403, 429)  # the dimension of its key is missing
        assert gate.get("/other").status == 200
        records = wait_for_records(redis_server.url, 9)
        assert len(wait_for_records(redis_server.url, 5, refused=True)) == 5
    by_login = [each for each in records if each["rule"] == "login" and each["attributes"].get("header.x-user")]
    assert [each["allowed"] for each in by_login] == [False, False, True, True]
    newest = by_login[0]
    assert newest["attributes"]["header.x-user"] == "ann"
    assert newest["verdicts"][0]["key"] == "header.x-user=ann"
    assert newest["verdicts"][0]["limit"] == "2/hour"
    assert (newest["latency_us"], newest["status"], newest["sample"]) == (None, None, 1)
    assert [each["candidate"][0]["allowed"] for each in records if each["rule"] == "search"] == [
        False,
        False,
        True,
    ]
    assert [each["verdicts"] for each in records if each["rule"] is None] == [[]]


def test_a_worker_takes_no_more_than_redis_keeps(redis_server: RedisServer) -> None:
    with NginxGateway({"rules": [{"name": "all", "limit": "30/hour"}]}, redis_server.url) as gate:
        statuses = flood(gate, 2000)
        assert statuses[429] == 1970
        reader = RecentRecordsReader(redis_server.url)

        def nothing_written() -> str | None:
            return None if reader.records(refused=True) else "Redis has no refusals"

        until(nothing_written, 30)
        seconds: dict[int, int] = {}
        for record in reader.records():
            second = record["at_us"] // 1_000_000
            seconds[second] = seconds.get(second, 0) + 1
        reader.close()
        assert sum(seconds.values()) < 2000
        keys: Any = redis_server.call("KEYS", "hg2:{recent}:*:[rp]")
        lengths: list[Any] = [redis_server.call("LLEN", key) for key in keys]
        assert all(0 < length <= recent_records.MAX_RECORDS_PER_S for length in lengths)
        times_to_live: list[Any] = [redis_server.call("TTL", key) for key in keys]
        assert all(0 < ttl <= recent_records.KEPT_S for ttl in times_to_live)


def test_they_can_be_turned_off(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, redis_server.url, options="recent_records = false") as gate:
        assert gate.get("/other").status == 200
        time.sleep(2.5)  # two writes, if there were any
        assert redis_server.call("KEYS", "hg2:{counts}:writers") != []
        assert redis_server.call("KEYS", "hg2:{recent}:*") == []


def test_an_outage_is_two_lines_and_no_request_notices() -> None:
    with RedisServer() as server, NginxGateway(RULES, server.url, workers=2) as gate:
        assert gate.get("/other").status == 200
        wait_for_records(server.url, 1)
        server.stop()
        lines = {GONE: 0, BACK: 0}

        def log_has(text: str) -> str | None:
            assert gate.get("/other").status == 200
            lines[text] = gate.log.count(text)
            return None if lines[text] else f"the log has no line with {text!r}"

        until(lambda: log_has(GONE), 30)
        server.start()
        until(lambda: log_has(BACK), 30)
        assert gate.get("/other").status == 200
        log_has(GONE)
        assert lines == {GONE: 1, BACK: 1}


def test_the_constants_are_those_of_python() -> None:
    lua = Path("nginx/lib/resty/headgate/telemetry/recent_records.lua").read_text()
    texts = [line.strip()[1:-2] for line in lua.splitlines() if line.startswith("  '") and line.endswith("',")]
    assert "".join(texts).encode() == recent_records._DICTIONARY
    numbers = recent_records.MAX_RECORDS_PER_S, recent_records.MAX_BYTES_PER_S, recent_records.KEPT_S
    assert '= {}, "{}", "{}"'.format(*numbers) in lua
