"""Changes of adaptive limits in the metrics, in the decision log and in the program's log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headgate import Limiter, ManualClock, Observer
from headgate.cli.text_style import Style
from headgate.cli.top import read_snapshot
from headgate.cli.top_screen import TopView, screen
from headgate.observer import LimitChange
from headgate.rules import load
from headgate.telemetry.counts import Counts
from headgate.telemetry.decision_log import DecisionLog
from headgate.telemetry.prometheus import PrometheusMetrics
from headgate.telemetry.recent_limit_changes import newest
from headgate.telemetry.shared_counts import SharedCounts
from headgate.traffic.suggest_and_replay import replay_logs
from tests.servers import RedisServer

RULES: Any = {
    "rules": [
        {"name": "app", "limit": {"adaptive": "concurrency", "target": "p50 10ms", "between": [1, 20]}},
        {"name": "hosts", "key": "host", "limit": {"adaptive": "concurrency", "target": "p50 10ms"}},
    ]
}


def _slow_calls(observers: list[Observer]) -> Limiter:
    clock = ManualClock()
    limiter = Limiter.from_rules(RULES, clock=clock, observers=observers)
    for _ in range(25):
        with limiter.hold({"host": "example.org"}):
            clock.advance(0.05)
    return limiter  # type: ignore[return-value]


def test_metrics_have_the_limit_the_calls_in_flight_and_the_changes_by_reason() -> None:
    registry = CollectorRegistry()
    limiter: Any = _slow_calls([PrometheusMetrics(registry=registry)])
    decision = limiter.check({"host": "example.org"})

    def value(name: str, **labels: str) -> float | None:
        list(registry.collect())
        return registry.get_sample_value(f"headgate_{name}", labels)

    assert value("adaptive_limit", rule="app") == 16
    assert value("adaptive_limit", rule="hosts") is None, "keys are never labels"
    assert [value("adaptive_in_flight", rule=rule) for rule in ("app", "hosts")] == [1, 1]
    assert value("adaptive_changes_total", rule="app", reason="above the target") == 1
    assert value("limit_units", rule="app", limit=str(decision.limit)) is None
    limiter.finish(decision)
    assert value("adaptive_in_flight", rule="app") == 0


@pytest.mark.parametrize(("salt", "host"), [(None, "host=example.org"), ("pepper and salt", "host=h-")])
def test_the_decision_log_has_a_line_for_each_change(tmp_path: Path, salt: str | None, host: str) -> None:
    path = tmp_path / "decisions.jsonl"
    _slow_calls([DecisionLog(path, salt=salt)]).close()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    changes = [record for record in records if "limit_change" in record]
    assert [record["limit_change"] for record in changes if record["limit_change"]["name"] == "app"] == [
        {"name": "app", "key": "all", "before": 20, "after": 16, "reason": "above the target"}
    ]
    assert [change["limit_change"]["key"].startswith(host) for change in changes] == [False, True]
    assert {(record["allowed"], record["sample"]) for record in changes} == {(None, 1.0)}
    assert sorted(record["seq"] for record in records) == list(range(1, 28))


def test_a_replay_leaves_changes_out(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    _slow_calls([DecisionLog(path)]).close()
    assert replay_logs([str(path)], load.from_mapping(RULES)).calls == 25


def test_the_programs_log_has_a_line_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headgate"):
        _slow_calls([])
    assert caplog.messages[0] == (
        'headgate: the limit of the rule "app" is 16 calls in flight, after 20: above the target.'
    )


def test_top_shows_the_changes_of_all_processes_and_why(redis_server: RedisServer) -> None:
    redis_server.flush()
    observers = [Counts(shared_at=redis_server.url) for _ in range(2)]
    for counts in observers:
        _slow_calls([counts]).close()
    with SharedCounts(redis_server.url) as shared:
        changes = shared.limit_changes()
        masked = screen(read_snapshot(shared, mask=True), TopView(), 80, 24, Style(color=False, blocks=False))
    assert [each.change for each in changes if each.change.name == "app"] == [
        LimitChange("app", "all", 20, 16, "above the target")
    ] * 2
    assert [each.at_us for each in changes] == sorted((each.at_us for each in changes), reverse=True)
    title = next(number for number, line in enumerate(masked) if line.startswith("adaptive limits moved"))
    rows = sorted(line.split(maxsplit=5) for line in masked[title + 1 : title + 5])
    assert [(rule, key, *rest) for rule, key, _, *rest in rows] == [
        ("app", "all", "20", "16", "above the target"),
        ("app", "all", "20", "16", "above the target"),
        ("hosts", "host=ex***", "20", "16", "above the target"),
        ("hosts", "host=ex***", "20", "16", "above the target"),
    ]


def test_changes_are_bounded_and_expire(redis_server: RedisServer) -> None:
    redis_server.flush()
    clock = ManualClock()
    counts = Counts(shared_at=redis_server.url, clock=clock)
    for number in range(1000):
        counts.limit_changed(LimitChange("app", "all", number, number + 1, "below the target"))
    assert counts.flush()
    with SharedCounts(redis_server.url, clock=clock) as shared:
        assert [each.change.after for each in shared.limit_changes(100)] == list(range(1000, 980, -1))
        clock.advance(601)
        assert shared.limit_changes() == []
    keys: Any = redis_server.call("KEYS", "*}:l:*")
    ttls: Any = [redis_server.call("TTL", key) for key in keys]
    assert [0 < ttl <= 1200 for ttl in ttls] == [True]
    counts.close()


def test_text_that_is_no_change_is_left_out() -> None:
    texts = ["", "{", "[]", "null", '[1,"p","n","k",1,2]', '[true,"p","n","k",1,2,"r"]', "7"]
    assert newest([*texts, '[1,"p","n","k",1,2,"r"]'], 10)[0].process == "p"
    assert len(newest([*texts, '[1,"p","n","k",1,2,"r"]'], 10)) == 1
