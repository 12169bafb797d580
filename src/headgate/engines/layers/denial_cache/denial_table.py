"""The table of the denial cache: refusals that can be repeated. Pure: the caller passes the time.

Refusals are immutable, and dict.get and reading or setting a list item are atomic: a call that may pass takes no
lock. Storing and repeating a refusal takes a short one.
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
    CachedOutcome,
    CrossSlotOutcome,
    DegradedOutcome,
    LockedOutcome,
    Outcome,
    OverriddenOutcome,
)
from headgate.algorithms.limit import EXACT, SECOND, Limit, check_whole
from headgate.engines.layers.denial_cache.recheck import RecheckTable

MAX_REPEAT_US = SECOND  # how long a refusal is repeated
_SWEEP_SIZE = 2  # old refusals examined for each new one
_GENERATION_SLOTS = 4096  # a power of two


# mypy takes two subclasses of one tuple for two tuples.
class CachedLockedOutcome(LockedOutcome, CachedOutcome):  # type: ignore[misc]
    """A repeated refusal of a charge whose rule is locked out."""

    __slots__ = ()


class CachedOverriddenOutcome(OverriddenOutcome, CachedOutcome):  # type: ignore[misc]
    """A repeated refusal under an override."""


class Denial(NamedTuple):
    """A cached refusal, of one charge or of several decided together."""

    limits: tuple[Limit, ...]
    costs: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    requested_us: int
    until_us: int
    key: str  # of the count that refuses longest: units given back to it end the refusal
    generation: object


class DenialIndex(dict[Any, Denial]):
    """The refusals of one name by key, or those of charges decided together by all their counts."""

    __slots__ = ("__weakref__", "rechecks")

    def __init__(self) -> None:
        super().__init__()
        self.rechecks: RecheckTable = {}  # by key, where callers ask again


class DenialTable:
    """The cached refusals of one process.

    Units given back to a key begin a new generation for it, and a refusal is valid only in the generation in which
    it was requested. So one assignment to a list item ends refusals, also one that was still on its way. Keys
    share a few thousand generations: sometimes a refusal ends because of another key, which costs one more
    request.
    """

    def __init__(self, entries: int = 10_000) -> None:
        self.entries: int = check_whole("The number of refusals to remember", entries)
        self.hits: int = 0
        self.combined: DenialIndex = DenialIndex()
        self.generations: list[object] = [object()] * _GENERATION_SLOTS
        self._indexes: WeakValueDictionary[tuple[str, str, bool], DenialIndex] = WeakValueDictionary()
        self._oldest_first: deque[tuple[DenialIndex, Hashable, Denial]] = deque()
        self._lock = Lock()

    def index_for(self, limit: Limit, name: str, locks: bool = False) -> DenialIndex:
        """Returns the index of refusals of this name. A rule with a lockout has its own: it may not repeat what
        others may."""
        with self._lock:
            return self._indexes.setdefault((limit.algorithm, name, locks), DenialIndex())

    def generation(self, key: str) -> object:
        return self.generations[hash(key) % _GENERATION_SLOTS]

    def invalidate(self, key: str) -> None:
        """Ends every refusal that is filed under this key."""
        self.generations[hash(key) % _GENERATION_SLOTS] = object()

    @contextmanager
    def invalidating(self, key: str) -> Iterator[None]:
        """Ends the refusals of a key after a change to it: even a change that failed may have been made."""
        try:
            yield
        finally:
            self.invalidate(key)

    def lookup(
        self,
        index: DenialIndex,
        index_key: Hashable,
        limits: tuple[Limit, ...],
        costs: tuple[int, ...],
        now_us: int,
    ) -> list[Outcome] | None:
        """Returns the refusal of these charges, aged to now, if a valid one is cached."""
        denial = index.get(index_key)
        if denial is None:
            return None
        if denial.limits != limits:
            self.invalidate(denial.key)
        if denial.until_us <= now_us or self.generation(denial.key) is not denial.generation:
            with self._lock:
                _discard(index, index_key, denial)
            return None
        return self.repeat(denial, costs, now_us)

    def repeat(self, denial: Denial, costs: tuple[int, ...], now_us: int) -> list[Outcome] | None:
        """Returns a refusal, aged to now; None if it does not answer these costs."""
        if now_us < denial.requested_us or any(map(lt, costs, denial.costs)):
            return None
        with self._lock:
            self.hits += 1
        return [_age(outcome, now_us - denial.requested_us) for outcome in denial.outcomes]

    def store(
        self,
        index: DenialIndex,
        index_key: Hashable,
        charges: Sequence[tuple[Limit, str, int]],
        outcomes: Sequence[Outcome],
        requested_us: int,
        generations: Sequence[object],
    ) -> None:
        """Caches the outcomes if they are a refusal; the generations are those of the keys before the request."""
        refusals = [position for position, outcome in enumerate(outcomes) if not outcome[ALLOWED]]
        if not refusals or any(isinstance(outcome, DegradedOutcome) for outcome in outcomes):
            return
        longest = max(refusals, key=lambda position: _wait_us(outcomes[position]))
        limits, keys, costs = zip(*charges, strict=True)
        until_us = requested_us + min(_wait_us(outcomes[longest]), MAX_REPEAT_US)
        if until_us <= requested_us:
            return
        denial = Denial(
            limits, costs, tuple(outcomes), requested_us, until_us, keys[longest], generations[longest]
        )
        with self._lock:
            self._oldest_first.append((index, index_key, denial))
            index[index_key] = denial
            self._evict(requested_us)

    def _evict(self, now_us: int) -> None:
        """Drops the oldest refusals that are dead or too many."""
        queue = self._oldest_first
        for _ in range(_SWEEP_SIZE):
            index, index_key, denial = queue[0]
            if len(queue) <= self.entries and index.get(index_key) is denial and now_us < denial.until_us:
                break
            _discard(index, index_key, denial)
            queue.popleft()

    def reset(self) -> None:
        """Drops everything, and makes a new lock."""
        self._lock = Lock()
        self._oldest_first.clear()
        for index in (self.combined, *self._indexes.values()):
            index.clear()
            index.rechecks = {}
        self.generations[:] = [object()] * _GENERATION_SLOTS
        self.hits = 0

    def __len__(self) -> int:
        """Returns how many refusals are stored, including dead ones that have not been evicted yet."""
        return len(self._oldest_first)


def _wait_us(outcome: Outcome) -> int:
    wait_us = outcome[RETRY_AFTER_US]
    return EXACT if wait_us is None else wait_us


def _age(outcome: Outcome, elapsed_us: int) -> Outcome:
    """Returns the same outcome some time later."""
    wait_us = outcome[RETRY_AFTER_US]
    if wait_us is not None and not outcome[ALLOWED]:
        wait_us = max(1, wait_us - elapsed_us)
    reset_us = max(0, outcome[RESET_AFTER_US] - elapsed_us)
    later = (
        outcome[ALLOWED],
        outcome[REMAINING],
        wait_us,
        reset_us,
        outcome[DELAY_US],
        outcome[AT_US] + elapsed_us,
        outcome[MARK],
    )
    if type(outcome) is tuple:  # most are
        return CachedOutcome(later)
    if isinstance(outcome, OverriddenOutcome):
        aged = CachedOverriddenOutcome(later)
        aged.limit = outcome.limit
        return aged
    if isinstance(outcome, CrossSlotOutcome):
        return type(outcome)(later)
    return CachedLockedOutcome(later) if isinstance(outcome, LockedOutcome) else CachedOutcome(later)


def _discard(index: DenialIndex, index_key: Hashable, denial: Denial) -> None:
    if index.get(index_key) is denial:
        del index[index_key]
