"""Carries what an adaptive limit has learned over to changed settings.

    the same algorithm, other numbers     all of its state, with the limit moved into the new bounds
    another algorithm of the same kind    the limit, moved into the new bounds; the rest is learned anew

A limit that is moved begins no trial from where it was.
"""

from __future__ import annotations

from typing import Any

from headgate.adaptive.adaptive_concurrency_state import ConcurrencyState
from headgate.adaptive.target_rate import RateState


def carried_state(state: Any, algorithm: Any) -> Any:
    """Returns the state from which an algorithm goes on where another one was.

    >>> from headgate.adaptive.target_concurrency import TargetConcurrency
    >>> state = TargetConcurrency(target=0.2, ceiling=500).start()._replace(limit=300.0)
    >>> carried_state(state, TargetConcurrency(target=0.5, ceiling=100)).limit
    100.0
    """
    field = "rate" if isinstance(state, RateState) else "limit"
    learned = getattr(state, field)
    limit = max(float(algorithm.floor), min(float(algorithm.ceiling), learned))
    start = algorithm.start()
    carried = (state if type(start) is type(state) else start)._replace(**{field: limit})
    if isinstance(carried, ConcurrencyState) and limit != learned:
        return carried._replace(trial=None)
    return carried
