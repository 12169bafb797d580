"""Shared counts: those of all processes are merged in Redis, each once, whatever happens to the connection."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

import headgate
from headgate import AsyncLimiter, CorruptState, Counts, InvalidRule, Limiter, ManualClock
from headgate.engines.redis.counts_store import MAX_RULES
from headgate.telemetry.counts_writer import CountsWriter
from headgate.telemetry.decision_counts import FIELDS
from headgate.telemetry.shared_counts import SharedCounts
from headgate.telemetry.shared_layout import LETTERS
from tests.servers import Cluster, Proxy, RedisServer

RULE = {"name": "login", "key": "user", "missing": "deny", "limit": "3/minute", "candidate": "1/minute"}
NOW_US = 1_700_000_000_000_000


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests write when the clock that they drive says so."""
    monkeypatch.setattr(CountsWriter, "start", lambda writer: None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_US)


class Processes:
    """Several limiters that share their counts, as several processes would."""

    def __init__(self, url: str, clock: ManualClock, number: int, **options: Any) -> None:
        self.clock = clock
        self.counts = [Counts(shared_at=url, clock=clock, **options) for _ in range(number)]
        self.limiters = [
            Limiter.from_rules({"rules": [RULE]}, clock=clock, observers=[counts]) for counts in self.counts
        ]
        self.reader = SharedCounts(url, clock=clock)

    def share(self) -> list[bool]:
        return [counts.flush() for counts in self.counts]

    def close(self) -> None:
        for limiter in self.limiters:
            limiter.close()
        self.reader.close()


@pytest.fixture
def two(server: RedisServer, clock: ManualClock) -> Iterator[Processes]:
    processes = Processes(server.url, clock, 2)
    yield processes
    processes.close()


def test_counts_of_two_processes_are_added(two: Processes) -> None:
    for limiter in two.limiters:
        for _ in range(4):
            limiter.check({"user": "ann"})
    assert two.share() == [True, True]
    two.clock.advance(1)
    two.limiters[0].check({"user": "bob"})
    two.share()
    login = two.reader.last(seconds=60)["login"]
    assert (login.allowed, login.refused, login.candidate_allowed, login.candidate_refused) == (7, 2, 3, 6)
    assert two.reader.last(minutes=60)["login"] == login
    assert [each.calls for each in two.reader.series("login", seconds=3)] == [0, 8, 1]
    assert [each.calls for each in two.reader.series("login", minutes=2)] == [0, 9]
    assert two.reader.rules() == ["login"]
    assert two.reader.last(seconds=60, rules=["other"]) == {}
    assert two.reader.last(seconds=60)["login"].near_limit == sum(
        counts.totals()["login"].near_limit for counts in two.counts
    )


def test_a_span_ends(two: Processes) -> None:
    two.limiters[0].check({"user": "ann"})
    two.share()
    two.clock.advance(119)
    assert two.reader.last(seconds=120)["login"].calls == 1
    two.clock.advance(1)
    assert two.reader.last(seconds=120) == {}
    two.clock.advance(24 * 3600)
    assert two.reader.last(minutes=1500)["login"].calls == 1


def test_hot_keys_distinct_keys_and_the_most_refused_are_merged(two: Processes) -> None:
    for number, limiter in enumerate(two.limiters):
        for _ in range(5 + number):
            limiter.check({"user": "annabel"})
        for user in range(20):
            limiter.check({"user": f"{number} {user}"})
    two.clock.advance(10)  # the slice of hot keys ends
    two.share()
    assert two.reader.hot_keys("login", number=1) == [("user=annabel", 11)]
    assert two.reader.hot_keys("login", "refused") == [("user=annabel", 5)]
    assert two.reader.hot_keys("login", "candidate_refused", mask=True) == [("user=an***", 9)]
    assert two.reader.most_refused("login", "candidate_refused", hours=24) == [("user=annabel", 9)]
    assert two.reader.distinct_keys("login") == 1
    assert two.reader.distinct_keys("login", "tried", hours=2) == 41
    two.clock.advance(80)
    assert two.reader.hot_keys("login") == []
    assert two.reader.most_refused("login", "candidate_refused", hours=24) == [("user=annabel", 9)]


def test_twenty_thousand_distinct_keys_are_estimated_within_three_percent(
    redis_server: RedisServer, clock: ManualClock
) -> None:
    processes = Processes(redis_server.url, clock, 2)
    for start in range(0, 20_000, 5000):
        for number, limiter in enumerate(processes.limiters):
            for user in range(start, start + 5000):
                if user % 2 == number or user % 5 == 0:
                    limiter.check({"user": str(user)})
        clock.advance(1)
        processes.share()
    assert abs(processes.reader.distinct_keys("login", "tried") - 20_000) <= 600
    processes.close()


def test_one_request_per_process_and_second(redis_server: RedisServer, clock: ManualClock) -> None:
    processes = Processes(redis_server.url, clock, 1)
    processes.limiters[0].check({"user": "ann"})
    processes.share()  # loads the script
    before = evaluations(redis_server)
    for second in range(5):
        for user in range(100):
            processes.limiters[0].check({"user": f"{second} {user}"})
        clock.advance(1)
        processes.share()
    processes.share()  # nothing new: nothing is sent
    assert evaluations(redis_server) - before == 5
    processes.close()


