"""Compiles a rulebook, plans the charges of a call, and decides them in order.

All rules that apply are decided together, in five stages. Rules that count in this process (`where: node` and
`split`) are charged first, then adaptive limits, so that an overloaded service asks no server, then slots, then
prefetched rules, then everything else in one request. If a rule refuses, the charges of earlier stages are given
back. After a refusal, only shadows and candidates are still sent. They share a request with the other rules where
they can. Each is charged by its own verdict, and none refuses a call.

    LOCAL       node, split      decided in this process
    ADAPTIVE    adaptive         decided in this process; ended by whoever knows how the call went
    SLOTS       "20 slots"       acquired, each by its own request; the caller releases them
    PREFETCHED  prefetch         nearly always decided in this process; refunded if another rule refuses
    REMOTE      everything else  one request to the engine

A call whose rules are all REMOTE needs a single request, and its reply is the decision. Only the others need
the flow of `decide`.

A CompiledRulebook belongs to one rulebook. A new rulebook gets a new one. Its counters have the same names, so
counts carry over. Rules in code (code_rules) are bound like those of the book, but only the caller knows when
they apply: it matches them itself, and plans them together with those of the book.

The reason for the length of this file: what a plan prepares and what the stages do with it is read together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headgate.adaptive.adaptive_limit import AdaptiveLimit
from headgate.algorithms.decision import ALLOWED, MARK, AdaptiveOutcome, Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.clock import SystemClock
from headgate.enforcement.adaptive_rules import AdaptiveRule, AdaptiveRules
from headgate.enforcement.rule_decision import CANDIDATE, SHADOW, Charged, ChargeLabel, Denied, RuleDecision
from headgate.enforcement.split_limits import check_split_limits, even_share
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.port import MemberPosition
from headgate.engines.url_options import EngineOptions
from headgate.flow import Flow
from headgate.rules.condition import Test
from headgate.rules.match import Match, Matcher
from headgate.rules.rule import Limits, Refusal, Rule, Rulebook
from headgate.validation import check_zone

LOCAL, ADAPTIVE, SLOTS, PREFETCHED, REMOTE = range(5)
MAX_CALLER_LIMITS = 1000  # cached meters of limits that callers pass themselves

# The stage that decides a rule's charges, their label, and the meters.
BoundRule = tuple[int, ChargeLabel, list[Any]]


class CompiledRulebook:
    """A rulebook whose limits are bound to an engine, and to the in-memory engine of this process."""

    def __init__(
        self,
        book: Rulebook,
        engine: Any,
        local: Any,
        options: EngineOptions,
        code_rules: Sequence[Rule] = (),
        matcher: Matcher | None = None,
        adaptive: AdaptiveRules | None = None,
    ) -> None:
        self.book: Rulebook = check_split_limits(book)
        rules = (*book.rules, *code_rules)
        self.code_rules: Sequence[Rule] = code_rules
        self.engine = engine
        self.local = local  # the same as engine if that counts in this process
        self._options = options
        # The engine waits as long as its most patient rule; less patient rules set their own deadline.
        self.deadline: float = max(map(self._patience, rules), default=options.effective_deadline)
        self.matcher: Matcher = matcher or Matcher(book)
        self.match: Callable[..., Sequence[Match]] = self.matcher.match
        if any(map(_needs_process_count, rules)):
            engine.count_members()  # before the first call: an outage may begin during that call
        self.refusals: dict[str, Refusal] = {rule.name: rule.refuse for rule in rules}
        self.never_allowed: frozenset[str] = frozenset(rule.name for rule in rules if _never_allowed(rule))
        self.pause_options: dict[str, ChargeOptions] = {
            rule.name: ChargeOptions(rule.name, pauses=tuple(counts_of(rule)))
            for rule in rules
            if rule.max_pause_us is not None
        }
        self.rules_with_cost: frozenset[str] = frozenset(rule.name for rule in rules if rule.cost is not None)
        self.bound_rules: dict[tuple[str, int, str | None], BoundRule] = {}
        self._bound_shares: dict[tuple[str, int, str | None, MemberPosition], BoundRule] = {}
        self._caller_meters: dict[tuple[Limit, str], Any] = {}
        # Last, when nothing can fail any more: what was learned goes on under these rules.
        self._adaptive = AdaptiveRules(SystemClock(), None) if adaptive is None else adaptive
        self.adaptive_rules: dict[str, AdaptiveRule] = self._adaptive.follow(rules)

    def bind_rule(self, rule: Rule, limits: Limits, shadow_kind: str | None) -> BoundRule:
        """Binds limits of a rule to the engine that decides them."""
        if rule.where == "split" and rule.nodes is None:
            return self._bound_share(rule, limits, shadow_kind)
        nodes = None if rule.nodes is None else (rule.nodes, None)
        bound = self._bind(rule, limits, shadow_kind, nodes)
        self.bound_rules[rule.name, id(limits), shadow_kind] = bound
        return bound

    def _bound_share(self, rule: Rule, limits: Limits, shadow_kind: str | None) -> BoundRule:
        """Binds a limit that is split among the processes that are alive now."""
        nodes: MemberPosition = self.engine.member_position()
        cache_key = rule.name, id(limits), shadow_kind, nodes
        bound = self._bound_shares.get(cache_key)
        if bound is None:
            bound = self._bound_shares[cache_key] = self._bind(rule, limits, shadow_kind, nodes)
        return bound

    def _bind(
        self, rule: Rule, limits: Limits, shadow_kind: str | None, nodes: MemberPosition | None
    ) -> BoundRule:
        if limits and isinstance(limits[0], AdaptiveLimit):
            meter = self._adaptive.meter(self.adaptive_rules[rule.name], limits[0], shadow_kind is not None)
            return ADAPTIVE, (rule.name, shadow_kind), [meter]
        remote = self.local is not self.engine
        local = rule.where != "cluster" and remote
        engine = self.local if local else self.engine
        names = counter_names(rule, limits, shadow_kind == CANDIDATE)
        if nodes is not None:
            limits = tuple(even_share(limit, *nodes) for limit in limits)
        label = rule.name, shadow_kind
        patience = self._patience(rule, shadow_kind)
        charge_options = charge_options_of(rule, shadow_kind, patience if patience < self.deadline else None)
        if limits and isinstance(limits[0], Slots):
            return SLOTS, label, [engine.slots(limits[0], names[0], charge_options)]
        meters = [engine.meter(limit, name, charge_options) for limit, name in zip(limits, names, strict=True)]
        prefetched = remote and charge_options.prefetch is not None
        return LOCAL if local else PREFETCHED if prefetched else REMOTE, label, meters

    def _patience(self, rule: Rule, shadow_kind: str | None = None) -> float:
        """Returns how long a rule waits for a reply: its deadline, or that of the URL; less with a fallback.
        Shadows and candidates wait as if their fallback were allow."""
        if rule.deadline is not None:
            return rule.deadline
        fallback = "allow" if shadow_kind else rule.fallback or self._options.fallback
        return replace(self._options, fallback=fallback).effective_deadline

    def caller_meter(self, limit: Limit, name: str) -> Any:
        """Returns the meter of a limit that a caller passes; the last MAX_CALLER_LIMITS at most are cached."""
        meter = self._caller_meters.get((limit, name))
        if meter is None:
            if len(self._caller_meters) >= MAX_CALLER_LIMITS:
                self._caller_meters.clear()
            check_zone(limit)
            meter = self._caller_meters[limit, name] = self.engine.meter(limit, name)
        return meter

    def override_meter(self, charge: Charged, limit: Limit) -> Any:
        """Returns the meter of the override that decided a charge, so that a refund goes to the same limit."""
        meter, _, _ = charge
        return self.engine.meter(limit, meter.name)


class CallPlan:
    """The charges of one call under the rules that it matched, and the order in which they are decided."""

    __slots__ = (
        "_indices",
        "_is_shared",
        "_stages",
        "attributes",
        "charges",
        "compiled_rulebook",
        "denied_matches",
        "is_single_request",
        "labels",
        "stated_cost",
    )

    def __init__(
        self,
        compiled_rulebook: CompiledRulebook,
        matches: Iterable[Match] = (),
        attributes: Mapping[str, Any] | None = None,
        stated_cost: int | None = None,
    ) -> None:
        self.attributes: Mapping[str, Any] | None = attributes
        self.stated_cost: int | None = stated_cost
        self.compiled_rulebook: CompiledRulebook = compiled_rulebook
        self.charges: list[Charged] = []
        self.labels: list[ChargeLabel] = []
        self.denied_matches: list[Denied] = []
        self.is_single_request: bool = True
        self._stages: list[int] = []
        self._indices: dict[tuple[int, str], int] = {}
        self._is_shared: bool = False
        bound_rules = compiled_rulebook.bound_rules
        for match in matches:
            rule, key, limits, units, shadow, candidate, denied = match
            if denied is not None:
                self.denied_matches.append((len(self.charges), match))
                self.is_single_request = False
                continue
            kind = SHADOW if shadow else None
            bound = bound_rules.get((rule.name, id(limits), kind))
            self.add(bound or compiled_rulebook.bind_rule(rule, limits, kind), key, units)
            if candidate:
                bound = bound_rules.get((rule.name, id(candidate), CANDIDATE))
                self.add(bound or compiled_rulebook.bind_rule(rule, candidate, CANDIDATE), key, units)

    def repeat(self, attributes: Mapping[str, Any] | None) -> CallPlan:
        """Returns the plan of another call with the same charges, in the same lists until it gets one more."""
        plan: CallPlan = CallPlan.__new__(CallPlan)
        plan.attributes, plan.stated_cost = attributes, self.stated_cost
        plan.compiled_rulebook = self.compiled_rulebook
        plan.charges, plan.labels, plan.denied_matches = self.charges, self.labels, self.denied_matches
        plan.is_single_request, plan._stages, plan._indices = self.is_single_request, self._stages, self._indices
        plan._is_shared = self._is_shared = True
        return plan

    def _unshare(self) -> None:
        """Copies the lists that other plans use, too."""
        self.charges, self.labels, self.denied_matches = [*self.charges], [*self.labels], [*self.denied_matches]
        self._stages, self._indices, self._is_shared = [*self._stages], {**self._indices}, False

    @property
    def can_be_paused(self) -> bool:
        """Returns whether a live rule of the call can be paused: then whoever waits looks again."""
        pausable = self.compiled_rulebook.pause_options
        return bool(pausable) and any(rule in pausable and kind is None for rule, kind in self.labels)

    def add(self, bound: BoundRule, key: str, cost: int) -> None:
        if self._is_shared:
            self._unshare()
        stage, label, meters = bound
        for meter in meters:
            self.charges.append((meter, key, cost))
            self.labels.append(label)
            self._stages.append(stage)
        if stage != REMOTE:
            self.is_single_request = False

    def join(self, other: CallPlan) -> list[int]:
        """Adds the charges of another call, and returns the index of each. Two charges on one counter become one:
        an engine decides every charge of a request by the counter's state before the request."""
        if self._is_shared:
            self._unshare()
        indices, counter_indices, charges = [], self._indices, self.charges
        for (meter, key, cost), label, stage in zip(other.charges, other.labels, other._stages, strict=True):
            counter = id(meter), key
            index = counter_indices.get(counter) if stage in (LOCAL, REMOTE) else None
            if index is None:
                index = counter_indices[counter] = len(charges)
                charges.append((meter, key, cost))
                self.labels.append(label)
                self._stages.append(stage)
            else:
                charges[index] = meter, key, charges[index][2] + cost
            indices.append(index)
        self.denied_matches += other.denied_matches
        self.is_single_request = self.is_single_request and other.is_single_request
        return indices

    def decision(self, outcomes: Sequence[Outcome | None], several_requests: bool = False) -> RuleDecision:
        return RuleDecision(
            self.compiled_rulebook, self.labels, self.charges, outcomes, self.denied_matches, several_requests
        )

    def decide(self, patience_us: int | None = None, commit: bool = True) -> Flow[RuleDecision]:
        """Decides the charges stage by stage."""
        outcomes, several_requests = yield from self.outcomes(patience_us, commit)
        return self.decision(outcomes, several_requests)

    def outcomes(
        self, patience_us: int | None = None, commit: bool = True
    ) -> Flow[tuple[Sequence[Outcome | None], bool]]:
        """Returns the outcome of each charge, and whether it took several requests. A charge that was not sent,
        because an earlier stage refused, has the outcome None."""
        outcomes: list[Outcome | None] = [None] * len(self.charges)
        refused = any(not match.shadow for _, match in self.denied_matches)
        charged: list[int] = []
        try:
            local = self._indices_at(LOCAL, refused)
            yield from self._decide_together(self.compiled_rulebook.local, local, outcomes, patience_us, commit)
            if self._any_refused(local, outcomes):
                refused = True
            else:
                charged += local
            for index in self._indices_at(ADAPTIVE, False):
                if not refused:
                    meter, key, _ = self.charges[index]
                    outcomes[index] = meter.enter(key) if commit else meter.free(key)
                    charged.append(index)
                    refused = self._any_refused([index], outcomes)
            entered = len(charged)
            for index in (*self._indices_at(SLOTS, False), *self._indices_at(PREFETCHED, False)):
                if self._is_shadow(index) or not refused:
                    yield from self._decide_early(index, outcomes, patience_us, commit)
                    charged.append(index)
                    refused = refused or self._any_refused([index], outcomes)
            remote = self._indices_at(REMOTE, refused)
            yield from self._decide_together(self.compiled_rulebook.engine, remote, outcomes, patience_us, commit)
            refused = refused or self._any_refused(remote, outcomes)
            if remote or len(charged) > entered:
                self._restart(charged, outcomes)
        except BaseException:
            yield from self._undo(charged, outcomes, patience_us, commit)
            raise
        if refused:
            yield from self._undo(charged, outcomes, patience_us, commit)
        requests = {
            (stage, index if stage in (SLOTS, PREFETCHED) else None)
            for index, stage in enumerate(self._stages)
            if outcomes[index] is not None and not self._is_shadow(index)
        }
        return outcomes, len(requests) > 1

    def _indices_at(self, stage: int, refused: bool) -> list[int]:
        """Returns the indices of the charges of a stage; once the call is refused, only shadows and candidates."""
        indices = [index for index, charge_stage in enumerate(self._stages) if charge_stage == stage]
        return [index for index in indices if self._is_shadow(index)] if refused else indices

    def _is_shadow(self, index: int) -> bool:
        return self.labels[index][1] is not None

    def _any_refused(self, indices: Sequence[int], outcomes: Sequence[Outcome | None]) -> bool:
        for index in indices:
            outcome = outcomes[index]
            if outcome is not None and not outcome[ALLOWED] and not self._is_shadow(index):
                return True
        return False

    def _decide_together(
        self,
        engine: Any,
        indices: list[int],
        outcomes: list[Outcome | None],
        patience_us: int | None,
        commit: bool,
    ) -> Flow[None]:
        if len(indices) == 1 and commit:
            meter, key, cost = self.charges[indices[0]]
            outcomes[indices[0]] = yield partial(meter.decide, key, cost, patience_us)
        elif indices:
            charges = [self.charges[index] for index in indices]
            decided = yield partial(engine.decide_all, charges, patience_us, commit)
            for index, outcome in zip(indices, decided, strict=True):
                outcomes[index] = outcome

    def _decide_early(
        self, index: int, outcomes: list[Outcome | None], patience_us: int | None, commit: bool
    ) -> Flow[None]:
        meter, key, cost = self.charges[index]
        if self._stages[index] == PREFETCHED:
            yield from self._decide_together(self.compiled_rulebook.engine, [index], outcomes, patience_us, commit)
        elif commit and cost:
            outcomes[index], _ = yield partial(meter.acquire, key)
        else:
            outcomes[index] = yield partial(meter.free, key)

    def _restart(self, indices: Sequence[int], outcomes: Sequence[Outcome | None]) -> None:
        """Measures response times from now on: to decide the rest took a while."""
        for index in indices:
            outcome = outcomes[index]
            if isinstance(outcome, AdaptiveOutcome) and outcome.call is not None:
                outcome.call.restart()

    def _undo(
        self, indices: Sequence[int], outcomes: list[Outcome | None], patience_us: int | None, commit: bool
    ) -> Flow[None]:
        """Gives back what was charged before another rule refused. A shadow keeps its charge, but not its slot."""
        for index in indices if commit else ():
            outcome, (meter, key, cost) = outcomes[index], self.charges[index]
            if isinstance(outcome, AdaptiveOutcome):
                if outcome.call is not None:
                    outcome.call.cancel()
                continue
            if outcome is None or not outcome[ALLOWED] or not cost:
                continue
            if self._stages[index] == SLOTS:
                yield partial(meter.release, key, outcome[MARK])
            elif not self._is_shadow(index):
                receipt = Receipt.from_outcome(outcome, cost)
                after = yield partial(meter.refund, key, cost, receipt, patience_us is not None)
                outcomes[index] = (True, *after[1:])


