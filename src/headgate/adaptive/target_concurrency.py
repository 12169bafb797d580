"""A limit on the calls in flight that holds a quantile of response times at a target.

AdaptiveConcurrency finds how many calls a service can work on, and needs no number. This one is for a promise:
the P99 stays below 200 ms. It moves as TCP moves its window, once for each window of calls:

    quantile > target                        limit x backoff; twice that if it is above twice the target
    quantile < target x (1 - hysteresis)     limit + 5 %, at least 1, if it was reached; 10 % below half of it
    between                                  unchanged: small noise does not move the limit

Dropped calls count as slower than any other. A window has as many calls as the quantile needs to mean something:
100 for a P99, 20 for a P90. A service that cannot keep the target even with few calls in flight ends at the floor.

Laws (tests/adaptive/test_target_concurrency.py): the limit stays within floor and ceiling; it never rises in a
window whose quantile is above the target, and never falls in one below; unused it does not rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from headgate.adaptive.window import DEFAULT_START, Update, Window, WindowSize, check_limits, check_number

_NS_PER_SECOND = 1e9
_MIN_SAMPLES = 20
_MAX_SETTLE_NS = 1e9


class TargetConcurrencyState(NamedTuple):
    """The limit with its fraction, and the quantile of the last window."""

    limit: float
    response_ns: float = 0.0


@dataclass(frozen=True)
class TargetConcurrency:
    """Holds the `quantile` of response times (0.9 for P90, 0.99 for P99) at `target` seconds.

    >>> from headgate.adaptive.target_concurrency import TargetConcurrency
    >>> AdaptiveLimiter(TargetConcurrency(target=0.2, quantile=0.99, floor=5, ceiling=500)).limit
    20
    """

    target: float
    quantile: float = 0.99
    floor: int = 1
    ceiling: int = 1000
    initial: int | None = None  # 20, or the bound that is nearer, unless given
    backoff: float = 0.9
    growth: float = 0.05
    hysteresis: float = 0.15
    min_window: float = 0.5

    def __post_init__(self) -> None:
        check_number("target", self.target, 0, above=True)
        check_number("quantile", self.quantile, 0.5, 0.999)
        check_number("backoff", self.backoff, 0.1, 0.99)
        check_number("growth", self.growth, 0, 1, above=True)
        check_number("hysteresis", self.hysteresis, 0, 0.9)
        check_number("min_window", self.min_window, 0, above=True)
        check_limits(self.floor if self.initial is None else self.initial, self.floor, self.ceiling)

    def start(self) -> TargetConcurrencyState:
        """Returns the state before the first window."""
        initial = max(self.floor, min(self.ceiling, DEFAULT_START)) if self.initial is None else self.initial
        return TargetConcurrencyState(float(initial))

    def limit_of(self, state: TargetConcurrencyState) -> int:
        """Returns the limit that is enforced in this state."""
        return int(state.limit)

    def window_of(self, state: TargetConcurrencyState) -> WindowSize:
        """Returns when the next window is complete."""
        samples = max(_MIN_SAMPLES, ceil(round(1 / (1 - self.quantile), 6)))
        settle_ns = min(_MAX_SETTLE_NS, self.target * _NS_PER_SECOND)
        return WindowSize(self.min_window * _NS_PER_SECOND + settle_ns, samples, settle_ns)

    def update(self, state: TargetConcurrencyState, window: Window) -> Update[TargetConcurrencyState]:
        """Returns the new limit, the new state, and the reason."""
        limit, measured = state.limit, window.quantile_ns / _NS_PER_SECOND
        if measured > self.target:
            limit = min(limit - 1, limit * (self.backoff**2 if measured > 2 * self.target else self.backoff))
            reason = "above the target"
        elif measured >= self.target * (1 - self.hysteresis):
            reason = "at the target"
        elif window.in_flight < int(limit) and not window.refused:
            reason = "not used"
        elif window.strained:
            reason = "strained"
        else:
            growth = 2 * self.growth if measured < self.target / 2 else self.growth
            limit, reason = limit + max(1.0, growth * limit), "below the target"
        limit = max(float(self.floor), min(float(self.ceiling), limit))
        return int(limit), TargetConcurrencyState(limit, window.response_ns), reason
