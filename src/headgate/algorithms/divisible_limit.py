"""Quota units: a limit as a token bucket that can be granted in parts.

A holder of a part of a limit decides by itself with a token bucket; Envoy understands nothing else. So a limit is
first written as one: `amount` units per `period_us`, at most `burst` at once. The period is one of four: a
second, a thousand, a million or 10^9 seconds, the shortest that makes the amount a million at least. Then even a
small part of it is a whole number, and rounding parts down loses a millionth of the limit for each. (Envoy reads
whole seconds only, and notices no change of the period alone. So a limit that is changed by less than a
thousandfold mostly keeps its period.)

    100/s burst 200         100,000,000 per 1,000,000 s, burst 200
    10/s queue 5            10,000,000 per 1,000,000 s, burst 6: what would wait in the queue passes at once
    100/minute fixed        90 of 100 as a rate, 1,500,000 per 1,000,000 s, and burst 10
    10 slots                cannot be granted in parts

Windows. A bucket of n units that gets n per period lets 2n pass in a period. So a tenth of a window's units,
rounded up, is its burst and the rest is its rate: together they are the limit in any period, wherever that
begins. Steady traffic gets nine tenths; if it must get all, write a token bucket. A month counts as long as the
longest, a day as long as one that ends summer time.

Laws (tests/algorithms/test_divisible_limit.py):
  - in any span of t the bucket lets pass at most what the limit does: burst + amount * t / period; of a window, in
    any span of its length, n;
  - the rate is exact where it is a whole number of units per period, and else rounded down: by less than a
    millionth, unless it is less than a unit in a thousand seconds;
  - a part of at least `least` grant units has a unit per period and a unit of burst; a smaller one lets nothing
    pass.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.algorithms.limit import SECOND, Limit
from headgate.errors import InvalidRule

# All of a limit, in grant units. Up to sixteen holders can have equal parts of it exactly.
ALL_GRANT_UNITS = 1_081_080_000

MAX_UNITS = 10**9  # units per period, and units at once
_MIN_FINE_AMOUNT = 10**6  # units per period: enough for fine parts
_PERIODS_US = (SECOND, 10**3 * SECOND, 10**6 * SECOND, 10**9 * SECOND)


class QuotaUnits(NamedTuple):
    """A limit as a token bucket that can be granted in parts."""

    amount: int
    period_us: int
    burst: int

    @property
    def least(self) -> int:
        """The fewest grant units that let anything pass."""
        return -(-ALL_GRANT_UNITS // min(self.amount, self.burst))

    def grains(self, units: int, elapsed_us: int) -> int:
        """Returns the grant units that would have let so many units pass in that time, rounded up."""
        if units <= 0:
            return 0
        return min(
            ALL_GRANT_UNITS, -(-units * self.period_us * ALL_GRANT_UNITS // (max(1, elapsed_us) * self.amount))
        )


def quota_units(limit: Limit) -> QuotaUnits:
    """Returns the limit as quota units; raises InvalidRule if it cannot be granted in parts."""
    bucket = limit.as_bucket()
    if bucket is None:
        raise InvalidRule(
            f'"{limit}" cannot be divided among holders: {limit.no_bucket}. Write it as a token bucket, such as '
            '"100/s burst 200".'
        )
    rate, per_us, burst = bucket
    amount, period_us = _per_standard_period(rate, per_us)
    if not 1 <= amount <= MAX_UNITS or burst > MAX_UNITS:
        raise InvalidRule(
            f'"{limit}" cannot be divided among holders: a window needs at least 2 units, and nothing may have '
            "more than 10^9 units a second or at once, or less than one in 10^9 seconds."
        )
    return QuotaUnits(amount, period_us, burst)


def _per_standard_period(amount: int, period_us: int) -> tuple[int, int]:
    """Returns the same rate as units per one of the four periods."""
    candidates = [(amount * candidate_us // period_us, candidate_us) for candidate_us in _PERIODS_US]
    return next((each for each in candidates if each[0] >= _MIN_FINE_AMOUNT), candidates[-1])
