"""Adaptive rules at a real nginx before a slow upstream: the limit follows it, and no call is in flight for ever.

Response times of a busy machine decide nothing here: a target is either far above them or far below.
"""

import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from tests.nginx.adaptive.slow_upstream import SlowUpstream
from tests.nginx.gateway_harness import Book, NginxGateway
from tests.servers.wait_until import until

NEVER_KEPT, ALWAYS_KEPT = "p90 1ms", "p90 10m"
PATIENCE = 60.0


def book(limit: dict[str, Any], **fields: Any) -> Book:
    return {"rules": [{"name": "app", "when": {"path": "/up/**"}, "limit": limit, **fields}]}


def concurrency(low: int, high: int, target: str | None = None) -> dict[str, Any]:
    return {"adaptive": "concurrency", "between": [low, high]} | ({} if target is None else {"target": target})


@pytest.fixture
def upstream() -> Iterator[SlowUpstream]:
    with SlowUpstream(threads=4, work=0.03) as running:
        yield running


def locations(upstream: SlowUpstream) -> str:
    return f"""
location /up {{ proxy_pass http://127.0.0.1:{upstream.port}; proxy_read_timeout 600s; }}
location /up/moved {{ error_page 404 = /up/page; content_by_lua_block {{ ngx.exit(404) }} }}
location /up/file {{ content_by_lua_block {{ ngx.say("no upstream") }} }}
location = /metrics {{
  access_by_lua_block {{ }} content_by_lua_block {{ require("resty.headgate").metrics() }}
}}
"""


def gateway(rules: Book, upstream: SlowUpstream, **settings: Any) -> NginxGateway:
    return NginxGateway(rules, server=locations(upstream), **settings)


def metric(gate: NginxGateway, name: str) -> float:
    """The sum of a metric's values."""
    lines = gate.get("/metrics").body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"headgate_{name}\b", line))


def reaches(gate: NginxGateway, name: str, wanted: float) -> Callable[[], str | None]:
    def missing() -> str | None:
        value = metric(gate, name)
        return None if value == wanted else f"{name} is {value:g}"

    return missing


@contextmanager
def clients(gate: NginxGateway, number: int, target: str = "/up/page") -> Iterator[Counter[int]]:
    """So many clients that send one request after the other; and how often they got which status."""
    statuses: Counter[int] = Counter()
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            with suppress(OSError):
                statuses[gate.get(target).status] += 1

    threads = [threading.Thread(target=send) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def hanging(gate: NginxGateway, upstream: SlowUpstream, number: int, target: str = "/up/hang") -> Iterator[None]:
    """So many requests that are in flight until their clients go away."""
    with ExitStack() as links:
        # One after the other: a call passes uncounted if its worker cannot take the lock within 50 ms.
        for _ in range(number):
            wanted = upstream.hanging + 1
            link = links.enter_context(socket.create_connection(("127.0.0.1", gate.port)))
            link.sendall(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            until(lambda: None if upstream.hanging == wanted else f"{upstream.hanging} requests hang", PATIENCE)  # noqa: B023
        yield


def free(gate: NginxGateway) -> None:
    until(lambda: None if gate.get("/up/status/200").status == 200 else "it is refused", PATIENCE)


def full(gate: NginxGateway) -> None:
    until(lambda: None if gate.get("/up/status/200").status == 503 else "it passes", PATIENCE)


@pytest.mark.parametrize("workers", [1, 2])
def test_in_an_overload_the_limit_shrinks_and_calls_are_refused(upstream: SlowUpstream, workers: int) -> None:
    with gateway(book(concurrency(2, 50, NEVER_KEPT)), upstream, workers=workers) as gate:
        with clients(gate, 12) as statuses:
            until(reaches(gate, "adaptive_limit", 2), PATIENCE)
            until(lambda: None if statuses[503] > 20 else "no call is refused", PATIENCE)
        assert set(statuses) == {200, 503}
        assert metric(gate, "adaptive_changes_total") > 5
        until(reaches(gate, "adaptive_in_flight", 0), PATIENCE)
        assert 'the limit of the rule "app" is 16 calls in flight, after 20: above the target.' in gate.log


def test_a_healthy_service_refuses_nobody(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(1, 50, ALWAYS_KEPT)), upstream) as gate:
        with clients(gate, 6) as statuses:
            until(lambda: None if statuses[200] > 100 else "too few calls", PATIENCE)
        assert set(statuses) == {200}
        assert metric(gate, "adaptive_limit") == 20


def test_a_refusal_is_503_with_retry_after_and_no_promise(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(1, 1)), upstream) as gate, hanging(gate, upstream, 1):
        reply = gate.get("/up/page", headers={"Accept": "application/json"})
        assert reply.status == 503
        assert reply.headers["retry-after"] == "1"
        assert "ratelimit" not in reply.headers
        assert b"temporary-reduced-capacity" in reply.body
        assert gate.lines(1)[0].startswith("503 REJECTED app 0")


