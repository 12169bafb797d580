"""Draws random walks over token buckets."""

from __future__ import annotations

import random

from headgate.algorithms.token_bucket import TokenBucket
from headgate.errors import InvalidRule

AMOUNTS = (1, 2, 3, 7, 10, 100, 999, 123_457, 700_000, 999_999, 1_000_000)
PERIODS = (0.001, 1, 1, 60, 3600, 86_400, 31_536_000)
BURSTS = (None, None, 1, 2, 10, 1000, 1_000_000)


def limits(rng: random.Random) -> TokenBucket:
    """From one a year to a million a second and beyond; most do not divide their period."""
    while True:
        try:
            return TokenBucket(rng.choice(AMOUNTS), rng.choice(PERIODS), rng.choice(BURSTS))
        except InvalidRule:
            continue


def gaps(rng: random.Random, limit: TokenBucket) -> int:
    """Microseconds: around one unit, around a full bucket, and years."""
    unit_us, full_us = limit.period_us // limit.amount, limit.capacity // limit.amount
    some = (0, 0, 1, 2, unit_us, full_us, min(3 * full_us, 10**14))
    return rng.choice((*some, rng.randrange(2 * unit_us + 2), rng.randrange(full_us + 2)))


def costs(rng: random.Random, limit: TokenBucket) -> int:
    burst = limit.burst
    return rng.choice((0, 1, 1, 1, 2, 3, burst, burst // 2, burst + 1, 2**53 - 1, rng.randrange(burst + 1)))
