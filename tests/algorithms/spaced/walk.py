"""Draws random walks over spaced limits."""

import random

from tests.algorithms.spaced.spaced import Spaced


def limits(rng: random.Random) -> Spaced:
    return Spaced(rng.choice((1, 3, 7, 100)), rng.choice((0.001, 1, 60)))


def gaps(rng: random.Random, limit: Spaced) -> int:
    return rng.choice((0, 1, limit.gap_us - 1, limit.gap_us, rng.randrange(3 * limit.gap_us)))


def costs(rng: random.Random, limit: Spaced) -> int:
    return rng.choice((0, 1, 1, 1, 2))
