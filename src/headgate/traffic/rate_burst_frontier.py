"""The frontier of token buckets: for each rate, the smallest burst that refuses nobody, exactly.

For one key and one rate, each call updates q = max(0, q - rate x time since the last call) + cost. The largest q
is the smallest burst that allows every call of that key. The frontier is the largest of these bursts among all
keys, or a quantile of them where some keys may be refused, for each rate. Everything is in whole numbers, in the
measure of the token bucket: one unit is `period_us` parts, and a microsecond drains `amount` of them.

Laws (tests/traffic/test_rate_burst_frontier.py): a token bucket of that rate and burst refuses nobody, and one
whose burst is smaller by one refuses somebody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

from headgate.algorithms.durations import format_period
from headgate.algorithms.limit import SECOND

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND


class Rate(NamedTuple):
    """So many units in a period.

    >>> str(Rate(4, 60_000_000)), Rate(4, 60_000_000).units_in(300_000_000)
    ('4/minute', 20.0)
    """

    amount: int
    period_us: int

    def units_in(self, span_us: int) -> float:
        """Returns how many units a span brings.

        >>> Rate(1, 1_000_000).units_in(60_000_000)
        60.0
        """
        return self.amount * span_us / self.period_us

    def __str__(self) -> str:
        return f"{self.amount}/{format_period(self.period_us)}"


RATES = (  # those above the busiest second of a key are left out
    *(Rate(amount, HOUR) for amount in (6, 12, 30)),
    *(Rate(amount, MINUTE) for amount in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30)),
    *(Rate(amount, SECOND) for amount in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)),
    *(Rate(amount, SECOND) for amount in (10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)),  # tokens
)


def smallest_burst(rate: Rate, times_us: Sequence[int], costs: Sequence[int] | None = None) -> int:
    """Returns the smallest burst that refuses none of these calls.

    >>> smallest_burst(Rate(1, 1_000_000), [0, 0, 1_000_000, 1_000_000])
    3
    """
    amount, unit = rate
    used = most = 0
    last_us = times_us[0]
    if costs is None:
        for time_us in times_us:
            used -= amount * (time_us - last_us)
            used = used + unit if used > 0 else unit
            last_us = time_us
            if used > most:
                most = used
    else:
        for time_us, cost in zip(times_us, costs, strict=True):
            used = max(0, used - amount * (time_us - last_us)) + cost * unit
            last_us = time_us
            if used > most:
                most = used
    return -(-most // unit)


def count_refused(rate: Rate, burst: int, times_us: Sequence[int], costs: Sequence[int] | None = None) -> int:
    """Returns how many of these calls a token bucket refuses.

    >>> count_refused(Rate(1, 1_000_000), 1, [0, 0, 1_000_000])
    1
    """
    amount, unit = rate
    capacity = burst * unit
    used = refused = 0
    last_us = times_us[0]
    for index, time_us in enumerate(times_us):
        used = max(0, used - amount * (time_us - last_us))
        last_us = time_us
        cost = unit if costs is None else costs[index] * unit
        if used + cost > capacity:
            refused += 1
        else:
            used += cost
    return refused


def quantile(ordered: Sequence[int], share: float) -> int:
    """Returns the smallest value that at least this share of the values does not exceed.

    >>> quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 1)
    (2, 4)
    """
    return ordered[max(0, ceil(len(ordered) * share - 1e-9) - 1)]


class FrontierPoint(NamedTuple):
    """A rate, and the bursts that refuse no call of 50 %, 90 %, 99 %, 99.9 % and all of the keys."""

    rate: Rate
    p50: int
    p90: int
    p99: int
    p999: int
    all_keys: int


def frontier_point(rate: Rate, bursts: Iterable[int]) -> FrontierPoint:
    """Returns the point of a rate, from the smallest burst of each key."""
    ordered = sorted(bursts)
    return FrontierPoint(rate, *(quantile(ordered, share) for share in (0.5, 0.9, 0.99, 0.999, 1)))
