"""The fallback when Redis is gone or slow: what clients see, how long they wait, what is admitted, what is logged.

A real nginx with the whole gateway, and a Redis of its own. A server that answers and refuses, deadlines, slots,
and servers that change places are in test_fallback_faults.py.
"""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.nginx.engines.outage_harness import (
    AGAIN,
    BACK,
    DEADLINE,
    GONE,
    PLAIN,
    PLENTY,
    OutageLoad,
    await_back,
    ready_gateway,
    rule,
    statuses,
)
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import Proxy, RedisServer
from tests.servers.wait_until import until


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


# How long anybody waits, and what the log says.

FAILURES = 3  # that open the breaker, of all workers together
PROBES = 6  # in two seconds: after 0.1 s, 0.2 s, 0.4 s, and every half second, and the time of each itself


@pytest.mark.parametrize("how", ["killed", "stopped", "silent", "cut"])
def test_under_load_nobody_gets_an_error_and_only_those_under_way_and_probes_wait(
    server: RedisServer, how: str
) -> None:
    clients, workers = 6, 2
    with Proxy(server) as link, ready_gateway(link, rule(limit="1000000/hour"), workers=workers) as gate:
        assert set(statuses(gate, 10)) == {200}
        with OutageLoad(gate, clients) as load:
            time.sleep(0.5)
            gone_at = time.monotonic()
            {"killed": server.kill, "stopped": server.pause, "silent": link.swallow, "cut": link.refuse}[how]()
            if how == "cut":
                link.cut()
            time.sleep(2)
        after = [seen for seen in load.seen if seen.at + seen.seconds > gone_at]
        waited = [seen for seen in after if seen.seconds > DEADLINE * 0.9]
        assert {seen.status for seen in load.seen} == {200}
        assert len(after) > 100
        assert max(seen.seconds for seen in after) < DEADLINE + 0.5
        assert len(waited) <= clients + FAILURES + PROBES
        if how == "stopped":
            assert waited  # it was worth waiting
        assert gate.log.count(GONE) == 1
        assert f"{GONE}. Redis at 127.0.0.1" in gate.log
        assert AGAIN not in gate.log
        assert {"stopped": "no answer within the deadline", "cut": "the connection failed"}.get(
            how, ""
        ) in gate.log


def test_all_workers_say_once_that_redis_is_gone_and_once_that_it_is_back(server: RedisServer) -> None:
    patient = {"deadline": 1, "workers": 2}
    with ready_gateway(server, rule(limit="1000000/hour"), **patient) as gate, OutageLoad(gate, 8):
        time.sleep(0.5)
        for outage in (1, 2):
            server.pause()
            until(lambda n=outage: None if gate.log.count(GONE) == n else "not noticed", 10)  # type: ignore[misc]
            time.sleep(1.5)
            server.resume()
            resumed_at = time.monotonic()
            until(lambda n=outage: None if gate.log.count(AGAIN) == n else "not back", 10)  # type: ignore[misc]
            assert time.monotonic() - resumed_at < BACK + 1  # a probe may have been under way, for a second
            time.sleep(0.3)
            assert gate.log.count(GONE) == gate.log.count(AGAIN) == outage


def test_a_remembered_refusal_is_no_answer_of_redis(server: RedisServer) -> None:
    """A call may probe Redis, but what memory says does not show that it answers."""
    one = rule("one", "1/minute fixed", key="header.one", missing="skip")
    two = rule("two", "9/day fixed", key="header.two", missing="skip")
    with Proxy(server) as link, ready_gateway(link, one, two, options="shed = false") as gate:
        assert statuses(gate, 1, two="b") == [200]
        link.refuse()
        link.cut()
        statuses(gate, 3, two="b")
        assert GONE in gate.log
        link.heal()
        await_back(gate, two="b")
        assert statuses(gate, 2, one="a") == [200, 429]
        refused_at = time.monotonic()
        link.refuse()
        link.cut()
        until(lambda: None if statuses(gate, 1, two="b") and gate.log.count(GONE) == 2 else "not gone", 5)
        for _ in range(3):
            gate.get("/", {"one": "a"})
            if time.monotonic() - refused_at < 0.9:  # else it was not memory that spoke
                assert gate.log.count(AGAIN) == 1
        link.heal()
        await_back(gate, 2, two="b")


