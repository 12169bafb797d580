"""Limits of a key's own: what an operator sets for one tenant, in place of the rule's.

An override is kept beside the counts of its key and read by the decision itself, so it holds from the next call
on, in every process, and a hundred thousand of them cost nothing until their key is asked about. By position:
its first limit takes the place of the rule's first, and so on, where both are of one algorithm. Where they are
not, and where the rule has more limits, the rule's own stay; where the override has more, nobody asks for them.
The count goes on under the other limit, as it does when a rule changes.

A window of somebody's calendar keeps its edges: an override of it replaces the amount only, and nothing where the
rule's window is not the calendar's.

Stored is a line for each limit: what the script needs, and the text that people read.

    token_bucket 1 100000 20|10/s burst 20
    calendar 7|7/month fixed in Asia/Shanghai
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from threading import Lock
from typing import Protocol

from headgate.algorithms.decision import Outcome, OverriddenOutcome
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import Limit, microseconds
from headgate.algorithms.slots import Slots
from headgate.clock import Clock
from headgate.engines.memory.state_table import StateTable
from headgate.errors import InvalidCharge, InvalidRule
from headgate.limit_syntax import parse_all

Limits = tuple[Limit, ...]


def checked(key: object, text: object, ttl: object = None) -> tuple[str, Limits, int | None]:
    """The key, its limits and their life in microseconds; a sentence for whatever cannot be."""
    if not isinstance(text, str):
        raise InvalidRule(f"An override is a limit's text, such as 10/minute; not {text!r}.")
    limits = parse_all(text)
    for limit in limits:
        if isinstance(limit, Slots):
            raise InvalidRule(f'"{limit}" is held, not taken: an override is a rate, such as 10/minute.')
    return checked_key(key), limits, None if ttl is None else microseconds("The life of an override", ttl)


def checked_key(key: object) -> str:
    if not isinstance(key, str) or not key:
        raise InvalidCharge(f"An override belongs to a key, which is a text and not empty; not {key!r}.")
    return key


def joined(limits: Limits) -> str:
    """As people write them."""
    return "; ".join(limit.text for limit in limits)


def instead(limit: Limit, own: Limit) -> Limit | None:
    """What decides if the key has `own` where the rule says `limit`; None: what the rule says."""
    if own.algorithm != limit.algorithm:
        return None
    if not isinstance(own, FixedWindow) or own.unit is None:
        return own
    if not isinstance(limit, FixedWindow) or limit.unit is None:
        return None
    if (own.unit, own.zone) == (limit.unit, limit.zone):
        return own
    return FixedWindow(own.amount, limit.unit, limit.zone)


def told(facts: Outcome, limit: Limit, text: str) -> Outcome:
    """Outcome that were decided by an override of this text, where the rule says `limit`."""
    found = OverriddenOutcome(facts)
    found.limit = instead(limit, parse_all(text)[0]) or limit
    return found


def pack(limits: Limits) -> str:
    return "\n".join(_line(limit) for limit in limits)


def _line(limit: Limit) -> str:
    if isinstance(limit, FixedWindow) and limit.unit is not None:
        return f"calendar {limit.amount}|{limit.text}"
    return f"{limit.algorithm} {' '.join(map(str, limit.args))}|{limit.text}"


def unpack(stored: str) -> str:
    """The limits' text of what is stored."""
    return "; ".join(line.partition("|")[2] for line in stored.split("\n"))


# Limits, and until when they hold; None: until they are unset.
Kept = tuple[Limits, "int | None"]


class Locked(Protocol):
    """The embedded engine, as its tables see it: a clock, and the lock, which is another one in a forked child."""

    clock: Clock
    lock: Lock


class MemoryOverrides:
    """The overrides of one rule in this process."""

    def __init__(self, engine: Locked, table: StateTable[Kept]) -> None:
        self._engine, self._table, self._clock = engine, table, engine.clock

    def set(self, key: str, limits: str, *, absent: bool = False, ttl: float | None = None) -> bool:
        key, found, life_us = checked(key, limits, ttl)
        with self._engine.lock:
            now_us = self._clock.now_us()
            if absent and of(self._table, key, now_us):
                return False
            kept = found, None if life_us is None else now_us + life_us
            self._table.put(key, kept, lambda _, old: old[1] is not None and old[1] <= now_us)
            return True

    def get(self, key: str) -> str | None:
        with self._engine.lock:
            limits = of(self._table, checked_key(key), self._clock.now_us())
        return joined(limits) if limits else None

    def unset(self, key: str) -> bool:
        with self._engine.lock:
            there = bool(of(self._table, checked_key(key), self._clock.now_us()))
            self._table.forget(key)
        return there

    def list(self, limit: int | None = None) -> Iterator[tuple[str, str]]:
        with self._engine.lock:
            keys = tuple(self._table.states)
        known = ((key, self.get(key)) for key in keys)
        return islice(((key, text) for key, text in known if text is not None), limit)


def of(table: StateTable[Kept], key: str, now_us: int) -> Limits:
    """The limits that the key has now; none: the rule's. The caller holds the lock."""
    kept = table.states.get(key)
    if kept is None or (kept[1] is not None and kept[1] <= now_us):
        return ()
    return kept[0]
