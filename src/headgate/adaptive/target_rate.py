"""A rate that holds a quantile of response times at a target: calls per second that follow the service.

Where calls cannot be counted in flight (they are queued elsewhere, or the limit is enforced by another
process), the rate is what can be limited. It moves as TCP moves its window: up by a step while the quantile is
well below the target, down by a factor as soon as it is above.

    quantile > target                        rate x backoff; twice that if it is above twice the target
    quantile < target x (1 - hysteresis)     rate + step, if at least 0.8 of the rate was used;
                                             two steps below half of the target
    between                                  unchanged: small noise does not move the rate

Dropped calls count as slower than any other. A window has at least `samples` calls and `min_window` seconds,
because a P99 of 20 calls is the slowest of them. Rates stay within floor and ceiling.

Laws (tests/adaptive/test_target_rate.py): the rate stays within its bounds; it never rises in a window whose
quantile is above the target, and never falls in one below; unused it does not rise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.adaptive.window import check_number
from headgate.errors import InvalidRule

BURST_SECONDS: Final = 0.1  # of calls that may begin at once


class RateWindow(NamedTuple):
    """The calls of one window: response times in seconds in any order, drops, and the window's length.

    `others` are calls that succeeded, beyond those whose response times are kept.
    """

    responses: Sequence[float]
    dropped: int
    seconds: float
    others: int = 0

    @property
    def calls(self) -> int:
        """Returns the number of all calls of the window."""
        return len(self.responses) + self.dropped + self.others


class RateState(NamedTuple):
    """The rate, in calls per second."""

    rate: float


@dataclass(frozen=True)
class TargetRate:
    """Holds the `quantile` of response times (0.9 for P90, 0.99 for P99) at `target` seconds.

    >>> from headgate.adaptive.target_rate import RateWindow, TargetRate
    >>> settings = TargetRate(target=0.25, quantile=0.9, floor=10, ceiling=1000, initial=100)
    >>> rate, state, reason = settings.update(settings.start(), RateWindow([0.3] * 200, 0, 1.0))
    >>> rate, reason
    (85.0, 'above the target')
    """

    target: float
    quantile: float = 0.99
    floor: float = 1.0
    ceiling: float = 10_000.0
    initial: float | None = None  # the ceiling, unless given
    step: float | None = None  # 2 % of the ceiling, unless given
    backoff: float = 0.85
    hysteresis: float = 0.15
    min_window: float = 1.0
    samples: int = 100

    def __post_init__(self) -> None:
        check_number("target", self.target, 0, above=True)
        check_number("quantile", self.quantile, 0.5, 0.999)
        check_number("floor", self.floor, 0, above=True)
        check_number("ceiling", self.ceiling, 0, above=True)
        check_number("backoff", self.backoff, 0.1, 0.99)
        check_number("hysteresis", self.hysteresis, 0, 0.9)
        check_number("min_window", self.min_window, 0, above=True)
        check_number("samples", self.samples, 10)
        if self.floor > self.ceiling:
            raise InvalidRule(
                f"The floor of {self.floor:g} is above the ceiling of {self.ceiling:g}: exchange them."
            )
        if self.step is not None:
            check_number("step", self.step, 0, above=True)
        if self.initial is not None and not self.floor <= self.initial <= self.ceiling:
            raise InvalidRule(
                f"A rate that starts at {self.initial:g} is outside its own bounds, "
                f"{self.floor:g} to {self.ceiling:g}."
            )

    def start(self) -> RateState:
        """Returns the state before the first window."""
        return RateState(float(self.ceiling if self.initial is None else self.initial))

    def is_complete(self, window: RateWindow) -> bool:
        """Returns whether a window has enough calls and time to be judged."""
        return window.seconds >= self.min_window and window.calls >= self.samples

    def update(self, state: RateState, window: RateWindow) -> tuple[float, RateState, str]:
        """Returns the new rate, the new state, and the reason."""
        rate = state.rate
        if not (window.responses or window.dropped) or window.seconds <= 0:
            return rate, state, "no calls"
        measured = self._quantile(window)
        if measured > self.target:
            rate, reason = (
                rate * (self.backoff**2 if measured > 2 * self.target else self.backoff),
                "above the target",
            )
        elif measured >= self.target * (1 - self.hysteresis):
            reason = "at the target"
        elif window.calls / window.seconds < 0.8 * rate:
            reason = "not used"
        else:
            step = 0.02 * self.ceiling if self.step is None else self.step
            rate, reason = rate + (2 * step if measured < self.target / 2 else step), "below the target"
        rate = max(float(self.floor), min(float(self.ceiling), rate))
        return rate, RateState(rate), reason

    def _quantile(self, window: RateWindow) -> float:
        """Returns the quantile of the window, with drops as the slowest calls."""
        calls = len(window.responses) + window.dropped
        number = min(calls - 1, int(self.quantile * calls))
        return sorted(window.responses)[number] if number < len(window.responses) else float("inf")
