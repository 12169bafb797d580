"""The embedded engine: states in a dict, one lock, no threads of its own.

Bounded as it goes. A state is dead once it says no more than "never seen"; each new key that arrives makes the
engine look at the two oldest ones in its queue, drop them if they are dead and queue them again if not. So the
queue never holds more than about twice the living, no call ever sweeps them all, and ten million different
keys through a one-second limit stay as many as one second brings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, Protocol

from headgate.calendar import resolve
from headgate.clock import Clock, SystemClock
from headgate.engine.port import Meter, Slot
from headgate.engine.slot_table import SlotTable
from headgate.errors import InvalidCharge
from headgate.model import algorithm
from headgate.model.decision import ALLOWED, AT_US, DELAY_US, MARK, REMAINING, RESET_AFTER_US, Facts, Receipt
from headgate.model.fixed_window import FixedWindow
from headgate.model.limit import Limit
from headgate.model.slots import Slots

_LOOKED_AT = 2  # old keys examined for each new one


class Decide(Protocol):
    def __call__(self, key: str, cost: int, patience_us: int | None = None) -> Facts: ...


class _Table:
    """The states of one name, and the order in which they are looked at again."""

    __slots__ = ("queue", "states")

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}
        self.queue: deque[str] = deque()


class LocalEngine:
    """Decides in this process. Safe from any number of threads and event loops."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.lock = Lock()
        self._tables: dict[tuple[str, str], _Table] = {}
        self._slots: dict[str, SlotTable] = {}

    def meter(self, limit: Limit, name: str) -> LocalMeter:
        with self.lock:
            table = self._tables.setdefault((limit.algorithm, name), _Table())
        return LocalMeter(self, table, limit, name)

    def slots(self, limit: Slots, name: str) -> LocalSlotMeter:
        with self.lock:
            table = self._slots.setdefault(name, SlotTable())
        return LocalSlotMeter(self, table, limit, name)

    def decide_all(self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None) -> list[Facts]:
        meters = [_own(meter) for meter, _, _ in charges]
        with self.lock:
            now_us = self.clock.now_us()
            judged = [
                meter.judge(key, now_us, cost, patience_us)
                for meter, (_, key, cost) in zip(meters, charges, strict=True)
            ]
            passed = all(facts[ALLOWED] for facts, _ in judged)
            answers = []
            for meter, (_, key, _), (facts, after) in zip(meters, charges, judged, strict=True):
                if not passed and facts[ALLOWED]:
                    facts, after = _uncharged(meter.judge(key, now_us, 0, None))
                meter.save(key, after, now_us)
                answers.append(facts)
            return answers

    def shard(self, key: str) -> int:
        return 0

    def laws(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        yield "engine", "this process alone: every process counts for itself"

    def close(self) -> None:
        """Nothing to let go of."""

    def __len__(self) -> int:
        """How many keys are remembered."""
        states = sum(len(table.states) for table in self._tables.values())
        return states + sum(map(len, self._slots.values()))


class LocalMeter:
    """The embedded engine's hand on one limit."""

    def __init__(self, engine: LocalEngine, table: _Table, limit: Limit, name: str) -> None:
        self.limit = limit
        self.name = name
        self._clock = engine.clock
        self._now_us = engine.clock.now_us
        self._lock = engine.lock
        self._table = table
        self._states = table.states
        self._algorithm = algorithm(limit)
        self._decide = self._algorithm.decide
        self._resolve = isinstance(limit, FixedWindow) and limit.unit is not None
        self.decide: Decide = self._by_the_calendar if self._resolve else self._straight()

    def _straight(self) -> Decide:
        """The common way, as a closure: looking things up on self would take a tenth of a decision."""
        lock, now, states, seen, save = self._lock, self._now_us, self._states, self._states.get, self.save
        judge, limit = self._algorithm.decide, self.limit
        in_place = self._algorithm.settle is None

        def decide(key: str, cost: int, patience_us: int | None = None) -> Facts:
            with lock:
                now_us = now()
                state = seen(key)
                facts, after = judge(limit, state, now_us, cost, patience_us)
                if after is not state:
                    if in_place and state is not None:
                        states[key] = after
                    else:
                        save(key, after, now_us)
            return facts

        return decide

    def _by_the_calendar(self, key: str, cost: int, patience_us: int | None = None) -> Facts:
        with self._lock:
            now_us = self._now_us()
            facts, after = self.judge(key, now_us, cost, patience_us)
            self.save(key, after, now_us)
        return facts

    def judge(self, key: str, now_us: int, cost: int, patience_us: int | None) -> tuple[Facts, Any]:
        """Decide without saving; the caller holds the lock."""
        return self._decide(self._resolved(now_us), self._states.get(key), now_us, cost, patience_us)

    def save(self, key: str, state: Any, now_us: int) -> None:
        """Keep the state, unless it is the one that is kept; the caller holds the lock."""
        if state is self._states.get(key):
            return
        if self._algorithm.settle is not None:
            state = self._algorithm.settle(self.limit, state)
        if key not in self._states:
            self._table.queue.append(key)
            self._look_at_old(now_us)
        self._states[key] = state

    def _look_at_old(self, now_us: int) -> None:
        queue, states = self._table.queue, self._states
        for _ in range(min(_LOOKED_AT, len(queue) - 1)):
            key = queue.popleft()
            state = states.get(key)
            if state is None or self._algorithm.dead_at_us(self._resolved(now_us), state) <= now_us:
                states.pop(key, None)
            else:
                queue.append(key)

    def _resolved(self, now_us: int) -> Limit:
        return resolve(self.limit, now_us) if self._resolve else self.limit

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Facts:
        with self._lock:
            now_us = self._now_us()
            limit, state = self._resolved(now_us), self._states.get(key)
            after = self._algorithm.refund(limit, state, now_us, units, receipt, cancel)
            if after is not None:
                self.save(key, after, now_us)
            return self.judge(key, now_us, 0, None)[0]

    def retune(self, key: str) -> None:
        if self._algorithm.retune is None:
            return
        with self._lock:
            now_us = self._now_us()
            self.save(key, self._algorithm.retune(self.limit, self._states.get(key), now_us), now_us)

    def reset(self, key: str) -> None:
        with self._lock:
            if key in self._states:
                self._states[key] = None  # never seen; it leaves when its turn in the queue comes


class LocalSlotMeter:
    """The embedded engine's hand on the slots of one limit."""

    def __init__(self, engine: LocalEngine, table: SlotTable, limit: Slots, name: str) -> None:
        self.limit = limit
        self.name = name
        self._now_us = engine.clock.now_us
        self._lock = engine.lock
        self._table = table

    def free(self, key: str) -> Facts:
        with self._lock:
            return self._table.peek(key, self.limit, self._now_us())

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        with self._lock:
            return Slot(*self._table.acquire(key, self.limit, self._now_us(), ticket, wait))

    def renew(self, key: str, fence: int) -> int | None:
        with self._lock:
            return self._table.renew(key, self.limit, fence, self._now_us())

    def release(self, key: str, fence: int) -> bool:
        with self._lock:
            return self._table.release(key, fence, self._now_us())

    def leave(self, key: str, ticket: int) -> None:
        with self._lock:
            self._table.leave(key, ticket)

    def reset(self, key: str) -> None:
        with self._lock:
            self._table.reset(key)


def _own(meter: Meter) -> LocalMeter:
    if not isinstance(meter, LocalMeter):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return meter


def _uncharged(judged: tuple[Facts, Any]) -> tuple[Facts, Any]:
    """A charge that would have passed had not another one refused: nothing was taken."""
    facts, after = judged
    as_it_stands = facts[REMAINING], 0, facts[RESET_AFTER_US], facts[DELAY_US], facts[AT_US], facts[MARK]
    return (True, *as_it_stands), after
