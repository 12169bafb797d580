"""Keys that nginx decided are among the hot, most refused and distinct keys of all processes, in Redis."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from headgate import Counts, Limiter
from headgate.cli import main
from headgate.telemetry.shared_counts import SharedCounts
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers

RULES: dict[str, Any] = {
    "rules": [
        {
            "name": "users",
            "key": "header.x-user",
            "missing": "skip",
            "limit": "5/hour fixed",
            "candidate": "2/hour fixed",
        },
        {"name": "trial", "key": "header.x-user", "missing": "skip", "limit": "3/hour fixed", "mode": "shadow"},
    ]
}


def call(gate: NginxGateway, calls: dict[str, int]) -> None:
    for user, number in calls.items():
        for _ in range(number):
            gate.get("/", {"X-User": user})


def wait_for_refused(counts: SharedCounts, kind: str, expected: list[tuple[str, int]]) -> None:
    """Waits until these keys of the rule were refused so often: hot keys come when their ten seconds are over."""

    def missing() -> str | None:
        refused = counts.most_refused("users", kind, hours=2)
        return None if refused == expected else f"{kind}: {refused}, not {expected}"

    until(missing, 40)


def test_keys_of_nginx_and_of_python_are_merged(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "x" * 150
    with (
        NginxGateway(RULES, redis_server.url, workers=2) as gate,
        SharedCounts(redis_server.url) as counts,
    ):
        call(gate, {"ann": 12, "bob": 7, "cy": 3, long: 6})
        python_counts = Counts(shared_at=redis_server.url)
        with Limiter.from_rules(RULES, redis_server.url, observers=[python_counts]) as limiter:
            for user in ("bob", "bob", "bob", long):
                limiter.check({"header.x-user": user})
            python_counts.close()
        expected = [("header.x-user=ann", 7), ("header.x-user=bob", 5)]
        hot: list[tuple[str, int]] = []

        def missing() -> str | None:
            hot[:] = [(key, calls) for key, calls in counts.most_refused("users", hours=2)]
            return None if hot[:2] == expected and len(hot) == 3 else f"{hot}"

        until(missing, 40)
        shortened, refused = hot[2]
        assert refused == 2
        assert shortened.startswith("header.x-user=xxx")
        assert len(shortened) == 64
        wait_for_refused(
            counts,
            "candidate_refused",
            [("header.x-user=ann", 10), ("header.x-user=bob", 8), (shortened, 5), ("header.x-user=cy", 1)],
        )
        kinds = ("refused", "candidate_refused", "tried")
        assert [counts.distinct_keys("users", kind, hours=2) for kind in kinds] == [3, 4, 4]
        assert counts.distinct_keys("trial", "shadow_refused", hours=2) == 3
        assert counts.distinct_keys("trial", "tried", hours=2) == 4
        assert main(["rules", "report", "users", "--engine", redis_server.url]) == 3  # not enough data
        report = capsys.readouterr().out
        assert "header.x-user=ann" in report
        assert "header.x-user=cy" in report


def test_hot_keys_of_the_last_minute_come_from_all_workers(redis_server: RedisServer) -> None:
    with (
        NginxGateway(RULES, redis_server.url, workers=3) as gate,
        SharedCounts(redis_server.url) as counts,
    ):
        call(gate, {"ann": 20, "bob": 9})
        expected = [("header.x-user=ann", 20), ("header.x-user=bob", 9)]

        def missing() -> str | None:
            hot = counts.hot_keys("users")
            return None if hot == expected else f"{hot}"

        until(missing, 40)
        assert counts.hot_keys("users", "refused") == [("header.x-user=ann", 15), ("header.x-user=bob", 4)]


def test_a_graceful_exit_shares_the_keys_of_the_slice_that_has_not_ended(redis_server: RedisServer) -> None:
    with (
        NginxGateway(RULES, redis_server.url, workers=3) as gate,
        SharedCounts(redis_server.url) as counts,
    ):
        call(gate, {"ann": 8})
        os.kill(gate.pid, signal.SIGQUIT)
        wait_for_refused(counts, "refused", [("header.x-user=ann", 3)])


def test_keys_wait_while_redis_is_gone(redis_server: RedisServer) -> None:
    with NginxGateway(RULES, f"{redis_server.url}?deadline=100ms&fallback=deny", workers=2) as gate:
        call(gate, {"ann": 1})
        redis_server.stop()  # it keeps nothing
        call(gate, {"ann": 6, "bob": 3})
        until(lambda: None if "counts cannot be written to Redis" in gate.log else "not noticed", 20)
        redis_server.start()
        with SharedCounts(redis_server.url) as counts:
            wait_for_refused(counts, "refused", [("header.x-user=ann", 6), ("header.x-user=bob", 3)])
            assert counts.distinct_keys("users", hours=2) == 2
