"""Draws random walks over smooth limits."""

from __future__ import annotations

import random

from headgate.algorithms.smooth import Smooth
from headgate.errors import InvalidRule


def limits(rng: random.Random) -> Smooth:
    """From one a year to a million a second, whole and fractional; bursts and warm-ups of any length."""
    while True:
        amount = rng.choice(
            [1, 2, 3, 7.5, 10, 33.3, 100, 999, 123_457, 700_000, 1_000_000, rng.uniform(0.1, 1000)]
        )
        per = rng.choice([0.001, 1, 1, 1, 60, 3600, 86_400, 31_536_000])
        try:
            if rng.random() < 0.5:
                return Smooth(amount, per, burst=rng.choice([0, 0.1, 1, 1, 2, 10, 3600, 86_400]))
            return Smooth(
                amount, per, warmup=rng.choice([0.001, 1, 3, 10, 86_400]), cold=rng.choice([1, 1.5, 3, 5])
            )
        except InvalidRule:
            continue


def gaps(rng: random.Random, limit: Smooth) -> int:
    """Microseconds: around one unit, cold or warm, around a full store, and years."""
    unit_us = int(limit.interval_us)
    full_us = int(limit.store * limit.cool_us)
    return rng.choice([
        0, 1, 2, unit_us, rng.randrange(2 * unit_us + 2), rng.randrange(6 * unit_us + 2),
        rng.randrange(full_us + 2), full_us + 1, min(3 * full_us + 1, 10**14),
    ])  # fmt: skip


def costs(rng: random.Random, limit: Smooth) -> int:
    store = int(limit.store)
    return rng.choice(
        [0, 1, 1, 1, 2, 3, store + 1, store // 2 + 1, limit.max_units, limit.max_units + 1, 2**53 - 1]
    )
