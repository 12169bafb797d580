"""Draws random walks over sliding windows."""

import random

from headgate.algorithms.limit import HOUR
from headgate.algorithms.sliding_window import SlidingWindow

AMOUNTS = (1, 2, 3, 7, 10, 100, 999, 123_457, 1_000_000, 10**13)
PERIODS = (0.001, 1, 10, 60, 3600, 86_400, 31_536_000)
CELLS = (1, 2, 4, 5, 10, 10, 20, 50)


def limits(rng: random.Random) -> SlidingWindow:
    return SlidingWindow(rng.choice(AMOUNTS), rng.choice(PERIODS), cells=rng.choice(CELLS))


def gaps(rng: random.Random, limit: SlidingWindow) -> int:
    """From nothing to several periods; often exactly one cell."""
    cell_us, period_us = limit.cell_us, limit.cell_us * limit.cells
    some = (0, 1, 2, cell_us, cell_us, period_us, HOUR)
    return rng.choice((*some, rng.randrange(cell_us * 3), rng.randrange(period_us * 3)))


def costs(rng: random.Random, limit: SlidingWindow) -> int:
    amount = limit.amount
    some = (0, 1, 1, 1, 2, 3, amount, amount // 2, amount // 3 + 1, amount + 1)
    return rng.choice((*some, rng.randrange(amount + 1)))
