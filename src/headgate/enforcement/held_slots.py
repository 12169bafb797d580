"""Renews and releases together the slots that a decision holds. Flows, run by both limiters.

If one slot fails, the others are still renewed and released. A shadow's slot never matters: neither its loss nor
an engine that does not answer for it is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import Any

from headgate.algorithms.decision import AT_US, MARK, Decision
from headgate.algorithms.limit import SECOND
from headgate.algorithms.slots import Slots, renewed_us
from headgate.errors import CorruptState, EngineUnavailable
from headgate.flow import Flow
from headgate.slot_renewal import SlotHold


def renew(decision: Decision) -> Flow[bool]:
    """Holds the slots for another ttl; False if one of them is lost."""
    sent_at = monotonic()
    ends_us = yield from _for_each_slot(decision, lambda meter, *slot: partial(meter.renew, *slot))
    if decision.hold is not None:
        decision.hold.record_reply(sent_at, ends_us)
    return ends_us is not None


def release(decision: Decision) -> Flow[bool]:
    """Releases the slots; False if one of them was lost before."""
    released = yield from _for_each_slot(decision, lambda meter, *slot: partial(meter.release, *slot))
    if decision.hold is not None:
        decision.hold.mark_released()
    return released is not None


def hold(decision: Decision) -> SlotHold | None:
    """Starts to track how long the decision's slots are held; None if it holds none."""
    slots = [(part, limit) for _, part, limit in _slots(decision)]
    if not slots:
        return None
    rules = ", ".join(dict.fromkeys(part.rule or "" for part, _ in slots))
    ttl_us = min(limit.ttl_us for _, limit in slots)
    ends_us = min(renewed_us(limit, part.outcome[AT_US]) for part, limit in slots)
    new_hold = decision.hold = SlotHold(f"A slot of {rules}", ttl_us / SECOND, ends_us)
    return new_hold


def _for_each_slot(decision: Decision, step: Callable[..., Callable[[], Any]]) -> Flow[int | None]:
    """Sends one request for each slot, and returns the least result; None if one of the slots is lost."""
    results: list[int] = []
    failure: CorruptState | EngineUnavailable | None = None
    lost = False
    for meter, part, _ in _slots(decision):
        live = part.shadow_kind is None
        try:
            result = yield step(meter, part.key, part.outcome[MARK])
        except (CorruptState, EngineUnavailable) as error:
            failure = failure or (error if live else None)
            continue
        if result:
            results.append(result)
        elif live:
            lost = True
    if failure is not None and not lost:
        raise failure
    return None if lost else min(results, default=0)


def _slots(decision: Decision) -> Iterator[tuple[Any, Decision, Slots]]:
    """Yields the meter, the decision and the limit of each slot that is held."""
    for part in (*decision.counter_decisions, *decision.shadow_decisions):
        if decision.allowed and part.allowed and isinstance(part.limit, Slots):
            yield part.source, part, part.limit
