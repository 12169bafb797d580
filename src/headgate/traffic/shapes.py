"""Shapes of traffic: when clients call, and whether they try again.

    steady            one call after the other, at even distances
    poisson           independent clients: the same rate on average, at random
    square-burst      quiet and busy by turns, ten seconds each
    ramp              from nothing to twice the rate
    flash-sale        quiet, then twenty times as many at once, which fade away
    diurnal           a day: the night has a tenth of the noon
    retry-storm       poisson, and everybody who is refused tries again
    thundering-herd   all clients at the same instant, every ten seconds

Every shape has the same number of calls on average, `rate` times `seconds`. The same seed gives the same calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from math import cos, exp, pi

from headgate.errors import InvalidRule

SECOND_US = 1_000_000
TURN_S = 10.0  # of square bursts and herds
SALE_AT, SALE_PEAK, SALE_FADE = 0.25, 20.0, 0.08  # as shares of the time, and of the quiet rate
NIGHT = 0.1  # of the noon
MAX_CALLS = 5_000_000

# Without retries a refused call is given up. A client honours Retry-After, or it tries again soon.
NO_RETRIES, HONOUR, IGNORE = "none", "honour", "ignore"
RETRIES = (NO_RETRIES, HONOUR, IGNORE)

Intensity = Callable[[float], float]  # from the share of the time that has passed, up to the peak
Arrival = tuple[int, int]  # microseconds since the beginning, the number of the client


@dataclass(frozen=True)
class TrafficShape:
    """A shape with its numbers.

    >>> shape = TrafficShape("steady", rate=2, seconds=2, clients=3)
    >>> list(shape.arrivals())
    [(0, 0), (500000, 1), (1000000, 2), (1500000, 0)]
    """

    name: str
    rate: float = 50.0  # calls a second, on average
    seconds: float = 60.0
    clients: int = 100
    seed: int = 1
    retries: str | None = None  # None: as the shape has it

    def __post_init__(self) -> None:
        if self.name not in SHAPES:
            similar = get_close_matches(self.name, SHAPES, 1, 0.5)
            hint = f"Did you mean {similar[0]}?" if similar else f"Known: {', '.join(SHAPES)}."
            raise InvalidRule(f'"{self.name}" is no shape of traffic. {hint}')
        if self.rate <= 0 or self.seconds <= 0 or self.clients < 1:
            raise InvalidRule("A shape has a rate, a length and a number of clients, each above 0.")
        if self.rate * self.seconds > MAX_CALLS:
            raise InvalidRule(f"A simulation has at most {MAX_CALLS:,} calls; lower the rate or the length.")
        if self.retries is not None and self.retries not in RETRIES:
            raise InvalidRule(f'"{self.retries}" is no way to retry. Known: {", ".join(RETRIES)}.')

    @property
    def policy(self) -> str:
        """Returns how clients that are refused try again: none, honour or ignore.

        >>> TrafficShape("retry-storm").policy, TrafficShape("ramp").policy
        ('ignore', 'none')
        """
        return self.retries or (IGNORE if self.name == "retry-storm" else NO_RETRIES)

    def arrivals(self) -> Iterator[Arrival]:
        """Yields the first tries of all calls, in the order of time.

        >>> sum(1 for _ in TrafficShape("thundering-herd", rate=5, seconds=20).arrivals())
        100
        """
        return SHAPES[self.name](self)


def _steady(shape: TrafficShape) -> Iterator[Arrival]:
    for number in range(round(shape.rate * shape.seconds)):
        yield round(number * SECOND_US / shape.rate), number % shape.clients


def _thundering_herd(shape: TrafficShape) -> Iterator[Arrival]:
    turns = max(1, round(shape.seconds / TURN_S))
    calls = round(shape.rate * shape.seconds)
    for number in range(calls):
        turn = number * turns // calls
        yield round(turn * min(TURN_S, shape.seconds) * SECOND_US), number % shape.clients


def _by_intensity(intensity: Intensity, peak: float) -> Callable[[TrafficShape], Iterator[Arrival]]:
    """Returns a shape of independent calls whose rate follows `intensity`, which is 1 on average."""

    def arrivals(shape: TrafficShape) -> Iterator[Arrival]:
        chance = random.Random(shape.seed)
        at_s = 0.0
        while True:
            at_s += chance.expovariate(shape.rate * peak)
            if at_s >= shape.seconds:
                return
            if chance.random() * peak < intensity(at_s / shape.seconds):
                yield round(at_s * SECOND_US), chance.randrange(shape.clients)

    return arrivals


def _square_burst(shape: TrafficShape) -> Iterator[Arrival]:
    turns = max(1, round(shape.seconds / (2 * TURN_S)))
    busy = _by_intensity(lambda share: 1.8 if share * turns % 1 >= 0.5 else 0.2, 1.8)
    return busy(shape)


def _flash_sale_intensity() -> tuple[Intensity, float]:
    extra = (SALE_PEAK - 1) * SALE_FADE * (1 - exp(-(1 - SALE_AT) / SALE_FADE))
    quiet = 1 / (1 + extra)  # so that the average is 1

    def intensity(share: float) -> float:
        if share < SALE_AT:
            return quiet
        return quiet * (1 + (SALE_PEAK - 1) * exp(-(share - SALE_AT) / SALE_FADE))

    return intensity, quiet * SALE_PEAK


_NOON = 2 / (1 + NIGHT)
_poisson = _by_intensity(lambda share: 1.0, 1.0)

SHAPES: dict[str, Callable[[TrafficShape], Iterator[Arrival]]] = {
    "steady": _steady,
    "poisson": _poisson,
    "square-burst": _square_burst,
    "ramp": _by_intensity(lambda share: 2 * share, 2.0),
    "flash-sale": _by_intensity(*_flash_sale_intensity()),
    "diurnal": _by_intensity(lambda share: _NOON * (NIGHT + (1 - NIGHT) * (1 - cos(2 * pi * share)) / 2), _NOON),
    "retry-storm": _poisson,
    "thundering-herd": _thundering_herd,
}
