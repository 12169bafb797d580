"""The laws of engines that are not exact, each as narrow as what it permits.

DenialCacheLaw. An engine that remembers a refusal may answer it again without asking. Law: everything is exact,
but a refusal needs no place in the row if the server really refused the same process the same key at a cost that
is not higher, at most min(its retry_after, 1 s) ago, and that process has neither refunded nor reset the key
since. Such a refusal was not the server's, so its numbers are not judged.

PrefetchLaw. An engine that fetches units ahead spends them later than the server counted them, and its answers
name the server's instant; so here the callers' clock counts. Law: whatever span of time one looks at, the units of
calls that were made and admitted within it are at most what the limit admits in such a span, and `bound` more.
Units that were given back do not count, and no span reaches over a reset. Where a charge from before a reset is
given back after it, the count has that much more room than the limit says, prefetched or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import SECOND, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.token_bucket import TokenBucket
from tests.linearizability.checker import Search
from tests.linearizability.history import Operation

REMEMBERED_US = SECOND


class DenialCacheLaw:
    """Exact, but for refusals that are remembered for a while."""

    def judge(self, limit: Limit, operations: Sequence[Operation]) -> str | None:
        gifts = [operation for operation in operations if operation.verb in ("refund", "reset")]

        def remembered(refusal: Operation, real: Sequence[Operation]) -> bool:
            ends = [gift for gift in gifts if gift.process == refusal.process]
            return any(_justifies(one, refusal) and not _ended(one, refusal, ends) for one in real)

        return Search(limit, operations, remembered).counter_example()


def _justifies(real: Operation, refusal: Operation) -> bool:
    """By the callers' own clock, and in doubt for the engine: nobody knows more of two calls at the same time."""
    lasts_us = REMEMBERED_US if real.retry_us is None else min(real.retry_us, REMEMBERED_US)
    return (
        real.process == refusal.process
        and real.units <= refusal.units
        and real.called_ns < refusal.answered_ns
        and refusal.called_ns - real.answered_ns <= lasts_us * 1000
    )


def _ended(real: Operation, refusal: Operation, ends: Sequence[Operation]) -> bool:
    return any(real.answered_ns < end.called_ns and end.answered_ns < refusal.called_ns for end in ends)


class PrefetchLaw:
    """Admits at most `bound` units more than the limit does, in any span of time."""

    def __init__(self, bound: int) -> None:
        self.bound = bound

    def judge(self, limit: Limit, operations: Sequence[Operation]) -> str | None:
        resets = [operation for operation in operations if operation.verb == "reset"]
        strays = [_span(operation) for operation in operations if _crossed(operation, resets)]
        for spent in _between(resets, operations):
            for from_us in {call.called_us for call in spent}:
                units = 0
                for call in filter(lambda call: call.called_us >= from_us, spent):
                    units += call.units
                    may = max_admitted(limit, from_us, call.answered_us) + self.bound
                    if units > may + sum(
                        stray.units for stray in strays if stray.meets(from_us, call.answered_us)
                    ):
                        until = f"{from_us} to {call.answered_us} us"
                        return f"{units} units were admitted from {until}, and {may} may be."
        return None


def max_admitted(limit: Limit, from_us: int, until_us: int) -> int:
    """The most units that can be admitted from one instant to another, both included."""
    span_us = until_us - from_us
    match limit:
        case TokenBucket():
            return (limit.capacity + span_us * limit.amount) // limit.period_us
        case LeakyBucket():
            span_ms = until_us // 1000 - from_us // 1000
            return (limit.capacity * 1000 + span_ms * limit.rate) // 1_000_000
        case FixedWindow(period_us=period_us) if period_us:
            return limit.amount * (until_us // period_us - from_us // period_us + 1)
        case SlidingWindow():
            return limit.amount * ((until_us // limit.cell_us - from_us // limit.cell_us) // limit.cells + 1)
        case SlidingLog():
            return limit.amount * (span_us // limit.period_us + 1)
    raise NotImplementedError(f'Nobody has said how much "{limit}" admits in a span of time.')


class AdmissionSpan(NamedTuple):
    """Units that were admitted or given back at some time between a call and its answer."""

    called_us: int
    answered_us: int
    units: int

    def meets(self, from_us: int, until_us: int) -> bool:
        return self.called_us <= until_us and self.answered_us >= from_us


def _span(operation: Operation, given_back: int = 0) -> AdmissionSpan:
    return AdmissionSpan(operation.called_ns // 1000, operation.answered_ns // 1000, operation.units - given_back)


def _crossed(refund: Operation, resets: Sequence[Operation]) -> bool:
    """Returns whether it gives back a charge that a reset may have forgotten before."""
    return refund.charge_ns is not None and any(
        reset.called_ns <= refund.answered_ns and reset.answered_ns >= refund.charge_ns for reset in resets
    )


def _between(resets: Sequence[Operation], operations: Sequence[Operation]) -> list[list[AdmissionSpan]]:
    """Groups charges that were admitted and not refunded by the number of earlier resets, in the order of answers.

    A charge that overlaps a reset is left out: it may be on either side."""
    given: Counter[tuple[str, int | None]] = Counter()
    for operation in operations:
        if operation.verb == "refund":
            given[operation.who, operation.charge_ns] += operation.units
    parts: dict[int, list[AdmissionSpan]] = {}
    for operation in sorted(operations, key=lambda operation: operation.answered_ns):
        before = sum(reset.answered_ns < operation.called_ns for reset in resets)
        started = sum(reset.called_ns < operation.answered_ns for reset in resets)
        if operation.admitted and before == started:
            parts.setdefault(before, []).append(_span(operation, given[operation.who, operation.called_ns]))
    return list(parts.values())
