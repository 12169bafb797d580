"""Prometheus metrics of limiters, in the registry of the application.

    from headgate.telemetry.prometheus import PrometheusMetrics

    metrics = PrometheusMetrics()                   # in prometheus_client.REGISTRY
    limiter = Limiter.from_rules("rules.yaml", "redis://localhost:6379/0", observers=[metrics])

It counts by Counts, and moves the counts to Prometheus counters when a second has ended and when it is scraped. So
a decision pays for Counts only. prometheus_client's multiprocess mode works: there a thread of each process moves
the counts every second, because another process may be the one that is scraped. Response times are sampled: about
one decision in SAMPLE_EVERY is timed. Delays are not: every delayed call is in the histogram.

No key ever becomes a label. A label `rule` has the name of a rule, or that of a limiter without rules; "" has
calls that no rule applied to. docs/reference/metrics.md lists every metric.

If the disk of the multiprocess mode's folder is full, the metrics stand still until there is room, and then have
all counts (multiprocess_files.py).
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Iterator, Sequence
from threading import Lock, Thread
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from headgate.algorithms.decision import Decision
from headgate.algorithms.limit import SECOND
from headgate.clock import Clock, check_clock, nanoseconds
from headgate.engines.fork_reset import on_fork
from headgate.errors import InvalidSetting
from headgate.extras import require
from headgate.observer import LimitChange, Observer
from headgate.rules.keys import ALL
from headgate.telemetry.counts import Counts
from headgate.telemetry.decision_counts import DecisionCounts
from headgate.telemetry.metric_names import LAYERS, OUTCOMES, SAMPLE_EVERY
from headgate.telemetry.multiprocess_files import FOLDER_VARIABLE, MAX_BYTES_PER_RULE, reserve

require("headgate.telemetry.prometheus", "prometheus", "prometheus_client")

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric, values  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

LATENCY_BUCKETS_S: Final = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
DELAY_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

ENGINE_TOTALS: Final = {  # what engines measure (engines/port.py), each with its help text
    "breaker_opened_total": "Times that a server was given up after three failures in a row.",
    "lost_refunds_total": "Refunds that never reached the engine.",
    "lost_surcharges_total": "Surcharges that never reached the engine.",
    "prefetched_units_total": "Prefetched units that were handed out.",
    "prefetch_lost_units_total": "Prefetched units that could not be given back.",
}
ENGINE_SAMPLES: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "round_trip_seconds": ("Time from a request to the server's reply; sampled.", LATENCY_BUCKETS_S),
    "batch_requests": ("Requests that shared a round trip; sampled.", (1, 2, 4, 8, 16, 32, 64, 128)),
}
MAX_LIMITS: Final = 1000  # that are reported as gauges
_NS: Final = 1_000_000_000
_log = logging.getLogger("headgate")


class PrometheusMetrics(Observer):
    """Reports the decisions of one or more limiters to Prometheus.

    registry   where the metrics are registered; prometheus_client.REGISTRY unless given
    counts     the Counts to read; its own unless given. A limiter that reports here counts there, too
    clock      reads the time; the machine's unless given

    >>> from prometheus_client import CollectorRegistry
    >>> registry = CollectorRegistry()
    >>> limiter = Limiter("2/minute", name="login", observers=[PrometheusMetrics(registry=registry)])
    >>> [limiter.take("ann").allowed for _ in range(3)]
    [True, True, False]
    >>> list(registry.collect())[0].name
    'headgate_decisions'
    >>> registry.get_sample_value("headgate_decisions_total", {"rule": "login", "outcome": "refused"})
    1.0
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = None,
        counts: Counts | None = None,
        clock: Clock | None = None,
    ) -> None:
        registry = REGISTRY if registry is None else registry
        self.counts: Counts = Counts(clock=clock) if counts is None else counts
        self._now_ns = nanoseconds(check_clock(clock))
        self._lock = Lock()
        self._moved: dict[str, DecisionCounts] = {}
        self._moved_rejections = 0
        # Each limiter that reports here, and the totals of its engine that were moved.
        self._limiters: WeakKeyDictionary[Any, dict[str, float]] = WeakKeyDictionary()
        self._open_since_ns: int | None = None  # when it was last seen that a breaker is open
        self._mover: Thread | None = None  # in multiprocess mode
        self._moves_at_exit = False
        self._folder: str = os.environ.get(FOLDER_VARIABLE, "") if is_multiprocess() else ""
        self._reserved_entries = 0  # rules and limits for whose series there is room
        self._folder_problem: str | None = None
        if error := self._reserve(0):
            raise InvalidSetting(f"Metrics cannot be written to {self._folder}: {error.strerror or error}.")
        on_fork(self._after_fork)
        registry.register(_MoveBeforeScrape(self))
        self._declare(registry)
        self.counts.activity_reports.append(self._note_activity)
        self.counts.delay_reports.append(self._delay.observe)

    def _declare(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"headgate_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str, mode: Any = "mostrecent") -> Gauge:
            return Gauge(f"headgate_{name}", text, labels, registry=registry, multiprocess_mode=mode)

        self._decisions = counter("decisions_total", "Verdicts of rules on calls.", "rule", "outcome")
        self._delayed = counter("delayed_total", "Allowed calls that had to wait.", "rule")
        self._near_limit = counter(
            "near_limit_total", "Allowed calls that left less than a fifth of the limit.", "rule"
        )
        self._decided_by = counter("decided_by_total", "Calls by the layer that decided them.", "rule", "layer")
        self._errors = counter("errors_total", "Calls that could not be decided.")
        self._latency = Histogram(
            "headgate_decision_seconds",
            f"Time that a decision took; one in {SAMPLE_EVERY} is timed.",
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )
        self._delay = Histogram(
            "headgate_delay_seconds", "Delays of allowed calls.", registry=registry, buckets=DELAY_BUCKETS_S
        )
        self._limit = gauge("limit_units", "Units of a limit that is in effect.", "rule", "limit")
        self._window = gauge("limit_window_seconds", "Window of a limit that is in effect.", "rule", "limit")
        self._remaining = gauge(
            "remaining_units", "Units left of a rule that counts all calls together.", "rule", "limit"
        )
        self._adaptive_limit = gauge(
            "adaptive_limit",
            "What an adaptive rule allows now, of all processes together.",
            "rule",
            mode="livesum",
        )
        self._in_flight = gauge(
            "adaptive_in_flight", "Calls in flight under an adaptive rule.", "rule", mode="livesum"
        )
        self._adaptive_changes = counter(
            "adaptive_changes_total", "Changes of adaptive limits, by reason.", "rule", "reason"
        )
        self._version = gauge("rulebook_version", "Number of the published rulebook in effect.", mode="max")
        self._rejected = counter("rulebook_rejected_total", "Changes of the rulebook that were refused.")
        self._breakers_open = gauge("breakers_open", "Servers that do not answer.", mode="livesum")
        self._degraded_seconds = counter("degraded_seconds_total", "Time in which a server did not answer.")
        self._engine_totals = {name: counter(name, text) for name, text in ENGINE_TOTALS.items()}
        self._engine_samples = {
            name: Histogram(f"headgate_{name}", text, registry=registry, buckets=buckets)
            for name, (text, buckets) in ENGINE_SAMPLES.items()
        }

    # The observer: Counts receives every call, this object those that are timed.

    sample: float = 1 / SAMPLE_EVERY
    all_refusals: bool = False

    def receivers(self) -> Sequence[Observer]:
        """Returns the counts, and itself."""
        return self.counts, self

    def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None:
        """Receives a call that was timed."""
        if latency_us is not None:
            self._latency.observe(latency_us / SECOND)

    def _note_activity(self) -> None:
        """Moves the counts when a second has ended; in multiprocess mode a thread does."""
        if not is_multiprocess():
            self.move_counts()
        elif self._mover is None:
            self._start_mover()

    def limit_changed(self, change: LimitChange) -> None:
        """Counts a change of an adaptive limit."""
        self._adaptive_changes.labels(change.name, change.reason).inc()

    def watch(self, limiter: Any) -> None:
        """Reports the rulebook and the engine of a limiter, too."""
        with self._lock:
            self._limiters[limiter] = {}

    def close(self) -> None:
        """Moves the last counts: in multiprocess mode no other process can."""
        self.move_counts()

    def _after_fork(self) -> None:
        """Begins anew in a forked child: the parent's counts are the parent's."""
        self._lock, self._moved, self._mover, self._reserved_entries = Lock(), {}, None, 0
        self._reserve(0)

    def _start_mover(self) -> None:
        """Starts the thread that moves the counts every second, as long as somebody uses this object."""
        self._mover = Thread(target=_move_every_second, args=(ref(self),), name="headgate-metrics", daemon=True)
        if not self._moves_at_exit:
            self._moves_at_exit = True
            atexit.register(_move_last, ref(self))
        try:
            self._mover.start()
        except RuntimeError:  # no more threads: calls move the counts, and the next one tries again
            self._mover = None

    # Moving the counts to the metrics.

    def move_counts(self) -> None:
        """Moves what was counted since the last time to the metrics."""
        with self._lock:
            all_totals, limits = self.counts.totals(), self.counts.limits()[:MAX_LIMITS]
            if not self._has_room(len(all_totals) + len(limits)):
                return
            for rule, totals in all_totals.items():
                self._add(rule, totals, self._moved.get(rule, DecisionCounts()))
                self._moved[rule] = totals
            for rule, limit, remaining in limits:
                if not limit.is_advertised:
                    continue
                self._limit.labels(rule, limit.text).set(limit.quota)
                if limit.window_seconds is not None:
                    self._window.labels(rule, limit.text).set(limit.window_seconds)
                if remaining is not None:
                    self._remaining.labels(rule, limit.text).set(remaining)
            self._report_rulebooks()
            self._report_adaptive_rules()
            self._report_engines()

    def _reserve(self, entries: int) -> OSError | None:
        """Reserves room for the series of so many more rules and limits; returns the error if there is none."""
        try:
            if self._folder:
                reserve(self._folder, entries * MAX_BYTES_PER_RULE)
        except OSError as error:
            return error
        return None

    def _has_room(self, entries: int) -> bool:
        """Returns whether the metrics of so many rules and limits can be written; logs it if not, and when it is
        over."""
        error = self._reserve(max(0, entries - self._reserved_entries))
        if error is None:
            self._reserved_entries = max(entries, self._reserved_entries)
            if self._folder_problem is not None:
                self._folder_problem = None
                _log.warning("headgate: metrics are written to %s again.", self._folder)
        elif self._folder_problem is None:
            self._folder_problem = error.strerror or str(error)
            _log.error(
                "headgate: metrics cannot be written to %s: %s. They stand still until they can be; calls are "
                "decided and counted as before.",
                self._folder,
                self._folder_problem,
            )
        return error is None

    def _add(self, rule: str, totals: DecisionCounts, moved: DecisionCounts) -> None:
        """Adds the difference between two totals of a rule to the counters."""

        def add(counter: Counter, field: str, *labels: str) -> None:
            if difference := getattr(totals, field) - getattr(moved, field):
                (counter.labels(*labels) if labels else counter).inc(difference)

        for outcome in OUTCOMES:
            add(self._decisions, outcome, rule, outcome)
        for layer in LAYERS:
            add(self._decided_by, f"by_{layer}", rule, layer)
        add(self._delayed, "delayed", rule)
        add(self._near_limit, "near_limit", rule)
        add(self._errors, "errors")

    def _report_rulebooks(self) -> None:
        """Reports the published version in effect, and how many changes were refused."""
        watchers = [watcher for limiter in [*self._limiters] if (watcher := getattr(limiter, "watcher", None))]
        refused = sum(watcher.refused_changes for watcher in watchers)
        self._rejected.inc(refused - self._moved_rejections)
        self._moved_rejections = refused
        texts = [watcher.current_text for watcher in watchers]
        versions = [text.version for text in texts if text is not None and text.version is not None]
        if versions:
            self._version.set(max(versions))

    def _report_adaptive_rules(self) -> None:
        """Reports the calls in flight of each adaptive rule, and its limit unless it has one for each key."""
        for limiter in [*self._limiters]:
            adaptive = getattr(limiter, "adaptive", None)
            for name, rule in [] if adaptive is None else [*adaptive.rules.items()]:
                limits = rule.limits()
                self._in_flight.labels(name).set(sum(in_flight for _, in_flight, _ in limits.values()))
                if ALL in limits:
                    self._adaptive_limit.labels(name).set(limits[ALL][0])

    def _report_engines(self) -> None:
        """Reports what the engines measure, those of several limiters together."""
        breakers_open = 0.0
        for limiter, moved in [*self._limiters.items()]:
            for name, value in limiter.engine.measurements():
                if isinstance(value, list):
                    for each in value:
                        self._engine_samples[name].observe(each)
                elif name in self._engine_totals:
                    self._engine_totals[name].inc(max(0, value - moved.get(name, 0)))
                    moved[name] = value
                else:
                    breakers_open += value
        now_ns = self._now_ns()
        if self._open_since_ns is not None:
            self._degraded_seconds.inc(max(0, now_ns - self._open_since_ns) / _NS)
        self._open_since_ns = now_ns if breakers_open else None
        self._breakers_open.set(breakers_open)


def is_multiprocess() -> bool:
    """Returns whether prometheus_client shares its values with other processes, by files.

    >>> is_multiprocess()
    False
    """
    return values.ValueClass is not values.MutexValue


def _move_every_second(metrics: ref[PrometheusMetrics]) -> None:
    while (alive := metrics()) is not None:
        alive.move_counts()
        del alive
        time.sleep(1)


def _move_last(metrics: ref[PrometheusMetrics]) -> None:
    """Moves the counts of the last second: when a process exits, nobody can scrape it any more."""
    if (alive := metrics()) is not None:
        alive.move_counts()


class _MoveBeforeScrape(Collector):
    """A collector without metrics: a scrape collects it first, so that the counts are up to date."""

    def __init__(self, metrics: PrometheusMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        self._metrics.move_counts()
        return iter(())

    def describe(self) -> Iterator[Metric]:
        """Registering it collects nothing."""
        return iter(())
