"""A call that an adaptive limiter let begin, until somebody says how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.adaptive.gate import DROPPED, IGNORED, SUCCESS

if TYPE_CHECKING:
    from headgate.adaptive.limiter import AdaptiveLimiter


class AdaptiveCall:
    """A call in flight. It ends once: as a success, ignored, or dropped.

    >>> limiter = AdaptiveLimiter()
    >>> call = limiter.acquire()
    >>> limiter.in_flight, call.success(), limiter.in_flight
    (1, None, 0)
    """

    __slots__ = ("_entered", "_limiter", "_outcome", "_started_ns")

    def __init__(self, limiter: AdaptiveLimiter, entered: int, started_ns: int) -> None:
        self._limiter = limiter
        self._entered = entered
        self._started_ns = started_ns
        self._outcome = SUCCESS

    def success(self) -> None:
        """Ends the call: it was answered, and its response time counts.

        >>> AdaptiveLimiter().acquire().success()
        """
        self._end(SUCCESS)

    def ignore(self) -> None:
        """Ends the call: it says nothing about the service.

        >>> AdaptiveLimiter().acquire().ignore()
        """
        self._end(IGNORED)

    def drop(self) -> None:
        """Ends the call: it timed out, or the service turned it away.

        >>> AdaptiveLimiter().acquire().drop()
        """
        self._end(DROPPED)

    def cancel(self) -> None:
        """Ends the call: it did not begin after all, and spent nothing.

        >>> AdaptiveLimiter().acquire().cancel()
        """
        limiter, self._limiter = self._limiter, None  # type: ignore[assignment]
        if limiter is not None:
            limiter._cancel(self._entered, self._started_ns)

    def restart(self) -> None:
        """Measures the response time from now on: what came before was no work of the service.

        >>> AdaptiveLimiter().acquire().restart()
        """
        if self._limiter is not None:
            self._started_ns = self._limiter._clock_ns()

    def _end(self, outcome: int) -> None:
        limiter, self._limiter = self._limiter, None  # type: ignore[assignment]
        if limiter is not None:  # a block that ends after drop() ends nothing twice
            limiter._leave(self._entered, self._started_ns, outcome)
