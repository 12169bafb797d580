"""Bounds frames that cost work and bring none.

A peer that opens streams and resets them, pings without end, or sends settings, priorities and empty frames,
keeps the server busy without a single answered call. Each of these frames, and each setting in one, spends one
from a budget, which grows with time and with answered calls. A client that cancels what it asked, however
often, stays within it: Envoy's timeouts cancel thousands of calls, and most of the time many more are answered.

    at first             BURST
    each second          PER_SECOND more
    each answered call   PER_ANSWER more, up to BURST together

Laws (tests/service/grpc_server/test_connection.py): a flood of frames ends after BURST of them, and a peer
that lets calls end is never cut off.
"""

from __future__ import annotations

from headgate.service.grpc_server.frames import ENHANCE_YOUR_CALM, Http2Error

BURST = 2000
PER_SECOND = 1000
PER_ANSWER = 10


class FrameBudget:
    """The budget of one connection."""

    __slots__ = ("_answered", "_at", "_left")

    def __init__(self, now: float) -> None:
        self._left: float = BURST
        self._at = now
        self._answered = 0

    def spend(self, now: float, answered: int) -> None:
        """Spends one; `answered` is how many calls the connection has answered until now."""
        self._left -= 1
        if self._left >= 0:
            return
        grown = (now - self._at) * PER_SECOND + (answered - self._answered) * PER_ANSWER
        self._at, self._answered = now, answered
        self._left = min(self._left + grown, BURST)
        if self._left < 0:
            raise Http2Error(ENHANCE_YOUR_CALM, "Too many frames that bring no call: resets, pings, settings.")
