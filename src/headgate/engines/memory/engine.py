"""The in-memory engine: bounded tables of states, one lock, no threads of its own.

A forked child counts for itself, from the beginning (fork_reset.py explains why): its tables are empty. Overrides
stay, because they are configuration, and so do the numbers of slots, because no fence may come twice.

The file is long for one reason: its meters, of rates and of slots, share the engine's tables and its one lock.

This file decides single charges; take_all.py decides several together, and those of rules that lock out or can be
overridden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.algorithms import algorithm, lockout, quota_grants
from headgate.algorithms.decision import Outcome, PausedOutcome, Receipt
from headgate.algorithms.limit import EXACT, Limit
from headgate.algorithms.slots import Slots
from headgate.calendar import resolve
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.fork_reset import on_fork
from headgate.engines.memory import fast_decide
from headgate.engines.memory.slot_table import SlotTable
from headgate.engines.memory.state_table import StateTable
from headgate.engines.overrides import Limits, MemoryOverrides, StoredOverride, active_limits
from headgate.engines.pending_cancellations import PendingCancellations, QueuePlace
from headgate.engines.port import Decide, Meter, Slot
from headgate.engines.quota_ledger import MemoryLedger
from headgate.engines.stack import InnermostEngine
from headgate.errors import InvalidCharge

if TYPE_CHECKING:
    from headgate.algorithms import pause
    from headgate.engines.memory.pause_table import PauseTable


TakeAll = Callable[..., list[Outcome]]


class CancelledReservation(NamedTuple):
    """A reservation that is given back."""

    queue_place: QueuePlace
    units: int
    receipt: Receipt


# The states of one name, in a table for each pace that they were written at (see algorithms/token_bucket.py).
# Nearly always there is one: a changed limit, or an override, adds another.
Family = dict[int, StateTable[Any]]


class MemoryEngine(InnermostEngine):
    """Decides in this process. Safe from any number of threads and event loops."""

    def __init__(self, clock: Clock | None = None) -> None:
        # Loaded with the first engine and not by a call: a child that is forked while a thread loads a module
        # would wait for that module for ever.
        from headgate.engines.memory import fast_take_all, pause_table, take_all

        self._decide_by_rules: TakeAll = take_all.decide
        self._decide_fast: TakeAll = fast_take_all.decide
        self._pause_table = pause_table.PauseTable
        self.clock: Clock = clock or SystemClock()
        self.lock: Lock = Lock()
        self._families: dict[tuple[str, str], Family] = {}
        self._lockouts: dict[str, StateTable[lockout.State]] = {}
        self._pauses: dict[str, PauseTable] = {}
        self._slots: dict[str, SlotTable] = {}
        self._overrides: dict[str, StateTable[StoredOverride]] = {}
        self._ledgers: dict[str, StateTable[quota_grants.State]] = {}
        self.pending_cancellations: PendingCancellations[CancelledReservation] = PendingCancellations()
        self.started_us: int = self.clock.now_us()
        on_fork(self.reset_after_fork)

    def reset_after_fork(self) -> None:
        """Resets the engine in a forked child, with a new lock. Overrides stay."""
        self.lock = Lock()  # meters look it up here each time, so they use this one, too
        state_tables = (table for family in self._families.values() for table in family.values())
        for table in (*state_tables, *self._lockouts.values(), *self._ledgers.values()):
            table.clear()
        for slots in self._slots.values():
            slots.clear()
        for pauses in self._pauses.values():
            pauses.table.clear()
        for overrides in self._overrides.values():
            overrides.rebuild_queue()
        self.pending_cancellations = PendingCancellations()
        self.started_us = self.clock.now_us()

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> MemoryMeter:
        with self.lock:
            family = self._families.setdefault((limit.algorithm, name), {})
            family.setdefault(limit.pace, StateTable())
        return MemoryMeter(self, family, limit, name, options)

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> MemorySlotMeter:
        with self.lock:
            table = self._slots.setdefault(name, SlotTable())
        return MemorySlotMeter(self, table, limit, name, options)

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        decide = self._decide_fast
        for meter, _, _ in charges:
            if not isinstance(meter, MemoryMeter):
                raise InvalidCharge("A charge of another engine cannot be decided here.")
            if not meter.limit_only:
                decide = self._decide_by_rules
        with self.lock:
            return decide(self, charges, self.clock.now_us(), patience_us, commit)

    def lockouts(self, rule: str) -> StateTable[lockout.State]:
        """Returns the lockout states of a rule's keys. The caller holds the lock."""
        return self._lockouts.setdefault(rule, StateTable())

    def pauses(self, options: ChargeOptions) -> PauseTable:
        """Returns the pauses of a limiter's keys. The caller holds the lock."""
        table = self._pauses.get(options.rule)
        if table is None:
            counts = options.pauses or ()

            def has_counts(key: str) -> bool:
                families = (self._families.get(count, {}) for count in counts)
                return any(table.states.get(key) is not None for family in families for table in family.values())

            table = self._pauses[options.rule] = self._pause_table(has_counts)
        return table

    def pause_of(
        self, options: ChargeOptions | None, key: str, now_us: int, *, corrects: bool = True
    ) -> pause.State | None:
        """Returns the pause of a key, None if it has none. The caller holds the lock."""
        if options is None or options.pauses is None:
            return None
        return self.pauses(options).get(key, now_us, corrects=corrects)

    def overrides(self, rule: str) -> MemoryOverrides:
        with self.lock:
            table = self._overrides.setdefault(rule, StateTable())
        return MemoryOverrides(self, table)

    def override_limits(self, rule: str, key: str, now_us: int) -> Limits:
        """Returns the override of a key, empty if it has none. The caller holds the lock."""
        table = self._overrides.get(rule)
        return () if table is None else active_limits(table, key, now_us)

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> MemoryLedger:
        with self.lock:
            table = self._ledgers.setdefault(name, StateTable())
        return MemoryLedger(self, table, limit, name, ttl_us, grace_us)

    def shard(self, key: str) -> int:
        return 0

    def guarantees(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        yield "engine", "this process alone: every process counts for itself"

    def close(self) -> None:
        """Does nothing: there is nothing to release."""

    def __len__(self) -> int:
        """Returns how many keys have a state."""
        state_tables = [table for family in self._families.values() for table in family.values()]
        states = sum(
            len(table.states) for table in (*state_tables, *self._lockouts.values(), *self._ledgers.values())
        )
        pauses = sum(len(pauses.table.states) for pauses in self._pauses.values())
        return states + pauses + sum(map(len, self._slots.values()))


class MemoryMeter:
    """A limit bound to the in-memory engine."""

    def __init__(
        self, engine: MemoryEngine, family: Family, limit: Limit, name: str, options: ChargeOptions | None = None
    ) -> None:
        self.limit = limit
        self.name = name
        self.options = options
        self.limit_only: bool = options is None or options.limit_only
        self._engine = engine
        self._now_us = engine.clock.now_us
        self._family = family
        self._table = family[limit.pace]
        self._states = self._table.states
        self._algorithm = algorithm(limit)
        self._decide = self._algorithm.decide
        self._is_calendar = limit.is_calendar
        self.decide: Decide = self.decide_plainly
        if options is not None and not options.without_rule_state:
            self.decide = self._decide_by_rule
        elif not self._is_calendar:
            self.decide = fast_decide.bind(engine, limit, family, self.save, self._find_state)

    def decide_plainly(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        """Decides by any limit; `decide` does the same, faster where it can."""
        with self._engine.lock:
            now_us = self._now_us()
            outcome, after = self.judge(key, now_us, cost, patience_us)
            self.save(key, after, now_us)
        return outcome

    def _decide_by_rule(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        return self._engine.decide_all([(self, key, cost)], patience_us)[0]

    def judge(
        self, key: str, now_us: int, cost: int, patience_us: int | None, override: Limit | None = None
    ) -> tuple[Outcome, Any]:
        """Decides without saving, by the override if the key has one. The caller holds the lock."""
        if override is None:
            limit = resolve(self.limit, now_us) if self._is_calendar else self.limit
            state = self._states.get(key)
            if state is None and len(self._family) > 1:
                state = self._find_state(key, now_us, limit)
        else:
            limit = resolve(override, now_us)
            state = self._find_state(key, now_us, limit)
        return self._decide(limit, state, now_us, cost, patience_us)

    def _find_state(self, key: str, now_us: int, limit: Limit) -> Any:
        """Returns the state of a key, also one that was written at another pace."""
        limit_pace = limit.pace
        table = self._family.get(limit_pace)
        state = None if table is None else table.states.get(key)
        if state is None and self._algorithm.convert_pace is not None:
            for other_pace, table in self._family.items():
                other_state = table.states.get(key)
                if other_state is not None and other_pace != limit_pace:
                    return self._algorithm.convert_pace(limit, other_state, other_pace)
        return state

    def save(self, key: str, state: Any, now_us: int, override: Limit | None = None) -> None:
        """Stores the state, unless it is stored already. The caller holds the lock."""
        limit, table = self.limit, self._table
        if override is not None:
            limit = override
            table = self._family.get(override.pace) or self._family.setdefault(override.pace, StateTable())
        if state is table.states.get(key):
            return
        if len(self._family) > 1:
            if state == self._find_state(key, now_us, limit):
                return  # converted only, and nothing was charged: it stays as it was written
            for other in self._family.values():
                if other is not table:
                    other.delete(key)
        if self._algorithm.write_pending is not None:
            state = self._algorithm.write_pending(limit, state)
        if key in table.states:
            table.states[key] = state
        else:
            table.put(key, state, lambda old_key, old_state: self._is_dead(old_key, old_state, now_us))

    def _is_dead(self, key: str, state: Any, now_us: int) -> bool:
        """Returns whether a state no longer differs from an unused key's."""
        dead_at_us = self._algorithm.dead_at_us
        if self.options is None:
            return dead_at_us(self.limit, state) <= now_us
        limits, now_us = [self.limit], self._clock_us(key, now_us, corrects=False)
        if self.options.overrides:
            # Which override belongs to this count is not known here: the state lives as long as any requires.
            limits += self._engine.override_limits(self.options.rule, key, now_us)
        kind = self.limit.algorithm
        return all(dead_at_us(limit, state) <= now_us for limit in limits if limit.algorithm == kind)

    def _clock_us(self, key: str, now_us: int, *, corrects: bool = True) -> int:
        """Returns what the clock of a key shows: the time, unless it is or was paused."""
        state = self._engine.pause_of(self.options, key, now_us, corrects=corrects)
        if state is None:
            return now_us
        from headgate.algorithms import pause  # loaded with the first engine

        return pause.clock_us(state, now_us, self.limit.has_edges)

    def _resolve_calendar(self, now_us: int) -> Limit:
        return resolve(self.limit, now_us) if self._is_calendar else self.limit

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        with self._engine.lock:
            now_us = self._clock_us(key, self._now_us())
            if cancel:
                self._cancel(
                    key,
                    CancelledReservation(QueuePlace.from_receipt(self._count_id(key), receipt), units, receipt),
                    now_us,
                )
            else:
                self._give_back(key, units, receipt, now_us, cancel=False)
            return self.judge(key, now_us, 0, None)[0]

    def _cancel(self, key: str, reservation: CancelledReservation | None, now_us: int) -> None:
        """Gives a place back, and after it the places it was built on. One that gives nothing back is retried
        later."""
        pending = self._engine.pending_cancellations
        while reservation is not None:
            if not self._give_back(key, reservation.units, reservation.receipt, now_us, cancel=True):
                pending.note(reservation, now_us)
                break
            reservation = next(iter(pending.pop_last(reservation.queue_place.key, 1)), None)

    def _give_back(self, key: str, units: int, receipt: Receipt, now_us: int, *, cancel: bool) -> bool:
        """Refunds units; returns whether there was anything to give back."""
        limit = self._resolve_calendar(now_us)
        state = self._find_state(key, now_us, limit)
        after = self._algorithm.refund(limit, state, now_us, units, receipt, cancel)
        if after is not None:
            self.save(key, after, now_us)
        return after is not None

    def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome:
        with self._engine.lock:
            now_us = self._clock_us(key, self._now_us())
            limit = self._resolve_calendar(now_us)
            state = self._find_state(key, now_us, limit)
            after = self._algorithm.surcharge(limit, state, now_us, min(units, EXACT), receipt)
            if after is not None:
                self.save(key, after, now_us)
            return self.judge(key, now_us, 0, None)[0]

    def _count_id(self, key: str) -> tuple[str, str, str]:
        return self.limit.algorithm, self.name, key

    def retune(self, key: str) -> None:
        if self._algorithm.retune is None:
            return
        with self._engine.lock:
            now_us = self._clock_us(key, self._now_us())
            state = self._find_state(key, now_us, self.limit)
            self.save(key, self._algorithm.retune(self.limit, state, now_us), now_us)

    def reset(self, key: str) -> None:
        with self._engine.lock:
            for table in self._family.values():
                table.delete(key)
            self._engine.pending_cancellations.drop(self._count_id(key))
            if self.options is not None and self.options.lockout is not None:
                self._engine.lockouts(self.options.rule).delete(key)
            if self.options is not None and self.options.pauses is not None:
                self._engine.pauses(self.options).table.delete(key)

    def pause(self, key: str, duration_us: int) -> int:
        assert self.options is not None, "the limiter checks whether it can be paused"
        with self._engine.lock:
            return self._engine.pauses(self.options).extend(key, self._now_us(), duration_us)


class MemorySlotMeter:
    """The slots of one limit bound to the in-memory engine."""

    def __init__(
        self,
        engine: MemoryEngine,
        table: SlotTable,
        limit: Slots,
        name: str,
        options: ChargeOptions | None = None,
    ) -> None:
        self.limit = limit
        self.name = name
        self._options = options
        self._engine = engine
        self._now_us = engine.clock.now_us
        self._table = table

    def free(self, key: str) -> Outcome:
        with self._engine.lock:
            now_us = self._now_us()
            outcome = self._table.peek(key, self.limit, now_us)
            paused_us = self._paused_us(key, now_us)
            return slot_paused(outcome, paused_us) if paused_us else outcome

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        with self._engine.lock:
            now_us = self._now_us()
            paused_us = self._paused_us(key, now_us)
            outcome, ticket = self._table.acquire(key, self.limit, now_us, ticket, wait, int(not paused_us))
            return Slot(slot_paused(outcome, paused_us) if paused_us else outcome, ticket)

    def _paused_us(self, key: str, now_us: int) -> int:
        """Returns how long the key is still paused."""
        state = self._engine.pause_of(self._options, key, now_us)
        return 0 if state is None else max(0, state[0] - now_us)

    def renew(self, key: str, fence: int) -> int | None:
        with self._engine.lock:
            return self._table.renew(key, self.limit, fence, self._now_us())

    def release(self, key: str, fence: int) -> bool:
        with self._engine.lock:
            return self._table.release(key, fence, self._now_us())

    def leave(self, key: str, ticket: int) -> None:
        with self._engine.lock:
            self._table.leave(key, ticket)

    def pause(self, key: str, duration_us: int) -> int:
        assert self._options is not None, "the limiter checks whether it can be paused"
        with self._engine.lock:
            return self._engine.pauses(self._options).extend(key, self._now_us(), duration_us)

    def reset(self, key: str) -> None:
        with self._engine.lock:
            self._table.reset(key)
            if self._options is not None and self._options.pauses is not None:
                self._engine.pauses(self._options).table.delete(key)


def slot_paused(outcome: Outcome, paused_us: int) -> PausedOutcome:
    """Returns the refusal of a slot for as long as the pause lasts, from the outcome of a peek."""
    allowed, remaining, retry_us, reset_us, _, at_us, place = outcome
    retry_us = max(paused_us, retry_us or 0)
    numbers = False, remaining, retry_us, max(paused_us, reset_us), 0, at_us, 1 if allowed else place
    return PausedOutcome.wrap(numbers, paused_us)