def test_errors_of_an_overloaded_upstream_count_as_dropped_and_others_say_nothing(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(1, 50)), upstream) as gate:
        for _ in range(40):
            assert gate.get("/up/status/500").status == 500
        assert metric(gate, "adaptive_changes_total") == 0

        def is_lower() -> str | None:  # a window is complete when it has lasted, too: 40 quick calls may be none
            gate.get("/up/status/503")
            return None if metric(gate, "adaptive_limit") < 20 else "the limit is still 20"

        until(is_lower, PATIENCE)
        assert "after 20: dropped." in gate.log


def test_a_rate_follows_the_upstream_too(upstream: SlowUpstream) -> None:
    limit = {"adaptive": "rate", "target": NEVER_KEPT, "between": [60, 100]}
    with gateway(book(limit), upstream, workers=2) as gate:
        with clients(gate, 6) as statuses:
            until(reaches(gate, "adaptive_limit", 60), PATIENCE)
            until(lambda: None if statuses[200] > 0 else "no call passes", PATIENCE)
        assert "is 72 calls per second, after 100: above the target." in gate.log


def test_calls_of_clients_that_go_away_end(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(2, 2)), upstream, workers=2) as gate:
        with hanging(gate, upstream, 2):
            until(reaches(gate, "adaptive_in_flight", 2), PATIENCE)
            full(gate)
        until(reaches(gate, "adaptive_in_flight", 0), PATIENCE)
        assert gate.get("/up/page").status == 200


@pytest.mark.parametrize("target", ["/up/page", "/up/moved", "/up/file", "/up/status/404"])
def test_however_a_request_ends_its_call_ends(upstream: SlowUpstream, target: str) -> None:
    with gateway(book(concurrency(1, 1)), upstream) as gate:
        for _ in range(5):
            assert gate.get(target).status != 503
        assert metric(gate, "adaptive_in_flight") == 0


def test_calls_of_a_worker_that_is_killed_end(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(3, 3)), upstream, workers=2) as gate, hanging(gate, upstream, 3):
        full(gate)
        for pid in gate.worker_pids:
            os.kill(pid, signal.SIGKILL)
        free(gate)
        until(reaches(gate, "adaptive_in_flight", 0), PATIENCE)


def test_calls_of_workers_that_end_gracefully_stay_in_flight(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(2, 2)), upstream) as gate:
        with hanging(gate, upstream, 2):
            gate.reload()
            full(gate)
            until(reaches(gate, "adaptive_in_flight", 2), PATIENCE)
        until(reaches(gate, "adaptive_in_flight", 0), PATIENCE)


SNAPSHOTS = """
location = /snapshot { access_by_lua_block { } content_by_lua_block {
  for _, key in ipairs(ngx.shared.headgate:get_keys(0)) do
    if key:find("^a:hg") then state_key, state = key, ngx.shared.headgate:get(key) end
  end
} }
location = /restore { access_by_lua_block { } content_by_lua_block { ngx.shared.headgate:set(state_key, state) } }
"""


def test_a_call_whose_end_was_overwritten_does_not_stay_in_flight(upstream: SlowUpstream) -> None:
    with NginxGateway(book(concurrency(1, 1)), server=locations(upstream) + SNAPSHOTS) as gate:
        with hanging(gate, upstream, 1):
            gate.get("/snapshot")
        until(reaches(gate, "adaptive_in_flight", 0), PATIENCE)
        gate.get("/restore")
        until(reaches(gate, "adaptive_in_flight", 0), PATIENCE)
        assert gate.get("/up/page").status == 200


