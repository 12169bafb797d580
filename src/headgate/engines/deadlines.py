"""How long a question may take: of several rules that are asked together, as long as the least patient waits. What
is aside is in nobody's way: its deadline counts only where nothing else is asked, and where others wait for it
meanwhile, it is given up promptly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from headgate.engines.charge_options import HasChargeOptions
from headgate.engines.url_options import PROMPT

T = TypeVar("T")


def deadline_of(meters: Iterable[HasChargeOptions]) -> float | None:
    """The shortest deadline of their terms, in seconds; None if none of them has one."""
    shortest: float | None = None
    live = False
    for meter in meters:
        terms = meter.terms
        if terms is not None and terms.aside:
            if live:
                continue
        elif not live:
            live, shortest = True, None
        if terms is not None and terms.deadline is not None:
            shortest = terms.deadline if shortest is None else min(shortest, terms.deadline)
    return shortest


def prompt(asides: Iterable[HasChargeOptions], deadline: float | None) -> float:
    """How long those who wait until that deadline wait for what is aside and asked elsewhere."""
    return min(each for each in (PROMPT, deadline_of(asides), deadline) if each is not None)


def set_deadline(engine: object, seconds: float) -> None:
    """Whoever waits for answers, in a stack of engines, waits so long from now on."""
    change = getattr(engine, "set_deadline", None)
    if change is not None:
        change(seconds)


def within(ask: Callable[..., T], deadline: float | None) -> Callable[..., T]:
    """To ask, and to wait for an answer no longer than that."""
    return ask if deadline is None else partial(ask, deadline=deadline)
