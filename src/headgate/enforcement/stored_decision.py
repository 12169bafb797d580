"""A decision that outlives its process: written in plain words, and made of them again.

Who asked over a wire and later gives something back has no Decision in hand, and neither may the process that is
told, nor the rulebook that decided. So each charge is written with all that giving it back takes: the limit in
words, what its count is filed under, the key, and the receipt. What is made of that answers to refund, cancel,
renew and release like the decision itself.

Laws (tests/enforcement/test_stored_decision.py): of a decision that was written and read, giving back does what
giving back of the decision does; what was given back is written too, so nothing is given back twice along one line
of receipts. Whoever reads the same receipt twice must see to that himself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from headgate.algorithms.decision import AT_US, DELAY_US, MARK, RESET_AFTER_US, Decision, Outcome
from headgate.algorithms.slots import Slots
from headgate.enforcement.call_plan import CompiledRulebook
from headgate.enforcement.rule_decision import Charged, Head, RuleDecision
from headgate.engines.memory.async_engine import AsyncMemoryMeter, AsyncMemorySlotMeter
from headgate.engines.memory.engine import MemoryMeter, MemorySlotMeter
from headgate.errors import InvalidCharge, InvalidRule
from headgate.limit_syntax import parse
from headgate.validation import describe

_LOCAL = MemoryMeter, MemorySlotMeter, AsyncMemoryMeter, AsyncMemorySlotMeter


class Written(NamedTuple):
    """One charge that passed. `here`: counted in the process that decided, beside an engine elsewhere."""

    rule: str
    aside: str | None
    limit: str
    name: str
    key: str
    cost: int
    at_us: int
    reset_after_us: int
    delay_us: int
    mark: int
    given_back: int = 0
    here: bool = False


def written(decision: Decision) -> list[Written]:
    """What a decision charged, charge by charge; nothing of one that was refused."""
    if not decision.allowed:
        return []
    return [_written(part) for part in (*decision.parts, *decision.beside) if part.allowed and _counted(part)]


def redeemed(receipts: Sequence[Written], ruling: CompiledRulebook) -> RuleDecision:
    """The decision of which they were written, as far as giving back goes."""
    if not isinstance(receipts, list | tuple) or not all(isinstance(each, Written) for each in receipts):
        raise InvalidCharge(f"Receipts are a list, as receipts(decision) returns it; not {describe(receipts)}.")
    heads: list[Head] = []
    charges: list[Charged] = []
    answers: list[Outcome] = []
    for each in receipts:
        engine = ruling.local if each.here else ruling.engine
        try:
            limit = parse(each.limit)
        except InvalidRule as error:
            raise InvalidCharge(f"This receipt names a limit that is none: {error}") from error
        meter: Any = engine.slots(limit, each.name) if isinstance(limit, Slots) else engine.meter(limit, each.name)
        heads.append((each.rule, each.aside))
        charges.append((meter, each.key, each.cost))
        answers.append((True, 0, 0, each.reset_after_us, each.delay_us, each.at_us, each.mark))
    decision = RuleDecision(ruling, heads, charges, answers, ())
    asides = iter([each for each in receipts if each.aside is not None])
    live = iter([each for each in receipts if each.aside is None])
    for part in (*decision.parts, *decision.beside):
        part.given_back = next(live if part.aside is None else asides).given_back
    return decision


def _counted(part: Decision) -> bool:
    """Whether anybody counted it: not what has no limit."""
    return hasattr(part.source, "name")


def _written(part: Decision) -> Written:
    meter: Any = part.source
    facts = part.facts
    return Written(
        part.rule or "",
        part.aside,
        meter.limit.text,
        meter.name,
        part.key,
        part.cost,
        facts[AT_US],
        facts[RESET_AFTER_US],
        facts[DELAY_US],
        facts[MARK],
        part.given_back,
        isinstance(meter, _LOCAL),
    )
