"""Counts asked by hand: what a program asks of a limit, asked by who is not one. Flows, for engines of both kinds.

They go to the engine and nowhere else. Each limit is told by itself; all of them are decided together, as always.
Slots are held and not taken, so they can be looked at and forgotten, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from headgate.algorithms.decision import Decision, OverriddenOutcome, Verdict
from headgate.algorithms.slots import Slots
from headgate.errors import InvalidCharge
from headgate.flow import Flow
from headgate.operations.counter_lookup import Count
from headgate.untracked_refund import give_back
from headgate.validation import Asked, check_key


class Refunded(NamedTuple):
    """How much room a count had before units were given back, and has after."""

    name: str
    before: Verdict
    after: Verdict


def taking(engine: Any, key: str, counts: Sequence[Count], cost: int, *, commit: bool = True) -> Flow[Decision]:
    """May a call of this cost pass? Charged if so; without `commit` it only would be."""
    asked = Asked([(_meter(engine, count), check_key(key), cost) for count in counts])
    facts = yield partial(engine.decide_all, asked.distinct, commit=commit)
    spoke = [
        (engine.meter(said.limit, meter.name) if isinstance(said, OverriddenOutcome) else meter, key, cost)
        for said, (meter, key, cost) in zip(facts, asked.distinct, strict=True)
    ]
    return Asked(spoke).decision(facts)


def peeking(engine: Any, key: str, counts: Sequence[Count], cost: int) -> Flow[Decision]:
    """Would it? Of slots: is one free?"""
    first = counts[0].limit
    if len(counts) == 1 and isinstance(first, Slots):
        meter = engine.slots(first, counts[0].name)
        facts = yield partial(meter.free, check_key(key))
        return Decision(facts, meter, key, 0)
    return (yield from taking(engine, key, counts, cost, commit=False))


def refunding(engine: Any, key: str, counts: Sequence[Count], cost: int) -> Flow[list[Refunded]]:
    """Give units back to a key: the newest first, and at most what is counted now."""
    check_key(key)
    # An override's limits go by position, so the rule's are asked together.
    asked = [(_meter(engine, count), key, 0) for count in counts]
    found = []
    stands = yield partial(engine.decide_all, asked, commit=False)
    for count, facts in zip(counts, stands, strict=True):
        meter = engine.meter(facts.limit if isinstance(facts, OverriddenOutcome) else count.limit, count.name)
        before, after = yield from give_back(meter, key, cost)
        room = [Verdict(*facts, meter.limit, key, 0) for facts in (before, after)]
        found.append(Refunded(count.name, *room))
    return found


def resetting(engine: Any, key: str, counts: Sequence[Count]) -> Flow[list[str]]:
    """Forget a key; what its counts were filed under."""
    check_key(key)
    for count in counts:
        if isinstance(count.limit, Slots):
            yield partial(engine.slots(count.limit, count.name).reset, key)
        else:
            yield partial(_meter(engine, count).reset, key)
    return list(dict.fromkeys(count.name for count in counts))


def _meter(engine: Any, count: Count) -> Any:
    if isinstance(count.limit, Slots):
        raise InvalidCharge(
            f'"{count.limit}" is held, not taken: a program acquires a slot and releases it, or it expires.'
        )
    return engine.meter(count.limit, count.name, count.terms)
