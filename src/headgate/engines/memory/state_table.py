"""States by key, in a table that stays bounded: what the in-memory engine stores of one name.

A state is dead once it equals that of an unused key. Each new key makes the table examine the two oldest in its
queue, drop them if they are dead and queue them again if not. So the queue never holds more than about twice the
live keys, no call ever sweeps them all, and ten million different keys through a one-second limit stay as many as
one second brings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

S = TypeVar("S")

_SWEEP_SIZE = 2  # old keys examined for each new one


class StateTable(Generic[S]):
    """The states of one name, and the order in which they are examined again. The caller holds the lock."""

    __slots__ = ("queue", "states")

    def __init__(self) -> None:
        self.states: dict[str, S | None] = {}
        self.queue: deque[str] = deque()

    def put(self, key: str, state: S, is_dead: Callable[[str, S], bool]) -> None:
        """Stores the state of a key. A new key makes the table examine old ones."""
        if key not in self.states:
            self.queue.append(key)
            self._sweep(is_dead)
        self.states[key] = state

    def delete(self, key: str) -> bool:
        """Deletes the state of a key, whose place in the queue stays until its turn; returns whether there was
        one."""
        existed = self.states.get(key) is not None
        if existed:
            self.states[key] = None
        return existed

    def clear(self) -> None:
        """Deletes all states."""
        self.states.clear()
        self.queue.clear()

    def rebuild_queue(self) -> None:
        """Queues every state again, wherever a thread of the parent process was interrupted for good."""
        self.queue.clear()
        self.queue.extend(self.states)

    def _sweep(self, is_dead: Callable[[str, S], bool]) -> None:
        queue, states = self.queue, self.states
        for _ in range(min(_SWEEP_SIZE, len(queue) - 1)):
            key = queue.popleft()
            state = states.get(key)
            if state is None or is_dead(key, state):
                states.pop(key, None)
            else:
                queue.append(key)
