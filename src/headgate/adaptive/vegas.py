"""Vegas, as in Netflix's concurrency-limits: estimates the queue from the response time, and keeps it short.

S is the shortest response time seen, R the current one, L the limit. Of L calls in flight, L x (1 - S/R) are
then waiting. That queue is held between `alpha` and `beta`: below, the limit grows by log10 L (by `beta` if the
queue is at most log10 L long); above, it shrinks by log10 L, and so it does after a drop. If less than half of
the limit is in flight, nothing changes.

S must follow a service that becomes slower. So it is replaced by the current R after 15 x L to 30 x L calls (a
random number, from a seed in the state). Under load that R contains queueing, and the limit is too high from
then on: the known flaw of this algorithm.

Laws (tests/adaptive/test_netflix_laws.py): the limit stays within its bounds; a drop never raises it; below
half of the limit in flight it changes only after a drop. Recorded decisions: tests/recorded/replay_netflix.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from headgate.adaptive.window import Update, Window, WindowSize, check_limits, check_number

_SEED_MODULUS = 2**31


class VegasState(NamedTuple):
    """The limit with its fraction, the shortest response time, and when that is replaced."""

    estimate: float
    shortest_ns: float = 0.0
    calls: int = 0
    seed: int = 1


@dataclass(frozen=True)
class Vegas:
    """The settings of Vegas. `alpha` and `beta` are queue lengths; unless given, 3 and 6 times log10 of the limit.
    `probe` is 30 for Netflix's interval, and 0 to keep the shortest response time for ever."""

    initial: int = 20
    ceiling: int = 1000
    smoothing: float = 1.0
    alpha: int | None = None
    beta: int | None = None
    probe: int = 30

    def __post_init__(self) -> None:
        check_limits(self.initial, 1, self.ceiling)
        check_number("smoothing", self.smoothing, 0, 1, above=True)
        check_number("probe", self.probe, 0)

    def start(self) -> VegasState:
        return VegasState(float(self.initial))

    def limit_of(self, state: VegasState) -> int:
        return int(state.estimate)

    def window_of(self, state: VegasState) -> WindowSize:
        return WindowSize(0.0, 0)

    def update(self, state: VegasState, window: Window) -> Update[VegasState]:
        """Returns the new limit, the new state, and the reason."""
        estimate, shortest_ns, calls, seed = state
        response_ns = window.response_ns
        calls += 1
        if self.probe and calls >= (0.5 + seed / _SEED_MODULUS / 2) * self.probe * estimate:
            next_seed = (seed * 1_103_515_245 + 12_345) % _SEED_MODULUS
            return int(estimate), VegasState(estimate, response_ns, 0, next_seed), "probe"
        if shortest_ns == 0 or response_ns < shortest_ns:
            return int(estimate), VegasState(estimate, response_ns, calls, seed), "shortest yet"
        changed, reason = self._changed(estimate, shortest_ns, window)
        if changed is not None:
            changed = max(1.0, min(float(self.ceiling), changed))
            estimate = (1 - self.smoothing) * estimate + self.smoothing * changed
        return int(estimate), VegasState(estimate, shortest_ns, calls, seed), reason

    def _changed(self, estimate: float, shortest_ns: float, window: Window) -> tuple[float | None, str]:
        step = _log10(int(estimate))
        if window.dropped:
            return estimate - step, "dropped"
        if window.in_flight * 2 < estimate:
            return None, "not used"
        queue = math.ceil(estimate * (1 - shortest_ns / window.response_ns))
        alpha = 3 * step if self.alpha is None else self.alpha
        beta = 6 * step if self.beta is None else self.beta
        if queue <= step:
            return estimate + beta, "no queue"
        if queue < alpha:
            return estimate + step, "short queue"
        if queue > beta:
            return estimate - step, "long queue"
        return None, "steady queue"


def _log10(limit: int) -> int:
    """Returns the whole part of log10, at least 1."""
    return max(1, int(math.log10(limit)))
