"""A rulebook at work: which charges a call makes, in which order they are asked, and the decision made of it.

All rules that apply are decided together. What counts in this process (`where: node` and `split`) is charged
first, then slots, then what is prefetched, then everything else in one question; whoever was charged before one
refused gets it back. If something here refuses, no server is asked any more, except for shadows and candidates:
they are decided in the same question as the others, keep what their own verdict says, and are never in the way.

    here        node, split      decided in this process
    slots       "20 slots"       acquired, each by a question of its own; the caller releases them
    prefetched  prefetch         nearly always decided in this process; gives back what another rule refused
    there       everything else  one question to the engine

A call whose rules are all there is straight: one question, and its answers are the decision. Only the others take
the long way, which is a flow.

A Ruling belongs to one rulebook. Another book is another Ruling, under the same names: counts carry over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headgate.algorithms.decision import ALLOWED, MARK, Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.algorithms.smooth import Smooth
from headgate.enforcement.rule_decision import CANDIDATE, SHADOW, Charged, Denied, Head, RuleDecision
from headgate.enforcement.split_limits import divisible, even
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.fallback.limit_share import Place, fresh
from headgate.engines.url_options import Options
from headgate.flow import Flow
from headgate.rules.condition import Test
from headgate.rules.match import Match, Matcher
from headgate.rules.rule import Limits, Refusal, Rule, Rulebook
from headgate.validation import check_zone

HERE, SLOTS, PREFETCHED, THERE = range(4)
MANY = 1000  # limits that callers brought along

# Where a rule's charges are decided, what heads each of them, and the meters.
Hand = tuple[int, Head, list[Any]]


class CompiledRulebook:
    """A rulebook, bound to an engine and to this process's own."""

    def __init__(self, book: Rulebook, engine: Any, local: Any, chosen: Options) -> None:
        self.book: Rulebook = divisible(book)
        self.engine = engine
        self.local = local  # the engine itself, if that is this process
        self._chosen = chosen
        # The engine waits as long as its most patient rule; only those with less patience say so themselves.
        self.deadline: float = max(map(self._patience, book.rules), default=chosen.patience)
        self.match: Callable[..., Sequence[Match]] = Matcher(book).match
        if any(map(_shares, book.rules)) and hasattr(engine, "count_members"):
            engine.count_members()  # before the first call: an outage may begin with it
        self.refusals: dict[str, Refusal] = {rule.name: rule.refuse for rule in book.rules}
        self.closed: frozenset[str] = frozenset(rule.name for rule in book.rules if _closed(rule))
        self._hands: dict[tuple[str, int, str | None], Hand] = {}
        self._divided: dict[tuple[str, int, str | None, Place], Hand] = {}
        self._brought: dict[tuple[Limit, str], Any] = {}

    def call(self, attributes: Mapping[str, Any], cost: int | None) -> CallPlan:
        """What a call asks."""
        call = CallPlan(self)
        hands = self._hands
        for match in self.match(attributes, cost):
            rule, key, limits, units, shadow, candidate, denied = match
            if denied is not None:
                call.denied.append((len(call.charges), match))
                call.straight = False
                continue
            aside = SHADOW if shadow else None
            call.add(hands.get((rule.name, id(limits), aside)) or self._hand(rule, limits, aside), key, units)
            if candidate:
                call.add(self._hand(rule, candidate, CANDIDATE), key, units)
        return call

    def _hand(self, rule: Rule, limits: Limits, aside: str | None) -> Hand:
        known = self._hands.get((rule.name, id(limits), aside))
        if known is None:
            if rule.where == "split" and rule.nodes is None:
                return self._divided_hand(rule, limits, aside)
            nodes = None if rule.nodes is None else (rule.nodes, None)
            known = self._hands[rule.name, id(limits), aside] = self._bound(rule, limits, aside, nodes)
        return known

    def _divided_hand(self, rule: Rule, limits: Limits, aside: str | None) -> Hand:
        """Of a limit that is split among as many as there are at the moment."""
        place = getattr(self.engine, "place", None)
        nodes = (1, 0) if place is None else place()
        tag = rule.name, id(limits), aside, nodes
        known = self._divided.get(tag)
        if known is None:
            known = self._divided[tag] = self._bound(rule, limits, aside, nodes)
        return known

    def _bound(self, rule: Rule, limits: Limits, aside: str | None, nodes: Place | None) -> Hand:
        remote = self.local is not self.engine
        here = rule.where != "cluster" and remote
        engine = self.local if here else self.engine
        names = names_of(rule, limits, aside == CANDIDATE)
        if nodes is not None:
            limits = tuple(even(limit, *nodes) for limit in limits)
        head = rule.name, aside
        patience = self._patience(rule, aside)
        terms = terms_of(rule, aside, patience if patience < self.deadline else None)
        if limits and isinstance(limits[0], Slots):
            return SLOTS, head, [engine.slots(limits[0], names[0], terms)]
        meters = [engine.meter(limit, name, terms) for limit, name in zip(limits, names, strict=True)]
        prefetched = remote and terms.prefetch is not None
        return HERE if here else PREFETCHED if prefetched else THERE, head, meters

    def _patience(self, rule: Rule, aside: str | None = None) -> float:
        """How long a rule waits for an answer: what it says, or the engine's URL; less if there is a fallback, and
        what is aside needs no answer."""
        if rule.deadline is not None:
            return rule.deadline
        fallback = "allow" if aside else rule.fallback or self._chosen.fallback
        return replace(self._chosen, fallback=fallback).patience

    def brought(self, limit: Limit, name: str) -> Any:
        """The hand on a limit that a caller brings along. They may bring many, so no more than some are known."""
        meter = self._brought.get((limit, name))
        if meter is None:
            if len(self._brought) >= MANY:
                self._brought.clear()
            check_zone(limit)
            meter = self._brought[limit, name] = self.engine.meter(limit, name)
        return meter

    def own_meter(self, charge: Charged, limit: Limit) -> Any:
        """The hand on a limit of the key's own: a refund must go by the numbers of the charge."""
        meter, _, _ = charge
        return self.engine.meter(limit, meter.name)


