"""The sync shell: open lines, one at a time for each thread that asks.

Idle lines wait in a list, newest last; list.append and list.pop are atomic, so no lock is needed. The common way
is straight: a line, a question, a reply. Everything else is a flow.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from headgate.clock import Clock, SystemClock
from headgate.engine.port import Meter, Slot
from headgate.engine.redis import flows, wire
from headgate.engine.redis.address import Address
from headgate.engine.redis.line import Line
from headgate.engine.redis.trouble import Forgot, Lost, Said, Trouble, unavailable
from headgate.engine.redis.wire import Question, Questions
from headgate.errors import InvalidCharge
from headgate.flow import run
from headgate.model.decision import Facts, Receipt
from headgate.model.limit import Limit
from headgate.model.slots import Slots


class RedisEngine:
    """Decides inside Redis or Valkey, by one EVALSHA for each question."""

    def __init__(self, url: str, *, prefix: str = "hg", clock: Clock | None = None) -> None:
        self.prefix = prefix
        self.clock = clock or SystemClock()
        self._address = Address(url)
        self._idle: list[Line] = []
        self._pid = os.getpid()

    def meter(self, limit: Limit, name: str) -> RedisMeter:
        return RedisMeter(self, limit, name)

    def slots(self, limit: Slots, name: str) -> RedisSlotMeter:
        return RedisSlotMeter(self, limit, name)

    def decide_all(self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None) -> list[Facts]:
        asked = [(_own(meter).questions, key, cost) for meter, key, cost in charges]
        return run(flows.decide_all(self.ask, asked, patience_us, self.clock.now_us()))

    def ask(self, question: Question) -> Any:
        """One question, one reply."""
        idle = self._idle
        if idle and self._pid == os.getpid():
            try:
                line = idle.pop()
            except IndexError:  # another thread was faster
                return self._ask_on(None, question)
            try:
                reply = line.exchange(question.packed)
            except Forgot:
                return self._ask_on(line, question)
            except Lost:  # the server went away while the line was idle, and so did the others
                line.close()
                self.close()
            except BaseException as error:
                self._give_up(line, error)
                raise
            else:
                idle.append(line)
                return reply
        return self._ask_on(None, question)

    def _ask_on(self, line: Line | None, question: Question) -> Any:
        """The long way: a line that may have to be opened, a script that may have to be loaded."""
        if self._pid != os.getpid():  # forked: those sockets are the parent's
            self._pid, self._idle = os.getpid(), []
        try:
            line = line or self._address.line()
            reply = run(flows.exchange(line.exchange, question))
        except BaseException as error:
            self._give_up(line, error)
            raise
        self._idle.append(line)
        return reply

    def _give_up(self, line: Line | None, error: BaseException) -> None:
        """A line is of use after an error reply only: otherwise a reply may still be on its way."""
        if line is not None:
            if isinstance(error, Said):
                self._idle.append(line)
            else:
                line.close()
        if isinstance(error, Trouble):
            raise unavailable(self._address.text, self.prefix, error) from error

    def shard(self, key: str) -> int:
        return 0

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class RedisMeter:
    """The engine's hand on one limit."""

    def __init__(self, engine: RedisEngine, limit: Limit, name: str) -> None:
        self.limit = limit
        self.name = name
        self.questions = Questions(limit, name, engine.prefix)
        self._ask = engine.ask
        self._now_us = engine.clock.now_us

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Facts:
        questions = self.questions
        if not questions.calendar:
            return wire.facts(self._ask(questions.decide(key, cost, patience_us, 0)))
        return run(flows.decide(self._ask, questions, key, cost, patience_us, self._now_us()))

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Facts:
        return run(flows.refund(self._ask, self.questions, key, units, receipt, cancel, self._now_us()))

    def retune(self, key: str) -> None:
        if self.questions.retunes:
            self._ask(self.questions.retune(key))

    def reset(self, key: str) -> None:
        self._ask(self.questions.reset(key))


class RedisSlotMeter:
    """The engine's hand on the slots of one limit."""

    def __init__(self, engine: RedisEngine, limit: Slots, name: str) -> None:
        self.limit = limit
        self.name = name
        self.questions = Questions(limit, name, engine.prefix)
        self._ask = engine.ask

    def free(self, key: str) -> Facts:
        return wire.facts(self._ask(self.questions.slots("peek", key)))

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return wire.slot(self._ask(self.questions.acquire(key, ticket, wait)))

    def renew(self, key: str, fence: int) -> int | None:
        return wire.renewed(self._ask(self.questions.slots("renew", key, fence)))

    def release(self, key: str, fence: int) -> bool:
        return bool(self._ask(self.questions.slots("release", key, fence)))

    def leave(self, key: str, ticket: int) -> None:
        self._ask(self.questions.slots("leave", key, ticket))

    def reset(self, key: str) -> None:
        self._ask(self.questions.slots("reset", key))


def _own(meter: Meter) -> RedisMeter:
    if not isinstance(meter, RedisMeter):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return meter
