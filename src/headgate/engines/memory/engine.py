"""The embedded engine: states in tables that are bounded as they go, one lock, no threads of its own.

A forked child counts for itself, from the beginning (forked.py says why): its tables are empty. Overrides stay,
because they were configured, and so do the numbers of slots, because no fence may come twice.

One charge by itself is judged here; several together, and those of rules that lock out or can be overridden, in
joint.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, NamedTuple, Protocol

from headgate.algorithms import algorithm, lockout, quota_grants
from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.calendar import resolve
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.fork_reset import on_fork
from headgate.engines.memory import take_all
from headgate.engines.memory.slot_table import SlotTable
from headgate.engines.memory.state_table import StateTable
from headgate.engines.overrides import Kept, Limits, MemoryOverrides, of
from headgate.engines.pending_cancellations import PendingCancellations, QueuePlace
from headgate.engines.port import Meter, Slot
from headgate.engines.quota_ledger import MemoryLedger
from headgate.errors import InvalidCharge


class Decide(Protocol):
    def __call__(self, key: str, cost: int, patience_us: int | None = None) -> Outcome: ...


class Cancelled(NamedTuple):
    """A reservation that is given back."""

    place: QueuePlace
    units: int
    receipt: Receipt


# The states of one name, in a table for each pace that they were written at (see algorithms/token_bucket.py).
# Nearly always there is one: another one comes with a changed limit, or a limit of a key's own.
Family = dict[int, StateTable[Any]]


def pace(limit: Limit) -> int:
    """What tells states apart that mean different things under one name; 0 where a state says all by itself."""
    return getattr(limit, "pace", 0)


class MemoryEngine:
    """Decides in this process. Safe from any number of threads and event loops."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.lock: Lock = Lock()
        self._families: dict[tuple[str, str], Family] = {}
        self._lockouts: dict[str, StateTable[lockout.State]] = {}
        self._slots: dict[str, SlotTable] = {}
        self._overrides: dict[str, StateTable[Kept]] = {}
        self._ledgers: dict[str, StateTable[quota_grants.State]] = {}
        self.stuck: PendingCancellations[Cancelled] = PendingCancellations()
        self.born_us: int = self.clock.now_us()
        on_fork(self.forget)

    def forget(self) -> None:
        """In a forked child: as new, with a lock that nobody holds. Overrides stay."""
        self.lock = Lock()  # meters look it up here each time, so this one is theirs, too
        counts = (table for family in self._families.values() for table in family.values())
        for table in (*counts, *self._lockouts.values(), *self._ledgers.values()):
            table.clear()
        for slots in self._slots.values():
            slots.clear()
        for overrides in self._overrides.values():
            overrides.mend()
        self.stuck = PendingCancellations()
        self.born_us = self.clock.now_us()

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> MemoryMeter:
        with self.lock:
            family = self._families.setdefault((limit.algorithm, name), {})
            family.setdefault(pace(limit), StateTable())
        return MemoryMeter(self, family, limit, name, terms)

    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> MemorySlotMeter:
        with self.lock:
            table = self._slots.setdefault(name, SlotTable())
        return MemorySlotMeter(self, table, limit, name)

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        own = [(_own(meter), key, cost) for meter, key, cost in charges]
        with self.lock:
            return take_all.decide(self, own, self.clock.now_us(), patience_us, commit)

    def lockouts(self, rule: str) -> StateTable[lockout.State]:
        """Who of a rule's keys is locked out, or near to it; the caller holds the lock."""
        return self._lockouts.setdefault(rule, StateTable())

    def overrides(self, rule: str) -> MemoryOverrides:
        with self.lock:
            table = self._overrides.setdefault(rule, StateTable())
        return MemoryOverrides(self, table)

    def own_limits(self, rule: str, key: str, now_us: int) -> Limits:
        """The limits that a key has in place of the rule's; the caller holds the lock."""
        table = self._overrides.get(rule)
        return () if table is None else of(table, key, now_us)

    def assignments(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> MemoryLedger:
        with self.lock:
            table = self._ledgers.setdefault(name, StateTable())
        return MemoryLedger(self, table, limit, name, ttl_us, grace_us)

    def shard(self, key: str) -> int:
        return 0

    def laws(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        yield "engine", "this process alone: every process counts for itself"

    def close(self) -> None:
        """Nothing to let go of."""

    def __len__(self) -> int:
        """How many keys are remembered."""
        tables = [table for family in self._families.values() for table in family.values()]
        states = sum(len(table.states) for table in (*tables, *self._lockouts.values(), *self._ledgers.values()))
        return states + sum(map(len, self._slots.values()))


class MemoryMeter:
    """The embedded engine's hand on one limit."""

    def __init__(
        self, engine: MemoryEngine, family: Family, limit: Limit, name: str, terms: ChargeOptions | None = None
    ) -> None:
        self.limit = limit
        self.name = name
        self.terms = terms
        self._engine = engine
        self._clock = engine.clock
        self._now_us = engine.clock.now_us
        self._family = family
        self._table = family[pace(limit)]
        self._states = self._table.states
        self._algorithm = algorithm(limit)
        self._decide = self._algorithm.decide
        self._resolve = isinstance(limit, FixedWindow) and limit.unit is not None
        self.decide: Decide = self._by_the_calendar if self._resolve else self._straight()
        if terms is not None and not terms.plain:
            self.decide = self._by_its_terms

    def _straight(self) -> Decide:
        """The common way, as a closure: looking things up on self would take a tenth of a decision."""
        engine, now, states, seen, save = self._engine, self._now_us, self._states, self._states.get, self.save
        judge, limit, family, found = self._algorithm.decide, self.limit, self._family, self._found
        in_place = self._algorithm.settle is None

        def decide(key: str, cost: int, patience_us: int | None = None) -> Outcome:
            with engine.lock:
                now_us = now()
                state = kept = seen(key)
                if kept is None and len(family) > 1:
                    state = found(key, now_us, limit)
                facts, after = judge(limit, state, now_us, cost, patience_us)
                if after is not state:
                    if in_place and kept is not None:
                        states[key] = after
                    else:
                        save(key, after, now_us)
            return facts

        return decide

    def _by_the_calendar(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        with self._engine.lock:
            now_us = self._now_us()
            facts, after = self.judge(key, now_us, cost, patience_us)
            self.save(key, after, now_us)
        return facts

    def _by_its_terms(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        return self._engine.decide_all([(self, key, cost)], patience_us)[0]

    def judge(
        self, key: str, now_us: int, cost: int, patience_us: int | None, own: Limit | None = None
    ) -> tuple[Outcome, Any]:
        """Decide without saving, by a limit of the key's own if it has one; the caller holds the lock."""
        limit = self._resolved(now_us) if own is None else resolve(own, now_us)
        state = self._states.get(key) if own is None else None
        if state is None and (own is not None or len(self._family) > 1):
            state = self._found(key, now_us, limit)
        return self._decide(limit, state, now_us, cost, patience_us)

    def _found(self, key: str, now_us: int, limit: Limit) -> Any:
        """The state of a key, also one that was written at another pace."""
        own = pace(limit)
        table = self._family.get(own)
        state = None if table is None else table.states.get(key)
        if state is None and self._algorithm.carried is not None:
            for other, table in self._family.items():
                written = table.states.get(key)
                if written is not None and other != own:
                    return self._algorithm.carried(limit, written, other)
        return state

    def save(self, key: str, state: Any, now_us: int, own: Limit | None = None) -> None:
        """Keep the state, unless it is the one that is kept; the caller holds the lock."""
        limit, table = self.limit, self._table
        if own is not None:
            limit = own
            table = self._family.get(pace(own)) or self._family.setdefault(pace(own), StateTable())
        if state is table.states.get(key):
            return
        if len(self._family) > 1:
            if state == self._found(key, now_us, limit):
                return  # carried over, and nothing was charged: it stays as it was written
            for other in self._family.values():
                if other is not table:
                    other.forget(key)
        if self._algorithm.settle is not None:
            state = self._algorithm.settle(limit, state)
        if key in table.states:
            table.states[key] = state
        else:
            table.put(key, state, lambda old, kept: self._dead(old, kept, now_us))

    def _dead(self, key: str, state: Any, now_us: int) -> bool:
        limits = [self.limit]
        if self.terms is not None and self.terms.overrides:
            # Which of them is this count's own is not known here: it lives as long as any of them lets it.
            limits += self._engine.own_limits(self.terms.rule, key, now_us)
        dead_at_us, kind = self._algorithm.dead_at_us, self.limit.algorithm
        return all(dead_at_us(limit, state) <= now_us for limit in limits if limit.algorithm == kind)

    def _resolved(self, now_us: int) -> Limit:
        return resolve(self.limit, now_us) if self._resolve else self.limit

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        with self._engine.lock:
            now_us = self._now_us()
            if cancel:
                self._cancel(key, Cancelled(QueuePlace.of(self._count(key), receipt), units, receipt), now_us)
            else:
                self._give_back(key, units, receipt, now_us, cancel=False)
            return self.judge(key, now_us, 0, None)[0]

    def _cancel(self, key: str, cancelled: Cancelled | None, now_us: int) -> None:
        """Give a place back, and after it those that it was built on; what gives nothing is tried again later."""
        stuck = self._engine.stuck
        while cancelled is not None:
            if not self._give_back(key, cancelled.units, cancelled.receipt, now_us, cancel=True):
                stuck.note(cancelled, now_us)
                break
            cancelled = next(iter(stuck.last(cancelled.place.key, 1)), None)

    def _give_back(self, key: str, units: int, receipt: Receipt, now_us: int, *, cancel: bool) -> bool:
        """Whether there was anything to give back."""
        limit = self._resolved(now_us)
        state = self._found(key, now_us, limit)
        after = self._algorithm.refund(limit, state, now_us, units, receipt, cancel)
        if after is not None:
            self.save(key, after, now_us)
        return after is not None

    def _count(self, key: str) -> tuple[str, str, str]:
        return self.limit.algorithm, self.name, key

    def retune(self, key: str) -> None:
        if self._algorithm.retune is None:
            return
        with self._engine.lock:
            now_us = self._now_us()
            state = self._found(key, now_us, self.limit)
            self.save(key, self._algorithm.retune(self.limit, state, now_us), now_us)

    def reset(self, key: str) -> None:
        with self._engine.lock:
            for table in self._family.values():
                table.forget(key)
            self._engine.stuck.forget(self._count(key))
            if self.terms is not None and self.terms.lockout is not None:
                self._engine.lockouts(self.terms.rule).forget(key)


class MemorySlotMeter:
    """The embedded engine's hand on the slots of one limit."""

    def __init__(self, engine: MemoryEngine, table: SlotTable, limit: Slots, name: str) -> None:
        self.limit = limit
        self.name = name
        self._engine = engine
        self._now_us = engine.clock.now_us
        self._table = table

    def free(self, key: str) -> Outcome:
        with self._engine.lock:
            return self._table.peek(key, self.limit, self._now_us())

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        with self._engine.lock:
            return Slot(*self._table.acquire(key, self.limit, self._now_us(), ticket, wait))

    def renew(self, key: str, fence: int) -> int | None:
        with self._engine.lock:
            return self._table.renew(key, self.limit, fence, self._now_us())

    def release(self, key: str, fence: int) -> bool:
        with self._engine.lock:
            return self._table.release(key, fence, self._now_us())

    def leave(self, key: str, ticket: int) -> None:
        with self._engine.lock:
            self._table.leave(key, ticket)

    def reset(self, key: str) -> None:
        with self._engine.lock:
            self._table.reset(key)


def _own(meter: Meter) -> MemoryMeter:
    if not isinstance(meter, MemoryMeter):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return meter
