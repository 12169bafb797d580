"""Deadlines of requests to an engine.

A request for several rules waits as long as the least patient of them. A shadow never delays the others: its
deadline counts only where nothing else is requested, and where others wait for it, it is given up promptly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from headgate.engines.charge_options import HasChargeOptions
from headgate.engines.url_options import FALLBACK_DEADLINE_S

T = TypeVar("T")


def shortest_deadline(meters: Iterable[HasChargeOptions]) -> float | None:
    """Returns the shortest deadline of the meters' options, in seconds; None if none of them has one."""
    shortest: float | None = None
    has_live = False
    for meter in meters:
        options = meter.options
        if options is not None and options.is_shadow:
            if has_live:
                continue
        elif not has_live:
            has_live, shortest = True, None
        if options is not None and options.deadline is not None:
            shortest = options.deadline if shortest is None else min(shortest, options.deadline)
    return shortest


def shadow_timeout(shadows: Iterable[HasChargeOptions], deadline: float | None) -> float:
    """Returns how long a call with this deadline waits for shadows that live on another server."""
    return min(
        seconds for seconds in (FALLBACK_DEADLINE_S, shortest_deadline(shadows), deadline) if seconds is not None
    )


def with_deadline(call: Callable[..., T], deadline: float | None) -> Callable[..., T]:
    """Returns the call with a deadline bound to it, if there is one."""
    return call if deadline is None else partial(call, deadline=deadline)
