"""Pauses single keys of rules: finds the key to pause, and waits for a turn while keys can be paused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headgate import limiter_flows
from headgate.algorithms.decision import Decision, Outcome
from headgate.algorithms.limit import SECOND
from headgate.algorithms.slots import Slots
from headgate.enforcement.call_plan import CallPlan, CompiledRulebook, counter_names, limit_cases
from headgate.enforcement.rule_decision import RuleDecision
from headgate.errors import InvalidRule
from headgate.flow import Flow
from headgate.rules.find_rule import find_rule, key_of_call, parse_key
from headgate.validation import pause_us


def pausable_key(
    compiled: CompiledRulebook, name: str, key: str | Mapping[str, Any], seconds: float
) -> tuple[Any, str, int]:
    """Returns what is needed to pause a key of a rule: the meter, the key, and the length in microseconds.

    The meter pauses the key under all limits of the rule.
    """
    rule = next((rule for rule in compiled.code_rules if rule.name == name), None) or find_rule(
        compiled.book, name
    )
    if rule.max_pause_us is None:
        raise InvalidRule(f'Rule "{rule.name}" cannot be paused: say `pausable: true` in it first.')
    if not rule.mode.enforce and not rule.mode.shadow:
        raise InvalidRule(f'Rule "{rule.name}" is off: a pause would hold nothing up. Set its mode first.')
    limits = next((limits for _, limits in limit_cases(rule) if limits), None)
    if limits is None:
        raise InvalidRule(f'Rule "{rule.name}" is unlimited: a pause would hold nothing up.')
    bind = compiled.engine.slots if isinstance(limits[0], Slots) else compiled.engine.meter
    meter = bind(limits[0], counter_names(rule, limits)[0], compiled.pause_options[rule.name])
    if isinstance(key, str):
        parse_key(rule, key)
    else:
        key = key_of_call(rule, key)
    return meter, key, pause_us(seconds, rule.max_pause_us / SECOND)


class _LiveCharges(NamedTuple):
    """The charges of a call that can refuse it: a caller waits for these."""

    plan: CallPlan

    def decision(self, outcomes: Sequence[Outcome]) -> RuleDecision:
        """Returns the decision by the outcomes of the live charges."""
        live = iter(outcomes)
        return self.plan.decision([next(live) if kind is None else None for _, kind in self.plan.labels])


def wait_through_pauses(
    plan: CallPlan,
    reserve: Callable[[CallPlan, int | None], Any],
    run_flow: Callable[[Flow[Any]], Any],
    timeout: float | None,
    sleep_us: Callable[[int], Any],
) -> Flow[Decision]:
    """Takes places under all rules, sleeps, and looks again whether a key was paused meanwhile."""
    return limiter_flows.wait_through_pauses(
        lambda charges, patience_us: reserve(charges.plan, patience_us),
        lambda: run_flow(plan.decide(commit=False)),
        _LiveCharges(plan),
        timeout,
        sleep_us,
    )