class CallPlan:
    """The charges of one call, and how they are decided."""

    __slots__ = ("_known", "_places", "charges", "denied", "heads", "ruling", "straight")

    def __init__(self, ruling: CompiledRulebook) -> None:
        self.ruling: CompiledRulebook = ruling
        self.charges: list[Charged] = []
        self.heads: list[Head] = []
        self.denied: list[Denied] = []
        self.straight: bool = True
        self._places: list[int] = []
        self._known: dict[tuple[int, str], int] = {}

    def add(self, hand: Hand, key: str, cost: int) -> None:
        place, head, meters = hand
        for meter in meters:
            self.charges.append((meter, key, cost))
            self.heads.append(head)
            self._places.append(place)
        if place != THERE:
            self.straight = False

    def join(self, other: CallPlan) -> list[int]:
        """Make the charges of another call as well; where each of them is now. Two on one count become one, for
        an engine judges every charge of a question by the count as it stood before."""
        places, known, charges = [], self._known, self.charges
        for (meter, key, cost), head, place in zip(other.charges, other.heads, other._places, strict=True):
            count = id(meter), key
            at = known.get(count) if place in (HERE, THERE) else None
            if at is None:
                at = known[count] = len(charges)
                charges.append((meter, key, cost))
                self.heads.append(head)
                self._places.append(place)
            else:
                charges[at] = meter, key, charges[at][2] + cost
            places.append(at)
        self.denied += other.denied
        self.straight = self.straight and other.straight
        return places

    def decision(self, answers: Sequence[Outcome | None], apart: bool = False) -> RuleDecision:
        return RuleDecision(self.ruling, self.heads, self.charges, answers, self.denied, apart)

    def decide(self, patience_us: int | None = None, commit: bool = True) -> Flow[RuleDecision]:
        """The long way."""
        answers, apart = yield from self.answered(patience_us, commit)
        return self.decision(answers, apart)

    def answered(
        self, patience_us: int | None = None, commit: bool = True
    ) -> Flow[tuple[Sequence[Outcome | None], bool]]:
        """An answer for each charge, and whether they come from several places. Who is not asked, because
        something here refused, has none."""
        answers: list[Outcome | None] = [None] * len(self.charges)
        refused = any(not match.shadow for _, match in self.denied)
        charged: list[int] = []
        try:
            here = self._those(HERE, refused)
            yield from self._together(self.ruling.local, here, answers, patience_us, commit)
            if self._refuse(here, answers):
                refused = True
            else:
                charged += here
            for place in (*self._those(SLOTS, False), *self._those(PREFETCHED, False)):
                if self._aside(place) or not refused:
                    yield from self._ahead(place, answers, patience_us, commit)
                    charged.append(place)
                    refused = refused or self._refuse([place], answers)
            there = self._those(THERE, refused)
            yield from self._together(self.ruling.engine, there, answers, patience_us, commit)
            refused = refused or self._refuse(there, answers)
        except BaseException:
            yield from self._give_back(charged, answers, patience_us, commit)
            raise
        if refused:
            yield from self._give_back(charged, answers, patience_us, commit)
        questions = {
            (at, place if at in (SLOTS, PREFETCHED) else None)
            for place, at in enumerate(self._places)
            if answers[place] is not None and not self._aside(place)
        }
        return answers, len(questions) > 1

    def _those(self, where: int, refused: bool) -> list[int]:
        """The places in the row of charges that are decided there; once refused, only what is aside."""
        places = [place for place, at in enumerate(self._places) if at == where]
        return [place for place in places if self._aside(place)] if refused else places

    def _aside(self, place: int) -> bool:
        return self.heads[place][1] is not None

    def _refuse(self, places: Sequence[int], answers: Sequence[Outcome | None]) -> bool:
        for place in places:
            facts = answers[place]
            if facts is not None and not facts[ALLOWED] and not self._aside(place):
                return True
        return False

    def _together(
        self, engine: Any, places: list[int], answers: list[Outcome | None], patience_us: int | None, commit: bool
    ) -> Flow[None]:
        if len(places) == 1 and commit:
            meter, key, cost = self.charges[places[0]]
            answers[places[0]] = yield partial(meter.decide, key, cost, patience_us)
        elif places:
            charges = [self.charges[place] for place in places]
            found = yield partial(engine.decide_all, charges, patience_us, commit)
            for place, facts in zip(places, found, strict=True):
                answers[place] = facts

    def _ahead(
        self, place: int, answers: list[Outcome | None], patience_us: int | None, commit: bool
    ) -> Flow[None]:
        meter, key, cost = self.charges[place]
        if self._places[place] == PREFETCHED:
            yield from self._together(self.ruling.engine, [place], answers, patience_us, commit)
        elif commit and cost:
            answers[place], _ = yield partial(meter.acquire, key)
        else:
            answers[place] = yield partial(meter.free, key)

    def _give_back(
        self, places: Sequence[int], answers: list[Outcome | None], patience_us: int | None, commit: bool
    ) -> Flow[None]:
        """What was charged before another rule refused. A shadow keeps its own; but nobody holds a slot for it."""
        for place in places if commit else ():
            facts, (meter, key, cost) = answers[place], self.charges[place]
            if facts is None or not facts[ALLOWED] or not cost:
                continue
            if self._places[place] == SLOTS:
                yield partial(meter.release, key, facts[MARK])
            elif not self._aside(place):
                receipt = Receipt.of(facts, cost)
                after = yield partial(meter.refund, key, cost, receipt, patience_us is not None)
                answers[place] = (True, *after[1:])


