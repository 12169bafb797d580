"""The observer port: limiters report every decision to those who count, log or measure.

An observer is called after the decision, so it cannot change it. It must not block. An error of an observer is
logged once and goes no further. A limiter without observers does not even look for them.

    limiter = Limiter.from_rules("rules.yaml", observers=[Counts(), DecisionLog("decisions.jsonl")])
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from headgate.algorithms.decision import Decision
from headgate.errors import CorruptState, EngineUnavailable, InvalidRule

_log = logging.getLogger("headgate")


class Observer:
    """Receives the decisions of limiters. Override the methods that you need; each may run in any thread.

    >>> class Refusals(Observer):
    ...     count = 0
    ...     def decided(self, decision: Decision, latency_us: int, response_follows: bool) -> None:
    ...         self.count += not decision.allowed
    >>> refusals = Refusals()
    >>> limiter = Limiter("1/minute", observers=[refusals])
    >>> limiter.take("ann").allowed, limiter.take("ann").allowed, refusals.count
    (True, False, 1)
    """

    uses_latency: bool = True  # whether it reads latency_us; where no observer does, no call is timed, and it is 0

    def decided(self, decision: Decision, latency_us: int, response_follows: bool) -> None:
        """Receives a decision, and how long it took. `response_follows`: `responded` will be called, too."""

    def responded(self, decision: Decision, status: int, duration_us: int) -> None:
        """Receives the status of the response to a call, and how long that took since the decision."""

    def failed(self, error: Exception, latency_us: int) -> None:
        """Receives the error of a call that could not be decided."""

    def watch(self, limiter: Any) -> None:
        """Receives each limiter that reports here, once, when it is ready: for its rulebook and its engine."""

    def close(self) -> None:
        """Writes what is still to be written. Called when a limiter is closed, perhaps several times."""


class Observers:
    """The observers of one limiter: passes every report on, and stops errors."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        for observer in observers:
            if not isinstance(observer, Observer):
                raise InvalidRule(f"observers= is a list of headgate.Observer objects; {observer!r} is none.")
        self.observers: tuple[Observer, ...] = tuple(observers)
        self.uses_latency: bool = any(each.uses_latency for each in self.observers)
        self._reported_errors: set[tuple[int, str]] = set()
        self.decided_reports: list[Callable[..., None]] = self._overridden("decided")
        self._responded = self._overridden("responded")
        self._failed = self._overridden("failed")
        self._close = self._overridden("close")

    def _overridden(self, method: str) -> list[Callable[..., None]]:
        """Returns that method of every observer that overrides it."""
        unchanged = getattr(Observer, method)
        return [getattr(each, method) for each in self.observers if getattr(type(each), method) is not unchanged]

    def decided(self, decision: Decision, latency_us: int, response_follows: bool = False) -> None:
        for report in self.decided_reports:
            try:
                report(decision, latency_us, response_follows)
            except Exception as error:
                self.report_error(report, error)

    def responded(self, decision: Decision, status: int, duration_us: int) -> None:
        self._call(self._responded, decision, status, duration_us)

    def failed(self, error: Exception, latency_us: int) -> None:
        self._call(self._failed, error, latency_us)

    def watch(self, limiter: Any) -> None:
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
    """Times a decision that is made in a with block, and reports it, or the error that prevented it."""

    __slots__ = ("_observers", "_started_ns")

    def __init__(self, observers: Observers) -> None:
        self._observers = observers

    def __enter__(self) -> ObservedDecision:
        self._started_ns = perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, EngineUnavailable | CorruptState):
            self._observers.failed(error, (perf_counter_ns() - self._started_ns) // 1000)

    def report(
        self,
        decision: Decision,
        attributes: Mapping[str, Any] | None = None,
        response_follows: bool = False,
        stated_cost: int | None = None,
    ) -> None:
        """Reports the decision, with the attributes that a rulebook decided it by and the cost that was stated."""
        decision.attributes, decision.stated_cost = attributes, stated_cost
        self._observers.decided(decision, (perf_counter_ns() - self._started_ns) // 1000, response_follows)
