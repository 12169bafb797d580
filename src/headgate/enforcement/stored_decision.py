"""Converts a decision to receipts and back, so that it can be refunded or settled by another process.

A client that checks over the network and refunds later has no Decision object. The process that gets the refund
may not have it either, and the rulebook may have changed. So each charge is stored with all that a refund needs:
the limit as text, the name of its counter, the key, and the receipt. The restored decision can be refunded,
settled, cancelled, renewed and released like the original.

Laws (tests/enforcement/test_stored_decision.py): a refund of a restored decision does what one of the original
does; refunded units are stored too, so nothing is given back twice along one chain of receipts. A caller that
restores the same receipts twice must guard against that itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.algorithms.decision import AT_US, DELAY_US, MARK, RESET_AFTER_US, AdaptiveOutcome, Decision, Outcome
from headgate.algorithms.limit import UNLIMITED
from headgate.algorithms.slots import Slots
from headgate.enforcement.call_plan import CompiledRulebook
from headgate.enforcement.rule_decision import CANDIDATE, Charged, ChargeLabel, RuleDecision
from headgate.engines.memory.async_engine import AsyncMemoryMeter, AsyncMemorySlotMeter
from headgate.engines.memory.engine import MemoryMeter, MemorySlotMeter
from headgate.errors import InvalidCharge, InvalidRule
from headgate.limit_syntax import parse
from headgate.validation import describe

_LOCAL = MemoryMeter, MemorySlotMeter, AsyncMemoryMeter, AsyncMemorySlotMeter


class ChargeReceipt(NamedTuple):
    """The receipt of one charge that passed. `here`: it counts in the process that decided, not on the server."""

    rule: str
    shadow_kind: str | None
    limit: str
    name: str
    key: str
    cost: int
    at_us: int
    reset_after_us: int
    delay_us: int
    mark: int
    refunded_units: int = 0
    is_local: bool = False
    settled: bool = False


def charge_receipts(decision: Decision) -> list[ChargeReceipt]:
    """Returns a receipt for each charge of a decision; none if it was refused."""
    if not decision.allowed:
        return []
    return [
        _receipt(part)
        for part in (*decision.counter_decisions, *decision.shadow_decisions)
        if part.allowed and _has_counter(part)
    ]


def decision_from_receipts(receipts: Sequence[ChargeReceipt], compiled: CompiledRulebook) -> RuleDecision:
    """Restores a decision from its receipts, with all that refund, cancel, renew and release need."""
    if not isinstance(receipts, list | tuple) or not all(
        isinstance(receipt, ChargeReceipt) for receipt in receipts
    ):
        raise InvalidCharge(f"Receipts are a list, as receipts(decision) returns it; not {describe(receipts)}.")
    labels: list[ChargeLabel] = []
    charges: list[Charged] = []
    outcomes: list[Outcome] = []
    for receipt in receipts:
        engine = compiled.local if receipt.is_local else compiled.engine
        try:
            limit = parse(receipt.limit)
        except InvalidRule as error:
            raise InvalidCharge(f"This receipt names a limit that is none: {error}") from error
        pausable = None if receipt.shadow_kind == CANDIDATE else compiled.pause_options.get(receipt.rule)
        bind = engine.slots if isinstance(limit, Slots) else engine.meter
        meter: Any = bind(limit, receipt.name, pausable)
        labels.append((receipt.rule, receipt.shadow_kind))
        charges.append((meter, receipt.key, receipt.cost))
        outcomes.append((True, 0, 0, receipt.reset_after_us, receipt.delay_us, receipt.at_us, receipt.mark))
    decision = RuleDecision(compiled, labels, charges, outcomes, ())
    shadows = iter([receipt for receipt in receipts if receipt.shadow_kind is not None])
    live = iter([receipt for receipt in receipts if receipt.shadow_kind is None])
    for part in (*decision.counter_decisions, *decision.shadow_decisions):
        receipt = next(live if part.shadow_kind is None else shadows)
        part.refunded_units, part.settled = receipt.refunded_units, receipt.settled
    return decision


def _has_counter(part: Decision) -> bool:
    """Returns whether a counter was charged: not if the part has no limit, nor if it is adaptive."""
    return part.source.limit is not UNLIMITED and not isinstance(part.outcome, AdaptiveOutcome)


def _receipt(part: Decision) -> ChargeReceipt:
    meter: Any = part.source
    outcome = part.outcome
    return ChargeReceipt(
        part.rule or "",
        part.shadow_kind,
        meter.limit.text,
        meter.name,
        part.key,
        part.cost,
        outcome[AT_US],
        outcome[RESET_AFTER_US],
        outcome[DELAY_US],
        outcome[MARK],
        part.refunded_units,
        isinstance(meter, _LOCAL),
        part.settled,
    )
