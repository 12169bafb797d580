"""Follows a rulebook: compiles each version for the engines, and plans the charges of calls by it.

The rulebook is replaced as a whole, between two calls; every call is decided by one rulebook. This sends no
request: the limiters do (rule_limiter.py), and run the flows that are here for both of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from headgate import limiter_flows
from headgate.algorithms.decision import Decision
from headgate.clock import Clock
from headgate.enforcement import held_slots
from headgate.enforcement.adaptive_rules import AdaptiveMeter, AdaptiveRules
from headgate.enforcement.call_plan import CallPlan, CompiledRulebook
from headgate.enforcement.check_together import BatchedCall, CallBatch
from headgate.enforcement.open_rulebook import Rules, open_rulebook
from headgate.enforcement.repeated_calls import RepeatedCalls
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.stored_decision import ChargeReceipt, charge_receipts, decision_from_receipts
from headgate.engines.url_options import EngineOptions, EngineUrl
from headgate.errors import InvalidRule
from headgate.flow import Flow
from headgate.observer import Observer, Observers
from headgate.rules.distribution.watcher import RulebookWatcher
from headgate.rules.match import Matcher
from headgate.rules.rule import Rule, Rulebook
from headgate.validation import check_cost, check_decision, describe

Attributes = Mapping[str, Any]

RULEBOOK_WARNING = "headgate: %s"
_log = logging.getLogger("headgate")


class RulebookFollower:
    """The engines, the compiled rulebook, and what both limiters do with them without asking an engine."""

    def __init__(
        self,
        rules: Rules,
        engine: Any,
        local: Any,
        clock: Clock,
        url: EngineUrl | None,
        prefix: str,
        observers: Sequence[Observer],
    ) -> None:
        self.clock = clock
        self.observers: Observers | None = Observers(observers) if observers else None
        self.engine = engine
        self._local = local
        self._code_rules: tuple[Rule, ...] = ()
        self.adaptive: AdaptiveRules = AdaptiveRules(
            clock, None if self.observers is None else self.observers.limit_changed
        )
        self._agreement: Any = None  # an AdaptiveAgreement, where a rule wants one
        self._url, self._prefix = url, prefix
        self._opened_engine = url is not None  # an engine that the caller passes keeps its own deadline
        self._options = EngineOptions() if url is None else url.options
        self.watcher: RulebookWatcher[Rulebook] | None
        book, self.watcher, self._close_rules = open_rulebook(rules, url, prefix, self.replace)
        self.replace(book)
        if self.watcher is not None and not self.watcher.start():
            self.plan_call = self._plan_call_and_watch  # type: ignore[method-assign]
        if self.observers is not None:
            self.observers.watch(self)

    @property
    def rulebook(self) -> Rulebook:
        """The rulebook in effect."""
        return self._compiled.book

    @property
    def refused_changes(self) -> int:
        """The number of changes of the rulebook that were refused because they are invalid."""
        return 0 if self.watcher is None else self.watcher.refused_changes

    def replace(self, rulebook: Rulebook) -> None:
        """Switches to another rulebook. Counters carry over: they belong to the names of rules and their limits.

        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.replace(Rulebook())
        >>> str(limiter.check({"user": "ann"}))
        'allowed: no limit applies'
        """
        if not isinstance(rulebook, Rulebook):
            raise InvalidRule(
                "A Rulebook is expected, as headgate.rules.load.read(path) or load.from_mapping(mapping) "
                f"returns it; not {describe(rulebook)}."
            )
        self._compile(rulebook)
        for warning in rulebook.located_warnings:
            _log.warning(RULEBOOK_WARNING, warning)

    def add_code_rules(self, rules: Sequence[Rule]) -> None:
        """Adds rules that the rulebook does not have, and that the caller matches itself.

        >>> limiter = Limiter.from_rules(Rulebook())
        >>> limiter.add_code_rules(Limiter.from_rules(RULES).rulebook.rules)
        >>> str(limiter.check({"user": "ann"}))
        'allowed: no limit applies'
        """
        self._code_rules = (*self._code_rules, *rules)
        self._compile(self.rulebook, self._compiled.matcher)

    def _compile(self, rulebook: Rulebook, matcher: Matcher | None = None) -> None:
        compiled = CompiledRulebook(
            rulebook, self.engine, self._local, self._options, self._code_rules, matcher, self.adaptive
        )
        if self._opened_engine:
            self.engine.set_deadline(compiled.deadline)
        self._repeated_calls = RepeatedCalls(compiled) if RepeatedCalls.can_keep(compiled) else None
        self._compiled = compiled
        self._agree_on_limits()

    def _agree_on_limits(self) -> None:
        """Agrees on adaptive limits with other processes, if a rule wants that and they have a server."""
        if any(rule.is_agreed for rule in self.adaptive.rules.values()):
            from headgate.enforcement.adaptive_agreement import AdaptiveAgreement

            if self._agreement is None and self._url is not None and not self._url.text.startswith("memory:"):
                self._agreement = AdaptiveAgreement(self._url.text, self._prefix, lambda: self.adaptive.rules)
            if self._agreement is not None:
                self._agreement.start()

    def _close_agreement(self) -> None:
        if self._agreement is not None:
            self._agreement.close()

    @property
    def compiled_rulebook(self) -> CompiledRulebook:
        """The compiled rulebook: another object after every change."""
        return self._compiled

    def plan_call(self, attributes: Attributes, cost: object = None) -> CallPlan:
        """Plans the charges of a call under the rules that apply; sends no request."""
        stated_cost = None if cost is None else check_cost(cost)
        repeated_calls = self._repeated_calls
        if repeated_calls is not None:
            return repeated_calls.plan(attributes, stated_cost)
        compiled = self._compiled
        return CallPlan(compiled, compiled.match(attributes, stated_cost), attributes, stated_cost)

    def _plan_call_and_watch(self, attributes: Attributes, cost: object = None) -> CallPlan:
        """Does the same while the thread that watches the rulebook could not be started, and tries to start it."""
        if self.watcher is None or self.watcher.start():
            self.__dict__.pop("plan_call", None)
        return type(self).plan_call(self, attributes, cost)

    def plan_batch(self, calls: Sequence[BatchedCall]) -> CallBatch:
        """Plans the charges of several calls; sends no request."""
        return CallBatch(self._compiled, calls)

    def _cancel_flow(self, decision: Decision) -> Flow[bool]:
        if not decision.allowed:
            return True
        yield from held_slots.release(decision)
        return (yield from limiter_flows.cancel(decision))

    def counters_of(self, attributes: Attributes) -> tuple[list[tuple[str, Any, str]], bool]:
        """Lists rule, meter and key of each counter that may refuse a call; and whether a rule refuses it without
        a counter."""
        plan = self.plan_call(attributes, None)
        labelled = zip(plan.labels, plan.charges, strict=True)
        live = [(rule, meter, key) for (rule, shadow_kind), (meter, key, _) in labelled if shadow_kind is None]
        return live, any(not match.shadow for _, match in plan.denied_matches)

    def receipts(self, decision: Decision) -> list[ChargeReceipt]:
        """Returns a receipt for each charge of the decision, from which any process can restore it.

        >>> limiter = Limiter.from_rules(RULES)
        >>> [(each.rule, each.key, each.cost) for each in limiter.receipts(limiter.check({"user": "ann"}))]
        [('login', 'user=ann', 1)]
        """
        return charge_receipts(check_decision(decision))

    def restore_decision(self, receipts: Sequence[ChargeReceipt]) -> RuleDecision:
        """Restores a decision from its receipts: to be refunded, cancelled, renewed or released.

        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.refund(limiter.restore_decision(limiter.receipts(limiter.check({"user": "ann"}))))
        True
        """
        return decision_from_receipts(receipts, self._compiled)

    def _reset_flow(self, attributes: Attributes) -> Flow[None]:
        for meter, key, _ in self.plan_call(attributes, None).charges:
            if isinstance(meter, AdaptiveMeter):
                meter.reset(key)
            else:
                yield partial(meter.reset, key)
