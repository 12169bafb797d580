"""A bounded sample of the recent records of all processes is in Redis, refusals first."""

from __future__ import annotations

import logging
import os
import random
from typing import Any

import pytest

from headgate import Limiter
from headgate.engines.url import open_recent_records_store
from headgate.telemetry import recent_records, record_queue
from headgate.telemetry.recent_records import (
    KEPT_S,
    MAX_BYTES,
    MAX_RECORDS_PER_S,
    RecentRecords,
    RecentRecordsReader,
    pack_record,
    unpack_record,
)
from tests.servers import RedisServer

RULES: dict[str, Any] = {
    "rules": [
        {"name": "api", "key": "user", "missing": "deny", "limit": "5/minute", "candidate": "3/minute"},
        {"name": "path", "when": {"path": "/x"}, "limit": "1000/s"},
    ]
}


def test_records_of_several_processes_are_read_newest_first(redis_server: RedisServer) -> None:
    for user in ("ann", "bob"):
        pid = os.fork()
        if pid == 0:
            with Limiter.from_rules(
                RULES, redis_server.url, observers=[RecentRecords(redis_server.url)]
            ) as limiter:
                for _ in range(7):
                    limiter.check({"user": user, "path": "/x" if user == "bob" else "/"})
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    reader = RecentRecordsReader(redis_server.url)
    records = reader.records()
    assert len(records) == 14
    assert [each["at_us"] for each in records] == sorted((each["at_us"] for each in records), reverse=True)
    assert {each["attributes"]["user"] for each in records} == {"ann", "bob"}
    assert len(reader.records(rule="path")) == 7
    assert len(reader.records(refused=True)) == 8  # 2 of each by the rule, 2 of each by its candidate alone
    assert {each["allowed"] for each in reader.records(refused=False)} == {True}
    assert reader.records(limit=3) == records[:3]
    assert len({each["process"] for each in records}) == 2
    reader.close()


def test_it_is_bounded_and_refusals_come_first(redis_server: RedisServer) -> None:
    recent = RecentRecords(redis_server.url)
    limiter = Limiter.from_rules(RULES, observers=[recent])
    for number in range(1500):
        limiter.check({"user": f"user-{number}"})  # all pass
    recent.close()
    other = RecentRecords(redis_server.url, clock=None)
    second = Limiter.from_rules(RULES, observers=[other])
    for _ in range(300):
        second.check({"user": "ann"})
    other.close()
    reader = RecentRecordsReader(redis_server.url)
    store = reader._store
    keys: Any = redis_server.call("KEYS", "hg2:{recent}:*")
    times_to_live: list[Any] = [redis_server.call("TTL", key) for key in keys]
    assert times_to_live
    assert all(0 < ttl <= KEPT_S for ttl in times_to_live)
    seconds = {int(each["at_us"]) // 1_000_000 for each in reader.records()}
    for each in range(min(seconds) - 2, max(seconds) + 3):
        assert len(store.read([each], ["r", "p"])) <= MAX_RECORDS_PER_S
    assert len(reader.records(refused=True)) >= 150
    assert recent.written <= MAX_RECORDS_PER_S
    for each_closed in (limiter, second, reader):
        each_closed.close()


def test_refusals_take_the_room_of_calls_that_passed(redis_server: RedisServer) -> None:
    store = open_recent_records_store(redis_server.url)

    def write(refusals: int, passes: int, size: int = 10) -> int:
        records = [b"r" * size] * refusals, [b"p" * size] * passes
        return store.send(store.packed_write(7, *records, max_records=10, max_bytes=400, ttl_s=60))

    assert write(2, 20) == 10
    assert (len(store.read([7], "r")), len(store.read([7], "p"))) == (2, 8)
    assert write(5, 5) == 5
    assert (len(store.read([7], "r")), len(store.read([7], "p"))) == (7, 3)
    assert write(1, 0, 200) == 1  # its bytes are those of several
    assert (len(store.read([7], "r")), len(store.read([7], "p"))) == (8, 0)
    assert write(9, 9, 300) == 0
    assert write(9, 9) == 0
    store.close()


def test_the_fullest_sample_fits_its_memory() -> None:
    """KEPT_S full seconds, as Redis itself measures them."""
    chance = random.Random(7)
    with RedisServer("redis") as server:
        store = open_recent_records_store(server.url)
        before = int(server.info("memory")["used_memory"])
        records = [
            pack_record({**RECORD, "at_us": chance.randrange(10**15), "seq": chance.randrange(10**6)})
            for _ in range(MAX_RECORDS_PER_S)
        ]
        for second in range(0, KEPT_S, 10):
            store.send(
                store.packed_write(second, records, [], MAX_RECORDS_PER_S, recent_records.MAX_BYTES_PER_S, KEPT_S)
            )
        used = int(server.info("memory")["used_memory"]) - before
        assert len(store.read([0], "r")) == MAX_RECORDS_PER_S  # so the bytes were not what bounded it
        store.close()
    assert used * 10 < MAX_BYTES


RECORD = {
    "at_us": 1794998057279488,
    "seq": 17,
    "process": "web-1:23942",
    "attributes": {"address": "192.0.2.1", "user": "ann", "path": "/api/items/7"},
    "cost": None,
    "allowed": False,
    "rule": "login",
    "version": 12,
    "sample": 1,
    "latency_us": 73,
    "status": None,
    "verdicts": [
        {
            "rule": "login",
            "key": "address=192.0.2.1",
            "limit": "2/s burst 3",
            "cost": 1,
            "allowed": False,
            "remaining": 0,
            "retry_after_us": 495731,
            "delay_us": 0,
        }
    ],
    "shadow": [],
    "candidate": [],
}


def test_a_record_is_packed_and_unpacked() -> None:
    packed = pack_record(RECORD)
    assert unpack_record(packed) == RECORD
    assert len(packed) < 150
    assert unpack_record(b"\x02" + packed[1:]) is None  # of a later version


def test_redis_that_is_gone_costs_no_call_anything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with RedisServer("redis") as server:
        recent = RecentRecords(f"{server.url}?deadline=10s")
        limiter = Limiter.from_rules(RULES, observers=[recent])
        server.stop()
        with caplog.at_level(logging.WARNING, "headgate"):
            for _ in range(3):
                assert limiter.check({"user": "ann"}).allowed
                recent.close()
            server.start()
            limiter.check({"user": "ann"})
            recent.close()
        assert (recent.written, recent.dropped) == (1, 3)
        gone, back = [record.getMessage() for record in caplog.records]
        assert gone.startswith(f"headgate: recent records cannot be written to Redis at 127.0.0.1:{server.port} (")
        assert back.endswith("3 were dropped.")
        limiter.close()


def test_at_most_one_write_a_second(redis_server: RedisServer) -> None:
    recent = RecentRecords(redis_server.url)
    limiter = Limiter.from_rules(RULES, observers=[recent])
    assert recent._queue._delay_s == 1.0
    assert record_queue.BATCH_DELAY_S < 1.0
    for number in range(1000):
        limiter.check({"user": f"user-{number}"})
    assert recent.written == 0  # the second is not over
    limiter.close()
    assert recent.written == MAX_RECORDS_PER_S
