"""Describes the calls since an algorithm's last update, and checks the settings of algorithms."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Protocol, TypeVar

from headgate.errors import InvalidRule

S = TypeVar("S")

DEFAULT_START: Final = 20  # the first limit of an algorithm that is given none


class Window(NamedTuple):
    """The calls of one window of time; a single call is a window too.

    now_ns           when the window ended, by a clock that never goes back
    response_ns      the mean response time of the calls that succeeded; 0 if none did
    in_flight        the most calls that were in flight at once
    dropped          calls that timed out, or were turned away by the service
    samples          calls that succeeded
    mean_in_flight   calls in flight when one of them began or ended, itself included, on average
    refused          calls that the limiter refused, or that wait for it
    strained         whether a guard (event-loop lag, CPU) is above its threshold
    typical_ns       the geometric mean of the response times, which one very slow call hardly moves
    spread           the standard error of typical_ns, as a part of it: 0.05 if it is good to 5 %
    arrived          calls that came, whether they began or were refused
    length_ns        how long the window lasted; 0 if not known
    quantile_ns      the algorithm's `quantile` of the response times, with drops as the slowest; 0 if it has none
    """

    now_ns: float
    response_ns: float
    in_flight: int
    dropped: int = 0
    samples: int = 1
    mean_in_flight: float = 0.0
    refused: int = 0
    strained: bool = False
    typical_ns: float = 0.0
    spread: float = 0.0
    arrived: int = 0
    length_ns: float = 0.0
    quantile_ns: float = 0.0


class WindowSize(NamedTuple):
    """The condition for a complete window: after `length_ns`, and with so many calls. Those that end within the
    first `settle_ns` are not counted: they met the limit before. With 0 samples each call is a window of its own.
    """

    length_ns: float
    samples: int
    settle_ns: float = 0.0


# The whole number to enforce, what to pass to the next update, and why, in a word or two.
Update = tuple[int, S, str]


class LimitAlgorithm(Protocol[S]):
    """Computes a limit on concurrency. Pure: the same state and window give the same limit."""

    def start(self) -> S:
        """Returns the state before the first window."""

    def limit_of(self, state: S) -> int:
        """Returns the limit that is enforced in this state."""

    def window_of(self, state: S) -> WindowSize:
        """Returns when the next window is complete."""

    def update(self, state: S, window: Window) -> Update[S]:
        """Returns the new limit, the new state, and the reason."""


def check_number(name: str, value: float, least: float, most: float = math.inf, *, above: bool = False) -> float:
    """Returns the value; raises InvalidRule unless it is a number between these bounds, or above the lower one."""
    valid = type(value) in (int, float) and least <= value <= most and not (above and value == least)
    if not valid or math.isinf(value):
        lower = f"above {least:g}" if above else f"at least {least:g}"
        upper = "" if most == math.inf else f", at most {most:g}"
        raise InvalidRule(f"{name} is a number {lower}{upper}; not {value!r}.")
    return value


def check_limits(initial: int, floor: int, ceiling: int) -> None:
    """Raises InvalidRule unless these are whole numbers with 1 <= floor <= initial <= ceiling."""
    for name, value in (("initial", initial), ("floor", floor), ("ceiling", ceiling)):
        if type(value) is not int or value < 1:
            raise InvalidRule(f"{name} is a whole number of at least 1; not {value!r}.")
    if floor > ceiling:
        raise InvalidRule(f"The floor of {floor} is above the ceiling of {ceiling}: exchange them.")
    if not floor <= initial <= ceiling:
        raise InvalidRule(f"A limit that starts at {initial} is outside its own bounds, {floor} to {ceiling}.")
