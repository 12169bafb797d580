"""Takes, peeks, refunds, resets and pauses counters by hand, as an operator. Flows, for both kinds of engine.

The requests go to the engine itself, without any layer. Each limit gets its own verdict; all of them are decided
together, as always. Slots are held and not taken, so they can only be peeked at and reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from headgate.algorithms.decision import Decision, OverriddenOutcome, Verdict
from headgate.algorithms.limit import SECOND
from headgate.algorithms.slots import Slots
from headgate.engines.charge_options import pause_only
from headgate.errors import InvalidCharge
from headgate.flow import Flow
from headgate.operations.find_counters import CounterRef
from headgate.refund_without_decision import give_back
from headgate.validation import ChargeBatch, check_key, pause_us


class RefundedCounter(NamedTuple):
    """The verdicts of a counter before and after a refund."""

    name: str
    before: Verdict
    after: Verdict


def take(engine: Any, key: str, counts: Sequence[CounterRef], cost: int, *, commit: bool = True) -> Flow[Decision]:
    """Decides whether a call of this cost may pass, and charges it if so; without `commit` nothing is charged."""
    charges = ChargeBatch([(_meter(engine, counter), check_key(key), cost) for counter in counts])
    outcomes = yield partial(engine.decide_all, charges.distinct, commit=commit)
    deciding = [
        (engine.meter(outcome.limit, meter.name) if isinstance(outcome, OverriddenOutcome) else meter, key, cost)
        for outcome, (meter, key, cost) in zip(outcomes, charges.distinct, strict=True)
    ]
    return ChargeBatch(deciding).decision(outcomes)


def peek(engine: Any, key: str, counts: Sequence[CounterRef], cost: int) -> Flow[Decision]:
    """Decides whether a call would pass, or whether a slot is free; charges nothing."""
    first = counts[0].limit
    if len(counts) == 1 and isinstance(first, Slots):
        meter = engine.slots(first, counts[0].name, counts[0].options)
        outcome = yield partial(meter.free, check_key(key))
        return Decision(outcome, meter, key, 0)
    return (yield from take(engine, key, counts, cost, commit=False))


def refund(engine: Any, key: str, counts: Sequence[CounterRef], cost: int) -> Flow[list[RefundedCounter]]:
    """Gives units back to a key: the newest first, and at most what is counted now."""
    check_key(key)
    # The limits of an override go by position, so all of the rule's are sent in one request.
    charges = [(_meter(engine, counter), key, 0) for counter in counts]
    refunds = []
    outcomes = yield partial(engine.decide_all, charges, commit=False)
    for counter, outcome in zip(counts, outcomes, strict=True):
        limit = outcome.limit if isinstance(outcome, OverriddenOutcome) else counter.limit
        meter = engine.meter(limit, counter.name, pause_only(counter.options))
        before, after = yield from give_back(meter, key, cost)
        verdicts = [Verdict(*outcome, meter.limit, key, 0) for outcome in (before, after)]
        refunds.append(RefundedCounter(counter.name, *verdicts))
    return refunds


def reset(engine: Any, key: str, counts: Sequence[CounterRef]) -> Flow[list[str]]:
    """Deletes the counters of a key, and returns their names."""
    check_key(key)
    for counter in counts:
        if isinstance(counter.limit, Slots):
            yield partial(engine.slots(counter.limit, counter.name, counter.options).reset, key)
        else:
            yield partial(_meter(engine, counter).reset, key)
    return list(dict.fromkeys(counter.name for counter in counts))


def pause(engine: Any, key: str, counts: Sequence[CounterRef], seconds: float, max_seconds: float) -> Flow[float]:
    """Pauses a key, and returns for how many seconds it is paused now."""
    counter, duration_us = counts[0], pause_us(seconds, max_seconds)
    bind = engine.slots if isinstance(counter.limit, Slots) else engine.meter
    meter = bind(counter.limit, counter.name, counter.options)
    paused_us: int = yield partial(meter.pause, check_key(key), duration_us)
    return paused_us / SECOND


def _meter(engine: Any, counter: CounterRef) -> Any:
    if isinstance(counter.limit, Slots):
        raise InvalidCharge(
            f'"{counter.limit}" is held, not taken: a program acquires a slot and releases it, or it expires.'
        )
    return engine.meter(counter.limit, counter.name, counter.options)
