"""Logs outages of the engine: when requests or tasks cannot be decided, and when they are decided again."""

from __future__ import annotations

import logging
from time import monotonic

REPORT_EVERY_S = 10.0  # an outage is not one line of the log for each request
RECOVERY_S = 1.0  # without a failure: in a cluster, other nodes answer while one is down

_log = logging.getLogger("headgate")


class OutageLog:
    """Counts requests that could not be decided; `active` while there are such.

    calls, outcome   how the log calls them, and what becomes of them
    """

    __slots__ = (
        "_began",
        "_calls",
        "_failures",
        "_last_failure",
        "_outcome",
        "_reported_at",
        "_unreported",
        "active",
    )

    def __init__(self, calls: str = "requests", outcome: str = "answered 503") -> None:
        self._calls, self._outcome = calls, outcome
        self.active: bool = False
        self._began = self._last_failure = 0.0
        self._reported_at = -REPORT_EVERY_S
        self._failures = self._unreported = 0

    def note_failure(self, error: Exception) -> None:
        """Logs that a request could not be decided: at once, and then every REPORT_EVERY_S at most."""
        now = monotonic()
        if not self.active:
            self.active, self._began, self._failures = True, now, 0
            self._reported_at, self._unreported = -REPORT_EVERY_S, 0
        self._last_failure = now
        self._failures += 1
        self._unreported += 1
        if now - self._reported_at >= REPORT_EVERY_S:
            _log.error(
                "headgate: %s could not be decided and were %s (%d since the last report): %s",
                self._calls,
                self._outcome,
                self._unreported,
                error,
            )
            self._unreported, self._reported_at = 0, now

    def note_success(self) -> None:
        """Logs that requests are decided again, after RECOVERY_S without a failure."""
        now = monotonic()
        if self.active and now - self._last_failure >= RECOVERY_S:
            self.active = False
            _log.warning(
                "headgate: %s are decided again, after %.1f s and %d that were %s.",
                self._calls,
                now - self._began,
                self._failures,
                self._outcome,
            )
