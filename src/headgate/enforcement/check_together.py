"""Several calls decided as one: all of them pass and are charged, or none is.

A gateway asks about several things at once: Envoy's descriptors, an order's items. Each ask meets the rules by
itself; what all of them would charge is one question to the engine, and each is told its own verdict.

    Ask({"path": "/buy", "sku": "7"}, cost=2)            by the rulebook
    Ask({}, limit=parse("10/minute fixed"), name=..., key=...)     by a limit that the caller brings along

Laws (tests/enforcement/test_check_together.py):
  - an ask alone is decided as check() decides it;
  - if one is refused, none is charged; who would have passed says so;
  - asks that meet on one count are charged their sum or nothing. If they pass, each is told what is left after it
    and those before it; otherwise all of them are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from headgate.algorithms.decision import ALLOWED, REMAINING, Outcome, with_remaining
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.enforcement.call_plan import THERE, CallPlan, CompiledRulebook
from headgate.enforcement.rule_decision import RuleDecision
from headgate.errors import InvalidCharge
from headgate.flow import Flow
from headgate.untracked_refund import give_back
from headgate.validation import check_cost, describe

EXAMPLE_ASK = 'Ask({"user": "ann"}, cost=2)'


class Ask(NamedTuple):
    """One of several calls. A limit of its own decides in place of the rules', under this name and key."""

    attributes: Mapping[str, Any]
    cost: int | None = None
    limit: Limit | None = None
    name: str = ""
    key: str = ""


class Together:
    """The charges of several calls, and a decision for each."""

    __slots__ = ("asked", "call", "meeting")

    def __init__(self, ruling: CompiledRulebook, asks: Sequence[Ask]) -> None:
        if not isinstance(asks, list | tuple) or isinstance(asks, Ask):
            raise InvalidCharge(f"Calls are a list of Asks, such as [{EXAMPLE_ASK}]; not {describe(asks)}.")
        self.call: CallPlan = CallPlan(ruling)
        join = self.call.join
        self.asked: list[tuple[CallPlan, list[int]]] = [
            (own, join(own)) for own in (call_of(ruling, ask) for ask in asks)
        ]
        # Whether several of them meet on one count.
        self.meeting: bool = len(self.call.charges) < sum(len(places) for _, places in self.asked)

    def decisions(self, answers: Sequence[Outcome | None], apart: bool = False) -> tuple[RuleDecision, ...]:
        own_answers = [[answers[place] for place in places] for _, places in self.asked]
        if self.meeting:
            self._tell_apart(own_answers)
        return tuple([own.decision(facts, apart) for (own, _), facts in zip(self.asked, own_answers, strict=True)])

    def _tell_apart(self, own_answers: list[list[Outcome | None]]) -> None:
        """Give back to `remaining` what those that come after were charged."""
        later: dict[int, int] = {}  # by place: units
        for (own, places), answers in zip(reversed(self.asked), reversed(own_answers), strict=True):
            for number, place in enumerate(places):
                facts = answers[number]
                if facts is not None and facts[ALLOWED] and later.get(place):
                    answers[number] = with_remaining(facts, facts[REMAINING] + later[place])
                later[place] = later.get(place, 0) + own.charges[number][2]

    def decide(self) -> Flow[tuple[RuleDecision, ...]]:
        """The long way, for calls that are not straight."""
        answers, apart = yield from self.call.answered()
        return self.decisions(answers, apart)


def giving_back(ruling: CompiledRulebook, ask: Ask, units: int) -> Flow[RuleDecision]:
    """Units of a call whose decision nobody has any more; how things stand after that."""
    call, answers = call_of(ruling, check_ask(ask)._replace(cost=units)), []
    for meter, key, cost in call.charges:
        if isinstance(meter.limit, Slots):
            facts = yield partial(meter.free, key)
        else:
            _, facts = yield from give_back(meter, key, cost)
        # Whatever kind of facts they are: a fallback's stay a fallback's.
        answers.append(type(facts)((True, *facts[ALLOWED + 1 :])))
    call.denied.clear()
    return call.decision(answers)


def check_ask(ask: object) -> Ask:
    """Refuses what is no Ask."""
    if not isinstance(ask, Ask):
        raise InvalidCharge(
            f"A call is an Ask, such as {EXAMPLE_ASK} of headgate.enforcement.check_together; not {describe(ask)}."
        )
    return ask


def call_of(ruling: CompiledRulebook, ask: Ask) -> CallPlan:
    """What one of them asks."""
    check_ask(ask)
    if not isinstance(ask.attributes, Mapping):
        raise InvalidCharge(f'Attributes are a mapping such as {{"user": "ann"}}, not {ask.attributes!r}.')
    cost = None if ask.cost is None else check_cost(ask.cost)
    if ask.limit is None:
        call = ruling.call(ask.attributes, 1 if cost == 0 else cost)
        if cost == 0:  # a peek: of all rules, also those that state a cost; what can never pass is as good as one
            rules = [rule in ruling.closed for rule, _ in call.heads]
            charges = zip(rules, call.charges, strict=True)
            call.charges = [(meter, key, units if closed else 0) for closed, (meter, key, units) in charges]
        return call
    call = CallPlan(ruling)
    if not isinstance(ask.limit, Limit):
        raise InvalidCharge(f'An Ask\'s limit is a Limit, such as parse("10/minute"); not {describe(ask.limit)}.')
    if not isinstance(ask.name, str):
        raise InvalidCharge(f"An Ask's name is a text, not {describe(ask.name)}.")
    if not isinstance(ask.key, str):
        raise InvalidCharge(f"A key is a string, not {describe(ask.key)}.")
    meter = ruling.brought(ask.limit, ask.name)
    call.add((THERE, (ask.name, None), [meter]), ask.key, 1 if cost is None else cost)
    return call
