"""Refusals that are remembered: the denial cache's table. Pure: what time it is, it is told.

Refusals never change, dict.get and the reading and setting of a list's item are atomic: what may pass takes no
lock. Keeping and repeating a refusal takes a short one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from operator import lt
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from headgate.algorithms.decision import (
    ALLOWED,
    AT_US,
    DELAY_US,
    MARK,
    REMAINING,
    RESET_AFTER_US,
    RETRY_AFTER_US,
    CrossSlotOutcome,
    DegradedOutcome,
    LockedOutcome,
    Outcome,
    OverriddenOutcome,
)
from headgate.algorithms.limit import EXACT, SECOND, Limit, whole

LONGEST_US = SECOND  # that a refusal is repeated without asking
_LOOKED_AT = 2  # old refusals examined for each new one
_ERAS = 4096  # a power of two


class Denial(NamedTuple):
    """A refusal as it was given: one charge, or several together."""

    limits: tuple[Limit, ...]
    costs: tuple[int, ...]
    facts: tuple[Outcome, ...]
    asked_us: int
    until_us: int
    key: str  # of the count that refuses longest: what is given back to it ends the refusal
    era: object


class Drawer(dict[Any, Denial]):
    """The refusals of one name by key, or those of charges decided together by all their counts."""

    __slots__ = ("__weakref__",)


class DenialTable:
    """The table.

    Whatever is given back to a key begins a new era for it, and a refusal holds only in the era in which it was
    asked for. So to end refusals is to set one item, and one that was still on its way is ended too. Keys share a
    few thousand eras: sometimes a refusal ends for another key's sake, which costs one more question.
    """

    def __init__(self, entries: int = 10_000) -> None:
        self.entries: int = whole("The number of refusals to remember", entries)
        self.answered: int = 0
        self.together: Drawer = Drawer()
        self.eras: list[object] = [object()] * _ERAS
        self._drawers: WeakValueDictionary[tuple[str, str, bool], Drawer] = WeakValueDictionary()
        self._oldest_first: deque[tuple[Drawer, Hashable, Denial]] = deque()
        self._lock = Lock()

    def drawer(self, limit: Limit, name: str, locks: bool = False) -> Drawer:
        """Where the refusals of this name lie. Those of a rule with a lockout lie apart: what others may repeat,
        it may not."""
        with self._lock:
            return self._drawers.setdefault((limit.algorithm, name, locks), Drawer())

    def era(self, key: str) -> object:
        return self.eras[hash(key) % _ERAS]

    def drop(self, key: str) -> None:
        """End every refusal that is filed under this key."""
        self.eras[hash(key) % _ERAS] = object()

    @contextmanager
    def ends(self, key: str) -> Iterator[None]:
        """Around what gives back to a key: even where it fails, it may have been done."""
        try:
            yield
        finally:
            self.drop(key)

    def recall(
        self, drawer: Drawer, place: Hashable, limits: tuple[Limit, ...], costs: tuple[int, ...], now_us: int
    ) -> list[Outcome] | None:
        """The refusal of these charges as it stands now, if one holds."""
        held = drawer.get(place)
        if held is None:
            return None
        if held.limits != limits:
            self.drop(held.key)
        if held.until_us <= now_us or self.era(held.key) is not held.era:
            with self._lock:
                _discard(drawer, place, held)
            return None
        if now_us < held.asked_us or any(map(lt, costs, held.costs)):
            return None
        with self._lock:
            self.answered += 1
        return [_aged(facts, now_us - held.asked_us) for facts in held.facts]

    def remember(
        self,
        drawer: Drawer,
        place: Hashable,
        charges: Sequence[tuple[Limit, str, int]],
        facts: Sequence[Outcome],
        asked_us: int,
        eras: Sequence[object],
    ) -> None:
        """Keep a refusal, if it is one; the eras are those of the charges' keys before they were asked."""
        refused = [i for i, one in enumerate(facts) if not one[ALLOWED]]
        if not refused or any(isinstance(one, DegradedOutcome) for one in facts):
            return
        longest = max(refused, key=lambda i: _wait_us(facts[i]))
        limits, keys, costs = zip(*charges, strict=True)
        until_us = asked_us + min(_wait_us(facts[longest]), LONGEST_US)
        if until_us <= asked_us:
            return
        denial = Denial(limits, costs, tuple(facts), asked_us, until_us, keys[longest], eras[longest])
        with self._lock:
            self._oldest_first.append((drawer, place, denial))
            drawer[place] = denial
            self._let_go(asked_us)

    def _let_go(self, now_us: int) -> None:
        queue = self._oldest_first
        for _ in range(_LOOKED_AT):
            drawer, place, denial = queue[0]
            if len(queue) <= self.entries and drawer.get(place) is denial and now_us < denial.until_us:
                break
            _discard(drawer, place, denial)
            queue.popleft()

    def forget(self) -> None:
        """As new, with a lock that nobody holds."""
        self._lock = Lock()
        self._oldest_first.clear()
        for drawer in (self.together, *self._drawers.values()):
            drawer.clear()
        self.eras[:] = [object()] * _ERAS
        self.answered = 0

    def __len__(self) -> int:
        """How many refusals are kept, dead ones that have not left yet among them."""
        return len(self._oldest_first)


def _wait_us(facts: Outcome) -> int:
    wait_us = facts[RETRY_AFTER_US]
    return EXACT if wait_us is None else wait_us


def _aged(facts: Outcome, by_us: int) -> Outcome:
    """The same facts some time later."""
    wait_us = facts[RETRY_AFTER_US]
    if wait_us is not None and not facts[ALLOWED]:
        wait_us = max(1, wait_us - by_us)
    reset_us = max(0, facts[RESET_AFTER_US] - by_us)
    later = facts[ALLOWED], facts[REMAINING], wait_us, reset_us, facts[DELAY_US], facts[AT_US] + by_us, facts[MARK]
    if isinstance(facts, OverriddenOutcome):
        told = OverriddenOutcome(later)
        told.limit = facts.limit
        return told
    return type(facts)(later) if isinstance(facts, CrossSlotOutcome | LockedOutcome) else later


def _discard(drawer: Drawer, place: Hashable, denial: Denial) -> None:
    if drawer.get(place) is denial:
        del drawer[place]
