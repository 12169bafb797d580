"""Several calls decided as one: all of them pass and are charged, or none is.

A gateway asks about several things at once: Envoy's descriptors, an order's items. Each ask meets the rules by
itself; what all of them would charge is one question to the engine, and each is told its own verdict.

    Ask({"path": "/buy", "sku": "7"}, cost=2)            by the rulebook
    Ask({}, limit=parse("10/minute fixed"), name=..., key=...)     by a limit that the caller brings along

Laws (tests/rules/test_together.py):
  - an ask alone is decided as check() decides it;
  - if one is refused, none is charged; who would have passed says so;
  - asks that meet on one count are charged their sum or nothing, and are told the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from headgate.asking import check_cost
from headgate.errors import InvalidCharge
from headgate.flow import Flow
from headgate.model.decision import ALLOWED, Facts
from headgate.model.limit import Limit
from headgate.model.slots import Slots
from headgate.receipt import give_back
from headgate.ruled.decision import RuledDecision
from headgate.ruled.ruling import THERE, Call, Ruling


class Ask(NamedTuple):
    """One of several calls. A limit of its own decides in place of the rules', under this name and key."""

    attributes: Mapping[str, Any]
    cost: int | None = None
    limit: Limit | None = None
    name: str = ""
    key: str = ""


class Together:
    """The charges of several calls, and a decision for each."""

    __slots__ = ("asked", "call")

    def __init__(self, ruling: Ruling, asks: Sequence[Ask]) -> None:
        self.call = Call(ruling)
        join = self.call.join
        self.asked = [(own, join(own)) for own in (call_of(ruling, ask) for ask in asks)]

    def decisions(self, answers: Sequence[Facts | None], apart: bool = False) -> tuple[RuledDecision, ...]:
        return tuple([own.decision([answers[place] for place in places], apart) for own, places in self.asked])

    def decide(self) -> Flow[tuple[RuledDecision, ...]]:
        """The long way, for calls that are not straight."""
        answers, apart = yield from self.call.answered()
        return self.decisions(answers, apart)


def giving_back(ruling: Ruling, ask: Ask, units: int) -> Flow[RuledDecision]:
    """Units of a call whose decision nobody has any more; how things stand after that."""
    call, answers = call_of(ruling, ask), []
    for meter, key, _ in call.charges:
        if isinstance(meter.limit, Slots):
            facts = yield partial(meter.free, key)
        else:
            _, facts = yield from give_back(meter, key, units)
        answers.append((True, *facts[ALLOWED + 1 :]))
    call.denied.clear()
    return call.decision(answers)


def call_of(ruling: Ruling, ask: Ask) -> Call:
    """What one of them asks."""
    if not isinstance(ask.attributes, Mapping):
        raise InvalidCharge(f'Attributes are a mapping such as {{"user": "ann"}}, not {ask.attributes!r}.')
    cost = None if ask.cost is None else check_cost(ask.cost)
    if ask.limit is None:
        call = ruling.call(ask.attributes, 1 if cost == 0 else cost)
        if cost == 0:  # a peek: of all rules, also those that state a cost
            call.charges = [(meter, key, 0) for meter, key, _ in call.charges]
        return call
    call = Call(ruling)
    meter = ruling.brought(ask.limit, ask.name)
    call.add((THERE, (ask.name, None), [meter]), ask.key, 1 if cost is None else cost)
    return call
