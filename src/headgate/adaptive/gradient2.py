"""Gradient2, as in Netflix's concurrency-limits: compares the current response time with its long average.

The long average covers `long_window` windows. g = tolerance x long / current, between 0.5 and 1, is how far
response times have risen; the limit moves towards g x L + queue, by `smoothing` of the way. If less than half
of the limit is in flight, nothing changes. If the long average is more than twice the current time, it is
shortened by 5 %.

Drops do not matter, and in a mild overload the long average follows the queue that the limit allows, so the
limit creeps up for as long as the overload lasts: the known flaws of this algorithm.

Laws (tests/adaptive/test_netflix_laws.py): the limit stays within its bounds; below half of the limit in flight
it does not change. Recorded decisions: tests/recorded/replay_netflix.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headgate.adaptive.window import Update, Window, WindowSize, check_limits, check_number


class Gradient2State(NamedTuple):
    """The limit with its fraction, and the long average of response times."""

    estimate: float
    long_ns: float = 0.0
    warmup_count: int = 0
    warmup_sum_ns: float = 0.0


@dataclass(frozen=True)
class Gradient2:
    """The settings of Gradient2; the long average is a plain mean for its first `warmup` windows."""

    initial: int = 20
    floor: int = 20
    ceiling: int = 200
    smoothing: float = 0.2
    tolerance: float = 1.5
    long_window: int = 600
    warmup: int = 10
    queue: int = 4

    def __post_init__(self) -> None:
        check_limits(self.initial, self.floor, self.ceiling)
        check_number("smoothing", self.smoothing, 0, 1, above=True)
        check_number("tolerance", self.tolerance, 1)
        check_number("long_window", self.long_window, 1)
        check_number("queue", self.queue, 0)

    def start(self) -> Gradient2State:
        return Gradient2State(float(self.initial))

    def limit_of(self, state: Gradient2State) -> int:
        return int(state.estimate)

    def window_of(self, state: Gradient2State) -> WindowSize:
        return WindowSize(1_000_000_000.0, 10)

    def update(self, state: Gradient2State, window: Window) -> Update[Gradient2State]:
        """Returns the new limit, the new state, and the reason."""
        estimate, long_ns, count, sum_ns = state
        current_ns = window.response_ns
        if current_ns <= 0:
            return int(estimate), state, "no answer"
        if count < self.warmup:
            count, sum_ns = count + 1, sum_ns + current_ns
            long_ns = sum_ns / count
        else:
            factor = 2.0 / (self.long_window + 1)
            long_ns = long_ns * (1 - factor) + current_ns * factor
        compared_ns = long_ns
        if long_ns / current_ns > 2:
            long_ns *= 0.95
        if window.in_flight < estimate / 2:
            return int(estimate), Gradient2State(estimate, long_ns, count, sum_ns), "not used"
        gradient = max(0.5, min(1.0, self.tolerance * compared_ns / current_ns))
        changed = estimate * gradient + self.queue
        changed = estimate * (1 - self.smoothing) + changed * self.smoothing
        changed = max(float(self.floor), min(float(self.ceiling), changed))
        reason = "rising response time" if gradient < 1 else "steady response time"
        return int(changed), Gradient2State(changed, long_ns, count, sum_ns), reason
