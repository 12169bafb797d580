"""OpenTelemetry with its real SDK: what spans and metrics say of decisions."""

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate import Limiter, ManualClock
from headgate.errors import EngineUnavailable
from headgate.telemetry.opentelemetry import OpenTelemetry
from tests.servers.redis_server import free_port

BOOK = {
    "rules": [{"name": "login", "key": "user", "missing": "skip", "limit": "2/minute", "candidate": "1/minute"}]
}


class Collected:
    """Spans and metrics of one test."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.meter_provider = MeterProvider([self._reader])

    @property
    def spans(self) -> list[dict[str, Any]]:
        return [dict(span.attributes or {}) for span in self._exporter.get_finished_spans()]

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        spans = self._exporter.get_finished_spans()
        return [(event.name, dict(event.attributes or {})) for span in spans for event in span.events]

    def metric(self, name: str) -> dict[tuple[Any, ...], Any]:
        data: Any = self._reader.get_metrics_data()
        points = [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return {tuple(point.attributes.values()): getattr(point, "value", None) or point.count for point in points}


@pytest.fixture
def collected() -> Collected:
    return Collected()


def test_a_span_has_the_decision_on_its_call(collected: Collected) -> None:
    limiter = Limiter.from_rules(BOOK, clock=ManualClock(), observers=[OpenTelemetry()])
    for _ in range(3):
        with collected.tracer.start_as_current_span("request"):
            limiter.check({"user": "ann"})
    common = {"rate_limiting.policy": "login", "rate_limiting.limit": "2/minute"}
    assert collected.spans == [
        {"rate_limiting.result": "allowed", **common, "rate_limiting.remaining": 1},
        {"rate_limiting.result": "allowed", **common, "rate_limiting.remaining": 0},
        {
            "rate_limiting.result": "refused",
            **common,
            "rate_limiting.remaining": 0,
            "rate_limiting.retry_after": 30.0,
        },
    ]


def test_keys_only_where_they_are_wanted(collected: Collected) -> None:
    for keys in (False, True):
        limiter = Limiter("2/minute", name="login", observers=[OpenTelemetry(keys=keys)])
        with collected.tracer.start_as_current_span("request"):
            limiter.take("ann")
    assert [span.get("rate_limiting.key") for span in collected.spans] == [None, "ann"]
    assert {span["rate_limiting.policy"] for span in collected.spans} == {"login"}


def test_calls_by_policy_and_result(collected: Collected) -> None:
    observer = OpenTelemetry(meter_provider=collected.meter_provider)
    limiter = Limiter.from_rules(BOOK, clock=ManualClock(), observers=[observer])
    for _ in range(3):
        limiter.check({"user": "ann"})
    assert collected.metric("rate_limiting.requests") == {
        ("login", "allowed"): 2,
        ("login", "refused"): 1,
        ("login", "candidate_allowed"): 1,
        ("login", "candidate_refused"): 2,
    }


def test_time_in_the_queue(collected: Collected) -> None:
    observer = OpenTelemetry(meter_provider=collected.meter_provider)
    limiter = Limiter("10/s queue 3", clock=ManualClock(), observers=[observer])
    for _ in range(16):
        limiter.take("ann")
    assert collected.metric("rate_limiting.request.time_in_queue") == {(): 3}
    assert collected.metric("rate_limiting.decision.duration") == {(): 1}


def test_a_call_that_could_not_be_decided(collected: Collected) -> None:
    limiter = Limiter("1/minute", f"redis://127.0.0.1:{free_port()}/0", observers=[OpenTelemetry()])
    with collected.tracer.start_as_current_span("request"), pytest.raises(EngineUnavailable):
        limiter.take("ann")
    assert collected.spans[0]["rate_limiting.result"] == "error"


def test_nothing_happens_without_an_sdk() -> None:
    limiter = Limiter("1/minute", observers=[OpenTelemetry()])
    assert limiter.take("ann")


def test_changes_of_adaptive_limits(collected: Collected) -> None:
    clock = ManualClock()
    limit = {"adaptive": "concurrency", "target": "p50 10ms", "between": [1, 20]}
    observer = OpenTelemetry(meter_provider=collected.meter_provider)
    book = {"rules": [{"name": "app", "limit": limit}]}
    limiter: Any = Limiter.from_rules(book, clock=clock, observers=[observer])
    for _ in range(25):
        with collected.tracer.start_as_current_span("call"), limiter.hold({}):
            clock.advance(0.05)
    assert collected.metric("rate_limiting.adaptive.changes") == {("app", "above the target"): 1}
    [event] = collected.events
    assert event == (
        "rate_limiting.limit_changed",
        {
            "rate_limiting.policy": "app",
            "rate_limiting.reason": "above the target",
            "rate_limiting.limit.before": 20,
            "rate_limiting.limit.after": 16,
        },
    )
