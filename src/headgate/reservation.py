"""A place taken: when it will be served, and how to give it back."""

from __future__ import annotations

from headgate import steps
from headgate.flow import arun, run
from headgate.model.decision import Decision


class _Place:
    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    @property
    def granted(self) -> bool:
        """Whether there is a place at all; if not, nothing was charged."""
        return self.decision.allowed

    @property
    def delay(self) -> float:
        """Seconds to wait before going on."""
        return self.decision.delay

    def __bool__(self) -> bool:
        return self.granted

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.decision}>"


class Reservation(_Place):
    """A place in the queue of a key. It is charged already; sleep `delay`, then go on, or cancel."""

    def cancel(self) -> None:
        """Give the place back, as far as later reservations did not build on it; nothing once it was served."""
        if self.granted:
            run(steps.cancel(self.decision))


class AsyncReservation(_Place):
    """A place in the queue of a key. It is charged already; sleep `delay`, then go on, or cancel."""

    async def cancel(self) -> None:
        """Give the place back, as far as later reservations did not build on it; nothing once it was served."""
        if self.granted:
            await arun(steps.cancel(self.decision))
