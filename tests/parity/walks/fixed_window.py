"""Draws random walks over fixed windows. Calendar limits come without boundaries: the engine under test adds
those around the walk's clock.
"""

import random

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import DAY, HOUR

AMOUNTS = (1, 2, 3, 7, 10, 100, 999, 123_457, 1_000_000, 10**15)
PERIODS = (0.000001, 0.001, 0.7, 1, 30, 60, 3600, 86_400, 31_536_000)
UNITS = ("day", "week", "month", "year")
ZONES = (None, "Asia/Shanghai", "America/Sao_Paulo", "Africa/Cairo", "Australia/Lord_Howe", "Pacific/Apia")
UNIT_US = {"day": DAY, "week": 7 * DAY, "month": 30 * DAY, "year": 365 * DAY}


def limits(rng: random.Random) -> FixedWindow:
    if rng.random() < 0.4:
        return FixedWindow(rng.choice(AMOUNTS), rng.choice(UNITS), zone=rng.choice(ZONES))
    return FixedWindow(rng.choice(AMOUNTS), rng.choice(PERIODS))


def gaps(rng: random.Random, limit: FixedWindow) -> int:
    """From nothing to several windows; often exactly one."""
    length_us = UNIT_US[limit.unit] if limit.unit else limit.period_us
    some = (0, 1, 2, length_us, 2 * length_us, HOUR)
    return rng.choice((*some, rng.randrange(length_us // 10 + 2), rng.randrange(length_us * 4 + 2)))


def costs(rng: random.Random, limit: FixedWindow) -> int:
    amount = limit.amount
    some = (0, 1, 1, 1, 2, 3, amount, amount // 2, amount // 2 + 1, amount + 1)
    return rng.choice((*some, rng.randrange(amount + 1)))