def _never_allowed(rule: Rule) -> bool:
    """Returns whether a rule's cost is always above its limit. That is how a limit of 0 is written: every share of
    the limit and every fallback refuse it, too.
    """
    cost = rule.cost
    if cost is None or cost.cases or isinstance(cost.otherwise, str) or rule.limit.cases:
        return False
    limits = [limit for limit in rule.limit.otherwise if not isinstance(limit, Slots)]
    return any(cost.otherwise > limit.max_cost for limit in limits)


def _needs_process_count(rule: Rule) -> bool:
    """Returns whether a rule needs the number of processes that share its limit, now or in an outage."""
    if rule.where == "cluster":
        return rule.fallback == "local"
    return rule.where == "split" and rule.nodes is None


def charge_options_of(rule: Rule, shadow_kind: str | None = None, deadline: float | None = None) -> ChargeOptions:
    """Returns the charge options of a rule: all that the engine needs to know about it, except its limit."""
    if shadow_kind == CANDIDATE:
        return ChargeOptions(rule.name, is_shadow=True, fallback=rule.fallback, deadline=deadline)
    prefetch = None if rule.prefetch is None or shadow_kind else (rule.prefetch.hold_us, rule.prefetch.units)
    return ChargeOptions(
        rule.name,
        shadow_kind is not None,
        rule.lockout,
        rule.overrides,
        rule.fallback,
        deadline,
        prefetch,
        None if rule.max_pause_us is None else tuple(counts_of(rule)),
    )


