"""Lists every counted key of the in-memory engine, without holding its lock for long.

The twin of redis/key_scan.py. The names of keys are copied, table by table, while the engine's lock is held; a
decision waits for one such copy at most, and `max_keys` keeps that short. A table still holds keys whose state is
dead, until another call examines them: they are listed like any other, with nothing used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from headgate.algorithms import pause
from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.engines.memory.engine import MemoryEngine


class MemoryKey(NamedTuple):
    """One counted key. The in-memory engine stores neither its expiry nor its size."""

    algorithm: str
    name: str
    key: str
    ttl_ms: int | None = None
    size: int | None = None
    is_readable: bool = True


class MemoryKeyScan:
    """Iterates over all counted keys, or those whose name begins with `prefix`; at most `max_keys` of them."""

    def __init__(self, engine: MemoryEngine, prefix: str = "", max_keys: int = 100_000) -> None:
        self._engine, self._prefix, self._max_keys = engine, prefix, max_keys
        self.key_count: int = 0
        self.stopped: bool = False  # before every key was listed
        self.pauses: list[tuple[str, str, int]] = []  # name, key, and how long it is still paused

    def __iter__(self) -> Iterator[MemoryKey]:
        engine = self._engine
        with engine.lock:
            families = [(names, family) for names, family in engine._families.items() if self._matches(names[1])]
            slots = [(name, table) for name, table in engine._slots.items() if self._matches(name)]
            self._note_pauses(engine.clock.now_us())
        for (algorithm, name), family in families:
            if self.stopped:
                return
            with engine.lock:
                tables = [table.states for table in family.values()]
                live_keys = (key for states in tables for key in states if states[key] is not None)
                keys = dict.fromkeys(self._next_keys(live_keys))
            yield from (MemoryKey(algorithm, name, key) for key in self._accept(keys))
        for name, table in slots:
            if self.stopped:
                return
            with engine.lock:
                keys = dict.fromkeys(self._next_keys(iter(table._keys)))
            yield from (MemoryKey(Slots.algorithm, name, key) for key in self._accept(keys))

    def _note_pauses(self, now_us: int) -> None:
        """Notes the keys that are paused, and for how long."""
        for name, pauses in self._engine._pauses.items():
            for key in islice(pauses.table.states, self._max_keys):
                left_us = pause.left_us(pauses.get(key, now_us, corrects=False), now_us)
                if left_us and self._matches(name):
                    self.pauses.append((name, key, left_us))

    def _matches(self, name: str) -> bool:
        return name.startswith(self._prefix)

    def _next_keys(self, keys: Iterator[str]) -> Iterator[str]:
        return islice(keys, self._max_keys - self.key_count + 1)

    def _accept(self, keys: dict[str, None]) -> list[str]:
        """Returns the keys that still fit under the maximum, and counts them."""
        accepted = list(islice(keys, self._max_keys - self.key_count))
        self.stopped = self.stopped or len(accepted) < len(keys)
        self.key_count += len(accepted)
        return accepted

    def peek(self, counts: Sequence[tuple[MemoryKey, Limit]]) -> list[Outcome | None]:
        """Returns the outcome of a peek at each key under its limit."""
        return [self._peek(count, limit) for count, limit in counts]

    def _peek(self, count: MemoryKey, limit: Limit) -> Outcome | None:
        if count.algorithm != limit.algorithm:
            return None
        if isinstance(limit, Slots):
            return self._engine.slots(limit, count.name).free(count.key)
        return self._engine.meter(limit, count.name).decide(count.key, 0)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""
