"""What is counted in this process: every count of the embedded engine, found without stopping anybody for long.

The twin of redis/survey.py. The names of keys are copied, table by table, while the engine's lock is held; whoever
decides waits for one such copy at most, and `most` keeps that short. A table still holds keys whose state is dead,
until somebody else's call looks at them: they are told like any other, and stand at nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.engines.memory.engine import MemoryEngine


class MemoryKey(NamedTuple):
    """One count. When it ends, and how large it is, nobody keeps here."""

    algorithm: str
    name: str
    key: str
    ttl_ms: int | None = None
    size: int | None = None
    told: bool = True


class MemoryKeyScan:
    """A walk through all counts, or those whose name begins so; `most` of them at most."""

    def __init__(self, engine: MemoryEngine, begins: str = "", most: int = 100_000) -> None:
        self._engine, self._begins, self._most = engine, begins, most
        self.found: int = 0
        self.stopped: bool = False  # before everything was seen

    def __iter__(self) -> Iterator[MemoryKey]:
        engine = self._engine
        with engine.lock:
            families = [(names, family) for names, family in engine._families.items() if self._wanted(names[1])]
            slots = [(name, table) for name, table in engine._slots.items() if self._wanted(name)]
        for (algorithm, name), family in families:
            if self.stopped:
                return
            with engine.lock:
                tables = [table.states for table in family.values()]
                living = (key for states in tables for key in states if states[key] is not None)
                keys = dict.fromkeys(self._some(living))
            yield from (MemoryKey(algorithm, name, key) for key in self._told(keys))
        for name, table in slots:
            if self.stopped:
                return
            with engine.lock:
                keys = dict.fromkeys(self._some(iter(table._keys)))
            yield from (MemoryKey(Slots.algorithm, name, key) for key in self._told(keys))

    def _wanted(self, name: str) -> bool:
        return name.startswith(self._begins)

    def _some(self, keys: Iterator[str]) -> Iterator[str]:
        return islice(keys, self._most - self.found + 1)

    def _told(self, keys: dict[str, None]) -> list[str]:
        told = list(islice(keys, self._most - self.found))
        self.stopped = self.stopped or len(told) < len(keys)
        self.found += len(told)
        return told

    def peek(self, counts: Sequence[tuple[MemoryKey, Limit]]) -> list[Outcome | None]:
        """How each stands under its limit."""
        return [self._peeked(count, limit) for count, limit in counts]

    def _peeked(self, count: MemoryKey, limit: Limit) -> Outcome | None:
        if count.algorithm != limit.algorithm:
            return None
        if isinstance(limit, Slots):
            return self._engine.slots(limit, count.name).free(count.key)
        return self._engine.meter(limit, count.name).decide(count.key, 0)

    def close(self) -> None:
        """Nothing to let go of."""
