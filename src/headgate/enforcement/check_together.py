"""Decides several calls as one: all of them pass and are charged, or none is.

A gateway checks several things at once: Envoy's descriptors, an order's items. The rules are matched for each call
by itself; the charges of all of them are one request to the engine, and each call gets its own verdict.

    BatchedCall({"path": "/buy", "sku": "7"}, cost=2)    by the rulebook
    BatchedCall({}, limit=parse("10/minute fixed"), name=..., key=...)    by a limit that the caller passes

Laws (tests/enforcement/test_batched_calls.py):
  - a single call is decided as check() decides it;
  - if one is refused, none is charged; the decisions of the others still show that they would have passed;
  - calls that share a counter are charged their sum or nothing. If they pass, `remaining` of each is what is left
    after it and those before it; otherwise all of them are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from headgate.algorithms.decision import ALLOWED, AT_US, REMAINING, AdaptiveOutcome, Outcome, with_remaining
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.enforcement.adaptive_rules import AdaptiveMeter
from headgate.enforcement.call_plan import REMOTE, CallPlan, CompiledRulebook
from headgate.enforcement.rule_decision import RuleDecision
from headgate.errors import InvalidCharge
from headgate.flow import Flow
from headgate.observer import ObservedDecision
from headgate.refund_without_decision import give_back
from headgate.validation import check_cost, describe

EXAMPLE_CALL = 'BatchedCall({"user": "ann"}, cost=2)'


class BatchedCall(NamedTuple):
    """One of several calls. If it has a limit, that decides in place of the rules, under this name and key."""

    attributes: Mapping[str, Any]
    cost: int | None = None
    limit: Limit | None = None
    name: str = ""
    key: str = ""


class CallBatch:
    """The charges of several calls, and a decision for each."""

    __slots__ = ("joint_plan", "plans", "shares_counters")

    def __init__(self, compiled: CompiledRulebook, calls: Sequence[BatchedCall]) -> None:
        if not isinstance(calls, list | tuple) or isinstance(calls, BatchedCall):
            raise InvalidCharge(
                f"Calls are a list of BatchedCalls, such as [{EXAMPLE_CALL}]; not {describe(calls)}."
            )
        self.joint_plan: CallPlan = CallPlan(compiled)
        join = self.joint_plan.join
        self.plans: list[tuple[CallPlan, list[int]]] = [
            (plan, join(plan)) for plan in (plan_of(compiled, call) for call in calls)
        ]
        # Whether several calls share a counter.
        self.shares_counters: bool = len(self.joint_plan.charges) < sum(len(indices) for _, indices in self.plans)

    def decisions(
        self, outcomes: Sequence[Outcome | None], several_requests: bool = False
    ) -> tuple[RuleDecision, ...]:
        call_outcomes = [[outcomes[index] for index in indices] for _, indices in self.plans]
        if self.shares_counters:
            self._split_remaining(call_outcomes)
        return tuple(
            [
                plan.decision(outcomes_of_call, several_requests)
                for (plan, _), outcomes_of_call in zip(self.plans, call_outcomes, strict=True)
            ]
        )

    def report(self, observed: ObservedDecision, decisions: Sequence[RuleDecision]) -> None:
        """Reports the decision of each call to the observers."""
        outcomes = (outcome for decision in decisions for outcome in decision.outcomes if outcome is not None)
        at_us = next((outcome[AT_US] for outcome in outcomes), 0)
        for index, ((plan, _), decision) in enumerate(zip(self.plans, decisions, strict=True)):
            if len(decisions) > 1:
                decision.together, decision.together_at_us = (index, len(decisions)), at_us
            observed.report(decision, plan.attributes, False, plan.stated_cost)

    def _split_remaining(self, call_outcomes: list[list[Outcome | None]]) -> None:
        """Adds to the `remaining` of each call what later calls were charged on the same counter."""
        later_units: dict[int, int] = {}  # by the index of the charge
        for (plan, indices), outcomes in zip(reversed(self.plans), reversed(call_outcomes), strict=True):
            for position, index in enumerate(indices):
                outcome = outcomes[position]
                if outcome is not None and outcome[ALLOWED] and later_units.get(index):
                    outcomes[position] = with_remaining(outcome, outcome[REMAINING] + later_units[index])
                later_units[index] = later_units.get(index, 0) + plan.charges[position][2]

    def decide(self) -> Flow[tuple[RuleDecision, ...]]:
        """Decides calls that need several requests, stage by stage."""
        outcomes, several_requests = yield from self.joint_plan.outcomes()
        return self.decisions(outcomes, several_requests)


def refund_untracked(compiled: CompiledRulebook, call: BatchedCall, units: int) -> Flow[RuleDecision]:
    """Refunds units of a call whose decision is gone, and returns the state of its counters after that."""
    plan, outcomes = plan_of(compiled, check_batched_call(call)._replace(cost=units)), []
    for meter, key, cost in plan.charges:
        if isinstance(meter, AdaptiveMeter):  # its calls end by themselves
            free = meter.free(key)
            passed: Outcome = (True, *free[ALLOWED + 1 :])  # type: ignore[assignment]
            outcomes.append(AdaptiveOutcome.wrap(passed, free.current, free.reason))
            continue
        if isinstance(meter.limit, Slots):
            outcome = yield partial(meter.free, key)
        else:
            _, outcome = yield from give_back(meter, key, cost)
        # Keep the class of the outcome: that of a fallback stays degraded.
        outcomes.append(type(outcome)((True, *outcome[ALLOWED + 1 :])))
    plan.denied_matches.clear()
    return plan.decision(outcomes)


def check_batched_call(call: object) -> BatchedCall:
    """Raises InvalidCharge if it is not a BatchedCall."""
    if not isinstance(call, BatchedCall):
        raise InvalidCharge(
            f"A call is a BatchedCall, such as {EXAMPLE_CALL} of headgate.enforcement.check_together; "
            f"not {describe(call)}."
        )
    return call


def plan_of(compiled: CompiledRulebook, call: BatchedCall) -> CallPlan:
    """Returns the charges of one call."""
    check_batched_call(call)
    if not isinstance(call.attributes, Mapping):
        raise InvalidCharge(f'Attributes are a mapping such as {{"user": "ann"}}, not {call.attributes!r}.')
    cost = None if call.cost is None else check_cost(call.cost)
    if call.limit is None:
        matched_cost = 1 if cost == 0 else cost
        plan = CallPlan(compiled, compiled.match(call.attributes, matched_cost), call.attributes, matched_cost)
        if cost == 0:  # a peek at all rules, also those that state a cost; one that never allows must still refuse
            unpassable = [rule in compiled.never_allowed for rule, _ in plan.labels]
            charges = zip(unpassable, plan.charges, strict=True)
            plan.charges = [
                (meter, key, units if never_allowed else 0) for never_allowed, (meter, key, units) in charges
            ]
            plan.stated_cost = 0
        return plan
    plan = CallPlan(compiled, stated_cost=cost)  # no rule is matched by its attributes
    if not isinstance(call.limit, Limit):
        raise InvalidCharge(
            f'A BatchedCall\'s limit is a Limit, such as parse("10/minute"); not {describe(call.limit)}.'
        )
    if not isinstance(call.name, str):
        raise InvalidCharge(f"A BatchedCall's name is a text, not {describe(call.name)}.")
    if not isinstance(call.key, str):
        raise InvalidCharge(f"A key is a string, not {describe(call.key)}.")
    meter = compiled.caller_meter(call.limit, call.name)
    plan.add((REMOTE, (call.name, None), [meter]), call.key, 1 if cost is None else cost)
    return plan