def test_a_server_that_comes_back_empty_decides_again_within_two_seconds(server: RedisServer) -> None:
    with ready_gateway(server, rule(limit=PLENTY)) as gate:
        statuses(gate, 3)
        server.kill()
        assert set(statuses(gate, 20)) == {200}
        server.start()
        assert await_back(gate) < BACK
        gate.get("/")
        assert server.call("EXISTS", "hg2:tb:api:{all}") == 1
        assert "calls were decided as their rules say" in gate.log


def test_a_gate_that_starts_without_redis_goes_by_what_it_kept(server: RedisServer, tmp_path: Any) -> None:
    disk_cache = tmp_path / "bundle.json"
    with ready_gateway(server, rule(), options=f'{PLAIN}, keep = "{disk_cache}"') as gate:
        statuses(gate, 1)
        until(lambda: None if disk_cache.exists() else "not kept", 5)
        server.kill()
        gate.restart()
        assert Counter(statuses(gate, 8)) == {200: 5, 429: 3}


# What each word does.


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [("allow", {200: 12}), ("deny", {429: 12}), ("local", {200: 5, 429: 7})],
)
@pytest.mark.parametrize("by", ["rule", "url"])
def test_a_rule_does_what_its_word_says(
    server: RedisServer, fallback: str, expected: dict[int, int], by: str
) -> None:
    rule_fallback = {"fallback": fallback} if by == "rule" else {}
    other = "deny" if fallback == "allow" else "allow"
    with ready_gateway(
        server, rule(**rule_fallback), fallback=other if rule_fallback else fallback, workers=2
    ) as gate:
        assert statuses(gate, 1) == [200]
        server.kill()
        assert Counter(statuses(gate, 12)) == expected
        if fallback == "deny":
            assert gate.get("/").headers["retry-after"] == "1"


def test_rules_of_one_request_keep_their_fallbacks(server: RedisServer) -> None:
    """One that refuses refuses for all, and then no share is charged."""
    rules = [
        rule("shared", "3/day fixed", when={"path": ["/a", "/ab", "/ac", "/abs"]}),
        rule("refused", "100/hour", when={"path": ["/ab"]}, fallback="deny"),
        rule("passed", "100/hour", when={"path": ["/ac"]}, fallback="allow"),
        rule("narrow", "1/day fixed", when={"path": ["/abs"]}),
        rule("aside", "1/day fixed", when={"path": ["/abs"]}, mode="shadow", fallback="deny"),
    ]
    with ready_gateway(server, *rules) as gate:
        assert statuses(gate, 1, "/other") == [200]
        server.kill()
        assert set(statuses(gate, 4, "/ab")) == {429}
        assert statuses(gate, 1, "/abs") == [200]  # the shadow is in nobody's way
        assert set(statuses(gate, 4, "/abs")) == {429}  # refused by the narrow one: nothing is charged
        assert statuses(gate, 2, "/ac") == [200, 200]
        assert set(statuses(gate, 2, "/ac") + statuses(gate, 2, "/a")) == {429}


def test_nothing_is_charged_to_a_share_where_what_counts_here_refuses(server: RedisServer) -> None:
    rules = [
        rule("here", "2/day fixed", where="node"),
        rule("there", "3/day fixed", when={"path": ["/a", "/b"]}, key="path"),
    ]
    with ready_gateway(server, *rules) as gate:
        server_up = gate.get("/none")
        assert server_up.status == 200  # one of the two that count here
        server.kill()
        assert statuses(gate, 3, "/a") == [200, 429, 429]


