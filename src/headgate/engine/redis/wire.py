"""Questions and answers as bytes: what is asked of the server, and what its numbers mean. Pure.

A question is packed by hand, because nearly all of it is known when the meter is made: only the key and, rarely,
the cost change. -1 stands for "never" and "take" on the wire, and dies here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from headgate.calendar import resolve
from headgate.engine.port import Slot
from headgate.engine.redis import naming
from headgate.engine.redis.script import Script, bare, several, single
from headgate.model import ALGORITHMS
from headgate.model.decision import Facts, Receipt
from headgate.model.limit import EXACT, Limit

_NEVER = -1
_OUTSIDE = -2


class Question(NamedTuple):
    packed: bytes
    script: Script | None  # to be loaded if the server does not know it


def command(*words: bytes | str | int | float) -> bytes:
    """One Redis command."""
    return b"*%d\r\n%b" % (len(words), bulks(words))


def bulks(words: Sequence[bytes | str | int | float]) -> bytes:
    return b"".join([bulk(word if isinstance(word, bytes) else str(word).encode()) for word in words])


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def facts(reply: list[int]) -> Facts:
    """The server's seven numbers, as the model would have given them."""
    allowed, remaining, retry_us, reset_us, delay_us, at_us, mark = reply
    return allowed == 1, remaining, None if retry_us == _NEVER else retry_us, reset_us, delay_us, at_us, mark


def outside(reply: list[int]) -> int | None:
    """The server's time, if it lies outside of the calendar that was sent."""
    return reply[1] if reply[0] == _OUTSIDE else None


class Questions:
    """Everything that can be asked about one limit."""

    def __init__(self, limit: Limit, name: str, prefix: str) -> None:
        self.limit = limit
        self.head = naming.head(prefix, limit.algorithm, name)
        self.retunes = limit.algorithm in ALGORITHMS and ALGORITHMS[limit.algorithm].retune is not None
        self.calendar = limit.algorithm == "fixed_window" and limit.args[1] == 0
        self._args = bulks(limit.args)
        self._one = bulks((1, -1)) + self._args

    @cached_property
    def _take(self) -> tuple[Script, bytes]:
        script = single("take", self.limit.algorithm)
        return script, b"*%d\r\n" % (6 + len(self.limit.args)) + bulks(("EVALSHA", script.sha, 1))

    def key(self, key: str) -> bytes:
        return naming.tagged(self.head, key)

    def decide(self, key: str, cost: int, patience_us: int | None, now_us: int) -> Question:
        script, start = self._take
        if cost == 1 and patience_us is None and not self.calendar:
            tail = self._one
        else:
            patience = -1 if patience_us is None else patience_us
            tail = bulks((min(cost, EXACT), patience, *self.args(now_us)))  # more can never pass either
        return Question(start + bulk(self.key(key)) + tail, script)

    def args(self, now_us: int) -> tuple[int | float, ...]:
        return resolve(self.limit, now_us).args if self.calendar else self.limit.args

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool, now_us: int) -> Question:
        script = single("refund", self.limit.algorithm)
        return self._evalsha(script, key, units, int(cancel), *receipt, *self.args(now_us))

    def retune(self, key: str) -> Question:
        return self._evalsha(single("retune", self.limit.algorithm), key, *self.limit.args)

    def reset(self, key: str) -> Question:
        return Question(command("UNLINK", self.key(key)), None)

    def slots(self, verb: str, key: str, *words: int | str) -> Question:
        return self._evalsha(bare("slots", "slots"), key, verb, *self.limit.args, *words)

    def acquire(self, key: str, ticket: int | None, wait: bool) -> Question:
        return self.slots("acquire", key, "" if ticket is None else ticket, int(wait))

    def _evalsha(self, script: Script, key: str, *words: int | float | str) -> Question:
        return Question(command("EVALSHA", script.sha, 1, self.key(key), *words), script)


def together(charges: Sequence[tuple[Questions, str, int]], patience_us: int | None, now_us: int) -> Question:
    """Several charges in one question."""
    script = several("take_all", (questions.limit.algorithm for questions, _, _ in charges))
    words: list[bytes | str | int | float] = ["EVALSHA", script.sha, len(charges)]
    words += [questions.key(key) for questions, key, _ in charges]
    words.append(-1 if patience_us is None else patience_us)
    for questions, _, cost in charges:
        words += [questions.limit.algorithm, min(cost, EXACT), *questions.args(now_us)]
    return Question(command(*words), script)


def all_facts(reply: list[Any]) -> list[Facts]:
    return [facts(one) for one in reply]


def slot(reply: list[int]) -> Slot:
    """The answer to one who would acquire: the facts, and a ticket if there is one."""
    return Slot(facts(reply[:7]), reply[7] if len(reply) > 7 else None)


def renewed(reply: list[int]) -> int | None:
    return reply[1] if reply[0] else None
