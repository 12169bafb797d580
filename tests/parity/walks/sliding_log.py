"""Draws random walks over sliding logs."""

import random

from headgate.algorithms.sliding_log import SlidingLog

AMOUNTS = (1, 2, 3, 7, 8, 9, 10, 17, 33, 100, 999)
PERIODS = (0.000001, 0.001, 0.7, 1, 60, 86_400, 31_536_000)


def limits(rng: random.Random) -> SlidingLog:
    """Small ones, so that rings fill and go round; at times the largest, from one second to a day."""
    if rng.random() < 0.005:
        return SlidingLog(1_000_000, rng.choice((1, 86_400)))
    return SlidingLog(rng.choice(AMOUNTS), rng.choice(PERIODS))


def gaps(rng: random.Random, limit: SlidingLog) -> int:
    """From nothing to several periods; often exactly one, or about the time of one unit."""
    period_us = limit.period_us
    some = (0, 0, 1, 2, period_us - 1, period_us, period_us // limit.amount, 3 * period_us)
    return rng.choice((*some, rng.randrange(2 * period_us // limit.amount + 2), rng.randrange(period_us + 1)))


def costs(rng: random.Random, limit: SlidingLog) -> int:
    amount = limit.amount
    some = (0, 1, 1, 1, 1, 2, 3, amount, amount // 2, amount // 3 + 1, amount + 1)
    return rng.choice((*some, rng.randrange(amount + 1)))
