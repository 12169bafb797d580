"""Holds slots around a block: renews them in the background while it runs, releases them when it ends.

    Holding         for a with statement: daemon threads, shared by the whole process, renew what is due
    AsyncHolding    for an async with: a timer on the loop, and a task while a renewal is under way

Slots are renewed every third of their ttl, so one lost reply costs nothing; while the engine does not reply,
renewals are sent more often. Slots are lost when the engine reports it, or when it has not renewed them for a
whole ttl by the clock of this process: `lost` is true from then on, and another holder may have them. (If the
engine is back and still renews them, nobody else had them, and `lost` is false again.) If the slots
are lost when the block ends, LeaseLost is raised; if the block raised an exception, that one gets a note instead.

Slots are renewed even if their holder hangs, as long as its process lives: put a timeout on work that may hang. A
block that keeps an event loop busy for a whole ttl loses its slots.

If no renewal thread can be started, headgate tries again whenever `lost` is read or a block begins or ends.

A forked child does not renew the slots of its parent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush
from itertools import count
from threading import Condition, Thread
from time import monotonic
from types import TracebackType

from headgate.engines.fork_reset import on_fork
from headgate.errors import HeadgateError, LeaseLost

MIN_PAUSE_S = 0.01  # between two renewals of the same slots
MAX_THREADS = 8  # that renew at once: one server that hangs must not delay the leases of others
IDLE_S = 5.0  # after which a thread with nothing to renew ends

_log = logging.getLogger("headgate")


class SlotHold:
    """The state of slots that are held: until when, and whether they are lost."""

    def __init__(self, description: str, ttl: float, expires_us: int = 0) -> None:
        self._description = description
        self._ttl = ttl
        self._held_until = monotonic() + ttl
        self._expires_us = expires_us  # by the engine's clock
        self._reported_lost = self._lost_early = False
        self.is_released: bool = False

    @property
    def lost(self) -> bool:
        """Returns whether somebody else may hold the slots."""
        _threads.retry_start()
        return not self.is_released and (self._reported_lost or monotonic() >= self._held_until)

    def record_reply(self, requested_at: float, expires_us: int | None) -> bool:
        """Records the engine's reply to a renewal: when the slots end; None: they are lost. During an outage a
        fallback repeats the last end, and that renews nothing."""
        self._reported_lost = expires_us is None
        self._lost_early = self._reported_lost and monotonic() < self._held_until
        if expires_us is not None and expires_us > self._expires_us:
            self._held_until, self._expires_us = requested_at + self._ttl, expires_us
        return not self._reported_lost

    def record_renewal(self, requested_at: float, held: bool) -> bool:
        """Records a reply that says whether the slots are held, but not when they end."""
        return self.record_reply(requested_at, self._expires_us + 1 if held else None)

    def mark_released(self) -> None:
        """Records that the holder has released the slots: they cannot be lost any more."""
        self.is_released = True

    def renewal_pause(self, has_reply: bool) -> float:
        """Returns the seconds until the next renewal."""
        return max(self._ttl / (3 if has_reply else 12), MIN_PAUSE_S)

    def raise_if_lost(
        self, released: bool, release_error: HeadgateError | None, error: BaseException | None
    ) -> None:
        """Raises LeaseLost, or the error of the release, at the end of a block; adds a note instead where the
        block itself raised an `error`."""
        if released:
            return
        if release_error is not None and not self.lost:
            if error is None:
                raise release_error
            error.add_note(f"{self._description} could not be released ({release_error}) and will expire.")
            return
        if self._lost_early or (not self._reported_lost and monotonic() < self._held_until):
            cause = (
                f"the engine forgot it before its ttl of {self._ttl:g} s was over by this machine's clock (its "
                "key was reset or evicted, its server restarted empty, or this machine slept), and somebody else "
                "may hold it."
            )
        else:
            cause = (
                f"it was not renewed within its ttl of {self._ttl:g} s, and somebody else may hold it. Give slots "
                "a longer ttl if this happens often."
            )
        lost = LeaseLost(f"{self._description} was lost before its block ended: {cause}")
        if error is None:
            raise lost from release_error
        error.add_note(str(lost))  # the error of the block matters more


class Holding:
    """Holds slots around a block. `renew` sends a renewal and updates the hold; `release` returns whether they
    were still held."""

    def __init__(self, hold: SlotHold, renew: Callable[[], object], release: Callable[[], bool]) -> None:
        self.hold: SlotHold = hold
        self._renew, self._release = renew, release
        self.stopped: bool = False

    @property
    def lost(self) -> bool:
        return self.hold.lost

    def renew(self) -> float:
        """Renews the slots; returns the seconds until the next time."""
        try:
            self._renew()
        except Exception as error:
            _log_failure(error)
            return self.hold.renewal_pause(has_reply=False)
        return self.hold.renewal_pause(has_reply=True)

    def __enter__(self) -> Holding:
        self.stopped = False
        _threads.add(self, self.hold.renewal_pause(has_reply=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _threads.remove(self)
        released, release_error = False, None
        try:
            released = self._release()
        except HeadgateError as failure:
            release_error = failure
        self.hold.raise_if_lost(released, release_error, error)


class AsyncHolding:
    """Holds slots around an async block."""

    def __init__(
        self, hold: SlotHold, renew: Callable[[], Awaitable[object]], release: Callable[[], Awaitable[bool]]
    ) -> None:
        self.hold: SlotHold = hold
        self._renew, self._release = renew, release
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        return self.hold.lost

    async def __aenter__(self) -> AsyncHolding:
        self._schedule(self.hold.renewal_pause(has_reply=True))
        return self

    def _schedule(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start_task)

    def _start_task(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._renew_once())

    async def _renew_once(self) -> None:
        answered = True
        try:
            await self._renew()
        except Exception as error:
            _log_failure(error)
            answered = False
        self._schedule(self.hold.renewal_pause(answered))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        released, release_error = False, None
        try:
            released = await self._release()
        except HeadgateError as failure:
            release_error = failure
        self.hold.raise_if_lost(released, release_error, error)


def _log_failure(error: Exception) -> None:
    """Logs a failed renewal, since no caller waits for it. If the engine did not reply, it is only sent again."""
    if not isinstance(error, HeadgateError):
        _log.error("A slot could not be renewed.", exc_info=error)


class _RenewalThreads:
    """The threads that renew slots when they are due. One waits for the next due; before it renews, it makes
    another one wait."""

    def __init__(self) -> None:
        self._sequence = count()  # no two dues are alike
        self.clear()
        on_fork(self.clear)

    def clear(self) -> None:
        self._changed = Condition()
        self._dues: list[tuple[float, int, Holding]] = []
        self._stopped = self._threads = self._waiting = 0
        self._start_failed = False  # whether no thread could be started

    def retry_start(self) -> None:
        """Starts the thread that could not be started before."""
        if self._start_failed:
            with self._changed:
                if not self._waiting:
                    self._start()

    def add(self, holding: Holding, pause: float) -> None:
        with self._changed:
            self._push(holding, pause)
            if not self._waiting:
                self._start()

    def remove(self, holding: Holding) -> None:
        """Marks a holding as stopped. It stays in the heap until it is due, unless most of the heap is stopped."""
        self.retry_start()
        with self._changed:
            holding.stopped = True
            self._stopped += 1
            if self._stopped > 64 and self._stopped > len(self._dues) // 2:
                self._dues = [due for due in self._dues if not due[-1].stopped]
                heapify(self._dues)
                self._stopped = 0

    def _push(self, holding: Holding, pause: float) -> None:
        due = monotonic() + pause, next(self._sequence), holding
        heappush(self._dues, due)
        if self._dues[0] is due:
            self._changed.notify()

    def _hand_over_waiting(self) -> None:
        """Makes another thread wait for the next due. One that waits already may not know of it: it is woken only
        when the first due changes."""
        if self._waiting > 1:
            self._changed.notify()
        else:
            self._start()

    def _start(self) -> None:
        if self._threads < MAX_THREADS:
            try:
                Thread(target=self._renew, name="headgate-renewal", daemon=True).start()
                self._threads += 1
                self._start_failed = False
            except RuntimeError as error:  # too many threads, or the process ends
                if not self._start_failed and not self._threads:
                    _log.warning("headgate: slots are not renewed, because no thread could be started: %s", error)
                self._start_failed = True

    def _renew(self) -> None:
        while (holding := self._next()) is not None:
            pause = holding.renew()
            with self._changed:
                if not holding.stopped:
                    self._push(holding, pause)

    def _next(self) -> Holding | None:
        """Waits for the next holding that is due, and returns it; None if this thread is not needed any more."""
        since = monotonic()
        with self._changed:
            self._waiting += 1
            try:
                while True:
                    while self._dues and self._dues[0][-1].stopped:
                        heappop(self._dues)
                        self._stopped -= 1
                    now = monotonic()
                    if self._dues and self._dues[0][0] <= now:
                        holding = heappop(self._dues)[-1]
                        if self._dues:
                            self._hand_over_waiting()
                        return holding
                    spare = self._waiting > 1 or not self._dues
                    if spare and now - since >= IDLE_S:
                        self._threads -= 1
                        self._changed.notify()  # in case this one was woken for a due
                        return None
                    until = self._dues[0][0] if self._dues else since + IDLE_S
                    self._changed.wait((min(until, since + IDLE_S) if spare else until) - now)
            finally:
                self._waiting -= 1


_threads = _RenewalThreads()
