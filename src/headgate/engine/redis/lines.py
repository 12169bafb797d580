"""What leads to one server, for any number of threads.

The common way is straight: a line, a question, a reply. Whoever finds all lines taken joins a queue, and one of
those who wait, with a free line, asks for everybody, in one round trip; a thread that is alone waits for nobody.
Takes under one limit become one script call, in the order in which they came; each is decided by itself: sharing
changes no decision. Whoever has the most time left asks, give or take NEAR: the youngest, unless questions have
deadlines of their own, for which they go by the queue. So one in a hurry holds nobody up, nobody waits longer than
it may, and nobody's reply is given up more than NEAR before its time.

A line is opened in a thread of its own: however long that takes, who waits for it waits no longer than the
deadline, and the line serves those who come later.

list.append, list.pop and their like are atomic, so no lock is needed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from threading import Lock, Thread
from typing import Any, NamedTuple

from headgate.engine.redis import wire
from headgate.engine.redis.address import Address
from headgate.engine.redis.line import Line
from headgate.engine.redis.script import Script
from headgate.engine.redis.trouble import Forgot, Late, Lost, Said, Trouble
from headgate.engine.redis.wire import Questions

LINES = 2  # to each server: while one is being read, another can be written
TOGETHER = 64  # questions in one round trip
IDLE = 0.01  # seconds after which a line is looked at before it is trusted
NEAR = 0.005  # seconds that two who came together may lie apart
OPENING = 1.0  # seconds that opening a line may take at least, whatever the deadline

_NONE_YET = object()  # a server's reply may be None

Take = tuple[Questions, str, int]


class Lines:
    """The lines to one server, and the queue of those who wait for one."""

    def __init__(self, address: Address, deadline: float) -> None:
        self.address = address
        self.deadline = deadline  # may be changed: a line learns of it when it is used next
        self.drop()

    def drop(self) -> None:
        """Forget every line, open or not."""
        self._idle: list[Line | None] = [None] * LINES  # None: a line that is not open
        self._queue: deque[_Waiting] = deque()

    def take(self, questions: Questions, key: str, cost: int, by: float) -> Any:
        """A take of a limit that is not a calendar's; its facts. Raises Trouble."""
        if self._queue or not self._idle:
            return self.take_in_turn(questions, key, cost, by)
        return wire.facts(self.ask(questions.decide(key, cost, None, 0).packed, by))

    def take_in_turn(self, questions: Questions, key: str, cost: int, by: float) -> Any:
        """The same, behind those who wait, and by any time."""
        return self._wait(_Waiting((questions, key, cost), b"", 1, by), by)

    def ask(self, packed: bytes, by: float) -> Any:
        """One question, one reply, by the deadline; raises Trouble."""
        idle = self._idle
        if self._queue or not idle:
            return self.ask_in_turn(packed, by)
        try:
            line = idle.pop()
        except IndexError:  # another thread was faster
            return self.ask_in_turn(packed, by)
        reply, whole = None, False  # not whole: a reply may still be on its way, however this ends
        try:
            if line is not None and line.timeout != self.deadline:
                line.retime(self.deadline)
            # A line that was used a moment ago is trusted: looking costs a system call.
            if line is not None and (by - line.by < IDLE or line.alive):
                line.by = by
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
        """The same, behind those who wait, and by any time; the reply is the last of `replies`, or the trouble of
        the first."""
        return self._wait(_Waiting(None, packed, replies, by), by)

    def _wait(self, mine: _Waiting, by: float) -> Any:
        self._queue.append(mine)
        try:
            while mine.reply is _NONE_YET:
                if self._queue and self._idle:
                    most = self._most_patient()
                    if most is not None and most.by > by + NEAR:
                        most.ring()
                    else:
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
        whole = opening = False
        try:
            dead = line is None or not line.alive
            if line is None or (dead and line.used):
                opening = True
                self._open_another(line)
                return False
            waiting = self._those_who_wait(by)
            if not waiting:  # somebody else asks for this thread
                whole = not dead
                return False
            if dead:  # it was let in only to be sent away: too many clients, perhaps
                _answer(waiting, line.farewell())
                return True
            if line.timeout != self.deadline:
                line.retime(self.deadline)
            whole = _exchange(line, _joined(waiting), by)
            return True
        finally:
            _answer(waiting, Lost("the thread that asked was interrupted"))  # those who have no reply
            if not opening:
                self._give_back(line, broken=not whole)

    def _those_who_wait(self, by: float) -> list[_Waiting]:
        """Out of the queue: those whom one who asks until then can ask for."""
        taken: list[_Waiting] = []
        for each in tuple(self._queue):
            if each.by <= by + NEAR:
                with suppress(ValueError):  # it has left
                    self._queue.remove(each)
                    taken.append(each)
                if len(taken) == TOGETHER:
                    break
        return taken

    def _open_another(self, dead: Line | None) -> None:
        if dead is not None:
            dead.close()
        Thread(target=self._open, name="headgate-opens-a-line", daemon=True).start()

    def _open(self) -> None:
        try:
            line = Line(self.address, max(OPENING, self.deadline), self.deadline)
        except Trouble as trouble:
            self._idle.insert(0, None)
            with suppress(IndexError):  # the queue is empty
                while True:
                    _answer([self._queue.popleft()], trouble)
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
        most = self._most_patient()
        if most is not None:
            most.ring()

    def _most_patient(self) -> _Waiting | None:
        return max(tuple(self._queue), key=_by, default=None)

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

    __slots__ = ("bell", "by", "packed", "replies", "reply", "take")

    def __init__(self, take: Take | None, packed: bytes, replies: int, by: float) -> None:
        self.take = take
        self.packed = packed
        self.replies = replies
        self.by = by
        self.reply: Any = _NONE_YET
        self.bell = Lock()
        self.bell.acquire()

    def ring(self) -> None:
        try:  # noqa: SIM105 - suppress() takes longer than ringing
            self.bell.release()
        except RuntimeError:
            pass  # it was rung already


