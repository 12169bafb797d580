"""AIMD, as in Netflix's concurrency-limits: one more when it is used, a tenth less after a drop.

A call that was dropped, or took longer than the timeout, multiplies the limit by `backoff` and cuts off the
fraction. Any other call adds 1 if at least half of the limit was in flight. Response times below the timeout do
not matter: a queue may grow until calls time out.

Laws (tests/adaptive/test_netflix_laws.py): the limit stays within its bounds; without drops and timeouts it
never falls; below half of the limit in flight it never rises.
Recorded decisions: tests/recorded/replay_netflix.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headgate.adaptive.window import Update, Window, WindowSize, check_limits, check_number

_NS_PER_SECOND = 1_000_000_000


class AimdState(NamedTuple):
    """The limit, a whole number."""

    limit: int


@dataclass(frozen=True)
class Aimd:
    """The settings of AIMD; `timeout` is in seconds."""

    initial: int = 20
    floor: int = 20
    ceiling: int = 200
    backoff: float = 0.9
    timeout: float = 5.0

    def __post_init__(self) -> None:
        check_limits(self.initial, self.floor, self.ceiling)
        check_number("backoff", self.backoff, 0.5, 0.999)
        check_number("timeout", self.timeout, 0, above=True)

    def start(self) -> AimdState:
        return AimdState(self.initial)

    def limit_of(self, state: AimdState) -> int:
        return state.limit

    def window_of(self, state: AimdState) -> WindowSize:
        return WindowSize(0.0, 0)

    def update(self, state: AimdState, window: Window) -> Update[AimdState]:
        """Returns the new limit, the new state, and the reason."""
        limit, reason = state.limit, "not used"
        if window.dropped:
            limit, reason = int(limit * self.backoff), "dropped"
        elif window.response_ns > self.timeout * _NS_PER_SECOND:
            limit, reason = int(limit * self.backoff), "timed out"
        elif window.in_flight * 2 >= limit:
            limit, reason = limit + 1, "used"
        limit = min(self.ceiling, max(self.floor, limit))
        return limit, AimdState(limit), reason
