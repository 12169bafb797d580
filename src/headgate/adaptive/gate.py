"""Counts the calls in flight, enforces the limit, and gathers the windows that the algorithm learns from.

A gate reads no clock and takes no lock: times are passed in, and its caller sees to threads. AdaptiveLimiter
and the simulator use the same gate, so what is simulated is what runs.

A new window ignores calls that end during its settling time, because the previous limit affected their response
times. From then on every call counts when it ends, whenever it began. (If the window counted only calls that also
began in it, it would miss the long ones, and a service with short and long calls would look too fast.) Drops
count whenever they are reported, because they may come late.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log, sqrt
from typing import Any, Final

from headgate.adaptive.carried_state import with_limit
from headgate.adaptive.window import LimitAlgorithm, Window

SUCCESS: Final = 0
IGNORED: Final = 1
DROPPED: Final = 2

_MANY_DROPS = 10  # calls that complete a window, also one that would need many
MAX_RESPONSES: Final = 10_000  # response times of a window that are kept for a quantile


class ConcurrencyGate:
    """A limit that an algorithm moves, and the number of calls in flight below it."""

    def __init__(self, algorithm: LimitAlgorithm[Any], now_ns: float) -> None:
        self.algorithm: LimitAlgorithm[Any] = algorithm
        self.state: Any = algorithm.start()
        self.limit: int = algorithm.limit_of(self.state)
        self.in_flight: int = 0
        self.reason: str = "start"
        self.strained: Callable[[], bool] = bool  # returns False: there is no guard
        self._quantile: float | None = getattr(algorithm, "quantile", None)
        self.windows: int = 0  # that were judged
        self._reset(now_ns)

    def go_on_from(self, limit: float) -> None:
        """Goes on from another limit, with everything else that was learned."""
        self.state = with_limit(self.state, self.algorithm, limit)
        self.limit, self.reason = self.algorithm.limit_of(self.state), "agreed"

    def change(self, algorithm: LimitAlgorithm[Any], now_ns: float, state: Any = None) -> None:
        """Goes on with another algorithm, from this state if one is given; the calls in flight stay."""
        self.algorithm, self.state = algorithm, algorithm.start() if state is None else state
        self.reason = "start" if state is None else "changed settings"
        self.limit = algorithm.limit_of(self.state)
        self._quantile = getattr(algorithm, "quantile", None)
        self._reset(now_ns)

    def _reset(self, now_ns: float) -> None:
        self._window_ns, self._window_samples, settle_ns = self.algorithm.window_of(self.state)
        self._opened_ns = now_ns
        self._settled_ns = now_ns + settle_ns
        self._sum_ns = self._log_sum = self._log_squares = 0.0
        self._met = self._samples = self._dropped = self._refused = self._arrived = 0
        self._peak = self.in_flight
        self._responses: list[float] = []

    def try_enter(self, now_ns: float) -> int:
        """Counts one more call, and returns how many are in flight with it; 0 if it must not begin."""
        in_flight = self.in_flight
        if in_flight >= self.limit:
            self._refused += 1
            return 0
        self._arrived += 1
        self.in_flight = in_flight = in_flight + 1
        if in_flight > self._peak:
            self._peak = in_flight
        return in_flight

    def room(self, now_ns: float) -> int:
        """Returns how many calls could begin now."""
        return max(0, self.limit - self.in_flight)

    @property
    def units_at_once(self) -> int:
        """Returns how many calls can begin at once, if none are in flight."""
        return self.limit

    def enter_above(self) -> int:
        """Counts a call that begins although it was refused, and returns how many are in flight with it."""
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)
        return self.in_flight

    def wait(self) -> None:
        """Notes that a call would begin if the limit were higher, though nobody refuses it."""
        self._refused += 1

    def turn_away(self) -> None:
        """Notes that a call came, and was refused for its priority."""
        self._arrived += 1

    def leave(self, entered: int, started_ns: float, now_ns: float, outcome: int) -> None:
        """Counts a call that ended, and updates the limit if a window is complete. `entered` is what try_enter
        returned."""
        in_flight = self.in_flight
        self.in_flight = in_flight - 1
        if outcome == IGNORED:
            return
        if not self._window_samples:
            dropped = int(outcome == DROPPED)
            response_ns = max(1.0, now_ns - started_ns)
            window = Window(now_ns, response_ns, entered, dropped, 1 - dropped, typical_ns=response_ns)
            self._apply(window)
            return
        if outcome == DROPPED:
            self._dropped += 1
        elif now_ns >= self._settled_ns:
            response_ns = max(1.0, now_ns - started_ns)
            self._samples += 1
            self._met += entered + in_flight
            self._sum_ns += response_ns
            logarithm = log(response_ns)
            self._log_sum += logarithm
            self._log_squares += logarithm * logarithm
            if self._quantile is not None and len(self._responses) < MAX_RESPONSES:
                self._responses.append(response_ns)
        enough = self._samples + self._dropped >= self._window_samples or self._dropped >= _MANY_DROPS
        if enough and now_ns - self._opened_ns >= self._window_ns:
            self._apply(self._window(now_ns))
            self._reset(now_ns)

    def _window(self, now_ns: float) -> Window:
        samples = self._samples
        mean = self._log_sum / samples if samples else 0.0
        variance = max(0.0, self._log_squares / samples - mean * mean) if samples else 0.0
        return Window(
            now_ns,
            self._sum_ns / samples if samples else 0.0,
            self._peak,
            self._dropped,
            samples,
            self._met / (2 * samples) if samples else 0.0,
            self._refused,
            self.strained(),
            exp(mean) if samples else 0.0,
            sqrt(variance / samples) if samples else 0.0,
            self._arrived + self._refused,
            now_ns - self._opened_ns,
            self._quantile_ns(),
        )

    def _quantile_ns(self) -> float:
        """Returns the quantile of the window's response times, with drops as the slowest; 0 if none is wanted."""
        calls = len(self._responses) + self._dropped
        if self._quantile is None or not calls:
            return 0.0
        number = min(calls - 1, int(self._quantile * calls))
        return sorted(self._responses)[number] if number < len(self._responses) else inf

    def _apply(self, window: Window) -> None:
        self.windows += 1
        self.limit, self.state, self.reason = self.algorithm.update(self.state, window)