_by = attrgetter("by")


class _Joint(NamedTuple):
    """One question for those who take under one limit, or for one who asked anything else."""

    who: Sequence[_Waiting]
    packed: bytes
    replies: int
    script: Script | None  # to be loaded here if the server does not know it


def _joined(waiting: Sequence[_Waiting]) -> list[_Joint]:
    """What is asked, takes under one limit together."""
    joints: list[_Joint] = []
    takes: dict[Questions, list[_Waiting]] = {}
    for each in waiting:
        if each.take is None:
            joints.append(_Joint((each,), each.packed, each.replies, None))
        else:
            takes.setdefault(each.take[0], []).append(each)
    for questions, who in takes.items():
        _, keys, costs = zip(*[each.take for each in who if each.take], strict=True)
        question = questions.decide_each(keys, costs)
        # Who is alone loads the script by itself, as it would have done had there been no queue.
        joints.append(_Joint(who, question.packed, 1, question.script if len(who) > 1 else None))
    return joints


def _exchange(line: Line, joints: Sequence[_Joint], by: float) -> bool:
    """Ask, and answer everybody; whether the line is still of use."""
    packed = b"".join([joint.packed for joint in joints])
    replies = line.exchange_all(packed, sum([joint.replies for joint in joints]), by)
    at, forgotten = 0, []
    for joint in joints:
        own, at = replies[at : at + joint.replies], at + joint.replies
        if isinstance(own[-1], Forgot) and joint.script is not None:
            forgotten.append(joint._replace(packed=joint.script.load + joint.packed, replies=2, script=None))
            continue
        reply = own[0] if isinstance(own[0], Trouble) else own[-1]
        facts = [reply] if joint.who[0].take is None else wire.each_facts(reply, len(joint.who))
        for each, answer in zip(joint.who, facts, strict=True):
            each.reply = answer
            each.ring()
    if forgotten and not line.closed:
        return _exchange(line, forgotten, by)
    return not line.closed


def _answer(waiting: Sequence[_Waiting], trouble: Trouble) -> None:
    for each in waiting:
        if each.reply is _NONE_YET:
            each.reply = trouble
            each.ring()
