"""Holds slots around a block: renews them in the background while it runs, gives them back when it ends.

    Holding         for a with statement: daemon threads, shared by the whole process, renew what is due
    AsyncHolding    for an async with: a timer on the loop, and a task while the engine is asked

Slots are renewed every third of their ttl, so one lost answer costs nothing; an engine that does not answer is
asked more often. They are lost when the engine says so, or when it has not renewed them for a whole ttl by our own
clock: `lost` is true from then on, and somebody else may hold them. (If the engine is back and still renews them,
nobody else had them, and `lost` is false again.) Whoever leaves the block is told by LeaseLost; or by a note, if
the block itself raised something.

A holder that hangs is renewed as well, as long as its process lives: bound work that may hang by a timeout of its
own. A block that keeps an event loop busy for a whole ttl loses its slots.

If no thread can be started, it is tried again when `lost` is looked at, and when any block begins or ends.

A forked child renews nothing of its parent's.
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

LEAST_PAUSE_S = 0.01  # nobody is renewed more often
MAX_THREADS = 8  # that ask at once: one server that hangs must not hold up the leases of others
IDLE_S = 5.0  # after which a thread ends that has nothing to renew

_log = logging.getLogger("headgate")


class Hold:
    """What is known of slots that are held: until when, and whether they are lost."""

    def __init__(self, what: str, ttl: float, ends_us: int = 0) -> None:
        self._what = what
        self._ttl = ttl
        self._until = monotonic() + ttl
        self._ends_us = ends_us  # by the engine's clock
        self._gone = self._forgotten = False
        self.over: bool = False

    @property
    def lost(self) -> bool:
        """Whether somebody else may hold them by now."""
        _threads.try_again()
        return not self.over and (self._gone or monotonic() >= self._until)

    def answered(self, asked_at: float, ends_us: int | None) -> bool:
        """The engine has said when they end; None: they are lost. Where it is away, a fallback tells the end that
        was known before, and nothing is renewed by that."""
        self._gone = ends_us is None
        self._forgotten = self._gone and monotonic() < self._until
        if ends_us is not None and ends_us > self._ends_us:
            self._until, self._ends_us = asked_at + self._ttl, ends_us
        return not self._gone

    def renewed(self, asked_at: float, held: bool) -> bool:
        """The same, of one who is not told when they end."""
        return self.answered(asked_at, self._ends_us + 1 if held else None)

    def ended(self) -> None:
        """The holder itself has given them back: nothing can be lost any more."""
        self.over = True

    def pause(self, answered: bool) -> float:
        """Seconds until they are renewed next."""
        return max(self._ttl / (3 if answered else 12), LEAST_PAUSE_S)

    def left(self, released: bool, why: HeadgateError | None, error: BaseException | None) -> None:
        """Tell whoever leaves the block: `why` it could not be released, and the `error` that it raised itself."""
        if released:
            return
        if why is not None and not self.lost:
            if error is None:
                raise why
            error.add_note(f"{self._what} could not be released ({why}) and will expire.")
            return
        if self._forgotten or (not self._gone and monotonic() < self._until):
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
        lost = LeaseLost(f"{self._what} was lost before its block ended: {cause}")
        if error is None:
            raise lost from why
        error.add_note(str(lost))  # what the work raised matters more


class Holding:
    """Slots around a block. `renew` asks, and lets the hold know; `release` says whether they were still held."""

    def __init__(self, hold: Hold, renew: Callable[[], object], release: Callable[[], bool]) -> None:
        self.hold: Hold = hold
        self._renew, self._release = renew, release
        self.stopped: bool = False

    @property
    def lost(self) -> bool:
        return self.hold.lost

    def ask(self) -> float:
        """Renew; seconds until the next time."""
        try:
            self._renew()
        except Exception as error:
            _could_not(error)
            return self.hold.pause(answered=False)
        return self.hold.pause(answered=True)

    def __enter__(self) -> Holding:
        self.stopped = False
        _threads.add(self, self.hold.pause(answered=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _threads.remove(self)
        released, trouble = False, None
        try:
            released = self._release()
        except HeadgateError as why:
            trouble = why
        self.hold.left(released, trouble, error)


class AsyncHolding:
    """The same, awaited."""

    def __init__(
        self, hold: Hold, renew: Callable[[], Awaitable[object]], release: Callable[[], Awaitable[bool]]
    ) -> None:
        self.hold: Hold = hold
        self._renew, self._release = renew, release
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        return self.hold.lost

    async def __aenter__(self) -> AsyncHolding:
        self._after(self.hold.pause(answered=True))
        return self

    def _after(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        answered = True
        try:
            await self._renew()
        except Exception as error:
            _could_not(error)
            answered = False
        self._after(self.hold.pause(answered))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        released, trouble = False, None
        try:
            released = await self._release()
        except HeadgateError as why:
            trouble = why
        self.hold.left(released, trouble, error)


def _could_not(error: Exception) -> None:
    """Nobody waits for a renewal: an engine without an answer is asked again, anything else is a fault of ours."""
    if not isinstance(error, HeadgateError):
        _log.error("A slot could not be renewed.", exc_info=error)


class _Threads:
    """Renews what is due. One thread waits for the next; whoever asks leaves another one waiting."""

    def __init__(self) -> None:
        self._number = count()  # no two dues are alike
        self.forget()
        on_fork(self.forget)

    def forget(self) -> None:
        self._changed = Condition()
        self._dues: list[tuple[float, int, Holding]] = []
        self._stopped = self._threads = self._waiting = 0
        self._lacking = False  # whether no thread could be started

    def try_again(self) -> None:
        """Start the thread that could not be started before."""
        if self._lacking:
            with self._changed:
                if not self._waiting:
                    self._start()

    def add(self, holding: Holding, pause: float) -> None:
        with self._changed:
            self._push(holding, pause)
            if not self._waiting:
                self._start()

    def remove(self, holding: Holding) -> None:
        """It is left where it is until it is due, unless most of them are such."""
        self.try_again()
        with self._changed:
            holding.stopped = True
            self._stopped += 1
            if self._stopped > 64 and self._stopped > len(self._dues) // 2:
                self._dues = [due for due in self._dues if not due[-1].stopped]
                heapify(self._dues)
                self._stopped = 0

    def _push(self, holding: Holding, pause: float) -> None:
        due = monotonic() + pause, next(self._number), holding
        heappush(self._dues, due)
        if self._dues[0] is due:
            self._changed.notify()

    def _leave_one_waiting(self) -> None:
        """Have another thread wait for the next due. One that waits already may not know of it: it is woken only
        when the due that comes first changes."""
        if self._waiting > 1:
            self._changed.notify()
        else:
            self._start()

    def _start(self) -> None:
        if self._threads < MAX_THREADS:
            try:
                Thread(target=self._renew, name="headgate-renewal", daemon=True).start()
                self._threads += 1
                self._lacking = False
            except RuntimeError as error:  # too many threads, or the process ends
                if not self._lacking and not self._threads:
                    _log.warning("headgate: slots are not renewed, because no thread could be started: %s", error)
                self._lacking = True

    def _renew(self) -> None:
        while (holding := self._next()) is not None:
            pause = holding.ask()
            with self._changed:
                if not holding.stopped:
                    self._push(holding, pause)

    def _next(self) -> Holding | None:
        """What is due next, when it is due; None if this thread is not needed any more."""
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
                            self._leave_one_waiting()
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


_threads = _Threads()