def test_a_prefetched_share_is_given_back_where_another_rule_refuses(server: RedisServer) -> None:
    rules = [
        rule("prefetched", "3/day fixed", when={"path": ["/l", "/lb"]}, prefetch="100ms"),
        rule("refused", "100/hour", when={"path": "/lb"}, fallback="deny"),
    ]
    with ready_gateway(server, *rules) as gate:
        assert statuses(gate, 1, "/other") == [200]
        server.kill()
        assert set(statuses(gate, 5, "/lb")) == {429}
        assert statuses(gate, 4, "/l") == [200, 200, 200, 429]


def test_the_fallback_is_the_outermost_layer(server: RedisServer) -> None:
    with ready_gateway(server, rule(), options="") as gate:
        assert statuses(gate, 1) == [200]
        server.kill()
        assert Counter(statuses(gate, 12)) == {200: 5, 429: 7}
        server.start()
        assert await_back(gate) < BACK + 0.5


# What is admitted.


def test_the_beginning_and_the_end_of_an_outage_admit_twice_the_limit_at_most(server: RedisServer) -> None:
    limit = 20
    with ready_gateway(server, rule(limit=f"{limit}/day fixed"), workers=2) as gate:
        admitted = [Counter(statuses(gate, 30))[200]]
        for outage in (1, 2):
            server.pause()
            admitted.append(Counter(statuses(gate, 30))[200])
            server.resume()
            await_back(gate, outage)
            admitted.append(Counter(statuses(gate, 30))[200])
        assert admitted == [limit, limit, 0, 0, 0]
        server.kill()
        server.start()  # and has forgotten everything: that is once more
        assert Counter(statuses(gate, 60))[200] == limit


class FallbackStep(NamedTuple):
    what: str
    times: int


@given(
    steps=st.lists(
        st.builds(FallbackStep, st.sampled_from(["ask", "ask", "pause", "resume"]), st.integers(1, 9)),
        min_size=4,
        max_size=12,
    )
)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_redis_and_shares_each_admit_at_most_the_limit_over_outages(
    walked: "FallbackWalker", steps: list[FallbackStep]
) -> None:
    walked.begin()
    for step in steps:
        walked.step(step)
    walked.end()


class FallbackWalker:
    """A gate in front of a Redis that is stopped now and then; each walk has a key of its own."""

    LIMIT = 10
    DEADLINE = 0.05

    def __init__(self, server: RedisServer, gate: NginxGateway) -> None:
        self.server, self.gate = server, gate
        self.key, self.admitted, self.requests, self.lost = 0, 0, 0, 0

    def begin(self) -> None:
        self.key, self.admitted, self.requests, self.lost = self.key + 1, 0, 0, 0

    def step(self, step: FallbackStep) -> None:
        if step.what == "pause" and self.server.awake:
            self.server.pause()
        elif step.what == "resume" and not self.server.awake:
            self.server.resume()
            time.sleep(0.05 * step.times)
        elif step.what == "ask":
            for _ in range(step.times):
                self._send_requests()
        assert self.admitted >= min(self.requests, self.LIMIT) - self.lost
        assert self.admitted <= 2 * self.LIMIT

    def _send_requests(self) -> None:
        began = time.monotonic()
        [status] = statuses(self.gate, 1, user=f"{self.key}")
        assert status in (200, 429)
        self.admitted, self.requests = self.admitted + (status == 200), self.requests + 1
        # A paused Redis charges a request whose reply nobody waited for, and is charged with what the share
        # admitted in its place.
        self.lost += time.monotonic() - began > self.DEADLINE * 0.9

    def end(self) -> None:
        if not self.server.awake:
            self.server.resume()


@pytest.fixture
def walked(server: RedisServer) -> Iterator[FallbackWalker]:
    with ready_gateway(
        server,
        rule(limit=f"{FallbackWalker.LIMIT}/day fixed", key="header.user", missing="deny"),
        deadline=FallbackWalker.DEADLINE,
    ) as gate:
        gate.get("/", {"user": "0"})
        yield FallbackWalker(server, gate)
