"""Who else shares the limits: counted while the engine answers, remembered when it does not.

Every process is a member. It says so every second, in one sorted set on the server (lua/commands/membership.lua),
and is told how many are alive and how many of them come before it: its rank. A member that was silent for five
seconds is dead. What was heard last is what stands when nobody answers any more.

A count that falls is believed after five beats only: a server that came back empty has to hear from everybody
first, and in the meantime nobody should think itself alone. A member that has never heard anything goes by the
number it was given, or takes itself to be alone. It knows no rank, so its shares are equal ones (share.py).

How the server is asked is brought along: `beat(id)` answers count and rank, `leave(id)` takes the member out, and
`done()` is called when nothing more will be asked.
So this file knows no Redis. Engines of one process that share a server are one member: they join it, are woken
after every beat that was heard (the server is there), and when the last one quits the beating ends.

Laws (tests/engines/layers/test_membership.py):
  - without failures, count and rank are those of the last beat, or of an earlier one that counted more, up to
    five beats back;
  - a failed beat changes nothing, and is told once in the log until one is heard again;
  - nothing beats after close, and a member that closes takes itself out; nor after the owner is gone;
  - a process whose thread cannot be started is not counted; it tries again when several limits are asked at once,
    and when it needs its share;
  - a forked child is a member of its own: one more than its parent knew of, without a rank until it is heard. A
    number that was given stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakSet, ref

from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.fallback.limit_share import Place
from headgate.errors import CorruptState, EngineUnavailable

EVERY = 1.0  # seconds between two beats
TTL_US = 5_000_000
BELIEVED = 5  # beats, as many as fit into the ttl

_log = logging.getLogger("headgate")

Heard = tuple[int, int]


class Roll:
    """What one member remembers of the others. Pure: it is told, and asked."""

    def __init__(self, count: int | None = None, beats: bool = False) -> None:
        self.joined: WeakSet[Any] = WeakSet()
        self.missed: int = 0  # beats in a row that were not heard
        self._given, self._beats = count, beats
        self._known: Place = _unranked(count or 1)
        self._heard: deque[Heard] = deque(maxlen=BELIEVED)
        self.id: str = _new_id()

    @property
    def count(self) -> int:
        return self.place[0]

    @property
    def rank(self) -> int | None:
        return self.place[1]

    @property
    def place(self) -> Place:
        """Count and rank, of one and the same beat; no rank before the first."""
        return self._known

    @property
    def counted(self) -> bool:
        """Whether members are counted, and know their ranks; if not, their number is fixed."""
        return self._beats or bool(self._heard)

    def heard(self, count: int, rank: int) -> None:
        if self.missed:
            self.missed = 0
        self._heard.append((count, rank))
        # Of those that counted most, the latest.
        self._known = max(reversed(self._heard), key=lambda heard: heard[0])

    def unheard(self, why: Exception) -> None:
        self.missed += 1
        if self.missed == 1:
            _log.warning("headgate: how many share the limits could not be told; it stays %d. %s", self.count, why)

    def _born(self) -> None:
        """In a forked child: somebody new, of whom nobody has heard."""
        count = self._given or self.count + 1
        self._known, self._heard = _unranked(count), deque(maxlen=BELIEVED)
        self.id = _new_id()


def _unranked(count: int) -> Place:
    return count, 0 if count == 1 else None


def _new_id() -> str:
    return str(secrets.randbelow(2**48) + 1)


class Membership(Roll):
    """Beats in a thread of its own, which ends with close or with its owner."""

    def __init__(
        self,
        beat: Callable[[str], Heard] | None = None,
        leave: Callable[[str], object] | None = None,
        *,
        done: Callable[[], None] | None = None,
        count: int | None = None,
        every: float = EVERY,
    ) -> None:
        super().__init__(count, beat is not None)
        self._beat, self._leave, self._done, self._every = beat, leave, done, every
        self._end: threading.Event | None = None
        self._starting, self._lacking = threading.Lock(), False  # whether no thread could be started
        on_fork(self.forget)

    def join(self, engine: Any) -> None:
        self.joined.add(engine)
        self.start()

    def quit(self, engine: Any) -> None:
        self.joined.discard(engine)
        if not self.joined:
            self.close()

    def start(self, after: float = 0.0) -> None:
        """Begin to beat, unless it does. If no thread can be started, `try_again` does."""
        if self._beat is None or self._end is not None:
            return
        try:
            with self._starting:
                if self._end is None:
                    self._end = threading.Event()
                    target = (ref(self), self._end, after, self._every)
                    threading.Thread(target=_beating, args=target, name="headgate-members", daemon=True).start()
                    self._lacking = False
        except RuntimeError as error:  # the process has as many as it may have
            self._end = None
            if not self._lacking:
                self._lacking = True
                _log.warning(
                    "headgate: others who share the limits do not count this process, because no thread could be "
                    "started: %s",
                    error,
                )

    def try_again(self) -> None:
        """Begin to beat, if no thread could be started before."""
        if self._lacking:
            self.start()

    def beat_once(self) -> None:
        """One beat; what it says is remembered."""
        if self._beat is None:
            return
        try:
            self.heard(*self._beat(self.id))
        except (CorruptState, EngineUnavailable) as why:
            self.unheard(why)
        else:
            for engine in tuple(self.joined):
                engine.woken()

    def close(self) -> None:
        self._lacking = False
        if self._end is not None:
            self._end.set()
            self._end = None
            if self._leave is not None and not self.missed:
                with contextlib.suppress(CorruptState, EngineUnavailable):  # it will be taken for dead in time
                    self._leave(self.id)
            if self._done is not None:
                self._done()

    def forget(self) -> None:
        """In a forked child: its parent's thread is not here. It beats for itself, a little later: a child that
        becomes another program at once was never a member."""
        beats = self._end is not None or self._lacking
        self._end, self._starting = None, threading.Lock()
        self._born()
        if beats:
            self.start(after=self._every / 4)


def _beating(owner: ref[Membership], end: threading.Event, pause: float, every: float) -> None:
    while not end.wait(pause):
        members = owner()
        if members is None:
            return
        members.beat_once()
        del members  # while it pauses, nothing holds the owner
        pause = every


class AsyncMembership(Roll):
    """Beats on the event loop where it is used, by a timer that ends with close, its owner or its loop."""

    def __init__(
        self,
        beat: Callable[[str], Awaitable[Heard]] | None = None,
        leave: Callable[[str], Awaitable[object]] | None = None,
        *,
        done: Callable[[], Awaitable[None]] | None = None,
        count: int | None = None,
        every: float = EVERY,
    ) -> None:
        super().__init__(count, beat is not None)
        self._beat, self._leave, self._done, self._every = beat, leave, done, every
        self.loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        on_fork(self.forget)

    def join(self, engine: Any) -> None:
        self.joined.add(engine)  # it starts where it is used

    async def quit(self, engine: Any) -> None:
        self.joined.discard(engine)
        if not self.joined:
            await self.close()

    def start(self) -> None:
        """Beat on this loop, unless it does on another one that still runs."""
        loop = asyncio.get_running_loop()
        if self._beat is None or loop is self.loop:
            return
        if self.loop is None or self.loop.is_closed() or not self.loop.is_running():
            self.loop = loop
            self._timer = loop.call_soon(_beat_on, ref(self), loop)

    async def beat_once(self) -> None:
        if self._beat is None:
            return
        try:
            self.heard(*await self._beat(self.id))
        except (CorruptState, EngineUnavailable) as why:
            self.unheard(why)
        else:
            for engine in tuple(self.joined):
                await engine.woken()

    async def close(self) -> None:
        loop, self.loop = self.loop, None
        if self._timer is not None:
            self._timer.cancel()
        if loop is None:
            return
        if self._task is not None and not self._task.done() and loop is asyncio.get_running_loop():
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._leave is not None and not self.missed:
            with contextlib.suppress(CorruptState, EngineUnavailable):  # it will be taken for dead in time
                await self._leave(self.id)
        if self._done is not None:
            await self._done()

    def forget(self) -> None:
        """In a forked child: it beats for itself once it is used on a loop of its own."""
        self.loop = self._timer = self._task = None
        self._born()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.loop is loop:
            if self._task is None or self._task.done():
                self._task = loop.create_task(self.beat_once())
            self._timer = loop.call_later(self._every, _beat_on, ref(self), loop)


def _beat_on(owner: ref[AsyncMembership], loop: asyncio.AbstractEventLoop) -> None:
    members = owner()
    if members is not None:
        members._tick(loop)
