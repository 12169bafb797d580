"""A limit, divided among those who must do without each other.

When nobody can be asked, each of `count` members decides alone, by a share of the limit that is its own. Units
are whole: of 10 units three members get 4, 3 and 3, those with the lower ranks the more. Of 2 units two members
get one each and the third gets none: its share is None, and it refuses.

A rate is divided among those who have a share at all, exactly where an algorithm can: a token bucket of 100/s
among three is 100 per 3 s each. Where an algorithm rounds by itself (nginx's thousandths in the leaky bucket,
Guava's doubles in smooth) or an exact share could not be written down, it is rounded down.

Laws (tests/engine/test_share.py):
  - the shares of all ranks together hold at most the limit, in units at once and in rate;
  - no share is more than the limit divided by the count, rounded up;
  - a member that is alone has the limit as it is;
  - of a smooth limit this is the rate and the store; that the next one pays is Guava's law for each share apart.
    So whoever starts a share starts it as if used, all but the first rank (`fresh` is 1, and divided).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import nextafter
from typing import Any

from headgate.errors import InvalidRule
from headgate.model.decision import REMAINING, RETRY_AFTER_US, Facts
from headgate.model.fixed_window import FixedWindow
from headgate.model.leaky_bucket import LeakyBucket
from headgate.model.limit import SECOND, Limit
from headgate.model.sliding_log import SlidingLog
from headgate.model.sliding_window import SlidingWindow
from headgate.model.slots import Slots
from headgate.model.smooth import Smooth
from headgate.model.token_bucket import TokenBucket


def share(limit: Limit, count: int, rank: int) -> Limit | None:
    """The share of the member of this rank, counted from 0, among `count`; None if there is none for it."""
    if count <= 1:
        return limit
    part = units(fresh(limit), count, rank)
    if isinstance(limit, Smooth):
        return _smooth(limit, count)
    return _SHARES[limit.algorithm](limit, part, min(count, fresh(limit))) if part else None


def units(whole: int, count: int, rank: int) -> int:
    """What of so many units falls to this rank."""
    return whole // count + (rank < whole % count)


def fresh(limit: Any) -> int:
    """How many units pass at once on a key that was never seen."""
    if isinstance(limit, TokenBucket):
        return limit.burst
    if isinstance(limit, LeakyBucket):
        return limit.burst + 1
    if isinstance(limit, Smooth):
        return 1
    amount: int = limit.amount
    return amount


def held(limit: Limit, facts: Facts) -> int:
    """How many units the count still holds, from what it answers to a peek; rounded up."""
    if isinstance(limit, Smooth):
        return -(-(facts[RETRY_AFTER_US] or 0) // max(1, int(limit.interval_us)))
    return max(0, fresh(limit) - facts[REMAINING])


def _token_bucket(limit: TokenBucket, part: int, sharers: int) -> Limit | None:
    # The period is multiplied, not the amount divided: that is exact. If the last unit of a burst makes a bucket
    # too slow to fill, it is left out; if the period gets too long to be written, the amount is rounded down.
    for amount, period_us, burst in (
        (limit.amount, limit.period_us * sharers, part),
        (limit.amount, limit.period_us * sharers, part - 1),
        (limit.amount // sharers, limit.period_us, part - 1),
    ):
        try:
            return TokenBucket(amount, period_us / SECOND, burst)
        except InvalidRule:
            continue
    return None


def _leaky_bucket(limit: LeakyBucket, part: int, sharers: int) -> Limit | None:
    prompt = None if limit.delay is None else max(0, (min(limit.delay, limit.burst) + 1) // sharers - 1)
    try:
        # The rate is in thousandths per second, so as many units per 1000 s.
        return LeakyBucket(limit.rate // sharers, 1000, part - 1, prompt)
    except InvalidRule:
        return None  # too slow to be counted in thousandths


def _fixed_window(limit: FixedWindow, part: int, sharers: int) -> Limit:
    if limit.unit is not None:
        return FixedWindow(part, limit.unit, limit.zone)
    return FixedWindow(part, limit.period_us / SECOND)


def _sliding_window(limit: SlidingWindow, part: int, sharers: int) -> Limit:
    return SlidingWindow(part, limit.cell_us * limit.cells / SECOND, limit.cells)


def _sliding_log(limit: SlidingLog, part: int, sharers: int) -> Limit:
    return SlidingLog(part, limit.period_us / SECOND)


def _slots(limit: Slots, part: int, sharers: int) -> Limit:
    return Slots(part, limit.ttl_us / SECOND)


_SHARES: dict[str, Callable[[Any, int, int], Limit | None]] = {
    "token_bucket": _token_bucket,
    "leaky_bucket": _leaky_bucket,
    "fixed_window": _fixed_window,
    "sliding_window": _sliding_window,
    "sliding_log": _sliding_log,
    "slots": _slots,
}


def _smooth(limit: Smooth, count: int) -> Limit | None:
    rate, warmup_us, shape = limit.args
    shaped = {"warmup": warmup_us / SECOND, "cold": shape} if warmup_us else {"burst": shape}
    amount = rate * SECOND
    while True:
        try:
            part = Smooth(amount, count * SECOND, **shaped)
        except InvalidRule:
            return None  # too slow to be paced
        if Fraction(part.args[0]) * count <= Fraction(rate):
            return part
        amount = nextafter(amount, 0)
