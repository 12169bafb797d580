"""Pauses by key, in memory: the twin of lua/commands/pause_storage.lua and pause.lua.

A pause that has ended is kept at least for as long as a count that it held up exists: that count's clock is
behind. The caller holds the engine's lock.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.algorithms import pause
from headgate.engines.memory.state_table import StateTable


class PauseTable:
    """The pauses of one name."""

    __slots__ = ("_has_counts", "table")

    def __init__(self, has_counts: Callable[[str], bool]) -> None:
        self.table: StateTable[pause.State] = StateTable()
        self._has_counts = has_counts  # whether a key has a count that this may have held up

    def get(self, key: str, now_us: int, *, corrects: bool = True) -> pause.State | None:
        """Returns the pause of a key as it counts now. If the clock was set back, that is put right at once,
        unless the key is only examined."""
        state = self.table.states.get(key)
        if state is None:
            return None
        current = pause.current_state(state, now_us)
        if corrects and current is not state:
            self.table.states[key] = current
        return current

    def extend(self, key: str, now_us: int, duration_us: int) -> int:
        """Pauses a key; returns for how long it is paused now."""
        state = pause.extended(self.get(key, now_us), now_us, duration_us)
        self.table.put(key, state, lambda old_key, old: old[0] <= now_us and not self._has_counts(old_key))
        return state[0] - now_us
