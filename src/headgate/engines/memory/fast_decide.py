"""A fast path for one charge under a limit without a calendar, in this process.

Gain: a take in memory needs a fifth less time than by MemoryMeter.decide_plainly. A closure looks up nothing on
`self`, and a state that is replaced by another is written to its table directly.

Law (tests/engines/memory/test_fast_paths.py): outcomes and states are those of the plain path.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Protocol

from headgate.algorithms import algorithm
from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import Limit
from headgate.clock import Clock
from headgate.engines.memory.state_table import StateTable
from headgate.engines.port import Decide


class LockedTables(Protocol):
    """The parts of the in-memory engine that a decision needs. A fork replaces the lock."""

    clock: Clock
    lock: Lock


def bind(
    engine: LockedTables,
    limit: Limit,
    family: dict[int, StateTable[Any]],
    save: Callable[[str, Any, int], None],
    find_state: Callable[[str, int, Limit], Any],
) -> Decide:
    """Returns `decide` of a meter with this limit, whose states are in these tables."""
    model, states, read_clock = algorithm(limit), family[limit.pace].states, engine.clock.now_us
    get_state, decide_by, replaces_in_place = states.get, model.decide, model.write_pending is None

    def decide(key: str, cost: int, patience_us: int | None = None) -> Outcome:
        with engine.lock:
            now_us = read_clock()
            state = stored = get_state(key)
            if stored is None and len(family) > 1:
                state = find_state(key, now_us, limit)
            outcome, after = decide_by(limit, state, now_us, cost, patience_us)
            if after is not state:
                if replaces_in_place and stored is not None:
                    states[key] = after
                else:
                    save(key, after, now_us)
        return outcome

    return decide
