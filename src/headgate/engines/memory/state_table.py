"""States by key, bounded as they go: what the embedded engine keeps of one name.

A state is dead once it says no more than "never seen"; each new key that arrives makes the table look at the
two oldest ones in its queue, drop them if they are dead and queue them again if not. So the queue never holds
more than about twice the living, no call ever sweeps them all, and ten million different keys through a one-
second limit stay as many as one second brings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

S = TypeVar("S")

_LOOKED_AT = 2  # old keys examined for each new one


class StateTable(Generic[S]):
    """The states of one name, and the order in which they are looked at again. The caller holds the lock."""

    __slots__ = ("queue", "states")

    def __init__(self) -> None:
        self.states: dict[str, S | None] = {}
        self.queue: deque[str] = deque()

    def put(self, key: str, state: S, dead: Callable[[str, S], bool]) -> None:
        if key not in self.states:
            self.queue.append(key)
            self._look_at_old(dead)
        self.states[key] = state

    def forget(self, key: str) -> bool:
        """Never seen; it leaves when its turn in the queue comes. Whether it was there."""
        there = self.states.get(key) is not None
        if there:
            self.states[key] = None
        return there

    def clear(self) -> None:
        """Never seen, all of them."""
        self.states.clear()
        self.queue.clear()

    def mend(self) -> None:
        """Look at every state again some time, wherever another thread was interrupted for good."""
        self.queue.clear()
        self.queue.extend(self.states)

    def _look_at_old(self, dead: Callable[[str, S], bool]) -> None:
        queue, states = self.queue, self.states
        for _ in range(min(_LOOKED_AT, len(queue) - 1)):
            key = queue.popleft()
            state = states.get(key)
            if state is None or dead(key, state):
                states.pop(key, None)
            else:
                queue.append(key)
