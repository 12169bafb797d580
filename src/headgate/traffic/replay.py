"""Replays recorded calls: through the real model, on a clock that follows the log.

A RulebookPlayer decides calls by one rulebook on an in-memory engine of its own. `replay_calls` plays one
rulebook, or two side by side, and counts. Slots are held for the recorded duration of a call, and renewed
meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import NamedTuple

from headgate.algorithms.decision import ALLOWED, DELAY_US, Outcome
from headgate.algorithms.slots import Slots
from headgate.clock import ManualClock
from headgate.enforcement.call_plan import REMOTE, SLOTS, CallPlan
from headgate.enforcement.check_together import BatchedCall
from headgate.enforcement.rule_decision import Charged, ChargeLabel, Denied, RuleDecision
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.engines.memory.engine import MemoryEngine
from headgate.flow import run
from headgate.limit_syntax import parse
from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.rule import Modes, Rule, Rulebook
from headgate.traffic.formats.decision_log import DecisionRecord
from headgate.traffic.hashed_attributes import check_hashed_attributes
from headgate.traffic.recorded_answers import RecordedAnswers, RecordedOverrides
from headgate.traffic.recorded_call import RecordedCall
from headgate.traffic.replay_counts import DELAYED, PASSED, REFUSED, RuleCounts, Timeline

RENEWALS_PER_TTL = 3
NO_KEY = "(no key)"


class SlotEvent(NamedTuple):
    """A call that ends later: its slots are to be renewed and, at its end, released; its real cost is settled."""

    at_us: int
    number: int
    end_us: int
    decision: RuleDecision
    real_costs: Sequence[tuple[str, int]] = ()  # by rule


class ChangedCall(NamedTuple):
    """A call that two rulebooks answer differently."""

    time_us: int
    line: int
    key: str
    passed: bool  # by the new rulebook
    rule: str | None  # that refuses it, old or new


@dataclass
class Differences:
    """The calls that two rulebooks answer differently; the first ones are listed."""

    max_listed: int = 0
    newly_refused: int = 0
    newly_passed: int = 0
    keys_newly_refused: set[str] = field(default_factory=set)
    keys_newly_passed: set[str] = field(default_factory=set)
    calls: list[ChangedCall] = field(default_factory=list)


def enforced(book: Rulebook) -> Rulebook:
    """Returns the rulebook with every shadow live.

    >>> book = load.from_mapping({"rules": [{"name": "api", "limit": "9/s", "mode": "shadow"}]})
    >>> enforced(book).rules[0].mode
    Modes(enforce=10000, shadow=0)
    """
    return replace(book, rules=tuple(replace(rule, mode=_enforced(rule)) for rule in book.rules))


def _enforced(rule: Rule) -> Modes:
    return Modes(rule.mode.enforce + rule.mode.shadow, 0)


def needed_attributes(*books: Rulebook) -> frozenset[str]:
    """Returns the attributes that the rules of some rulebooks use."""
    return frozenset(name for book in books for rule in book.rules for name in used_attributes(rule))


class RulebookPlayer:
    """Decides recorded calls by one rulebook, and counts the verdicts of each rule."""

    def __init__(self, book: Rulebook) -> None:
        self._clock = ManualClock(0)
        self.limiter: RuleLimiter = RuleLimiter(book, MemoryEngine(self._clock), clock=self._clock)
        self._engine = self.limiter.engine
        self.counts: dict[tuple[str, str | None], RuleCounts] = {}
        self.answers: list[int] = [0, 0, 0]
        self.timeline: Timeline = Timeline()
        self.without_duration: int = 0
        self.refusing_rule: str | None = None
        self.key: str = NO_KEY  # of the last call
        self._slots: list[SlotEvent] = []
        self._slot_number = 0
        self._node_rules = frozenset(rule.name for rule in book.rules if rule.where == "node")
        self._checked_hashes: set[tuple[str, ...]] = set()

    def play(self, call: RecordedCall) -> int:
        """Decides a call: PASSED, DELAYED or REFUSED."""
        time_us = call[0]
        if self._slots:
            self._tend_slots(time_us)
        self._clock.set_us(time_us)
        if call[6] is None:
            plan = self.limiter.plan_call(call[1], call[4])
        elif call[6].shed:
            return self._play_shed(call, call[6])
        else:
            plan = self._plan_recorded(call, call[6])
        charges = plan.charges
        if plan.is_single_request and len(charges) == 1 and (call[6] is None or call[6].is_plain):
            meter, key, cost = charges[0]
            answer = self._count(plan.labels[0], key, meter.decide(key, cost), time_us)
        else:
            answer = self._play_plan(plan, call)
        self._note_answer(time_us, answer)
        return answer

    def play_together(self, calls: Sequence[RecordedCall]) -> list[int]:
        """Decides calls of a decision log that were decided together: all of them are charged, or none is."""
        time_us = calls[0].time_us
        self._tend_slots(time_us)
        self._clock.set_us(time_us)
        answers = []
        for call, decision in zip(
            calls, self.limiter.check_together([_batched_call(call) for call in calls]), strict=True
        ):
            self._end_later(decision, call)
            matches = decision.denied_matches
            answers.append(self._count_all(decision.labels, decision.charges, decision.outcomes, matches, time_us))
            self._note_answer(time_us, answers[-1])
        return answers

    def _note_answer(self, time_us: int, answer: int) -> None:
        self.answers[answer] += 1
        self.timeline.count(time_us // 1_000_000, answer)

    def _play_shed(self, call: RecordedCall, record: DecisionRecord) -> int:
        """Refuses a call that load shedding refused: no rule was asked, and none was charged."""
        self.refusing_rule, self.key = record.rule, record.keys[0][1] if record.keys else NO_KEY
        answer = self._refuse_without_key((record.rule or "", None), self.key, call.time_us)
        self._note_answer(call.time_us, answer)
        return answer

    def _plan_recorded(self, call: RecordedCall, record: DecisionRecord) -> CallPlan:
        """Plans a call of a decision log, with what its attributes do not tell: which process counted it, and
        limits that are not in the rulebook."""
        compiled = self.limiter.compiled_rulebook
        plan = CallPlan(compiled) if record.in_code else self.limiter.plan_call(call.attributes, call.cost)
        if record.hashed and record.hashed not in self._checked_hashes:
            check_hashed_attributes(self.limiter.rulebook, record.hashed)
            self._checked_hashes.add(record.hashed)
        if self._node_rules and record.process:
            plan.charges = [
                (meter, f"{key} ({record.process})" if rule in self._node_rules else key, cost)
                for (rule, _), (meter, key, cost) in zip(plan.labels, plan.charges, strict=True)
            ]
        for rule, key, text, cost in record.code_charges:
            limit = parse(text)
            if isinstance(limit, Slots):
                plan.add((SLOTS, (rule, None), [compiled.engine.slots(limit, rule)]), key, cost)
            else:
                plan.add((REMOTE, (rule, None), [compiled.caller_meter(limit, rule)]), key, cost)
        return plan

    def _play_plan(self, plan: CallPlan, call: RecordedCall) -> int:
        outcomes: list[Outcome | None]
        patience_us = None if call.record is None else call.record.patience_us
        if plan.is_single_request and (call.record is None or call.record.is_plain):
            outcomes = list(self._engine.decide_all(plan.charges)) if plan.charges else []
        else:
            decided, several_requests = run(plan.outcomes(patience_us))
            outcomes = list(decided)
            decision = plan.decision(outcomes, several_requests)
            self._end_later(decision, call)
        return self._count_all(plan.labels, plan.charges, outcomes, plan.denied_matches, call.time_us)

    def _count_all(
        self,
        labels: Sequence[ChargeLabel],
        charges: Sequence[Charged],
        outcomes: Sequence[Outcome | None],
        denied_matches: Sequence[Denied],
        time_us: int,
    ) -> int:
        """Counts the outcomes of a call; returns its answer."""
        answer = PASSED
        verdicts: dict[tuple[str, str | None], tuple[str, Outcome]] = {}
        for label, (_, key, _), outcome in zip(labels, charges, outcomes, strict=True):
            if outcome is None:
                continue
            counted = verdicts.get(label)
            if counted is None or (counted[1][ALLOWED] and not outcome[ALLOWED]):
                verdicts[label] = key, outcome  # a rule of several limits refuses if one of them does
        for label, (key, outcome) in verdicts.items():
            answer = max(answer, self._count(label, key, outcome, time_us))
        for _, match in denied_matches:
            label = match.rule.name, "shadow" if match.shadow else None
            answer = max(answer, self._refuse_without_key(label, match.key or NO_KEY, time_us))
        return answer

    def _count(self, label: tuple[str, str | None], key: str, outcome: Outcome, time_us: int) -> int:
        counts = self.counts.get(label)
        if counts is None:
            counts = self.counts[label] = RuleCounts(*label)
        counts.offered += 1
        keys = counts.keys
        if key in keys.offered:
            keys.offered[key] += 1
        else:
            keys.add(key)
        if outcome[ALLOWED]:
            if not outcome[DELAY_US]:
                return PASSED
            counts.delayed += 1
            return DELAYED if label[1] is None else PASSED
        counts.refused += 1
        keys.refuse(key, time_us)
        if label[1] is not None:
            return PASSED
        self.refusing_rule, self.key = label[0], key
        return REFUSED

    def _refuse_without_key(self, label: tuple[str, str | None], key: str, time_us: int) -> int:
        counts = self.counts.setdefault(label, RuleCounts(*label))
        counts.offered += 1
        counts.refused += 1
        counts.keys.add(key)
        counts.keys.refuse(key, time_us)
        if label[1] is not None:
            return PASSED
        self.refusing_rule, self.key = label[0], key
        return REFUSED

    def _end_later(self, decision: RuleDecision, call: RecordedCall) -> None:
        """Holds what a decision holds as long as the call lasted, and settles its real cost then."""
        holds = any(meter.limit.is_held for meter, _, _ in decision.charges)
        real_costs = () if call.record is None else call.record.real_costs
        if not decision.allowed or not (holds or real_costs):
            return
        if holds and call.duration_us is None:
            self.without_duration += 1
        self._slot_number += 1
        end_us = call.time_us + (call.duration_us or 0)
        self._schedule(SlotEvent(call.time_us, self._slot_number, end_us, decision, real_costs))

    def _schedule(self, event: SlotEvent) -> None:
        ttls_us = [part.limit.ttl_us for part in event.decision.counter_decisions if isinstance(part.limit, Slots)]
        next_us = event.at_us + min(ttls_us, default=3_000_000) // RENEWALS_PER_TTL
        heappush(self._slots, event._replace(at_us=min(event.end_us, next_us)))

    def _tend_slots(self, until_us: int) -> None:
        """Renews and releases the slots whose time has come."""
        while self._slots and self._slots[0].at_us <= until_us:
            event = heappop(self._slots)
            self._clock.set_us(event.at_us)
            if event.at_us >= event.end_us:
                self.limiter.finish(event.decision)
                for rule, cost in event.real_costs:
                    self.limiter.settle(event.decision.only({rule}), cost)
            else:
                self.limiter.renew(event.decision)
                self._schedule(event)


@dataclass
class Replay:
    """The result of a replay: the players with their counts, and what differs between them.

    >>> result = replay_logs(["access.log"], limit_rulebook("2/minute"))
    >>> [(counts.rule, counts.offered, counts.refused) for counts in result.new.counts.values()]
    [('limit', 60, 57)]
    """

    calls: int
    first_us: int
    last_us: int
    new: RulebookPlayer
    old: RulebookPlayer | None
    differences: Differences
    recorded: RecordedAnswers


def replay_calls(
    batches: Iterable[Iterable[RecordedCall]],
    rules: Rulebook,
    against: Rulebook | None = None,
    max_listed: int = 0,
) -> Replay:
    """Plays calls through a rulebook, and through another one to compare; `max_listed` differences are kept.

    >>> calls = [RecordedCall(second * 1_000_000, Attributes(user="ann")) for second in range(5)]
    >>> replay_calls([calls], limit_rulebook("3/minute")).new.answers
    [3, 0, 2]
    """
    new, old = RulebookPlayer(rules), RulebookPlayer(against) if against is not None else None
    differences, recorded = Differences(max_listed), RecordedAnswers()
    calls, first_us, time_us = 0, 0, 0
    play = new.play
    overrides = [RecordedOverrides(each.limiter) for each in (new, old) if each is not None]
    groups = TogetherGroups()
    for batch in batches:
        for call in batch:
            if not calls:
                first_us = call.time_us
            calls += 1
            if call.record is not None:
                for each in overrides:
                    each.prepare(call.record)
                if call.record.together is not None:
                    if group := groups.add(call, call.record):
                        _play_together(group, new, old, differences, recorded)
                        time_us = call[0]
                    continue
            answer = play(call)
            if old is not None:
                _compare(call, answer, new, old.play(call), old, differences)
            if call.record is not None:
                recorded.compare(call, answer != REFUSED)
            time_us = call[0]
    for group in groups.incomplete():
        _play_together(group, new, old, differences, recorded)
    new.timeline.finish()
    if old is not None:
        old.timeline.finish()
    recorded.finish()
    return Replay(calls, first_us, time_us, new, old, differences, recorded)


class TogetherGroups:
    """Gathers calls that one process decided together, and that other calls of the log come between."""

    def __init__(self) -> None:
        self._groups: dict[str, list[RecordedCall]] = {}  # by process

    def add(self, call: RecordedCall, record: DecisionRecord) -> list[RecordedCall] | None:
        """Adds a call; returns its group once that is complete."""
        assert record.together is not None
        index, size = record.together
        group = self._groups.setdefault(record.process, [])
        group.append(call)
        return self._groups.pop(record.process) if index == size - 1 else None

    def incomplete(self) -> Iterator[list[RecordedCall]]:
        """Yields the groups whose last call is not in the log."""
        yield from self._groups.values()


def _play_together(
    group: Sequence[RecordedCall],
    new: RulebookPlayer,
    old: RulebookPlayer | None,
    differences: Differences,
    recorded: RecordedAnswers,
) -> None:
    answers = new.play_together(group)
    old_answers = None if old is None else old.play_together(group)
    for index, call in enumerate(group):
        if old is not None and old_answers is not None:
            _compare(call, answers[index], new, old_answers[index], old, differences)
        recorded.compare(call, answers[index] != REFUSED)


def _batched_call(call: RecordedCall) -> BatchedCall:
    """Returns one of several calls that were decided together."""
    if call.record is not None and call.record.code_charges:
        rule, key, limit, cost = call.record.code_charges[0]
        return BatchedCall(call.attributes, cost, parse(limit), rule, key)
    return BatchedCall(call.attributes, call.cost)


def _compare(
    call: RecordedCall,
    answer: int,
    new: RulebookPlayer,
    old_answer: int,
    old: RulebookPlayer,
    differences: Differences,
) -> None:
    passed = answer != REFUSED
    if passed is (old_answer != REFUSED):
        return
    player = old if passed else new
    if passed:
        differences.newly_passed += 1
        differences.keys_newly_passed.add(player.key)
    else:
        differences.newly_refused += 1
        differences.keys_newly_refused.add(player.key)
    if len(differences.calls) < differences.max_listed:
        differences.calls.append(ChangedCall(call.time_us, call.line, player.key, passed, player.refusing_rule))
