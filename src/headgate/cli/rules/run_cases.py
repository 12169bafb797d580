"""Runs a table of calls: moves the clock to each call, and reports the first one not decided as expected.

Nothing is shared: each case has its own clock and its own in-memory engine. case_format.py describes the tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headgate.algorithms.limit import SECOND
from headgate.cli.rules.case_format import CaseCall, RuleCase
from headgate.clock import ManualClock
from headgate.enforcement.rule_decision import RuleDecision
from headgate.engines.memory.engine import MemoryEngine
from headgate.explain import in_words
from headgate.limiter import Limiter
from headgate.rules.rule import Rulebook

_OK = 200


class Mismatch(NamedTuple):
    """The first call that was not decided as expected; `time` counts from 1."""

    call: CaseCall
    time: int
    expected: str
    actual: str


def run_case(book: Rulebook, case: RuleCase) -> Mismatch | None:
    """Runs a case on its own clock; returns the first call that was not decided as expected, if any."""
    clock = ManualClock(case.start_us)
    limiter = Limiter.from_rules(book, MemoryEngine(clock), clock=clock)
    for call in case.calls:
        clock.set_us(case.start_us + call.at_us)
        for time in range(1, call.times + 1):
            decision = limiter.check(call.attributes, call.cost)
            last = time == call.times
            expected = {
                name: value for name, value in call.expected.items() if last or name in ("allowed", "rule")
            }
            actual = {name: _actual(decision, name, value) for name, value in expected.items()}
            if actual != expected:
                basics = _actual(decision, "allowed", None), _actual(decision, "rule", None)
                return Mismatch(
                    call, time, _describe(expected), _describe({"allowed": basics[0], "rule": basics[1]} | actual)
                )
    return None


def _actual(decision: RuleDecision, name: str, wanted: Any) -> Any:
    """Returns the value of a decision that is compared with the expected one."""
    if name in ("retry_after", "delay"):
        seconds = decision.retry_after if name == "retry_after" else decision.delay
        return None if seconds is None else round(seconds * SECOND)
    if name in ("shadow", "candidate"):
        shadow_verdicts = [verdict for verdict in decision.shadow_verdicts if verdict.shadow_kind == name]
        return {
            rule: "refused"
            if any(not verdict.allowed for verdict in shadow_verdicts if verdict.rule == rule)
            else "allowed"
            for rule in wanted
            if any(verdict.rule == rule for verdict in shadow_verdicts)
        }
    if name == "status":
        return _OK if decision.refusal is None else decision.refusal.status
    return getattr(decision, name)


def _describe(expectations: dict[str, Any]) -> str:
    """Describes expected or actual values in words."""
    expectations = dict(expectations)
    parts = []
    allowed, rule = expectations.pop("allowed", None), expectations.pop("rule", None)
    if allowed is not None:
        parts.append("allowed" if allowed else "refused" + (f" by {rule}" if rule else ""))
    for name, value in expectations.items():
        if isinstance(value, dict):
            parts += [f"{name} {rule} {verdict}" for rule, verdict in value.items()] or [f"no {name} of that rule"]
        elif name in ("retry_after", "delay"):
            parts.append(f"{name} {'never' if value is None else in_words(value) if value else '0 s'}")
        else:
            parts.append(f"{name} {value}")
    return ", ".join(parts)
