"""A fast path of the decision log: writes the line of a call that one verdict decided, without a record between.

Most calls are decided by one limit of one rule, by the engine, and nothing else is known of them: no shadow, no
candidate, no override, no response, no wait. Their lines differ in a dozen values only, so they are formatted as
text; the plain path builds a dictionary of twenty fields and encodes it. A line takes 3 us in place of 11. What
calls lose by a log is mostly this time, because the thread that writes shares the interpreter with them.

Law (tests/telemetry/test_single_verdict_line.py): the line is the one that RecordMaker and JSON give, or None.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headgate.algorithms.decision import ALLOWED, AT_US, DELAY_US, REMAINING, RETRY_AFTER_US, Decision
from headgate.algorithms.limit import UNLIMITED
from headgate.enforcement.rule_decision import RuleDecision

if TYPE_CHECKING:
    from headgate.telemetry.decision_record import BookFields, DecidedCall

_quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii
_BOOLEANS = {True: "true", False: "false"}


def single_verdict_line(
    call: DecidedCall, book: BookFields, process: str, sample: float, max_value_length: int
) -> str | None:
    """Returns the line of a call that one verdict decided; None if it has more than that to say."""
    decision: Any = call.decision
    outcome: Any
    stated_cost: int | None
    if call.status is not None or decision.patience_us is not None or decision.together is not None:
        return None
    if decision.__class__ is Decision:
        rule, meter, key, cost, outcome = (
            decision.rule,
            decision.source,
            decision.key,
            decision.cost,
            decision.outcome,
        )
        attributes, stated_cost = {"key": key}, cost
        if rule is not None:
            return None
    elif decision.__class__ is RuleDecision and len(decision.labels) == 1 and not decision.denied_matches:
        [(rule, shadow_kind)], [(meter, key, cost)], [outcome] = (
            decision.labels,
            decision.charges,
            decision.outcomes,
        )
        if shadow_kind is not None or call.attributes is None:
            return None
        if rule not in book.rules or rule in book.rules_with_overrides:
            return None
        attributes, stated_cost = book.read(call.attributes) if call.attributes else {}, decision.stated_cost
    else:
        return None
    # Outcomes of another class are of a layer, a lockout or an override.
    if outcome.__class__ is not tuple or meter.limit is UNLIMITED or call.duration_us is not None:
        return None
    for value in attributes.values():
        if len(value) > max_value_length:
            return None
    pairs = ",".join([f"{_quoted(name)}:{_quoted(value)}" for name, value in attributes.items()])
    rule_text = "null" if rule is None else _quoted(rule)
    allowed = _BOOLEANS[outcome[ALLOWED]]
    retry_after_us = outcome[RETRY_AFTER_US]
    return (
        f'{{"at_us":{outcome[AT_US] or call.at_us},"seq":{call.number},"process":{_quoted(process)},'
        f'"attributes":{{{pairs}}},"cost":{"null" if stated_cost is None else stated_cost},"allowed":{allowed},'
        f'"rule":{rule_text},"version":{_number(book.book.version)},"sample":{sample!r},'
        f'"latency_us":{call.latency_us},"status":null,'
        f'"verdicts":[{{"rule":{rule_text},"key":{_quoted(key)},"limit":{_quoted(meter.limit.text)},"cost":{cost},'
        f'"allowed":{allowed},"remaining":{outcome[REMAINING]},'
        f'"retry_after_us":{"null" if retry_after_us is None else retry_after_us},'
        f'"delay_us":{outcome[DELAY_US]}}}],'
        '"shadow":[],"candidate":[]}'
    )


def _number(value: object) -> str:
    return "null" if value is None else json.dumps(value)
