"""Membership: how many processes share the limits, counted while the engine answers, remembered when it does not.

Every process is a member. It sends a heartbeat every second, to one sorted set on the server
(lua/commands/membership.lua), and receives how many members are alive and how many of them come before it: its
rank. A member without a heartbeat for five seconds is dead. The last reply applies while the server does not
answer.

A count that falls is believed after five heartbeats only: a server that came back empty must first receive a
heartbeat of every member, and in the meantime no member should think itself alone. A member that never got a reply
goes by the number it was given, or takes itself to be alone. It knows no rank, so its shares are equal ones
(limit_share.py).

The caller passes the requests: `heartbeat(id)` returns count and rank, `leave(id)` removes the member, and
`on_close()` is called after the last request. So this file knows no Redis. Engines of one process that share a
server are one member: they join it, are notified after every successful heartbeat (the server is there), and when
the last one detaches the heartbeats end.

Laws (tests/engines/layers/test_membership.py):
  - without failures, count and rank are those of the last heartbeat, or of an earlier one that counted more, up to
    five heartbeats back;
  - a failed heartbeat changes nothing, and is logged once until one succeeds again;
  - no heartbeat follows close, and a member that closes removes itself; nor after the owner is gone;
  - a process whose thread cannot be started is not counted; it tries again when several limits are decided at
    once, and when it needs its share;
  - a forked child is a member of its own: one more than its parent knew of, without a rank until its first reply.
    A number that was given stays as it is.
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
from headgate.engines.port import MemberPosition
from headgate.errors import CorruptState, EngineUnavailable

HEARTBEAT_INTERVAL_S = 1.0
MEMBER_TTL_US = 5_000_000
REMEMBERED_HEARTBEATS = 5  # as many as fit into the ttl

_log = logging.getLogger("headgate")

HeartbeatReply = tuple[int, int]


class MembershipState:
    """Remembers how many other members there are. Pure: it sends no requests."""

    def __init__(self, count: int | None = None, has_heartbeat: bool = False) -> None:
        self.engines: WeakSet[Any] = WeakSet()
        self.missed_heartbeats: int = 0  # in a row
        self._stated_count, self._has_heartbeat = count, has_heartbeat
        self._position: MemberPosition = _unranked(count or 1)
        self._replies: deque[HeartbeatReply] = deque(maxlen=REMEMBERED_HEARTBEATS)
        self.id: str = _new_id()

    @property
    def count(self) -> int:
        return self.position[0]

    @property
    def rank(self) -> int | None:
        return self.position[1]

    @property
    def position(self) -> MemberPosition:
        """Count and rank, of one and the same heartbeat; no rank before the first."""
        return self._position

    @property
    def is_counted(self) -> bool:
        """Returns whether members are counted, and know their ranks; if not, their number is fixed."""
        return self._has_heartbeat or bool(self._replies)

    def note_reply(self, count: int, rank: int) -> None:
        """Records the reply to a heartbeat."""
        if self.missed_heartbeats:
            self.missed_heartbeats = 0
        self._replies.append((count, rank))
        # Of the replies that counted most, the latest.
        self._position = max(reversed(self._replies), key=lambda reply: reply[0])

    def note_failure(self, error: Exception) -> None:
        """Records a failed heartbeat, and logs the first in a row."""
        self.missed_heartbeats += 1
        if self.missed_heartbeats == 1:
            _log.warning(
                "headgate: the members that share the limits could not be counted; their number stays %d. %s",
                self.count,
                error,
            )

    def _reset_state(self) -> None:
        """Makes a new member in a forked child, of which the server does not know yet."""
        count = self._stated_count or self.count + 1
        self._position, self._replies = _unranked(count), deque(maxlen=REMEMBERED_HEARTBEATS)
        self.id = _new_id()


def _unranked(count: int) -> MemberPosition:
    return count, 0 if count == 1 else None


def _new_id() -> str:
    return str(secrets.randbelow(2**48) + 1)


class Membership(MembershipState):
    """Sends heartbeats from its own thread, which ends with close or with its owner."""

    def __init__(
        self,
        heartbeat: Callable[[str], HeartbeatReply] | None = None,
        leave: Callable[[str], object] | None = None,
        *,
        on_close: Callable[[], None] | None = None,
        count: int | None = None,
        interval_s: float = HEARTBEAT_INTERVAL_S,
    ) -> None:
        super().__init__(count, heartbeat is not None)
        self._heartbeat, self._leave, self._on_close, self._interval_s = heartbeat, leave, on_close, interval_s
        self._stop: threading.Event | None = None
        self._start_lock, self._lacks_thread = threading.Lock(), False  # whether no thread could be started
        on_fork(self.reset_after_fork)

    def join(self, engine: Any) -> None:
        """Adds an engine, and starts heartbeats."""
        self.engines.add(engine)
        self.start()

    def detach(self, engine: Any) -> None:
        """Removes an engine; the last one closes the membership."""
        self.engines.discard(engine)
        if not self.engines:
            self.close()

    def start(self, delay_s: float = 0.0) -> None:
        """Starts heartbeats, unless they run. If no thread can be started, `ensure_started` tries again."""
        if self._heartbeat is None or self._stop is not None:
            return
        try:
            with self._start_lock:
                if self._stop is None:
                    self._stop = threading.Event()
                    args = (ref(self), self._stop, delay_s, self._interval_s)
                    threading.Thread(
                        target=_run_heartbeats, args=args, name="headgate-members", daemon=True
                    ).start()
                    self._lacks_thread = False
        except RuntimeError as error:  # the process has as many threads as it may have
            self._stop = None
            if not self._lacks_thread:
                self._lacks_thread = True
                _log.warning(
                    "headgate: other members do not count this process, because no thread could be started: %s",
                    error,
                )

    def ensure_started(self) -> None:
        """Starts heartbeats, if no thread could be started before."""
        if self._lacks_thread:
            self.start()

    def heartbeat_once(self) -> None:
        """Sends one heartbeat and records the reply."""
        if self._heartbeat is None:
            return
        try:
            self.note_reply(*self._heartbeat(self.id))
        except (CorruptState, EngineUnavailable) as error:
            self.note_failure(error)
        else:
            for engine in tuple(self.engines):
                engine.on_heartbeat()

    def close(self) -> None:
        """Stops heartbeats and removes the member."""
        self._lacks_thread = False
        if self._stop is not None:
            self._stop.set()
            self._stop = None
            if self._leave is not None and not self.missed_heartbeats:
                with contextlib.suppress(CorruptState, EngineUnavailable):  # it expires in time
                    self._leave(self.id)
            if self._on_close is not None:
                self._on_close()

    def reset_after_fork(self) -> None:
        """Starts over in a forked child, which lacks its parent's thread. Its heartbeats begin a little later: a
        child that becomes another program at once was never a member."""
        was_running = self._stop is not None or self._lacks_thread
        self._stop, self._start_lock = None, threading.Lock()
        self._reset_state()
        if was_running:
            self.start(delay_s=self._interval_s / 4)


def _run_heartbeats(owner: ref[Membership], stop: threading.Event, delay_s: float, interval_s: float) -> None:
    while not stop.wait(delay_s):
        members = owner()
        if members is None:
            return
        members.heartbeat_once()
        del members  # while it pauses, nothing keeps the owner alive
        delay_s = interval_s


class AsyncMembership(MembershipState):
    """Sends heartbeats on the event loop where it is used, by a timer that ends with close, its owner or its
    loop."""

    def __init__(
        self,
        heartbeat: Callable[[str], Awaitable[HeartbeatReply]] | None = None,
        leave: Callable[[str], Awaitable[object]] | None = None,
        *,
        on_close: Callable[[], Awaitable[None]] | None = None,
        count: int | None = None,
        interval_s: float = HEARTBEAT_INTERVAL_S,
    ) -> None:
        super().__init__(count, heartbeat is not None)
        self._heartbeat, self._leave, self._on_close, self._interval_s = heartbeat, leave, on_close, interval_s
        self.loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        on_fork(self.reset_after_fork)

    def join(self, engine: Any) -> None:
        """Adds an engine; heartbeats start where it is used."""
        self.engines.add(engine)

    async def detach(self, engine: Any) -> None:
        """Removes an engine; the last one closes the membership."""
        self.engines.discard(engine)
        if not self.engines:
            await self.close()

    def ensure_started(self) -> None:
        """Starts heartbeats on this loop, unless they run on another one that still runs."""
        loop = asyncio.get_running_loop()
        if self._heartbeat is None or loop is self.loop:
            return
        if self.loop is None or self.loop.is_closed() or not self.loop.is_running():
            self.loop = loop
            self._timer = loop.call_soon(_tick_on, ref(self), loop)

    async def heartbeat_once(self) -> None:
        """Sends one heartbeat and records the reply."""
        if self._heartbeat is None:
            return
        try:
            self.note_reply(*await self._heartbeat(self.id))
        except (CorruptState, EngineUnavailable) as error:
            self.note_failure(error)
        else:
            for engine in tuple(self.engines):
                await engine.on_heartbeat()

    async def close(self) -> None:
        """Stops heartbeats and removes the member."""
        loop, self.loop = self.loop, None
        if self._timer is not None:
            self._timer.cancel()
        if loop is None:
            return
        if self._task is not None and not self._task.done() and loop is asyncio.get_running_loop():
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._leave is not None and not self.missed_heartbeats:
            with contextlib.suppress(CorruptState, EngineUnavailable):  # it expires in time
                await self._leave(self.id)
        if self._on_close is not None:
            await self._on_close()

    def reset_after_fork(self) -> None:
        """Starts over in a forked child: heartbeats begin once it is used on a loop of its own."""
        self.loop = self._timer = self._task = None
        self._reset_state()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.loop is loop:
            if self._task is None or self._task.done():
                self._task = loop.create_task(self.heartbeat_once())
            self._timer = loop.call_later(self._interval_s, _tick_on, ref(self), loop)


def _tick_on(owner: ref[AsyncMembership], loop: asyncio.AbstractEventLoop) -> None:
    members = owner()
    if members is not None:
        members._tick(loop)
