"""What leads to one server, for any number of threads.

The common way is straight: a line, a question, a reply. Whoever finds all lines taken joins a queue, and one of
those who wait, with a free line, asks for everybody, in one round trip; a thread that is alone waits for nobody.
Each question is its own, and so is its reply: sharing a round trip changes no decision. The youngest of them asks:
it has the most time left, and nobody's reply is given up before its time.

A line is opened in a thread of its own: however long that takes, who waits for it waits no longer than the
deadline, and the line serves those who come later.

list.append, list.pop and their like are atomic, so no lock is needed.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from headgate.engine.redis.address import Address
from headgate.engine.redis.line import Line
from headgate.engine.redis.trouble import Late, Lost, Said, Trouble

LINES = 2  # to each server: while one is being read, another can be written
TOGETHER = 64  # questions in one round trip
OPENING = 1.0  # seconds that opening a line may take at least, whatever the deadline

_NONE_YET = object()  # a server's reply may be None


class Lines:
    """The lines to one server, and the queue of those who wait for one."""

    def __init__(self, address: Address, deadline: float) -> None:
        self.address = address
        self._deadline = deadline
        self.drop()

    def drop(self) -> None:
        """Forget every line, open or not."""
        self._idle: list[Line | None] = [None] * LINES  # None: a line that is not open
        self._queue: deque[_Waiting] = deque()

    def ask(self, packed: bytes, by: float) -> Any:
        """One question, one reply; raises Trouble."""
        idle = self._idle
        if self._queue or not idle:
            return self.ask_in_turn(packed, by)
        try:
            line = idle.pop()
        except IndexError:  # another thread was faster
            return self.ask_in_turn(packed, by)
        reply, whole = None, False  # not whole: a reply may still be on its way, however this ends
        try:
            if line is not None and line.alive:
                reply = line.exchange(packed, by)
                whole = True
        except Said:
            whole = True
            raise
        finally:
            if whole:
                idle.append(line)
                if self._queue:
                    self._wake()
            else:
                self._give_back(line, broken=True)
        return reply if whole else self.ask_in_turn(packed, by)

    def ask_in_turn(self, packed: bytes, by: float, replies: int = 1) -> Any:
        """The same, behind those who wait; the reply is the last of `replies`, or the trouble of the first."""
        mine = _Waiting(packed, replies)
        self._queue.append(mine)
        try:
            while mine.reply is _NONE_YET:
                if self._queue and self._idle:
                    try:
                        line = self._idle.pop()
                    except IndexError:
                        continue
                    if self._ask_for_all(line, by):
                        continue
                if not mine.bell.acquire(timeout=max(0.0, by - time.monotonic())):
                    raise Late("no reply in time")
        finally:
            if mine.reply is _NONE_YET:
                self._leave(mine)
        if isinstance(mine.reply, Trouble):
            raise mine.reply
        return mine.reply

    def _leave(self, waiting: _Waiting) -> None:
        """Wait no longer. The bell that was rung for one who leaves is rung for the next."""
        with suppress(ValueError):  # it was asked already
            self._queue.remove(waiting)
        if self._queue and self._idle:
            self._wake()

    def _ask_for_all(self, line: Line | None, by: float) -> bool:
        """Ask whatever is in the queue, on a line that is nobody else's; or open another if it is of no use."""
        waiting: list[_Waiting] = []
        replies: list[Any] = []
        whole = opening = False
        try:
            dead = line is None or not line.alive
            if line is None or (dead and line.used):
                opening = True
                self._open_another(line)
                return False
            with suppress(IndexError):  # the queue is empty
                while len(waiting) < TOGETHER:
                    waiting.append(self._queue.popleft())
            if dead:  # it was let in only to be sent away: too many clients, perhaps
                replies = [line.farewell()] * sum(each.replies for each in waiting)
                return True
            packed = b"".join([each.packed for each in waiting])
            replies = line.exchange_all(packed, sum(each.replies for each in waiting), by)
            whole = not line.closed
            return True
        finally:
            for each in waiting:
                own, replies = replies[: each.replies], replies[each.replies :]
                own = own or [Lost("the thread that asked was interrupted")]
                each.reply = own[0] if isinstance(own[0], Trouble) else own[-1]
                each.ring()
            if not opening:
                self._give_back(line, broken=not whole)

    def _open_another(self, dead: Line | None) -> None:
        if dead is not None:
            dead.close()
        Thread(target=self._open, name="headgate-opens-a-line", daemon=True).start()

    def _open(self) -> None:
        try:
            line = Line(self.address, max(OPENING, self._deadline), self._deadline)
        except Trouble as trouble:
            self._idle.insert(0, None)
            with suppress(IndexError):  # the queue is empty
                while True:
                    waiting = self._queue.popleft()
                    waiting.reply = trouble
                    waiting.ring()
        else:
            self._give_back(line)

    def _give_back(self, line: Line | None, *, broken: bool = False) -> None:
        if broken or line is None:
            if line is not None:
                line.close()
            self._idle.insert(0, None)
        else:
            self._idle.append(line)
        if self._queue:
            self._wake()

    def _wake(self) -> None:
        with suppress(IndexError):  # nobody is left
            self._queue[-1].ring()

    def close(self) -> None:
        """Close what is idle. Whoever asks again opens it again."""
        with suppress(IndexError):  # the others are in use
            for _ in range(LINES):
                self._give_back(self._idle.pop(), broken=True)

    def __len__(self) -> int:
        """How many lines are open and idle."""
        return sum(line is not None for line in self._idle)


class _Waiting:
    """Somebody's question, and the bell that is rung when there is a reply, or a line to ask on."""

    __slots__ = ("bell", "packed", "replies", "reply")

    def __init__(self, packed: bytes, replies: int) -> None:
        self.packed = packed
        self.replies = replies
        self.reply: Any = _NONE_YET
        self.bell = Lock()
        self.bell.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it was rung already
            self.bell.release()
