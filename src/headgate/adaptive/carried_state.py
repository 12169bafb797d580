"""Carries what an adaptive limit has learned over to changed settings.

    the same algorithm, other numbers     all of its state, with the limit moved into the new bounds
    another algorithm of the same kind    the limit, moved into the new bounds; the rest is learned anew

A limit that is moved begins no trial from where it was.
"""

from __future__ import annotations

from typing import Any

from headgate.adaptive.adaptive_concurrency_state import ConcurrencyState


def carried_state(state: Any, algorithm: Any) -> Any:
    """Returns the state from which an algorithm goes on where another one was.

    >>> from headgate.adaptive.target_concurrency import TargetConcurrency
    >>> state = TargetConcurrency(target=0.2, ceiling=500).start()._replace(limit=300.0)
    >>> carried_state(state, TargetConcurrency(target=0.5, ceiling=100)).limit
    100.0
    """
    learned, start = state[0], algorithm.start()
    carried = with_limit(state if type(start) is type(state) else start, algorithm, learned)
    if isinstance(carried, ConcurrencyState) and carried.limit != learned:
        return carried._replace(trial=None)
    return carried


def with_limit(state: Any, algorithm: Any, limit: float) -> Any:
    """Returns the state with another limit, moved into the algorithm's bounds.

    The limit, or the rate, is the first number of every state.

    >>> from headgate.adaptive.vegas import Vegas
    >>> with_limit(Vegas().start(), Vegas(ceiling=25), 30.5).estimate
    25.0
    """
    bounded = max(float(getattr(algorithm, "floor", 1)), min(float(algorithm.ceiling), limit))
    value = int(bounded) if isinstance(state[0], int) else bounded
    return state._replace(**{state._fields[0]: value})
