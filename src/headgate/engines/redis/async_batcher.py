"""What leads to one server, for all tasks of one event loop: one connection, and whoever asks at once shares a
round trip.

    what comes alone is sent at once: sharing costs a lone call nothing
    takes under one limit that come together become one script call, in the order in which they came
    anything else that comes together is written together, and answered one by one

So the server works on one unit while the next ones gather; while UNITS of them are on their way, the rest waits
here. LAW: exact. Each charge is decided by itself, after all those before it, and gets its own answer. A caller
who has gone (cancelled, or too late) leaves an empty seat, which nobody is moved into. If its question says how to
undo what the reply brings (a place in a queue, a slot, a ticket), that is undone when the reply comes, and the
question is not sent at all if it was not sent yet; a take stays charged. A connection that falls silent is
replaced, and read on for such replies (lingering.py). What was sent is never sent again, unless the server said
that it has done nothing. Nobody waits longer than the channel's deadline, which one timer watches for all; a
question with a shorter one of its own has a timer of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from time import monotonic
from typing import Any

from headgate.engines.redis import protocol
from headgate.engines.redis.async_connection import IDLE, AsyncConnection, Hear
from headgate.engines.redis.errors import ConnectFailed, ConnectionLost, NoScript, RedisError, TimedOut
from headgate.engines.redis.protocol import RedisRequest, RequestBuilder
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.silent_connections import SilentConnections

TOGETHER = 128  # questions in one unit
UNITS = 4  # on their way at once
OPENING = 1.0  # seconds that opening a connection may take at least, whatever the deadline
SILENCE = 1.0  # seconds beyond the deadline after which a connection that says nothing is given up

_ASKING = protocol.command("ASKING")

Seat = asyncio.Future[Any]


# Since when, whose seat; then of a take its limit, key and cost, and otherwise None, a Question, whether ASKING.
# A plain tuple, because naming its parts would take longer than filling them.
_Asked = tuple[float, Seat, "RequestBuilder | None", Any, int]


class _Unit:
    """What was written together."""

    __slots__ = ("asked", "left")

    def __init__(self, asked: Sequence[_Asked]) -> None:
        self.asked: Sequence[_Asked] = asked
        self.left: int = 0  # replies that have not come


class _Lone(_Unit):
    """A take that nobody came with: what a unit is, without what only many need."""

    __slots__ = ("channel", "connection", "question")

    def __init__(
        self, channel: AsyncBatcher, connection: AsyncConnection, asked: _Asked, question: RedisRequest
    ) -> None:
        self.asked = (asked,)
        self.channel = channel
        self.connection = connection
        self.question = question

    def hear(self, reply: Any) -> None:
        seat = self.asked[0][1]
        if reply.__class__ is list:
            if not seat.done():
                seat.set_result(protocol.facts(reply))
            self.channel.heard(self)
        else:
            self.left = 1
            self.channel.hear(self.connection, self, self.question, self.channel.settle_takes, (seat,), reply)


class AsyncBatcher:
    """The way to one server; opened when it is needed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: ServerAddress,
        deadline: float,
        failure: Callable[[RedisError], Exception],
        left: Callable[[RedisRequest, Any], None],
    ) -> None:
        self.address = address
        self._loop = loop
        self._seat = loop.create_future
        self._deadline = deadline
        self._failure = failure
        self._left = left
        self._pending: list[_Asked] = []
        self._units: deque[_Unit] = deque()  # on their way, oldest first
        self._alone = True  # the last unit was a single question
        self._scheduled = False
        self._connection: AsyncConnection | None = None
        self.lingering: SilentConnections = SilentConnections(loop)
        self._opening: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None

    def taker(self, questions: RequestBuilder, deadline: float | None = None) -> Callable[[str, int], Seat]:
        """What takes under one limit that is not a calendar's: given a key and a cost, the facts."""
        new_seat, schedule, units, pack = self._seat, self._schedule, self._units, questions.decide

        def take(key: str, cost: int) -> Seat:
            seat, now, connection = new_seat(), monotonic(), self._connection
            asked = now, seat, questions, key, cost
            if (
                self._alone
                and not units
                and not self._pending
                and self._watch is not None
                and connection is not None
                and now - connection.heard_at < IDLE
            ):
                question = pack(key, cost, None, 0)
                lone = _Lone(self, connection, asked, question)
                units.append(lone)
                connection.write_one(question.packed, lone.hear)
                return seat
            self._pending.append(asked)
            if not self._scheduled:
                schedule()
            return seat

        return take if deadline is None else lambda key, cost: self._hurried(take(key, cost), deadline)

    def ask(self, question: RedisRequest, for_now: bool = False, deadline: float | None = None) -> Seat:
        """Any other question; its reply."""
        seat = self._seat()
        self._pending.append((monotonic(), seat, None, question, int(for_now)))
        if not self._scheduled:
            self._schedule()
        return seat if deadline is None else self._hurried(seat, deadline)

    def _hurried(self, seat: Seat, deadline: float) -> Seat:
        """With a timer of its own, if it is to wait for less than the others."""
        if deadline < self._deadline:
            timer = self._loop.call_later(deadline, self._too_late, seat)
            seat.add_done_callback(lambda _: timer.cancel())
        return seat

    def _too_late(self, seat: Seat) -> None:
        unsent = [asked for asked in self._pending if asked[1] is seat]
        for asked in unsent:
            self._pending.remove(asked)
        self._settle(seat, TimedOut("no reply in time; it was not sent" if unsent else "no reply in time"))

    def set_deadline(self, deadline: float) -> None:
        """Another deadline, from any thread; for those who wait already, too."""
        self._deadline = deadline
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._look_again)

    def _look_again(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._look_at_the_time()

    def _schedule(self) -> None:
        if self._alone and not self._units and len(self._pending) == 1:
            self._flush()
        elif len(self._units) < UNITS:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if not self._pending:
            return
        if self._watch is None:
            self._watch = self._loop.call_later(self._deadline, self._look_at_the_time)
        connection = self._connection
        if connection is None:
            if self._opening is None:
                self._opening = self._loop.create_task(self._open())
        elif connection.doubtful:
            self._scheduled = True
            self._loop.call_later(0.001, self._flush)  # after it was heard
        else:
            while self._pending and len(self._units) < UNITS:
                unit, self._pending = self._pending[:TOGETHER], self._pending[TOGETHER:]
                self._send(connection, _Unit(unit))

    def _send(self, connection: AsyncConnection, unit: _Unit) -> None:
        packed: list[bytes] = []
        hears: list[Hear] = []
        asking = 0
        for limit, group in _by_limit(unit.asked):
            _, seats, _, asked, costs = group
            if limit is None:
                for seat, question, for_now in zip(seats, asked, costs, strict=True):
                    if question.undo is not None and seat.done():
                        continue
                    if for_now:
                        packed.append(_ASKING)
                        hears.append(partial(self._settle_trouble, seat))
                        asking += 1
                    packed.append(question.packed)
                    hears.append(partial(self.hear, connection, unit, question, self._settle, seat))
                continue
            question = limit.decide_each(asked, costs)
            packed.append(question.packed)
            hears.append(partial(self.hear, connection, unit, question, self.settle_takes, seats))
        if not hears:  # whoever asked has left
            return
        unit.left = len(hears) - asking
        self._alone = len(unit.asked) == 1
        self._units.append(unit)
        connection.write(b"".join(packed), hears)

    def hear(
        self,
        connection: AsyncConnection,
        unit: _Unit,
        question: RedisRequest,
        settle: Callable[[Any, Any], None],
        seats: Any,
        reply: Any,
    ) -> None:
        if isinstance(reply, NoScript) and question.script is not None:
            again = partial(self._teach, connection, unit, question, settle, seats)
            connection.write(question.script.load, [again])
            return
        if question.needs_reply and seats.done() and not isinstance(reply, RedisError):
            self._left(question, reply)
        settle(seats, reply)
        unit.left -= 1
        if not unit.left:
            self.heard(unit)

    def heard(self, unit: _Unit) -> None:
        """All of it was answered; there is room for another."""
        try:
            self._units.remove(unit)
        except ValueError:
            return  # its connection lingers
        if self._pending and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _teach(
        self,
        connection: AsyncConnection,
        unit: _Unit,
        question: RedisRequest,
        settle: Callable[[Any, Any], None],
        seats: Any,
        loaded: Any,
    ) -> None:
        """The script was loaded: ask again, and teach again what is forgotten again while somebody may wait."""
        if monotonic() - unit.asked[-1][0] > self._deadline:
            question = question._replace(script=None)
        hear = partial(self.hear, connection, unit, question, settle, seats)
        if isinstance(loaded, RedisError):
            hear(loaded)
        else:
            connection.write(question.packed, [hear])

    def settle_takes(self, seats: Sequence[Seat], reply: Any) -> None:
        for seat, each in zip(seats, protocol.parse_takes(reply, len(seats)), strict=True):
            if each.__class__ is not tuple:
                self._settle(seat, each)
            elif not seat.done():
                seat.set_result(each)

    def _settle_trouble(self, seat: Seat, reply: Any) -> None:
        if isinstance(reply, RedisError):
            self._settle(seat, reply)

    def _settle(self, seat: Seat, reply: Any) -> None:
        if seat.done():
            return
        if isinstance(reply, RedisError):
            failure = self._failure(reply)
            failure.__cause__ = reply
            seat.set_exception(failure)
        else:
            seat.set_result(reply)

    @property
    def awaits_for_others(self) -> bool:
        """Whether a reply is on its way that matters, though nobody waits for it."""
        asked = chain.from_iterable(unit.asked for unit in self._units)
        return any(limit is None and each.needs_reply and seat.done() for _, seat, limit, each, _ in asked)

    def _look_at_the_time(self) -> None:
        """Whoever has waited for the whole deadline waits no longer."""
        self._watch = None
        now = monotonic()
        late = now - self._deadline
        for since, seat, *_ in chain.from_iterable(unit.asked for unit in self._units):
            if since <= late:
                self._settle(seat, TimedOut("no reply in time"))
        while self._pending and self._pending[0][0] <= late:
            self._settle(self._pending.pop(0)[1], TimedOut("no reply in time; it was not sent"))
        if self._connection is not None and self._units:
            sent, *_ = self._units[0].asked[-1]
            if max(sent, self._connection.heard_at) < late - SILENCE:
                self._give_up(self._connection)
        waiting = [since for unit in self._units for since, *_ in unit.asked if since > late]
        waiting += [since for since, *_ in self._pending[:1]]
        if self._watch is not None:  # for those whom a lost connection left
            self._watch.cancel()
            self._watch = None
        if waiting:
            self._watch = self._loop.call_later(min(waiting) - late, self._look_at_the_time)
        elif self._units:
            # No later than the deadline of whoever asks next.
            self._watch = self._loop.call_later(min(SILENCE / 4, self._deadline), self._look_at_the_time)

    def _give_up(self, connection: AsyncConnection) -> None:
        """The server fell silent. What its late replies may bring is given back, for a while."""
        asked = tuple(chain.from_iterable(unit.asked for unit in self._units))
        if not any(limit is None and each.needs_reply for _, _, limit, each, _ in asked):
            connection.connection_lost(OSError("the server fell silent"))
            return
        trouble = ConnectionLost("the server fell silent")
        for _, seat, *_ in asked:
            self._settle(seat, trouble)
        self.lingering.add(connection)
        self._lose(trouble)

    async def _open(self) -> None:
        connection = AsyncConnection(self._lose)
        trouble: RedisError | None = None
        try:
            async with asyncio.timeout(max(OPENING, self._deadline)):
                await connection.open(self._loop, self.address)
            self._connection = connection
        except TimeoutError:
            trouble = ConnectFailed("it did not open in time")
        except RedisError as error:
            trouble = error
        finally:
            if self._opening is asyncio.current_task():
                self._opening = None
        if trouble is not None:
            waiting, self._pending = self._pending, []
            for _, seat, *_ in waiting:
                self._settle(seat, trouble)
        self._flush()

    def _lose(self, trouble: RedisError) -> None:
        """The connection has ended, and everybody whose question was sent has heard it."""
        self._connection = None
        self._units.clear()
        self._alone = True
        self._flush()  # what was not sent

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        waiting, self._pending = self._pending, []
        for _, seat, *_ in waiting:
            self._settle(seat, ConnectFailed("the engine was closed"))
        if self._connection is not None:
            self._connection.connection_lost(OSError("the engine was closed"))
        self.lingering.close()


def _by_limit(unit: Sequence[_Asked]) -> Iterable[tuple[RequestBuilder | None, Any]]:
    """What was asked, limit by limit, each as columns; nearly always there is one."""
    columns: Any = tuple(zip(*unit, strict=True))
    limits = columns[2]
    if limits.count(limits[0]) == len(limits):
        return [(limits[0], columns)]
    groups: dict[RequestBuilder | None, list[_Asked]] = {}
    for asked in unit:
        groups.setdefault(asked[2], []).append(asked)
    return [(limit, tuple(zip(*group, strict=True))) for limit, group in groups.items()]
