"""The observer port: limiters report every decision to those who count, log or measure.

An observer is called after the decision, so it cannot change it. It must not block. An error of an observer is
logged once and goes no further. A limiter without observers does not even look for them.

    limiter = Limiter.from_rules("rules.yaml", observers=[Counts(), DecisionLog("decisions.jsonl")])
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from random import random
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple

from headgate.algorithms.decision import Decision
from headgate.errors import CorruptState, EngineUnavailable, InvalidRule

_log = logging.getLogger("headgate")


class LimitChange(NamedTuple):
    """A limit that an adaptive algorithm has moved: of which limiter or rule, of which key, and why.

    >>> changes = []
    >>> class Changes(Observer):
    ...     def limit_changed(self, change: LimitChange) -> None:
    ...         changes.append(change)
    >>> limiter = AdaptiveLimiter(observers=[Changes()])
    >>> limiter.change(AdaptiveConcurrency(initial=8, ceiling=10))
    >>> changes
    [LimitChange(name='adaptive', key='', before=20, after=8, reason='start')]
    """

    name: str
    key: str
    before: int
    after: int
    reason: str


class Observer:
    """Receives the decisions of limiters. Override the methods that you need; each may run in any thread.

    >>> class Refusals(Observer):
    ...     count = 0
    ...     def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None:
    ...         self.count += not decision.allowed
    >>> refusals = Refusals()
    >>> limiter = Limiter("1/minute", observers=[refusals])
    >>> limiter.take("ann").allowed, limiter.take("ann").allowed, refusals.count
    (True, False, 1)
    """

    uses_latency: bool = True  # whether it reads latency_us; a call that no observer needs timed is not timed
    sample: float = 1.0  # the share of the calls that it receives, drawn before they are decided
    all_refusals: bool = True  # whether it receives refusals that were not drawn, too: also those of a shadow

    def receivers(self) -> Sequence[Observer]:
        """Returns the observers that receive the reports: itself, and those that it is made of."""
        return (self,)

    def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None:
        """Receives a decision, and how long it took, or None if that was not timed. `response_follows`:
        `responded` will be called, too."""

    def responded(self, decision: Decision, status: int, duration_us: int) -> None:
        """Receives the status of the response to a call, and how long that took since the decision."""

    def failed(self, error: Exception, latency_us: int | None) -> None:
        """Receives the error of a call that could not be decided."""

    def limit_changed(self, change: LimitChange) -> None:
        """Receives a change of an adaptive limit, with its reason."""

    def watch(self, limiter: Any) -> None:
        """Receives each limiter that reports here, once, when it is ready: for its rulebook and its engine."""

    def close(self) -> None:
        """Writes what is still to be written. Called when a limiter is closed, perhaps several times."""


class Observers:
    """The observers of one limiter: passes every report on, and stops errors.

    Before a call is decided one random number is drawn for it, which all observers share: one with `sample=0.1`
    receives the call if the number is below 0.1, and only then is the call timed for it.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        for observer in observers:
            if not isinstance(observer, Observer):
                raise InvalidRule(f"observers= is a list of headgate.Observer objects; {observer!r} is none.")
        receivers = [each for observer in observers for each in observer.receivers()]
        self.observers: tuple[Observer, ...] = tuple(dict.fromkeys(receivers))
        # The share of the calls that are timed, and that observers of a sample receive.
        self.timed_share: float = max((each.sample for each in self.observers if each.uses_latency), default=0.0)
        samples = [each.sample for each in self.observers if each.sample < 1]
        self.has_sample: bool = bool(samples)
        self.sampled_share: float = max(samples, default=0.0)
        self.draws: bool = self.has_sample or self.timed_share > 0
        self._reported_errors: set[tuple[int, str]] = set()
        reports: list[Any] = self._overridden("decided")
        self.decided_reports: list[Callable[..., None]] = [each for each in reports if each.__self__.sample >= 1]
        self._sampled_reports = [
            (each.__self__.sample, each.__self__.all_refusals, each)
            for each in reports
            if each.__self__.sample < 1
        ]
        self._responded = self._overridden("responded")
        self._failed = self._overridden("failed")
        self._limit_changed = self._overridden("limit_changed")
        self._close = self._overridden("close")

    def _overridden(self, method: str) -> list[Callable[..., None]]:
        """Returns that method of every observer that overrides it."""
        unchanged = getattr(Observer, method)
        return [getattr(each, method) for each in self.observers if getattr(type(each), method) is not unchanged]

    def decided(
        self, decision: Decision, latency_us: int | None, response_follows: bool = False, draw: float = 0.0
    ) -> None:
        """Reports a decision to those that receive every call, or calls with this draw."""
        for report in self.decided_reports:
            try:
                report(decision, latency_us, response_follows)
            except Exception as error:
                self.report_error(report, error)
        if self.has_sample:
            self.decided_sample(decision, latency_us, response_follows, draw)

    def decided_sample(
        self, decision: Decision, latency_us: int | None, response_follows: bool, draw: float
    ) -> None:
        """Reports a decision to those that receive a sample."""
        for sample, all_refusals, report in self._sampled_reports:
            if draw < sample or (all_refusals and decision.has_refusal):
                try:
                    report(decision, latency_us, response_follows)
                except Exception as error:
                    self.report_error(report, error)

    def responded(self, decision: Decision, status: int, duration_us: int) -> None:
        self._call(self._responded, decision, status, duration_us)

    def failed(self, error: Exception, latency_us: int | None) -> None:
        self._call(self._failed, error, latency_us)

    def limit_changed(self, change: LimitChange) -> None:
        self._call(self._limit_changed, change)

    def watch(self, limiter: Any) -> None:
        limiter.engine.mark_prefetched()
        for observer in self.observers:
            observer.watch(limiter)

    def close(self) -> None:
        self._call(self._close)

    def _call(self, reports: list[Callable[..., None]], *arguments: Any) -> None:
        for report in reports:
            try:
                report(*arguments)
            except Exception as error:
                self.report_error(report, error)

    def report_error(self, report: Any, error: Exception) -> None:
        """Logs the first error of each kind; an observer that fails for every call must not flood the log."""
        kind = id(report.__self__), type(error).__name__
        if kind not in self._reported_errors:
            self._reported_errors.add(kind)
            _log.error(
                "headgate: the observer %s failed; its further errors of this kind are not logged.",
                type(report.__self__).__name__,
                exc_info=error,
            )


