"""Questions that may take several steps, the same for both shells.

`ask` and `send` are the shell's: one question, one reply, awaited or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from headgate.engine.redis import naming, wire
from headgate.engine.redis.address import Address
from headgate.engine.redis.topology import Topology, slot
from headgate.engine.redis.trouble import Elsewhere, Forgot, NotNow, Replica, Trouble, Unreached
from headgate.engine.redis.wire import Question, Questions
from headgate.flow import Flow
from headgate.model.decision import ALLOWED, AT_US, MARK, REMAINING, RESET_AFTER_US, ApartFacts, Facts, Receipt

Ask = Callable[[Question], Any]
AskAll = Callable[[Sequence[Question]], Any]
Charged = tuple[Questions, str, int]

PAUSE = 0.02  # seconds before a cluster that is busy with itself is asked again
DETOURS = 4  # times that a question is sent on at once


def answered(
    topology: Topology,
    discover: Callable[[], Any],
    send: Callable[[Address, Question, bool], Any],
    sleep: Callable[[float], Any],
    question: Question,
    by: float,
    forgot: bool = False,
) -> Flow[Any]:
    """One question, asked of whoever answers for its key, wherever that leads, but not long after `by`.

    It is asked again only where it surely has not been charged: the server said so, or was not reached. `forgot`:
    somebody has said already that the script must be loaded first.
    """
    to: Address | None = None
    for_now = False
    sent_on = 0
    while True:
        address = to or topology.node(question.tag)
        if address is None:
            yield discover
            address = topology.node(question.tag)
        try:
            if address is None:
                raise NotNow("no node answers for the slot of the key")
            if forgot and question.script is not None:
                forgot = False
                yield partial(send, address, Question(question.script.load, None), False)
            return (yield partial(send, address, question, for_now))
        except Forgot:
            if address is None or question.script is None or time.monotonic() > by:
                raise
            to, forgot = address, True
        except Elsewhere as told:
            if address is None or time.monotonic() > by:
                raise
            to, for_now = topology.sent_on(told, address), told.for_now
            sent_on += 1
            if sent_on > DETOURS:  # the nodes do not agree yet, and send us in circles
                yield partial(sleep, PAUSE)
        except Trouble as trouble:
            if address is not None:
                topology.suspect(address)
            again = NotNow | Replica | Unreached if topology.moves else NotNow
            if not isinstance(trouble, again) or time.monotonic() + PAUSE > by:
                raise
            yield partial(sleep, PAUSE)
            to, for_now = None, False


def decide(
    ask: Ask, questions: Questions, key: str, cost: int, patience_us: int | None, now_us: int
) -> Flow[Facts]:
    reply = yield partial(ask, questions.decide(key, cost, patience_us, now_us))
    if (server_us := wire.outside(reply)) is not None:
        reply = yield partial(ask, questions.decide(key, cost, patience_us, server_us))
    return wire.facts(reply)


def decide_all(ask: Ask, charges: Sequence[Charged], patience_us: int | None, now_us: int) -> Flow[list[Facts]]:
    reply = yield partial(ask, wire.together(charges, patience_us, now_us))
    if (server_us := wire.outside(reply[0])) is not None:
        reply = yield partial(ask, wire.together(charges, patience_us, server_us))
    return wire.all_facts(reply)


def decide_by_slot(
    ask: Ask, ask_all: AskAll, charges: Sequence[Charged], patience_us: int | None, now_us: int
) -> Flow[list[Facts]]:
    """Several charges in a cluster: one question if their keys share a slot, otherwise apart."""
    places: dict[int, list[int]] = {}
    for place, (_, key, _) in enumerate(charges):
        places.setdefault(slot(naming.escaped(key)), []).append(place)
    if len(places) == 1:
        return (yield from decide_all(ask, charges, patience_us, now_us))
    groups = [[charges[place] for place in group] for group in places.values()]
    answers = yield from decide_apart(ask_all, groups, patience_us, now_us)
    facts = dict(zip(chain(*places.values()), chain(*answers), strict=True))
    return [facts[place] for place in range(len(charges))]


def decide_apart(
    ask_all: AskAll, groups: Sequence[Sequence[Charged]], patience_us: int | None, now_us: int
) -> Flow[list[list[Facts]]]:
    """Charges that no single script can see, group by group: all are asked whether they would pass, then all are
    committed at once, and taken back where one refuses after all.

    A group that was taken back, and one that would have passed, tell how things stand. What cannot be taken back
    because its server is gone costs its own units, until they have run out by themselves.
    """

    def asked(commit: bool) -> Flow[list[list[Facts] | Trouble]]:
        at_us = now_us
        while True:
            questions = [wire.together(group, patience_us, at_us, commit=commit) for group in groups]
            replies = yield partial(ask_all, questions)
            outside = [wire.outside(reply[0]) for reply in replies if isinstance(reply, list)]
            server_us = next((each for each in outside if each is not None), None)
            if server_us is None or commit:
                return [_group(reply) for reply in replies]
            at_us = server_us

    would = yield from asked(commit=False)
    if any(isinstance(group, Trouble) or not _pass(group) for group in would):
        return _facts_or_raise(would, groups)
    done = yield from asked(commit=True)
    if all(not isinstance(group, Trouble) and _pass(group) for group in done):
        return _facts_or_raise(done, groups)

    back: list[tuple[int, int]] = []
    refunds: list[Question] = []
    for place, answered_ in enumerate(done):
        if isinstance(answered_, Trouble) or not _pass(answered_):
            continue
        for index, ((questions, key, cost), facts) in enumerate(zip(groups[place], answered_, strict=True)):
            receipt = Receipt.of(facts, cost)
            refunds.append(questions.refund(key, cost, receipt, patience_us is not None, now_us))
            back.append((place, index))
    replies = yield partial(ask_all, refunds)
    for (place, index), reply in zip(back, replies, strict=True):
        answer = done[place]
        if not isinstance(reply, Trouble) and not isinstance(answer, Trouble):
            answer[index] = _standing(wire.facts(reply))
    return _facts_or_raise(done, groups)


def _group(reply: Any) -> list[Facts] | Trouble:
    if isinstance(reply, Trouble):
        return reply
    if wire.outside(reply[0]) is not None:
        return NotNow("a window of the calendar ended in between")
    return wire.all_facts(reply)


def _pass(group: Sequence[Facts]) -> bool:
    return all(facts[ALLOWED] for facts in group)


def _standing(facts: Facts) -> Facts:
    """How things stand for a charge that would have passed had not another one refused."""
    return True, facts[REMAINING], 0, facts[RESET_AFTER_US], 0, facts[AT_US], facts[MARK]


def _facts_or_raise(
    answers: Sequence[Sequence[Facts] | Trouble], groups: Sequence[Sequence[Charged]]
) -> list[list[Facts]]:
    found: list[list[Facts]] = []
    for answer, group in zip(answers, groups, strict=True):
        if isinstance(answer, Trouble):
            _, answer.key, _ = group[0]
            raise answer
        found.append([ApartFacts(facts) for facts in answer])
    return found


def refund(
    ask: Ask, questions: Questions, key: str, units: int, receipt: Receipt, cancel: bool, now_us: int
) -> Flow[Facts]:
    reply = yield partial(ask, questions.refund(key, units, receipt, cancel, now_us))
    if (server_us := wire.outside(reply)) is not None:
        reply = yield partial(ask, questions.refund(key, units, receipt, cancel, server_us))
    return wire.facts(reply)