def counts_of(rule: Rule) -> list[tuple[str, str]]:
    """Returns the algorithm and the name of each count that a pause of the rule holds up: those of all its cases.
    Leases of slots are held in real time, and go on."""
    return list(
        dict.fromkeys(
            (limit.algorithm, name)
            for _, limits in limit_cases(rule)
            for limit, name in zip(limits, counter_names(rule, limits), strict=True)
            if not isinstance(limit, Slots)
        )
    )


def counter_names(rule: Rule, limits: Limits, candidate: bool = False) -> list[str]:
    """Returns the counter names of a rule's limits: by position, so that a changed limit keeps its counter, and by
    case, so that no counter is decided by two limits in turn."""
    base = f"{rule.name}~" if candidate else rule.name
    case = next(word for word, value in limit_cases(rule, candidate) if value is limits)
    suffix = f"@{case}" if case else ""
    return [f"{base}#{position}{suffix}" if position else f"{base}{suffix}" for position in range(len(limits))]


def limit_cases(rule: Rule, candidate: bool = False) -> list[tuple[str, Limits]]:
    """Lists all limits that a rule may choose, each with the name of its case. The name is empty for `otherwise`,
    and for all cases if the key decides between them: then no two calls of one key differ. An address in the key
    does not decide: the key holds only its network."""
    choice = rule.candidate if candidate else rule.limit
    if choice is None:
        return []
    exact_dimensions = {dimension.name for dimension in rule.key if dimension.v4 is None}
    named = not {test.attribute for test, _ in choice.cases} <= exact_dimensions
    return [*((_case_name(test) if named else "", value) for test, value in choice.cases), ("", choice.otherwise)]


def _case_name(test: Test) -> str:
    return str(test.expected).lower() if isinstance(test.expected, bool) else ",".join(test.expected)
