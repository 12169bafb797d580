"""A question that may take several steps, the same for both shells.

`ask` is the shell's: one question, one reply, awaited or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headgate.engine.redis import wire
from headgate.engine.redis.trouble import Forgot
from headgate.engine.redis.wire import Question, Questions
from headgate.flow import Flow
from headgate.model.decision import Facts, Receipt

Ask = Callable[[Question], Any]


def exchange(send: Callable[[bytes], Any], question: Question) -> Flow[Any]:
    """Ask on one connection, and teach the server the script if it has forgotten it."""
    try:
        return (yield partial(send, question.packed))
    except Forgot:
        if question.script is None:
            raise
    yield partial(send, question.script.load)
    return (yield partial(send, question.packed))


def decide(
    ask: Ask, questions: Questions, key: str, cost: int, patience_us: int | None, now_us: int
) -> Flow[Facts]:
    reply = yield partial(ask, questions.decide(key, cost, patience_us, now_us))
    if (server_us := wire.outside(reply)) is not None:
        reply = yield partial(ask, questions.decide(key, cost, patience_us, server_us))
    return wire.facts(reply)


def decide_all(
    ask: Ask, charges: Sequence[tuple[Questions, str, int]], patience_us: int | None, now_us: int
) -> Flow[list[Facts]]:
    reply = yield partial(ask, wire.together(charges, patience_us, now_us))
    if (server_us := wire.outside(reply[0])) is not None:
        reply = yield partial(ask, wire.together(charges, patience_us, server_us))
    return wire.all_facts(reply)


def refund(
    ask: Ask, questions: Questions, key: str, units: int, receipt: Receipt, cancel: bool, now_us: int
) -> Flow[Facts]:
    reply = yield partial(ask, questions.refund(key, units, receipt, cancel, now_us))
    if (server_us := wire.outside(reply)) is not None:
        reply = yield partial(ask, questions.refund(key, units, receipt, cancel, server_us))
    return wire.facts(reply)