def test_a_changed_rulebook_keeps_what_was_learned_within_its_bounds(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(1, 50)), upstream, workers=2) as gate:
        until(reaches(gate, "adaptive_limit", 20), PATIENCE)
        for rules, wanted in (
            (book(concurrency(1, 8)), 8),
            (book(concurrency(1, 30, ALWAYS_KEPT)), 8),
            (book(concurrency(12, 30, ALWAYS_KEPT)), 12),
            (book({"adaptive": "rate", "target": ALWAYS_KEPT, "between": [10, 500]}), 500),
        ):
            gate.follow(rules)
            until(reaches(gate, "adaptive_limit", wanted), PATIENCE)
            until(lambda: None if gate.get("/up/page").status == 200 else "no", PATIENCE)
        assert "is 8 calls in flight, after 20: changed settings." in gate.log
        until(reaches(gate, "adaptive_in_flight", 0), PATIENCE)


def test_calls_are_near_the_limit_of_the_moment(upstream: SlowUpstream) -> None:
    rules = book(concurrency(1, 1000))
    rate = {"adaptive": "rate", "target": ALWAYS_KEPT, "between": [10, 200]}
    rules["rules"].append({"name": "rate", "when": {"path": "/rate/**"}, "limit": rate})
    with gateway(rules, upstream) as gate, hanging(gate, upstream, 18):
        assert gate.get("/rate/one").status == 200
        assert metric(gate, "near_limit_total") == 2  # 3 and 2 of 20 are left; 19 of the 20 calls that a rate has


def test_a_removed_rule_limits_nothing(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(1, 1)), upstream) as gate, hanging(gate, upstream, 1):
        assert gate.get("/up/page").status == 503
        gate.follow({"rules": [{"name": "other", "limit": "1000/s"}]})
        free(gate)


def test_a_shadow_refuses_nobody_and_counts_whom_it_would_refuse(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(1, 1), mode="shadow"), upstream) as gate:
        with hanging(gate, upstream, 2):
            assert gate.get("/up/page").status == 200
            assert metric(gate, "adaptive_in_flight") == 2
            text = gate.get("/metrics").body.decode()
            assert 'decisions_total{rule="app",outcome="shadow_refused"} 2' in text
        until(reaches(gate, "adaptive_in_flight", 0), PATIENCE)


def test_a_call_that_another_rule_refuses_is_not_in_flight(upstream: SlowUpstream) -> None:
    rules = book(concurrency(9, 9))
    rules["rules"].append({"name": "one", "when": {"path": "/up/**"}, "limit": "1 slots"})
    with gateway(rules, upstream) as gate:
        with hanging(gate, upstream, 1):
            assert gate.get("/up/page").status == 429
            assert metric(gate, "adaptive_in_flight") == 1
        until(reaches(gate, "adaptive_in_flight", 0), PATIENCE)
        assert gate.get("/up/page").status == 200


def test_each_key_has_a_separate_limit(upstream: SlowUpstream) -> None:
    rules = book(concurrency(1, 1), key="argument.host", missing="deny")
    with gateway(rules, upstream) as gate, hanging(gate, upstream, 1, "/up/hang?host=a/hang"):
        assert gate.get("/up/page?host=b").status == 200
        assert gate.get("/up/page?host=a/hang").status == 503


def test_priorities_refuse_the_least_important_calls_first(upstream: SlowUpstream) -> None:
    limit = concurrency(4, 4) | {"priority": {"by": "argument.plan", "order": ["pro", "free"]}}
    with gateway(book(limit), upstream) as gate:
        with clients(gate, 3, "/up/page?plan=pro") as pro, clients(gate, 12, "/up/page?plan=free") as free_plan:
            until(lambda: None if pro.total() > 150 and free_plan.total() > 150 else "too few calls", PATIENCE)
        assert set(pro) | set(free_plan) == {200, 503}
        assert pro[200] / pro.total() > free_plan[200] / free_plan.total()


def test_a_rule_without_upstream_stands_still_and_says_so_once(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(1, 50)), upstream, workers=2) as gate:
        for _ in range(80):
            assert gate.get("/up/file").status == 200
        assert gate.log.count('the rule "app" stands still: 20 requests ended, and none had an upstream') == 1
        assert metric(gate, "adaptive_limit") == 20


def test_without_our_log_phase_nothing_is_limited_and_the_log_says_so(upstream: SlowUpstream) -> None:
    with gateway(book(concurrency(1, 1)), upstream) as gate:
        without = gate.block("server").replace('log_by_lua_block { require("resty.headgate").log() }', "")
        gate.configure(server=without)
        gate.restart()
        assert gate.get("/up/page").status == 200
        free(gate)
        for _ in range(20):
            assert gate.get("/up/page").status == 200
        assert gate.log.count("requests end without our log phase, so adaptive limits do not learn") == 1
