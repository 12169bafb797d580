"""The slots that a decision of a rulebook holds: renewed and released together. Flows, driven by both limiters.

Whatever becomes of one slot, the others are renewed and released as well. A shadow is in nobody's way: neither its
loss nor its silence counts.
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
from headgate.slot_renewal import Hold


def renew(decision: Decision) -> Flow[bool]:
    """Hold them for another ttl: whether all of them are held on."""
    asked_at = monotonic()
    ends_us = yield from _each(decision, lambda meter, *slot: partial(meter.renew, *slot))
    if decision.hold is not None:
        decision.hold.answered(asked_at, ends_us)
    return ends_us is not None


def release(decision: Decision) -> Flow[bool]:
    """Give them back: whether all of them were held until now."""
    released = yield from _each(decision, lambda meter, *slot: partial(meter.release, *slot))
    if decision.hold is not None:
        decision.hold.ended()
    return released is not None


def hold(decision: Decision) -> Hold | None:
    """What is known of them from now on; None if there are none."""
    slots = [(part, limit) for _, part, limit in _slots(decision)]
    if not slots:
        return None
    rules = ", ".join(dict.fromkeys(part.rule or "" for part, _ in slots))
    ttl_us = min(limit.ttl_us for _, limit in slots)
    ends_us = min(renewed_us(limit, part.facts[AT_US]) for part, limit in slots)
    made = decision.hold = Hold(f"A slot of {rules}", ttl_us / SECOND, ends_us)
    return made


def _each(decision: Decision, step: Callable[..., Callable[[], Any]]) -> Flow[int | None]:
    """Ask about each: the least answer, None if one of them is lost."""
    answers: list[int] = []
    trouble: CorruptState | EngineUnavailable | None = None
    lost = False
    for meter, part, _ in _slots(decision):
        live = part.aside is None
        try:
            answer = yield step(meter, part.key, part.facts[MARK])
        except (CorruptState, EngineUnavailable) as error:
            trouble = trouble or (error if live else None)
            continue
        if answer:
            answers.append(answer)
        elif live:
            lost = True
    if trouble is not None and not lost:
        raise trouble
    return None if lost else min(answers, default=0)


def _slots(decision: Decision) -> Iterator[tuple[Any, Decision, Slots]]:
    """Each with the hand on it, and its limit."""
    for part in (*decision.parts, *decision.beside):
        if decision.allowed and part.allowed and isinstance(part.limit, Slots):
            yield part.source, part, part.limit
