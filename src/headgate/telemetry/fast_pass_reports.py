"""A fast path for reports of calls that passed, where nobody needs more than their counts.

A service reports every decision to its counts, and to a sample of recent records that has enough of a second's
passes after some hundreds. For both a decision is more than they need: it takes longer to make than the count.

Gain: a quarter of the CPU time of a rate limit request of Envoy on memory, with all of gRPC.

    reported as ever    refusals, calls that are drawn for a sample, delays, everything that a layer decided, the
                        first calls of a second; and all calls of a limiter with another observer of every call,
                        such as a decision log

Law (tests/telemetry/test_fast_pass_reports.py): counts, and records of a second, are those of the plain path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headgate.algorithms.decision import Outcome
from headgate.observer import Observers
from headgate.telemetry.counts import Counts
from headgate.telemetry.recent_records import RecentRecords

CountPasses = Callable[[Sequence[tuple[Any, str, int]], Sequence[Outcome]], bool]


def pass_reports(observers: Observers | None) -> CountPasses | None:
    """Returns a function that reports calls that passed and made one charge each, or returns False and reports
    nothing. None if these observers need decisions."""
    reports: Sequence[Any] = () if observers is None else observers.decided_reports
    receivers = [report.__self__ for report in reports]
    counts = [each for each in receivers if type(each) is Counts]
    records = [each for each in receivers if type(each) is RecentRecords]
    if len(counts) != 1 or len(counts) + len(records) != len(receivers):
        return None
    count_passes = counts[0].count_passes
    if not records:
        return count_passes

    def report(charges: Sequence[tuple[Any, str, int]], outcomes: Sequence[Outcome]) -> bool:
        return all(each.has_enough_passes for each in records) and count_passes(charges, outcomes)

    return report