class ObservedDecision:
    """Reports a decision that is made in a with block, or the error that prevented it; times it if it is drawn."""

    __slots__ = ("_draw", "_observers", "_started_ns")

    def __init__(self, observers: Observers) -> None:
        self._observers = observers

    def __enter__(self) -> ObservedDecision:
        self._draw = random() if self._observers.draws else 1.0
        self._started_ns = perf_counter_ns() if self._draw < self._observers.timed_share else 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, EngineUnavailable | CorruptState):
            self._observers.failed(error, elapsed_us(self._started_ns))

    @property
    def is_drawn(self) -> bool:
        """True if the call is in the sample of an observer."""
        return self._draw < self._observers.sampled_share

    def report(
        self,
        decision: Decision,
        attributes: Mapping[str, Any] | None = None,
        response_follows: bool = False,
        stated_cost: int | None = None,
    ) -> None:
        """Reports the decision, with the attributes that a rulebook decided it by and the cost that was stated."""
        decision.attributes, decision.stated_cost = attributes, stated_cost
        self._observers.decided(decision, elapsed_us(self._started_ns), response_follows, self._draw)


def elapsed_us(started_ns: int) -> int | None:
    """Returns the microseconds since then; None if the call was not timed, and this is 0."""
    return (perf_counter_ns() - started_ns) // 1000 if started_ns else None
