"""Divides a limit among processes that decide without each other.

When the engine does not answer, each of `count` members decides alone, by its share of the limit. There are two
ways to divide.

By rank (`share`), where every member knows a rank that no other has. Units are whole: of 10 units three members
get 4, 3 and 3, those with the lower ranks the more. Of 2 units two members get one each and the third gets none:
its share is None, and it refuses. The rate is divided among the members that have a share at all.

Equally (`equal_share`), where members know only their number, and where a rule is split. The rate is divided by
the count, whatever the burst, and each holds at least one unit: of 10 units three members get 3 each, and of 2
units one each, so up to max(units, count) pass at once. A window with fewer units than members is lengthened: of
2/s fixed three members get 1 per 1.5 s each. Calendar windows and slots cannot be lengthened; there each member
has one unit.

A rate is divided exactly where an algorithm can: a token bucket of 100/s among three is 100 per 3 s each. Where an
algorithm rounds by itself (nginx's thousandths in the leaky bucket, Guava's doubles in smooth) or an exact share
cannot be expressed, it is rounded down.

Laws (tests/engines/layers/test_limit_share.py, test_equal_share.py):
  - the shares of all ranks together hold at most the limit, in units at once and in rate;
  - equal shares together have at most the limit's rate, and hold at most max(units, count) at once; each holds at
    least one unit. Of calendars and slots, at most max(units, count) in each window or at a time;
  - no share is more than the limit divided by the count, rounded up;
  - a member that is alone has the limit as it is;
  - of a smooth limit this is the rate and the store; that the next call pays is Guava's law for each share apart.
    So a share by rank starts as if used, except that of the first rank (`fresh` is 1, and divided).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import nextafter
from typing import Any

from headgate.algorithms.decision import REMAINING, RETRY_AFTER_US, Outcome
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import SECOND, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.slots import Slots
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.errors import InvalidRule


def share(limit: Limit, count: int, rank: int | None) -> Limit | None:
    """Returns the share of the member of this rank, counted from 0, among `count`; None if there is none for it. A
    member that knows no rank has an equal share."""
    if rank is None:
        return equal_share(limit, count)
    if count <= 1:
        return limit
    capacity = full_capacity(limit)
    return _divide(limit, units_for_rank(capacity, count, rank), count, min(count, capacity))


def equal_share(limit: Limit, count: int, rank: int | None = None) -> Limit | None:
    """Returns the share of each of `count` members: the rate divided by the count, and at least one unit. Leftover
    units go to the lower ranks, where ranks are known. None if the limit is too slow to be divided so."""
    if count <= 1:
        return limit
    return _divide(limit, max(1, units_for_rank(full_capacity(limit), count, rank)), count, count)


def _divide(limit: Limit, share_units: int, count: int, sharers: int) -> Limit | None:
    """Returns the limit with so many units, and its rate divided by the number of sharers."""
    if isinstance(limit, Smooth):
        return _smooth(limit, count)
    if not share_units:
        return None
    try:
        return _DIVIDERS[limit.algorithm](limit, share_units, sharers)
    except InvalidRule:
        return None  # too slow to be expressed


def units_for_rank(total: int, count: int, rank: int | None) -> int:
    """Returns how many of the total units fall to this rank; without a rank, those that fall to every member."""
    return total // count + (rank is not None and rank < total % count)


def full_capacity(limit: Any) -> int:
    """Returns how many units pass at once on an unused key."""
    if isinstance(limit, TokenBucket):
        return limit.burst
    if isinstance(limit, LeakyBucket):
        return limit.burst + 1
    if isinstance(limit, Smooth):
        return 1
    amount: int = limit.amount
    return amount


def units_in_use(limit: Limit, outcome: Outcome) -> int:
    """Returns how many units the count still holds, from the outcome of a peek; rounded up."""
    if isinstance(limit, Smooth):
        return -(-(outcome[RETRY_AFTER_US] or 0) // max(1, int(limit.interval_us)))
    return max(0, full_capacity(limit) - outcome[REMAINING])


def _token_bucket(limit: TokenBucket, share_units: int, sharers: int) -> Limit:
    # The period is multiplied, not the amount divided: that is exact. If the last unit of a burst makes a bucket
    # too slow to fill, it is left out; if the period gets too long to express, the amount is rounded down.
    less = max(1, share_units - 1)
    for burst in (share_units, less):
        try:
            return TokenBucket(limit.amount, limit.period_us * sharers / SECOND, burst)
        except InvalidRule:
            continue
    return TokenBucket(limit.amount // sharers, limit.period_us / SECOND, less)


def _leaky_bucket(limit: LeakyBucket, share_units: int, sharers: int) -> Limit:
    undelayed = None if limit.delay is None else max(0, (min(limit.delay, limit.burst) + 1) // sharers - 1)
    # The rate is in thousandths per second, so as many units per 1000 s.
    return LeakyBucket(limit.rate // sharers, 1000, share_units - 1, undelayed)


def _fixed_window(limit: FixedWindow, share_units: int, sharers: int) -> Limit:
    if limit.unit is not None:
        return FixedWindow(share_units, limit.unit, limit.zone)
    return FixedWindow(share_units, _lengthen(limit.period_us, limit.amount, sharers) / SECOND)


def _sliding_window(limit: SlidingWindow, share_units: int, sharers: int) -> Limit:
    cell_us = _lengthen(limit.cell_us, limit.amount, sharers)
    return SlidingWindow(share_units, cell_us * limit.cells / SECOND, limit.cells)


def _sliding_log(limit: SlidingLog, share_units: int, sharers: int) -> Limit:
    return SlidingLog(share_units, _lengthen(limit.period_us, limit.amount, sharers) / SECOND)


def _lengthen(us: int, amount: int, sharers: int) -> int:
    """Returns the time in which each sharer may have one unit, rounded up; unchanged if the amount suffices for
    all."""
    return us if amount >= sharers else -(-us * sharers // amount)


def _slots(limit: Slots, share_units: int, sharers: int) -> Limit:
    return Slots(share_units, limit.ttl_us / SECOND)


_DIVIDERS: dict[str, Callable[[Any, int, int], Limit]] = {
    "token_bucket": _token_bucket,
    "leaky_bucket": _leaky_bucket,
    "fixed_window": _fixed_window,
    "sliding_window": _sliding_window,
    "sliding_log": _sliding_log,
    "slots": _slots,
}


def _smooth(limit: Smooth, count: int) -> Limit | None:
    rate, warmup_us, shape = limit.args
    shape_options = {"warmup": warmup_us / SECOND, "cold": shape} if warmup_us else {"burst": shape}
    amount = rate * SECOND
    while True:
        try:
            candidate = Smooth(amount, count * SECOND, **shape_options)
        except InvalidRule:
            return None  # too slow to be paced
        if Fraction(candidate.args[0]) * count <= Fraction(rate):
            return candidate
        amount = nextafter(amount, 0)
