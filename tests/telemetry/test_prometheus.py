"""Prometheus metrics as stories: what each metric says after which calls; and the files that are shipped."""

import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headgate import AsyncLimiter, Counts, Limiter, ManualClock
from headgate.errors import EngineUnavailable
from headgate.telemetry.metric_names import SAMPLE_EVERY
from headgate.telemetry.prometheus import PrometheusMetrics
from tests.repo_rules.repository import ROOT
from tests.servers.redis_server import free_port
from tests.servers.server_programs import command

BOOK = {
    "rules": [
        {"name": "all", "limit": "4/minute; 100/hour", "candidate": "2/minute"},
        {"name": "user", "key": "user", "missing": "skip", "limit": "1/minute", "mode": "shadow"},
    ]
}


class Scraped:
    """A registry with the metrics of one test, on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.metrics = PrometheusMetrics(registry=self.registry, clock=self.clock)

    def value(self, name: str, **labels: str) -> float | None:
        self.metrics.move_counts()
        return self.registry.get_sample_value(f"headgate_{name}", labels)


@pytest.fixture
def scraped() -> Scraped:
    return Scraped()


def test_verdicts_by_rule(scraped: Scraped) -> None:
    limiter = Limiter.from_rules(BOOK, clock=scraped.clock, observers=[scraped.metrics])
    for _ in range(5):
        limiter.check({"user": "ann"})
    counted = {
        (rule, outcome): scraped.value("decisions_total", rule=rule, outcome=outcome)
        for rule in ("all", "user")
        for outcome in ("allowed", "refused", "candidate_allowed", "candidate_refused", "shadow_allowed")
    }
    assert counted == {
        ("all", "allowed"): 4,
        ("all", "refused"): 1,
        ("all", "candidate_allowed"): 2,
        ("all", "candidate_refused"): 3,
        ("all", "shadow_allowed"): None,
        ("user", "allowed"): None,
        ("user", "refused"): None,
        ("user", "candidate_allowed"): None,
        ("user", "candidate_refused"): None,
        ("user", "shadow_allowed"): 1,
    }
    assert scraped.value("decided_by_total", rule="all", layer="engine") == 5


def test_counters_only_grow_by_what_is_new(scraped: Scraped) -> None:
    limiter = Limiter("2/minute", name="login", clock=scraped.clock, observers=[scraped.metrics])
    assert scraped.value("decisions_total", rule="login", outcome="allowed") is None
    for expected in (1, 2, 2, 2):
        limiter.take("ann")
        assert scraped.value("decisions_total", rule="login", outcome="allowed") == expected
    assert scraped.value("decisions_total", rule="login", outcome="refused") == 2


def test_limits_in_effect_and_what_is_left(scraped: Scraped) -> None:
    limiter = Limiter.from_rules(BOOK, clock=scraped.clock, observers=[scraped.metrics])
    for _ in range(5):
        limiter.check({})
    assert scraped.value("limit_units", rule="all", limit="4/minute") == 4
    assert scraped.value("limit_window_seconds", rule="all", limit="100/hour") == 3600
    assert scraped.value("remaining_units", rule="all", limit="4/minute") == 0
    assert scraped.value("remaining_units", rule="user", limit="1/minute") is None, "keys are never labels"


def test_delays_and_latency(scraped: Scraped) -> None:
    random.seed(5)
    limiter = Limiter("10/s queue 3", name="paced", clock=scraped.clock, observers=[scraped.metrics])
    for _ in range(40 * SAMPLE_EVERY):
        limiter.take("ann")
    assert scraped.value("delayed_total", rule="paced") == 3
    assert scraped.value("delay_seconds_count") == 3
    assert scraped.value("delay_seconds_sum") == pytest.approx(0.1 + 0.2 + 0.3)
    timed = scraped.value("decision_seconds_count")
    assert timed is not None
    assert 20 <= timed <= 70, "one in SAMPLE_EVERY, and not each refusal"


def test_the_delay_of_a_call_is_that_of_its_slowest_rule(scraped: Scraped) -> None:
    book: Any = {
        "rules": [
            {"name": "slow", "limit": "1/s queue 5"},
            {"name": "quick", "key": "user", "missing": "skip", "limit": "10/s queue 5"},
            {"name": "tried", "limit": "1/minute queue 5", "mode": "shadow"},
        ]
    }
    limiter = Limiter.from_rules(book, clock=scraped.clock, observers=[scraped.metrics])
    for _ in range(3):
        limiter.check({"user": "ann"})
    assert scraped.value("delay_seconds_count") == 2
    assert scraped.value("delay_seconds_sum") == pytest.approx(1 + 2)


def test_counts_may_be_given_beside_the_metrics_that_read_them(scraped: Scraped) -> None:
    counts = scraped.metrics.counts
    limiter = Limiter("9/minute", name="login", clock=scraped.clock, observers=[counts, scraped.metrics])
    limiter.take("ann")
    assert scraped.value("decisions_total", rule="login", outcome="allowed") == 1


def test_calls_near_the_limit(scraped: Scraped) -> None:
    limiter = Limiter("10/minute", name="login", clock=scraped.clock, observers=[scraped.metrics])
    for _ in range(10):
        limiter.take("ann")
    assert scraped.value("near_limit_total", rule="login") == 2, "the last two left 1 and 0 of 10"


def test_a_server_that_is_gone(scraped: Scraped) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    with pytest.raises(EngineUnavailable):
        Limiter("1/minute", url, observers=[scraped.metrics]).take("ann")
    assert scraped.value("errors_total") == 1
    limiter = Limiter("1/minute", f"{url}?fallback=allow", name="login", observers=[scraped.metrics])
    assert all(limiter.take("ann").degraded for _ in range(4))
    assert scraped.value("decided_by_total", rule="login", layer="fallback") == 4
    assert scraped.value("breakers_open") == 1
    assert scraped.value("breaker_opened_total") == 1
    scraped.clock.advance(2.5)
    assert scraped.value("degraded_seconds_total") == 2.5


async def test_limiters_of_both_kinds_report_to_one_object(scraped: Scraped) -> None:
    Limiter("9/s", name="mail", clock=scraped.clock, observers=[scraped.metrics]).take("ann")
    await AsyncLimiter("9/s", name="mail", clock=scraped.clock, observers=[scraped.metrics]).take("ann")
    assert scraped.value("decisions_total", rule="mail", outcome="allowed") == 2


def test_rejected_changes_of_the_rulebook(scraped: Scraped, tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(BOOK))
    with Limiter.from_rules(path, observers=[scraped.metrics]) as limiter:
        path.write_text("{")
        assert limiter.watcher is not None
        limiter.watcher.poll()
        assert scraped.value("rulebook_rejected_total") == 1


def test_counts_that_another_observer_has(scraped: Scraped) -> None:
    counts, registry = Counts(clock=scraped.clock), CollectorRegistry()
    metrics = PrometheusMetrics(registry=registry, counts=counts, clock=scraped.clock)
    Limiter("9/s", name="mail", clock=scraped.clock, observers=[metrics]).take("ann")
    generate_latest(registry)
    assert registry.get_sample_value("headgate_decisions_total", {"rule": "mail", "outcome": "allowed"}) == 1
    assert counts.totals()["mail"].allowed == 1


def _declared() -> set[str]:
    """The names of all metrics, with the suffixes that Prometheus stores them under."""
    registry = CollectorRegistry()
    PrometheusMetrics(registry=registry)
    text = generate_latest(registry).decode()
    kinds = dict(re.findall(r"^# TYPE (\w+(?<!_created)) (\w+)$", text, re.M))
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    return {name + suffix for name, kind in kinds.items() for suffix in suffixes.get(kind, ("",))}


@pytest.mark.parametrize("path", ["grafana/headgate.json", "prometheus/headgate-alerts.yaml"])
def test_shipped_files_name_metrics_that_exist(path: str) -> None:
    named = set(re.findall(r"\bheadgate_\w+", (ROOT / "deploy" / path).read_text("utf-8")))
    assert named
    assert named <= _declared()


def test_the_dashboard_shows_every_metric() -> None:
    named = set(re.findall(r"\bheadgate_\w+", (ROOT / "deploy/grafana/headgate.json").read_text("utf-8")))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in _declared()}
    assert shown - families <= {"headgate_lost_refunds_total", "headgate_lost_surcharges_total",
                                "headgate_limit_window_seconds"}  # fmt: skip


def test_promtool_accepts_and_tests_the_alerts() -> None:
    folder = ROOT / "deploy" / "prometheus"
    for words in (("check", "rules", "headgate-alerts.yaml"), ("test", "rules", "headgate-alerts-test.yaml")):
        ran = subprocess.run(
            [command("promtool", "prometheus"), *words], cwd=folder, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_documentation_lists_every_metric() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `(headgate_\w+)` \|", page, re.M))
    assert listed == {re.sub(r"_(bucket|sum|count)$", "", name) for name in _declared()}
