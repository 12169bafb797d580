"""The circuit breaker: when to stop calling an engine that does not answer, and when to try again.

Closed, every call goes to the engine. Three failures in a row open it; a success between them starts the counting
anew, so a slow trickle of failures never does. Open, no call goes to the engine. After a pause (100 ms, doubled
each time up to 500 ms) exactly one call does, the probe; the others do not wait for it. If it fails, the next
pause begins. If it succeeds, the breaker settles: calls go to the engine again, but processes that decided in the
meantime still have accounts to settle, and after `settle_us` of that it is closed. Without anything to settle it
is closed at once.

        failed, 3 in a row            pause is over
    CLOSED ------------> OPEN <--------------------> PROBING
       ^                  ^            failed           |
       |                  | failed, 3 in a row          | succeeded
       +-------------- SETTLING <-----------------------+
        settle_us later

Only the probe's own outcome moves a breaker that is probing: an answer that was under way since before says
nothing about now. A probe that never reports its outcome is given up after five seconds. A clock that steps back
ends any pause: waiting for it to catch up could take hours.

Laws (tests/engines/layers/test_breaker.py): as stated above. Pure: a value and the time in, a route and a value
out.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

FAILURES_TO_OPEN = 3
FIRST_PAUSE_US = 100_000
MAX_PAUSE_US = 500_000
PROBE_TIMEOUT_US = 5_000_000


class BreakerState(Enum):
    """The phase of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    SETTLING = "settling"


class BreakerRoute(Enum):
    """The route of a call: the engine, the fallback, or a probe of the engine."""

    CALL = "call"
    PROBE = "probe"
    FALL_BACK = "fall back"


# Members of an enum are slow to look up, and these are needed often.
CLOSED, OPEN, PROBING, SETTLING = BreakerState
CALL, PROBE, FALL_BACK = BreakerRoute


class Breaker(NamedTuple):
    """The breaker of one part of an engine."""

    phase: BreakerState = CLOSED
    failures: int = 0  # in a row
    pause_us: int = 0  # of the last pause
    since_us: int = 0  # when the phase began
    until_us: int = 0  # when it should end

    def choose_route(self, now_us: int) -> tuple[BreakerRoute, Breaker]:
        """Returns what a call that comes now should do, and the breaker after it."""
        if self.phase is CLOSED:
            return CALL, self
        is_over = not self.since_us <= now_us < self.until_us
        if self.phase is SETTLING:
            return CALL, Breaker(CLOSED, self.failures) if is_over else self
        if not is_over:
            return FALL_BACK, self
        return PROBE, Breaker(PROBING, self.failures, self.pause_us, now_us, now_us + PROBE_TIMEOUT_US)

    def on_success(self, route: BreakerRoute, now_us: int, settle_us: int) -> Breaker:
        """Returns the breaker after the engine answered a call of this route."""
        if route is PROBE and self.phase is PROBING:
            return Breaker(SETTLING, 0, 0, now_us, now_us + settle_us) if settle_us else Breaker()
        if self.failures and self.phase in (CLOSED, SETTLING):
            return self._replace(failures=0)
        return self

    def on_failure(self, route: BreakerRoute, now_us: int) -> Breaker:
        """Returns the breaker after the engine did not answer a call of this route."""
        if self.phase is PROBING and route is PROBE:
            return self._open(self._longer_pause_us, now_us)
        if self.phase in (OPEN, PROBING):
            return self
        if self.failures + 1 >= FAILURES_TO_OPEN:
            return self._open(FIRST_PAUSE_US, now_us)
        return self._replace(failures=self.failures + 1)

    def on_withdrawal(self, route: BreakerRoute, now_us: int) -> Breaker:
        """Returns the breaker after a call never reached the engine; if it was the probe, the next call may
        probe."""
        if self.phase is PROBING and route is PROBE:
            return Breaker(OPEN, self.failures, self.pause_us, now_us, now_us)
        return self

    def on_contact(self, now_us: int) -> Breaker:
        """Returns the breaker after the engine answered something else: the pause ends."""
        return self._replace(since_us=now_us, until_us=now_us) if self.phase is OPEN else self

    def pause_left_us(self, now_us: int) -> int:
        """Returns how long no call will go to the engine for sure."""
        left_us = self.until_us - now_us if self.phase is OPEN and self.since_us <= now_us else 0
        return max(0, left_us)

    def next_probe_us(self, now_us: int) -> int:
        """Returns when a call that got no answer may reach the engine again: at the next probe. Where one is under
        way, or none is due yet, after the pause that follows one more failure."""
        if left_us := self.pause_left_us(now_us):
            return left_us
        return FIRST_PAUSE_US if self.phase in (CLOSED, SETTLING) else self._longer_pause_us

    @property
    def _longer_pause_us(self) -> int:
        return min(2 * self.pause_us, MAX_PAUSE_US)

    def _open(self, pause_us: int, now_us: int) -> Breaker:
        return Breaker(OPEN, self.failures + 1, pause_us, now_us, now_us + pause_us)
