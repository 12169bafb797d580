"""Reservations: charges that are served later, and how to cancel them."""

from __future__ import annotations

from headgate import limiter_flows
from headgate.algorithms.decision import Decision
from headgate.flow import arun, run


class _QueuePlace:
    """The part of a reservation that needs no engine."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    @property
    def granted(self) -> bool:
        """Returns whether the place was granted; if not, nothing was charged."""
        return self.decision.allowed

    @property
    def delay(self) -> float:
        """Seconds to wait before going on."""
        return self.decision.delay

    def __bool__(self) -> bool:
        return self.granted

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.decision}>"


class Reservation(_QueuePlace):
    """A place in the queue of a key. It is charged already; sleep `delay`, then go on, or cancel.

    >>> reservation = Limiter("1/s").reserve("ann")
    >>> reservation.granted, reservation.delay
    (True, 0.0)
    """

    def cancel(self) -> None:
        """Gives the place back, as far as later reservations did not build on it; nothing once it was served.

        >>> limiter = Limiter("1/s", clock=ManualClock())
        >>> passed, place = limiter.take("ann"), limiter.reserve("ann")
        >>> place.cancel()
        >>> limiter.reserve("ann").delay
        1.0
        """
        if self.granted:
            run(limiter_flows.cancel(self.decision))


class AsyncReservation(_QueuePlace):
    """A place in the queue of a key. It is charged already; sleep `delay`, then go on, or cancel.

    >>> async def main() -> float:
    ...     return (await AsyncLimiter("1/s").reserve("ann")).delay
    >>> asyncio.run(main())
    0.0
    """

    async def cancel(self) -> None:
        """Gives the place back, as far as later reservations did not build on it; nothing once it was served."""
        if self.granted:
            await arun(limiter_flows.cancel(self.decision))
