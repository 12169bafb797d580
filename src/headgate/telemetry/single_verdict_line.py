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
from typing import TYPE_CHECKING, Any, Final

from headgate.algorithms.decision import Decision
from headgate.algorithms.limit import UNLIMITED
from headgate.enforcement.rule_decision import RuleDecision

if TYPE_CHECKING:
    from headgate.telemetry.decision_record import BookFields, DecidedCall

_quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii
MAX_CONSTANT_TEXTS: Final = 1000  # rules and limits whose texts are kept


class SingleVerdictLines:
    """Makes the lines of one log. What the lines of a rule and its limit have in common is made once."""

    def __init__(self, sample: float, max_value_length: int) -> None:
        self._sample, self._max_value_length = sample, max_value_length
        # By meter, rule, version and process: what is before and after the attributes, and what is after the key.
        self._constant_texts: dict[tuple[Any, ...], tuple[str, str, str, str]] = {}

    def line(self, call: DecidedCall, book: BookFields, process: str) -> str | None:
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
            if len(value) > self._max_value_length:
                return None
        texts = self._constant_texts.get((meter, rule, book.book.version, process))
        if texts is None:
            texts = self._add_texts(meter, rule, book.book.version, process)
        head, version, verdict, limit = texts
        pairs = ",".join([f"{_quoted(name)}:{_quoted(value)}" for name, value in attributes.items()])
        passed, remaining, retry_after_us, _, delay_us, at_us, _ = outcome
        allowed = "true" if passed else "false"
        return (
            f'{{"at_us":{at_us or call.at_us},"seq":{call.number}{head}{pairs}}},"cost":'
            f'{"null" if stated_cost is None else stated_cost},"allowed":{allowed}{version}'
            f"{'null' if call.latency_us is None else call.latency_us}{verdict}{_quoted(key)}{limit}{cost},"
            f'"allowed":{allowed},"remaining":{remaining},'
            f'"retry_after_us":{"null" if retry_after_us is None else retry_after_us},'
            f'"delay_us":{delay_us}}}],"shadow":[],"candidate":[]}}'
        )

    def _add_texts(
        self, meter: Any, rule: str | None, version: int | None, process: str
    ) -> tuple[str, str, str, str]:
        """Makes what the lines of a rule and its limit have in common."""
        rule_text, version_text = json.dumps(rule), json.dumps(version)
        texts = (
            f',"process":{_quoted(process)},"attributes":{{',
            f',"rule":{rule_text},"version":{version_text},"sample":{self._sample!r},"latency_us":',
            f',"status":null,"verdicts":[{{"rule":{rule_text},"key":',
            f',"limit":{_quoted(meter.limit.text)},"cost":',
        )
        if len(self._constant_texts) >= MAX_CONSTANT_TEXTS:
            self._constant_texts.clear()
        self._constant_texts[meter, rule, version, process] = texts
        return texts
