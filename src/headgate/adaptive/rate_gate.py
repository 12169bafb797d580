"""Enforces a rate that follows response times: a token bucket whose rate TargetRate moves.

Like ConcurrencyGate it reads no clock and takes no lock. The bucket holds a tenth of a second's calls, at least
one.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.adaptive.gate import DROPPED, IGNORED, MAX_RESPONSES
from headgate.adaptive.target_rate import BURST_SECONDS, RateState, RateWindow, TargetRate

_NS_PER_SECOND = 1e9


class RateGate:
    """A rate that an algorithm moves, and the tokens below it."""

    def __init__(self, algorithm: TargetRate, now_ns: float) -> None:
        self.algorithm: TargetRate = algorithm
        self.state: RateState = algorithm.start()
        self.rate: float = self.state.rate
        self.in_flight: int = 0
        self.reason: str = "start"
        self.strained: Callable[[], bool] = bool  # returns False: there is no guard
        self._tokens = self._burst
        self._filled_ns = now_ns
        self._open_window(now_ns)
        self.windows: int = 0  # that were judged

    @property
    def limit(self) -> int:
        """The rate, in whole calls per second."""
        return max(1, int(self.rate))

    def try_enter(self, now_ns: float) -> int:
        """Takes a token, and returns how many calls are in flight with this one; 0 if it must not begin."""
        self._tokens = self._tokens_at(now_ns)
        self._filled_ns = max(now_ns, self._filled_ns)
        if self._tokens < 1.0:
            return 0
        self._tokens -= 1.0
        self.in_flight += 1
        return self.in_flight

    def room(self, now_ns: float) -> int:
        """Returns how many calls could begin now."""
        return int(self._tokens_at(now_ns))

    @property
    def units_at_once(self) -> int:
        """Returns how many calls can begin at once, if none are in flight."""
        return max(1, int(self.limit * BURST_SECONDS))

    def enter_above(self) -> int:
        """Counts a call that begins although it was refused, and returns how many are in flight with it."""
        self.in_flight += 1
        return self.in_flight

    def go_on_from(self, limit: float) -> None:
        """Goes on from another rate."""
        self.rate = max(self.algorithm.floor, min(self.algorithm.ceiling, limit))
        self.state, self.reason = RateState(self.rate), "agreed"

    def wait(self) -> None:
        """Notes nothing: a rate learns from the calls that end."""

    turn_away = wait

    def cancel(self) -> None:
        """Takes back a call that did not begin after all, with its token."""
        self.in_flight -= 1
        self._tokens = min(self._burst, self._tokens + 1.0)

    def change(self, algorithm: TargetRate, now_ns: float, state: RateState | None = None) -> None:
        """Goes on with another algorithm, from this state if one is given; the calls in flight stay."""
        self.algorithm, self.state = algorithm, algorithm.start() if state is None else state
        self.reason = "start" if state is None else "changed settings"
        self.rate = self.state.rate
        self._open_window(now_ns)

    def leave(self, entered: int, started_ns: float, now_ns: float, outcome: int) -> None:
        """Counts a call that ended, and updates the rate if a window is complete."""
        self.in_flight -= 1
        if outcome == DROPPED:
            self._dropped += 1
        elif outcome != IGNORED and len(self._responses) < MAX_RESPONSES:
            self._responses.append((now_ns - started_ns) / _NS_PER_SECOND)
        elif outcome != IGNORED:
            self._others += 1
        seconds = (now_ns - self._opened_ns) / _NS_PER_SECOND
        window = RateWindow(self._responses, self._dropped, seconds, self._others)
        # A window that never fills is judged after ten of its least lengths.
        if self.algorithm.is_complete(window) or window.seconds > 10 * self.algorithm.min_window:
            self.windows += 1
            rate, state, reason = self.algorithm.update(self.state, window)
            if rate <= self.rate or not self.strained():
                self.rate, self.state, self.reason = rate, state, reason
            self._open_window(now_ns)

    def _open_window(self, now_ns: float) -> None:
        self._responses: list[float] = []
        self._dropped = self._others = 0
        self._opened_ns = now_ns

    def _tokens_at(self, now_ns: float) -> float:
        elapsed = max(0.0, now_ns - self._filled_ns) / _NS_PER_SECOND
        return min(self._burst, self._tokens + elapsed * self.rate)

    @property
    def _burst(self) -> float:
        return max(1.0, self.rate * BURST_SECONDS)
