"""Changes of adaptive limits in the metrics, in the decision log and in the program's log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headgate import Limiter, ManualClock, Observer
from headgate.rules import load
from headgate.telemetry.decision_log import DecisionLog
from headgate.telemetry.prometheus import PrometheusMetrics
from headgate.traffic.suggest_and_replay import replay_logs

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
