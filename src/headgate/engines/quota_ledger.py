"""Quota ledgers, as engines store them: one for each key, and what is assumed when a ledger is missing.

A ledger records which holder may be using which part of a limit (algorithms/quota_grants.py divides it). It lives
as long as any of its grants may be in use. So where none is found, either nothing is in use, or it was lost:

    in memory       it is lost with the process. For ttl + grace after an engine began, all its new ledgers listen:
                    every grant of another process has run out by then.
    in Redis        it survives every process. If it was lost there (emptied, restarted without its data), the
                    processes that still live know: each remembers, for each key, until when its grants may be in
                    use, and sends that with its requests. A new ledger then listens until that instant.

Laws (tests/engines/test_quota_ledger.py):
  - after a restart with the same ttl and grace nothing is granted before all earlier grants have run out;
  - after Redis lost a ledger, the first process that asks and has made grants which may still be in use makes the
    new ledger listen. If one asks first that has made none, or a replica takes over that lacks the last reports,
    at most the limit once more is granted, and for at most ttl + grace both are in use;
  - an engine that does not answer grants nothing (EngineUnavailable), whatever the fallback is, and grants run
    out. A report whose reply was lost is recorded or not: either way no part is granted twice;
  - charges and grants of one limit do not know each other: a rule is charged, or divided.
"""

from __future__ import annotations

from threading import Lock
from typing import Protocol

from headgate.algorithms import quota_grants
from headgate.algorithms.divisible_limit import QuotaUnits, quota_units
from headgate.algorithms.durations import format_duration
from headgate.algorithms.limit import DAY, Limit
from headgate.algorithms.quota_grants import QuotaGrant
from headgate.engines.fork_reset import on_fork
from headgate.engines.memory.state_table import StateTable
from headgate.engines.overrides import LockOwner
from headgate.errors import InvalidCharge, InvalidRule

_MAX_LIFE_US = DAY


class LedgerBase:
    """The base of all ledgers: a limit, how it is divided, and how long its grants last and count."""

    def __init__(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> None:
        if ttl_us <= 0 or grace_us < 0 or ttl_us + grace_us > _MAX_LIFE_US:
            raise InvalidRule(
                "A grant lives for at least a microsecond, and with its grace for at most a day; "
                f"not for {format_duration(ttl_us)} and {format_duration(grace_us)}."
            )
        self.limit = limit
        self.name = name
        self.quota_units: QuotaUnits = quota_units(limit)
        self.ttl_us = ttl_us
        self.grace_us = grace_us
        self.live_us: int = ttl_us + grace_us

    def demand_in_grains(self, key: object, holder: object, wanted: int | None, within_us: int) -> int | None:
        """Validates what a holder reports and returns its demand in grant units; None if that is unknown."""
        validate_holder(key, holder)
        if (wanted or 0) < 0 or within_us < 0:
            raise InvalidCharge(f"A holder wants 0 units or more, not {wanted} within {within_us} microseconds.")
        return None if wanted is None or not within_us else self.quota_units.grains(wanted, within_us)


def validate_holder(key: object, holder: object) -> None:
    """Validates the key and the holder of a grant."""
    for field, name in (("key", key), ("holder", holder)):
        if not isinstance(name, str) or not name:
            raise InvalidCharge(f"The {field} of a grant is a text and not empty, not {name!r}.")


class GrantExpiries:
    """Until when the grants of this process may be in use, by key."""

    def __init__(self) -> None:
        self._table: StateTable[int] = StateTable()
        self._lock = Lock()
        on_fork(self.reset_after_fork)

    def reset_after_fork(self) -> None:
        """Resets the lock in a forked child. Entries stay: the parent's grants may be in use all the same."""
        self._lock = Lock()
        self._table.rebuild_queue()

    def until_us(self, key: str) -> int:
        return self._table.states.get(key) or 0

    def note(self, key: str, until_us: int, now_us: int) -> None:
        with self._lock:
            self._table.put(key, max(until_us, self.until_us(key)), lambda _, end_us: end_us <= now_us)


class LedgerOwner(LockOwner, Protocol):
    """The in-memory engine, as a ledger sees it: also when it began."""

    started_us: int


class MemoryLedger(LedgerBase):
    """The in-memory engine's quota ledgers of one limit."""

    def __init__(
        self,
        engine: LedgerOwner,
        table: StateTable[quota_grants.State],
        limit: Limit,
        name: str,
        ttl_us: int,
        grace_us: int,
    ) -> None:
        super().__init__(limit, name, ttl_us, grace_us)
        self._engine = engine
        self._table = table

    def grant(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> QuotaGrant | None:
        demand = self.demand_in_grains(key, holder, wanted, within_us)
        engine = self._engine
        with engine.lock:
            now_us = engine.clock.now_us()
            engine.started_us = min(engine.started_us, now_us)
            state = self._live_state(key, now_us)
            unknown_us = engine.started_us + self.live_us
            granted, after = quota_grants.grant(
                self.quota_units, state, now_us, holder, demand, self.ttl_us, self.grace_us, unknown_us
            )
            self._table.put(key, after, lambda _, old: quota_grants.dead_at_us(old) <= now_us)
        return granted

    def leave(self, key: str, holder: str) -> None:
        validate_holder(key, holder)
        with self._engine.lock:
            now_us = self._engine.clock.now_us()
            after = quota_grants.remove_holder(self._live_state(key, now_us), now_us, holder)
            if after is not None:
                self._table.put(key, after, lambda _, old: quota_grants.dead_at_us(old) <= now_us)

    def _live_state(self, key: str, now_us: int) -> quota_grants.State | None:
        """Returns the ledger's state, unless it is dead: a server would have dropped it."""
        state = self._table.states.get(key)
        return None if state is None or quota_grants.dead_at_us(state) <= now_us else state
