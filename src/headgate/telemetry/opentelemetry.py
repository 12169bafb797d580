"""OpenTelemetry: decisions as attributes of the current span, and as metrics.

    from headgate.telemetry.opentelemetry import OpenTelemetry

    limiter = Limiter.from_rules("rules.yaml", observers=[OpenTelemetry()])

Only the API of OpenTelemetry is used: the application chooses the SDK, and where spans and metrics go. Without an
SDK nothing happens. Names follow the rate limiting metrics of ASP.NET Core where the two agree:

    rate_limiting.requests               counter: calls, by rate_limiting.policy and rate_limiting.result
    rate_limiting.decision.duration      histogram, seconds: one decision in SAMPLE_EVERY
    rate_limiting.request.time_in_queue  histogram, seconds: the delays of allowed calls
    rate_limiting.adaptive.changes       counter: changes of adaptive limits, by rate_limiting.policy and
                                         rate_limiting.reason

rate_limiting.policy is the name of the rule, or of a limiter without rules. rate_limiting.result is one of the
outcomes in docs/reference/metrics.md. No key becomes an attribute of a metric. A span has the decision on its
call, and the key only with `keys=True`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from headgate.algorithms.decision import Decision
from headgate.extras import require
from headgate.observer import LimitChange, Observer
from headgate.telemetry.counts import Counts
from headgate.telemetry.metric_names import OUTCOMES, SAMPLE_EVERY, delay_seconds

require("headgate.telemetry.opentelemetry", "opentelemetry", "opentelemetry")

from opentelemetry import metrics, trace  # noqa: E402

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

POLICY: Final = "rate_limiting.policy"
RESULT: Final = "rate_limiting.result"
REASON: Final = "rate_limiting.reason"


class OpenTelemetry(Observer):
    """Reports the decisions of one or more limiters to OpenTelemetry.

    meter_provider   where the metrics go; the application's global one unless given
    keys             whether spans have the key that was counted; keys may name people

    >>> limiter = Limiter("2/minute", name="login", observers=[OpenTelemetry()])
    >>> limiter.take("ann").allowed
    True
    """

    def __init__(self, *, meter_provider: MeterProvider | None = None, keys: bool = False) -> None:
        self.counts: Counts = Counts()
        self._keys = keys
        self._skipped = 0  # decisions since one was timed
        meter = metrics.get_meter("headgate", meter_provider=meter_provider)
        meter.create_observable_counter(
            "rate_limiting.requests", [self._observe_counts], "{request}", "Verdicts of rules on calls."
        )
        self._duration = meter.create_histogram("rate_limiting.decision.duration", "s", "Time of a decision.")
        self._queued = meter.create_histogram("rate_limiting.request.time_in_queue", "s", "Delays of calls.")
        self._changes = meter.create_counter(
            "rate_limiting.adaptive.changes", "{change}", "Changes of adaptive limits."
        )

    def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None:
        """Counts a decision, and describes it in the current span."""
        self.counts.decided(decision, latency_us, response_follows)
        self._skipped += 1
        if self._skipped >= SAMPLE_EVERY and latency_us is not None:
            self._skipped = 0
            self._duration.record(latency_us / 1e6)
        if delay := delay_seconds(decision):
            self._queued.record(delay)
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attributes(dict(self._span_attributes(decision)))

    def limit_changed(self, change: LimitChange) -> None:
        """Counts a change of an adaptive limit, and describes it in the current span."""
        self._changes.add(1, {POLICY: change.name, REASON: change.reason})
        span = trace.get_current_span()
        if span.is_recording():
            moved = {"rate_limiting.limit.before": change.before, "rate_limiting.limit.after": change.after}
            span.add_event("rate_limiting.limit_changed", {POLICY: change.name, REASON: change.reason, **moved})

    def failed(self, error: Exception, latency_us: int | None) -> None:
        """Counts a call that could not be decided, and says so in the current span."""
        self.counts.failed(error, latency_us)
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attribute(RESULT, "error")

    def _span_attributes(self, decision: Decision) -> Iterator[tuple[str, Any]]:
        """Yields what a span says of the decision."""
        yield RESULT, "allowed" if decision.allowed else "refused"
        if (policy := decision.rule or getattr(decision.source, "name", None)) is not None:
            yield POLICY, policy
        if decision.limit is not None:
            yield "rate_limiting.limit", str(decision.limit)
        if decision.remaining is not None:
            yield "rate_limiting.remaining", decision.remaining
        if not decision.allowed and decision.retry_after is not None:
            yield "rate_limiting.retry_after", decision.retry_after
        if decision.delay:
            yield "rate_limiting.delay", decision.delay
        if decision.degraded:
            yield "rate_limiting.degraded", True
        if self._keys and decision.key:
            yield "rate_limiting.key", decision.key

    def _observe_counts(self, options: CallbackOptions) -> Iterator[Observation]:
        """Yields the totals of every rule and outcome, when the SDK collects them."""
        for rule, counts in self.counts.totals().items():
            for outcome in OUTCOMES:
                if number := getattr(counts, outcome):
                    yield metrics.Observation(number, {POLICY: rule, RESULT: outcome})
