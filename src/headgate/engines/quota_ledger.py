"""Assignments, as engines keep them: a ledger for each key, and what is known when a ledger is not there.

A ledger says which holder may be using which part of a limit (algorithms/quota_grants.py tells how it divides). It
lives as long as any part that was told may be in use. So where none is found, either nothing is in use, or it was
lost:

    in memory       it is lost with the process. For ttl + grace after an engine began, all its new ledgers listen:
                    whatever another process told before has run out by then.
    in Redis        it survives every process. If it was lost there (emptied, restarted without its data), those
                    know that still live: every process remembers, for each key, until when parts may be in use
                    that it has told, and says so when it asks. A new ledger then listens until that instant.

Laws (tests/engines/test_quota_ledger.py):
  - after a restart with the same ttl and grace nothing is told before all that was told earlier has run out;
  - after Redis lost a ledger, the first process that asks and has told parts which may still be in use makes it
    listen. If one asks first that has told none, or a replica takes over that lacks the last reports, at most the
    limit once more is told, and for at most ttl + grace both are out;
  - an engine that does not answer tells nothing (EngineUnavailable), whatever the fallback is, and what was told
    runs out. A report whose answer was lost is noted or not: either way no part is told twice;
  - charges and assignments of one limit do not know each other: a rule is asked, or divided.
"""

from __future__ import annotations

from threading import Lock
from typing import Protocol

from headgate.algorithms import quota_grants
from headgate.algorithms.limit import DAY, Limit, duration
from headgate.algorithms.quota_grants import Assignment
from headgate.algorithms.quota_units import Division, division
from headgate.engines.fork_reset import on_fork
from headgate.engines.memory.state_table import StateTable
from headgate.engines.overrides import Locked
from headgate.errors import InvalidCharge, InvalidRule

_LONGEST_US = DAY


class Dividing:
    """What all ledgers have: one limit, divided, and how long its parts are told and counted."""

    def __init__(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> None:
        if ttl_us <= 0 or grace_us < 0 or ttl_us + grace_us > _LONGEST_US:
            raise InvalidRule(
                "An assignment lives for at least a microsecond, and with its grace for at most a day; "
                f"not for {duration(ttl_us)} and {duration(grace_us)}."
            )
        self.limit = limit
        self.name = name
        self.division: Division = division(limit)
        self.ttl_us = ttl_us
        self.grace_us = grace_us
        self.live_us: int = ttl_us + grace_us

    def wants(self, key: object, holder: object, wanted: int | None, within_us: int) -> int | None:
        """What a holder reports, in grains, if it can be noted at all."""
        checked(key, holder)
        if (wanted or 0) < 0 or within_us < 0:
            raise InvalidCharge(f"A holder wants 0 units or more, not {wanted} within {within_us} microseconds.")
        return None if wanted is None or not within_us else self.division.grains(wanted, within_us)


def checked(key: object, holder: object) -> None:
    for what, name in (("key", key), ("holder", holder)):
        if not isinstance(name, str) or not name:
            raise InvalidCharge(f"The {what} of an assignment is a text and not empty, not {name!r}.")


class Told:
    """Until when parts may be in use that this process has told, by key."""

    def __init__(self) -> None:
        self._table: StateTable[int] = StateTable()
        self._lock = Lock()
        on_fork(self.forget)

    def forget(self) -> None:
        """In a forked child: a new lock. What the parent told may be in use all the same, so it is kept."""
        self._lock = Lock()
        self._table.mend()

    def until_us(self, key: str) -> int:
        return self._table.states.get(key) or 0

    def note(self, key: str, until_us: int, now_us: int) -> None:
        with self._lock:
            self._table.put(key, max(until_us, self.until_us(key)), lambda _, end_us: end_us <= now_us)


class Begun(Locked, Protocol):
    """The embedded engine, as a ledger sees it: when it began, too."""

    born_us: int


class MemoryLedger(Dividing):
    """The embedded engine's ledgers of one limit."""

    def __init__(
        self,
        engine: Begun,
        table: StateTable[quota_grants.State],
        limit: Limit,
        name: str,
        ttl_us: int,
        grace_us: int,
    ) -> None:
        super().__init__(limit, name, ttl_us, grace_us)
        self._engine = engine
        self._table = table

    def assign(self, key: str, holder: str, wanted: int | None, within_us: int = 0) -> Assignment | None:
        wants = self.wants(key, holder, wanted, within_us)
        engine = self._engine
        with engine.lock:
            now_us = engine.clock.now_us()
            engine.born_us = min(engine.born_us, now_us)
            state = self._living(key, now_us)
            unknown_us = engine.born_us + self.live_us
            told, after = quota_grants.assign(
                self.division, state, now_us, holder, wants, self.ttl_us, self.grace_us, unknown_us
            )
            self._table.put(key, after, lambda _, old: quota_grants.dead_at_us(old) <= now_us)
        return told

    def leave(self, key: str, holder: str) -> None:
        checked(key, holder)
        with self._engine.lock:
            now_us = self._engine.clock.now_us()
            after = quota_grants.leave(self._living(key, now_us), now_us, holder)
            if after is not None:
                self._table.put(key, after, lambda _, old: quota_grants.dead_at_us(old) <= now_us)

    def _living(self, key: str, now_us: int) -> quota_grants.State | None:
        """The ledger, unless it is dead: a server would have dropped it."""
        state = self._table.states.get(key)
        return None if state is None or quota_grants.dead_at_us(state) <= now_us else state
