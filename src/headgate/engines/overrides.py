"""Overrides: limits that an operator sets for one key, in place of the rule's.

An override is stored beside the counts of its key and read by the decision itself, so it applies from the next
call on, in every process, and a hundred thousand of them cost nothing until their key is used. Limits match by
position: the first limit of an override replaces the rule's first, and so on, where both have the same algorithm.
Where they differ, and where the rule has more limits, the rule's limits apply; surplus limits of the override are
never used. The count goes on under the other limit, as it does when a rule changes.

A calendar window keeps its edges: an override of it replaces the amount only, and has no effect where the rule's
window is not a calendar window.

The stored form is one line for each limit: the arguments of the script, and the text that people read.

    token_bucket 1 100000 20|10/s burst 20
    calendar 7|7/month fixed in Asia/Shanghai
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from threading import Lock
from typing import Protocol

from headgate.algorithms.decision import Outcome, OverriddenOutcome
from headgate.algorithms.limit import Limit, check_microseconds
from headgate.algorithms.slots import Slots
from headgate.clock import Clock
from headgate.engines.memory.state_table import StateTable
from headgate.errors import InvalidCharge, InvalidRule
from headgate.limit_syntax import parse_all

Limits = tuple[Limit, ...]


def validate_override(key: object, text: object, ttl: object = None) -> tuple[str, Limits, int | None]:
    """Validates an override and returns its key, its limits and its life in microseconds."""
    if not isinstance(text, str):
        raise InvalidRule(f"An override is a limit's text, such as 10/minute; not {text!r}.")
    limits = parse_all(text)
    for limit in limits:
        if isinstance(limit, Slots):
            raise InvalidRule(f'"{limit}" is held, not taken: an override is a rate, such as 10/minute.')
    return validate_key(key), limits, None if ttl is None else check_microseconds("The life of an override", ttl)


def validate_key(key: object) -> str:
    """Validates the key of an override and returns it."""
    if not isinstance(key, str) or not key:
        raise InvalidCharge(f"An override belongs to a key, which is a text and not empty; not {key!r}.")
    return key


def join_limits(limits: Limits) -> str:
    """Joins limits to the text that people write."""
    return "; ".join(limit.text for limit in limits)


def overridden_outcome(outcome: Outcome, limit: Limit, text: str) -> Outcome:
    """Returns the outcome of a decision by an override of this text, where the rule says `limit`."""
    overridden = OverriddenOutcome(outcome)
    overridden.limit = limit.with_override(parse_all(text)[0]) or limit
    return overridden


def pack(limits: Limits) -> str:
    """Returns the stored form of limits."""
    return "\n".join(f"{limit.override_args}|{limit.text}" for limit in limits)


def unpack(packed: str) -> str:
    """Returns the limits' text of a stored override."""
    return "; ".join(line.partition("|")[2] for line in packed.split("\n"))


# Limits and when they expire; None: when they are unset.
StoredOverride = tuple[Limits, "int | None"]


class LockOwner(Protocol):
    """The in-memory engine, as its tables see it: a clock and a lock, which is replaced in a forked child."""

    clock: Clock
    lock: Lock


class MemoryOverrides:
    """The overrides of one rule in this process."""

    def __init__(self, engine: LockOwner, table: StateTable[StoredOverride]) -> None:
        self._engine, self._table, self._clock = engine, table, engine.clock

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        key, parsed, life_us = validate_override(key, limits, ttl)
        with self._engine.lock:
            now_us = self._clock.now_us()
            if absent and active_limits(self._table, key, now_us):
                return False
            entry = parsed, None if life_us is None else now_us + life_us
            self._table.put(key, entry, lambda _, old: old[1] is not None and old[1] <= now_us)
            return True

    def get(self, key: str) -> str | None:
        with self._engine.lock:
            limits = active_limits(self._table, validate_key(key), self._clock.now_us())
        return join_limits(limits) if limits else None

    def expires_in(self, key: str) -> float | None:
        """Returns the seconds until the override of a key ends by itself; None: it lasts, or there is none."""
        with self._engine.lock:
            entry, now_us = self._table.states.get(validate_key(key)), self._clock.now_us()
        if entry is None or entry[1] is None or entry[1] <= now_us:
            return None
        return (entry[1] - now_us) / 1_000_000

    def unset(self, key: str) -> bool:
        with self._engine.lock:
            existed = bool(active_limits(self._table, validate_key(key), self._clock.now_us()))
            self._table.delete(key)
        return existed

    def list(self, limit: int | None = None) -> Iterator[tuple[str, str]]:
        with self._engine.lock:
            keys = tuple(self._table.states)
        entries = ((key, self.get(key)) for key in keys)
        return islice(((key, text) for key, text in entries if text is not None), limit)


def active_limits(table: StateTable[StoredOverride], key: str, now_us: int) -> Limits:
    """Returns the limits that the key has now; empty: the rule's apply. The caller holds the lock."""
    entry = table.states.get(key)
    if entry is None or (entry[1] is not None and entry[1] <= now_us):
        return ()
    return entry[0]
