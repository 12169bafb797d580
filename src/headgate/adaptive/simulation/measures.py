"""Measures of one stage of a simulation: calls by when they came, levels by the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

_NS = 1e9


class StageMeasures:
    """Counts, response times and levels of a stage, from `from_ns` to `until_ns`."""

    def __init__(self, from_ns: float, until_ns: float, good_within_ns: float) -> None:
        self.from_ns: float = from_ns
        self.until_ns: float = until_ns
        self.good_within_ns: float = good_within_ns
        self.offered: int = 0
        self.accepted: int = 0
        self.refused: int = 0
        self.timed_out: int = 0
        self.deferred: int = 0
        self.succeeded: int = 0
        self.good: int = 0
        self.offered_by_priority: Counter[int] = Counter()
        self.refused_by_priority: Counter[int] = Counter()
        self.succeeded_by_priority: Counter[int] = Counter()
        self.responses_ns: list[float] = []
        self.max_in_flight: int = 0
        self.min_limit: float = inf
        self.max_limit: float = 0.0
        self._in_flight_area = self._limit_area = self._time_ns = 0.0

    def end(self, response_ns: float, succeeded: bool, priority: int) -> None:
        """Counts a call that was answered, or deferred."""
        if not succeeded:
            self.deferred += 1
            return
        self.responses_ns.append(response_ns)
        self.succeeded += 1
        self.succeeded_by_priority[priority] += 1
        # A response of exactly twice the work is good, also where the sum of its parts was rounded.
        if response_ns <= self.good_within_ns * (1 + 1e-9):
            self.good += 1

    def pass_time(self, before_ns: float, now_ns: float, in_flight: int, limit: float | None) -> None:
        """Counts a span of time with a level of calls in flight, and a limit."""
        if now_ns <= self.from_ns or now_ns <= before_ns:
            return
        span_ns = now_ns - max(before_ns, self.from_ns)
        self._time_ns += span_ns
        self._in_flight_area += in_flight * span_ns
        if in_flight > self.max_in_flight:
            self.max_in_flight = in_flight
        if limit is not None:
            self._limit_area += limit * span_ns
            self.min_limit = min(self.min_limit, limit)
            self.max_limit = max(self.max_limit, limit)

    @property
    def seconds(self) -> float:
        """The time that was measured."""
        return max(0.0, self.until_ns - self.from_ns) / _NS

    def row(self, priorities: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the measures as a document; times in seconds, goodput per second."""
        responses = sorted(self.responses_ns)
        seconds, time_ns = self.seconds, self._time_ns
        limited = self.min_limit != inf
        row: dict[str, Any] = {
            "seconds": round(seconds, 6),
            "offered": self.offered,
            "accepted": self.accepted,
            "refused": self.refused,
            "timed_out": self.timed_out,
            "deferred": self.deferred,
            "good": self.good,
            "goodput": self.good / seconds if seconds else 0.0,
            "p50": _quantile(responses, 0.50),
            "p90": _quantile(responses, 0.90),
            "p99": _quantile(responses, 0.99),
            "mean_in_flight": self._in_flight_area / time_ns if time_ns else 0.0,
            "max_in_flight": self.max_in_flight,
            "min_limit": self.min_limit if limited else None,
            "mean_limit": self._limit_area / time_ns if limited and time_ns else None,
            "max_limit": self.max_limit if limited else None,
        }
        if len(priorities) > 1:
            row["priorities"] = {
                name: {
                    "offered": self.offered_by_priority[number],
                    "refused": self.refused_by_priority[number],
                    "succeeded": self.succeeded_by_priority[number],
                }
                for number, name in enumerate(priorities)
            }
        return row


def pool(measures: Iterable[StageMeasures]) -> StageMeasures:
    """Returns the measures of several runs of the same stage as those of one."""
    pooled: StageMeasures | None = None
    for each in measures:
        if pooled is None:
            pooled = StageMeasures(0.0, 0.0, each.good_within_ns)
        pooled.until_ns += max(0.0, each.until_ns - each.from_ns)
        for name in ("offered", "accepted", "refused", "timed_out", "deferred", "succeeded", "good"):
            setattr(pooled, name, getattr(pooled, name) + getattr(each, name))
        for name in ("offered_by_priority", "refused_by_priority", "succeeded_by_priority"):
            getattr(pooled, name).update(getattr(each, name))
        pooled.responses_ns += each.responses_ns
        pooled.max_in_flight = max(pooled.max_in_flight, each.max_in_flight)
        pooled.min_limit = min(pooled.min_limit, each.min_limit)
        pooled.max_limit = max(pooled.max_limit, each.max_limit)
        pooled._in_flight_area += each._in_flight_area
        pooled._limit_area += each._limit_area
        pooled._time_ns += each._time_ns
    assert pooled is not None
    return pooled


def _quantile(ordered: Sequence[float], part: float) -> float | None:
    """Returns the value that this part of all is at most, in seconds; None if there is none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -(-int(part * 1000) * len(ordered) // 1000) - 1))] / _NS