def _closed(rule: Rule) -> bool:
    """Whether it states a cost that its limit can never hold: a limit of 0, in a form that every share of it and
    every fallback keeps."""
    cost = rule.cost
    if cost is None or cost.cases or isinstance(cost.otherwise, str) or rule.limit.cases:
        return False
    limits = [limit for limit in rule.limit.otherwise if not isinstance(limit, Smooth | Slots)]
    return any(cost.otherwise > fresh(limit) for limit in limits)


def _shares(rule: Rule) -> bool:
    """Whether it goes, now or in an outage, by how many share its limit."""
    if rule.where == "cluster":
        return rule.fallback == "local"
    return rule.where == "split" and rule.nodes is None


def terms_of(rule: Rule, aside: str | None = None, deadline: float | None = None) -> ChargeOptions:
    """What a rule says to an engine."""
    if aside == CANDIDATE:
        return ChargeOptions(rule.name, aside=True, fallback=rule.fallback, deadline=deadline)
    prefetch = None if rule.prefetch is None or aside else (rule.prefetch.hold_us, rule.prefetch.units)
    return ChargeOptions(
        rule.name, aside is not None, rule.lockout, rule.overrides, rule.fallback, deadline, prefetch
    )


def names_of(rule: Rule, limits: Limits, candidate: bool = False) -> list[str]:
    """What the counts of one of a rule's limits are filed under: by position, so that a changed limit keeps its
    count, and by case, so that no count is ever reckoned by two limits in turn."""
    first = f"{rule.name}~" if candidate else rule.name
    case = next(word for word, value in cases_of(rule, candidate) if value is limits)
    at = f"@{case}" if case else ""
    return [f"{first}#{place}{at}" if place else f"{first}{at}" for place in range(len(limits))]


def cases_of(rule: Rule, candidate: bool = False) -> list[tuple[str, Limits]]:
    """All limits that a rule may choose, each with its case in words, and `otherwise` without. Without a word are
    also those that the key decides: no two calls of one key differ in them. An address does not decide: keys hold
    the network around it."""
    choice = rule.candidate if candidate else rule.limit
    if choice is None:
        return []
    whole = {dimension.name for dimension in rule.key if dimension.v4 is None}
    apart = not {test.attribute for test, _ in choice.cases} <= whole
    return [*((_word(test) if apart else "", value) for test, value in choice.cases), ("", choice.otherwise)]


def _word(test: Test) -> str:
    return str(test.wanted).lower() if isinstance(test.wanted, bool) else ",".join(test.wanted)