def evaluations(server: RedisServer) -> int:
    match = re.search(r"calls=(\d+)", server.info("commandstats").get("cmdstat_evalsha", "calls=0"))
    assert match is not None
    return int(match[1])


def test_every_key_expires_and_lies_in_one_slot(two: Processes, server: RedisServer) -> None:
    for _ in range(4):
        two.limiters[0].check({"user": "ann"})
    two.clock.advance(10)
    two.share()
    found = server.call("KEYS", "*")
    assert isinstance(found, list)
    assert len(found) >= 10
    for key in found:
        assert isinstance(key, bytes)
        assert key.startswith(b"hg2:{counts}:")
        ttl = server.call("TTL", key)
        assert isinstance(ttl, int)
        assert 0 < ttl <= 26 * 3600


def test_the_stored_layout(redis_server: RedisServer, clock: ManualClock) -> None:
    processes = Processes(redis_server.url, clock, 1)
    for _ in range(4):
        processes.limiters[0].check({"user": "ann"})
    clock.advance(10)
    processes.share()
    second = NOW_US // 1_000_000

    def stored(*command: str) -> list[str]:
        reply = redis_server.call(*command)
        assert isinstance(reply, list)
        return [each.decode() for each in reply if isinstance(each, bytes)]

    fields = stored("HGETALL", f"hg2:{{counts}}:s:{second // 10}:login")
    pairs = zip(fields[::2], fields[1::2], strict=True)
    assert dict(pairs) == {"0a": "3", "0r": "1", "0n": "1", "0c": "1", "0C": "3"}
    assert stored("HGETALL", f"hg2:{{counts}}:m:{second // 600}:login")[0][0] == str(second // 60 % 10)
    assert stored("ZRANGE", f"hg2:{{counts}}:h:{second // 10}:k:login", "0", "-1", "WITHSCORES") == [
        "user=ann",
        "4",
    ]
    assert stored("ZRANGE", f"hg2:{{counts}}:r:{second // 3600}:C:login", "0", "-1", "WITHSCORES") == [
        "user=ann",
        "3",
    ]
    assert redis_server.call("PFCOUNT", f"hg2:{{counts}}:d:{second // 3600}:t:login") == 1
    assert stored("ZRANGE", "hg2:{counts}:rules", "0", "-1") == ["login"]
    [writer] = stored("ZRANGE", "hg2:{counts}:writers", "0", "-1")
    name, number = stored("HMGET", f"hg2:{{counts}}:w:{writer}", "name", "seq")
    assert (name.endswith(f":{os.getpid()} {headgate.__version__}"), number) == (True, "1")
    processes.close()


def test_a_gateway_can_write_the_layout_by_plain_commands(redis_server: RedisServer, clock: ManualClock) -> None:
    second = NOW_US // 1_000_000
    redis_server.call("HINCRBY", f"hg2:{{counts}}:s:{second // 10}:login", f"{second % 10}a", 5)
    redis_server.call(
        "HINCRBY", f"hg2:{{counts}}:s:{second // 10}:login", f"{second % 10}?", 5
    )  # a newer version's
    redis_server.call("ZADD", "hg2:{counts}:rules", second, "login")
    with SharedCounts(redis_server.url, clock=clock) as reader:
        assert reader.last(seconds=1)["login"].as_dict()["calls"] == 5


def test_letters_are_distinct() -> None:
    assert len({*LETTERS.values()}) == len(FIELDS)


def test_an_outage_delays_no_call_and_loses_no_count(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        processes = Processes(server.url, clock, 1)
        processes.limiters[0].check({"user": "ann"})
        assert processes.share() == [True]
        server.stop()
        with caplog.at_level(logging.WARNING, "headgate"):
            for user in range(30):
                processes.limiters[0].check({"user": str(user)})
                clock.advance(1)
                assert processes.share() == [False]
            assert len(caplog.messages) == 1
            server_text = f"Redis at 127.0.0.1:{server.port}"
            assert caplog.messages[0].startswith(f"headgate: counts cannot be written to {server_text} (the conn")
            assert caplog.messages[0].count(server_text) == 1
            server.start()
            assert processes.share() == [True]  # the write that failed
            assert processes.share() == [True]  # all others, at once
            assert len(caplog.messages) == 2
            assert "again, after 29.0 s" in caplog.messages[1]
        assert processes.reader.last(seconds=120)["login"].calls == 30  # ann's were lost with the server
        assert [each.calls for each in processes.reader.series("login", seconds=31)] == [1] * 30 + [0]
        assert processes.reader.distinct_keys("login", "tried") == 30
        processes.close()


def test_a_write_whose_reply_was_lost_counts_once(redis_server: RedisServer, clock: ManualClock) -> None:
    with Proxy(redis_server) as proxy:
        processes = Processes(f"{proxy.url}?deadline=1s", clock, 1)
        processes.limiters[0].check({"user": "ann"})
        assert processes.share() == [True]
        proxy.swallow("replies")
        processes.limiters[0].check({"user": "ann"})
        assert processes.share() == [False]  # it was done, and nobody knows
        proxy.heal()
        assert processes.share() == [True]
        with SharedCounts(redis_server.url, clock=clock) as reader:
            assert reader.last(seconds=60)["login"].calls == 2
        processes.close()


def test_closing_writes_the_rest(redis_server: RedisServer, clock: ManualClock) -> None:
    counts = Counts(shared_at=redis_server.url, clock=clock)
    with Limiter("5/s", name="api", observers=[counts]) as limiter:
        limiter.take("ann")
    counts.close()  # again: nothing happens
    with SharedCounts(redis_server.url, clock=clock) as reader:
        assert reader.last(seconds=60)["api"].allowed == 1
        [writer] = reader.writers()
        assert (writer.name.endswith(f":{os.getpid()}"), writer.age_s) == (True, 0)
        assert writer.version == headgate.__version__


async def test_an_async_limiter_shares_its_counts(redis_server: RedisServer, clock: ManualClock) -> None:
    counts = Counts(shared_at=redis_server.url, clock=clock)
    async with AsyncLimiter("5/s", name="api", observers=[counts]) as limiter:
        await limiter.take("ann")
    with SharedCounts(redis_server.url, clock=clock) as reader:
        assert reader.last(seconds=60)["api"].allowed == 1


def test_a_cluster_has_the_counts_too(cluster: Cluster, clock: ManualClock) -> None:
    processes = Processes(cluster.url, clock, 2)
    for limiter in processes.limiters:
        limiter.check({"user": "ann"})
    assert processes.share() == [True, True]
    assert processes.reader.last(seconds=60)["login"].calls == 2
    assert processes.reader.distinct_keys("login", "tried", hours=3) == 1
    processes.close()


def test_prefixes_are_apart(redis_server: RedisServer, clock: ManualClock) -> None:
    counts = Counts(shared_at=redis_server.url, prefix="shop", clock=clock)
    Limiter("5/s", name="api", observers=[counts]).take("ann")
    counts.close()
    with SharedCounts(redis_server.url, clock=clock) as reader:
        assert reader.rules() == []
    with SharedCounts(redis_server.url, prefix="shop", clock=clock) as reader:
        assert reader.rules() == ["api"]


def test_too_many_rules_are_left_out_and_reported(
    redis_server: RedisServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MAX_RULES):
        redis_server.call("ZADD", "hg2:{counts}:rules", NOW_US // 1_000_000, f"rule {number}")
    counts = Counts(shared_at=redis_server.url, clock=clock)
    Limiter("5/s", name="one more", observers=[counts]).take("ann")
    Limiter("5/s", name="rule 7", observers=[counts]).take("ann")
    counts.close()
    assert "1 rules are not shared" in caplog.text
    with SharedCounts(redis_server.url, clock=clock) as reader:
        assert set(reader.last(seconds=60)) == {"rule 7"}


def test_a_foreign_value_is_reported_once_and_left_alone(
    redis_server: RedisServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.call("SET", "hg2:{counts}:rules", "mine")
    counts = Counts(shared_at=redis_server.url, clock=clock)
    limiter = Limiter("5/s", name="api", observers=[counts])
    for _ in range(2):
        limiter.take("ann")
        assert not counts.flush()
    assert caplog.text.count("counts are not shared") == 1
    assert redis_server.call("GET", "hg2:{counts}:rules") == b"mine"
    with SharedCounts(redis_server.url, clock=clock) as reader, pytest.raises(CorruptState):
        reader.rules()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_shares_its_counts(redis_server: RedisServer, clock: ManualClock) -> None:
    counts = Counts(shared_at=redis_server.url, clock=clock)
    limiter = Limiter("5/s", name="api", observers=[counts])
    limiter.take("ann")
    child = os.fork()
    if child == 0:
        limiter.take("ann")
        os._exit(not counts.flush())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    counts.close()
    with SharedCounts(redis_server.url, clock=clock) as reader:
        assert reader.last(seconds=60)["api"].allowed == 2
        assert len(reader.writers()) == 2


def test_memory_is_no_place_to_share() -> None:
    with pytest.raises(InvalidRule, match="memory://"):
        Counts(shared_at="memory://")


def test_the_processes_whose_fallback_decided(server: RedisServer, clock: ManualClock) -> None:
    with RedisServer() as gone:
        url = f"{gone.url}?fallback=allow&deadline=30s"
        counts = Counts(shared_at=server.url, clock=clock)
        limiter = Limiter("3/minute", url, name="login", observers=[counts])
    with limiter, SharedCounts(server.url, clock=clock) as reader:
        assert reader.degraded_writers() == []
        for _ in range(5):
            assert limiter.take("ann").degraded
        assert counts.flush()
        [writer] = reader.degraded_writers()
        assert (writer.key, writer.calls) == (reader.writers()[0].name, 5)
        clock.advance(25)
        assert reader.degraded_writers() == []
        assert reader.degraded_writers(60) == [writer]
