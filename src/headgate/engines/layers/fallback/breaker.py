"""The breaker: when to stop asking an engine that does not answer, and when to ask it again.

Closed, every call goes through. Three failures in a row open it; a success between them starts the counting
anew, so a slow trickle of failures never does. Open, nobody asks. After a pause (100 ms, doubled each time up to
500 ms) exactly one call goes through, the probe; the others do not wait for it. If it fails, the next pause
begins. If it succeeds, the breaker settles: calls go through again, but whoever decided in the meantime still has
accounts to settle, and after `settle_us` of that it is closed. Without anything to settle it is closed at once.

        failed, 3 in a row            pause is over
    CLOSED ------------> OPEN <--------------------> PROBING
       ^                  ^            failed           |
       |                  | failed, 3 in a row          | succeeded
       +-------------- SETTLING <-----------------------+
        settle_us later

Only the probe's own outcome moves a breaker that is probing: an answer that was under way since before says
nothing about now. A probe that never tells its outcome is given up after five seconds. A clock that steps back
ends any pause: waiting for it to catch up could take hours.

Laws (tests/engines/layers/test_breaker.py): as told above. Pure: a value and the time in, an answer and a value
out.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

FAILURES = 3
FIRST_PAUSE_US = 100_000
LONGEST_PAUSE_US = 500_000
LONGEST_PROBE_US = 5_000_000


class Phase(Enum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    SETTLING = "settling"


class Way(Enum):
    """What a call should do."""

    ASK = "ask"
    PROBE = "probe"
    FALL_BACK = "fall back"


# Members of an enum are looked up slowly, and these are asked for often.
CLOSED, OPEN, PROBING, SETTLING = Phase
ASK, PROBE, FALL_BACK = Way


class Breaker(NamedTuple):
    """One part of an engine, as far as its failures tell."""

    phase: Phase = CLOSED
    failures: int = 0  # in a row
    pause_us: int = 0  # the last one
    since_us: int = 0  # when the phase began
    until_us: int = 0  # when it should end

    def asked(self, now_us: int) -> tuple[Way, Breaker]:
        """What a call that comes now should do."""
        if self.phase is CLOSED:
            return ASK, self
        over = not self.since_us <= now_us < self.until_us
        if self.phase is SETTLING:
            return ASK, Breaker(CLOSED, self.failures) if over else self
        if not over:
            return FALL_BACK, self
        return PROBE, Breaker(PROBING, self.failures, self.pause_us, now_us, now_us + LONGEST_PROBE_US)

    def succeeded(self, way: Way, now_us: int, settle_us: int) -> Breaker:
        """The engine answered a call that went this way."""
        if way is PROBE and self.phase is PROBING:
            return Breaker(SETTLING, 0, 0, now_us, now_us + settle_us) if settle_us else Breaker()
        if self.failures and self.phase in (CLOSED, SETTLING):
            return self._replace(failures=0)
        return self

    def failed(self, way: Way, now_us: int) -> Breaker:
        """It did not."""
        if self.phase is PROBING and way is PROBE:
            return self._opened(self._longer_pause_us, now_us)
        if self.phase in (OPEN, PROBING):
            return self
        if self.failures + 1 >= FAILURES:
            return self._opened(FIRST_PAUSE_US, now_us)
        return self._replace(failures=self.failures + 1)

    def withdrawn(self, way: Way, now_us: int) -> Breaker:
        """The call that was to be the probe never asked; the next one may."""
        if self.phase is PROBING and way is PROBE:
            return Breaker(OPEN, self.failures, self.pause_us, now_us, now_us)
        return self

    def heard(self, now_us: int) -> Breaker:
        """The engine spoke to somebody else: no need to pause any longer."""
        return self._replace(since_us=now_us, until_us=now_us) if self.phase is OPEN else self

    def pause_left_us(self, now_us: int) -> int:
        """How long the engine will surely not be asked."""
        left_us = self.until_us - now_us if self.phase is OPEN and self.since_us <= now_us else 0
        return max(0, left_us)

    def next_probe_us(self, now_us: int) -> int:
        """When a call that got no answer may find the engine again: at the next probe. Where one is under way, or
        none is due yet, after the pause that follows one more failure."""
        if left_us := self.pause_left_us(now_us):
            return left_us
        return FIRST_PAUSE_US if self.phase in (CLOSED, SETTLING) else self._longer_pause_us

    @property
    def _longer_pause_us(self) -> int:
        return min(2 * self.pause_us, LONGEST_PAUSE_US)

    def _opened(self, pause_us: int, now_us: int) -> Breaker:
        return Breaker(OPEN, self.failures + 1, pause_us, now_us, now_us + pause_us)
