"""Draws random walks over leaky buckets."""

from __future__ import annotations

import random

from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.errors import InvalidRule


def limits(rng: random.Random) -> LeakyBucket:
    """From one per 1000 s to a million per millisecond; every kind of delay."""
    while True:
        amount = rng.choice([1, 2, 3, 6, 7, 10, 33, 100, 999, 123_457, 700_000, 1_000_000])
        per = rng.choice([0.001, 1, 1, 60, 60, 1000, 3600, 86_400])
        burst = rng.choice([0, 0, 1, 5, 20, 1000, 1_000_000, 10**12])
        delay = rng.choice([0, None, 1, burst // 2, burst, burst + 3])
        try:
            return LeakyBucket(amount, per, burst, delay)
        except InvalidRule:
            continue


def gaps(rng: random.Random, limit: LeakyBucket) -> int:
    """Microseconds: within a tick, around one unit, a full queue and nginx's 60 s, and years."""
    unit_us = 1_000_000_000 // limit.rate
    dry_us = limit.capacity * 1_000_000 // limit.rate
    return rng.choice([
        0, 1, rng.randrange(1000), 1000, rng.randrange(2 * unit_us + 2000), rng.randrange(dry_us + 1000),
        60_000_000, 60_001_000, min(3 * dry_us, 10**14),
    ])  # fmt: skip


def costs(rng: random.Random, limit: LeakyBucket) -> int:
    full = limit.burst + 1
    return rng.choice([0, 1, 1, 1, 2, 3, full, full // 2, full + 1, 2**53 - 1, rng.randrange(full + 1)])
