"""The units of hot keys that a process holds: the recent demand for each key, and what is left of each fetch."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import Any

from headgate.algorithms.decision import (
    AT_US,
    MARK,
    REMAINING,
    RESET_AFTER_US,
    Outcome,
    PrefetchedOutcome,
    Receipt,
)
from headgate.algorithms.limit import Limit

HOT_CALLS = 4  # a key with so many calls during one hold time is hot
MIN_WAKE_US = 1000  # a batch is given back at most so much late

_MAX_DEMANDS = 4096  # keys of a name whose demand is tracked
_READY_BATCH = 64  # units prepared at once
_SWEEP_SIZE = 2  # old keys examined for each new one


def max_prefetch(limit: Limit, units: int | None = None) -> int:
    """Returns how many units of a key one process holds at most: U. It is 0 for a limit that paces its calls."""
    if not limit.prefetchable:
        return 0
    return max(1, limit.units_at_once // 10) if units is None else units


class Demand:
    """The recent demand for a key: this hold time, the one before it, and what the last answer left."""

    __slots__ = (
        "calls",
        "in_transit",
        "last_call_us",
        "past_calls",
        "past_units",
        "remaining",
        "start_us",
        "units",
    )

    start_us: int
    last_call_us: int
    calls: int
    units: int
    past_calls: int
    past_units: int
    remaining: int

    def __init__(self, now_us: int) -> None:
        self.start_us = self.last_call_us = now_us
        self.calls = self.units = self.past_calls = self.past_units = self.remaining = 0
        self.in_transit: int = 0  # fetches and returns on their way

    def note(self, now_us: int, hold_us: int, units: int) -> None:
        """Counts a call that was not served from prefetched units."""
        if not 0 <= now_us - self.last_call_us < hold_us:  # quiet for so long, or the clock stepped back
            self.start_us = now_us
            self.calls = self.units = self.past_calls = self.past_units = 0
        elif (elapsed_us := now_us - self.start_us) >= hold_us:
            self.start_us = now_us
            self.past_calls = self.calls * hold_us // elapsed_us
            self.past_units = self.units * hold_us // elapsed_us
            self.calls = self.units = 0
        self.last_call_us = now_us
        self.calls += 1
        self.units += units

    def add(self, calls: int, units: int, until_us: int) -> None:
        """Adds calls that prefetched units served until then."""
        if calls:
            self.calls += calls
            self.units += units
            self.last_call_us = max(self.last_call_us, until_us)

    def recent(self, hold_us: int) -> tuple[int, int]:
        """Returns the calls and units of the last hold time, as of the last call noted."""
        past_us = max(0, hold_us - (self.last_call_us - self.start_us))
        return (
            self.calls + self.past_calls * past_us // hold_us,
            self.units + self.past_units * past_us // hold_us,
        )


class PrefetchedUnits:
    """The extra units of one fetch, and what is left of them.

    Some are prepared in `ready`, each as the outcome of the call that will take it. list.pop is atomic, so a call
    takes one unit without a lock; everything else is done under the lock of HotKeys.
    """

    __slots__ = (
        *("at_us", "base_remaining", "base_reset_us", "calls", "demand", "drain_units", "drain_us", "extra"),
        *("key", "mark", "meter", "ready", "receipt", "since_ns", "since_us", "table", "unready"),
        *("until_ns", "until_us"),
    )

    since_us: int
    until_us: int
    since_ns: int
    until_ns: int
    extra: int
    unready: int
    base_remaining: int
    at_us: int
    base_reset_us: int
    mark: int
    drain_us: int
    drain_units: int

    def __init__(
        self, meter: Any, key: str, outcome: Outcome, cost: int, extra: int, table: PrefetchTable, demand: Demand
    ) -> None:
        self.meter: Any = meter
        self.key: str = key
        self.table: PrefetchTable = table
        self.demand: Demand = demand
        self.since_us = self.until_us = self.since_ns = self.until_ns = 0
        self.extra = self.unready = extra  # unready: those in `ready` are not counted
        self.ready: list[Outcome] = []
        self.calls: int = 0
        self.receipt: Receipt = Receipt.from_outcome(outcome, cost + extra)
        self.base_remaining, self.at_us = outcome[REMAINING], outcome[AT_US]
        self.base_reset_us, self.mark = outcome[RESET_AFTER_US], outcome[MARK]
        self.drain_us, self.drain_units = meter.limit.unit_drain
        if self.drain_us:
            # A unit's water ends where that of the units after it begins. The part of a microsecond in the mark is
            # left out, which errs on the safe side.
            part = self.mark % self.drain_units
            self.base_reset_us, self.mark = self.base_reset_us - (part > 0), self.mark - part

    @property
    def is_held(self) -> bool:
        return self.table.batches.get(self.key) is self

    def set_lifetime(self, since_us: int, until_us: int) -> None:
        """Sets the time for which the units may be used."""
        self.since_us, self.until_us = since_us, until_us
        self.since_ns, self.until_ns = since_us * 1000, until_us * 1000

    def is_valid(self, now_us: int) -> bool:
        """Returns whether the units may be used now. A clock that stepped back to before the fetch ends them."""
        return self.since_us <= now_us < self.until_us

    @property
    def units_held(self) -> int:
        return self.unready + len(self.ready)

    def fill_ready(self, marks_outcomes: bool) -> None:
        """Prepares outcomes of single units. The caller has emptied `ready`."""
        count = min(_READY_BATCH, self.unready)
        self.unready -= count
        self.calls += count
        remaining, at_us, mark = self.base_remaining, self.at_us, self.mark
        reset_us, drain_us, drain_units = self.base_reset_us, self.drain_us, self.drain_units
        # As outcome() has them, without so many calls.
        outcomes: list[Outcome] = [
            (True, remaining + units_left, 0, reset_us + -units_left * drain_us // drain_units, 0, at_us, mark)
            for units_left in range(self.unready, self.unready + count)
        ]
        self.ready += map(PrefetchedOutcome, outcomes) if marks_outcomes else outcomes

    def take_back_ready(self) -> None:
        """Empties `ready` and counts its units as unready again."""
        with suppress(IndexError):  # it is empty
            while True:
                self.ready.pop()
                self.unready += 1
                self.calls -= 1

    def outcome(self, units_left: int) -> Outcome:
        """Returns the outcome of the call after which so many units are left."""
        return (
            True,
            self.base_remaining + units_left,
            0,
            self.base_reset_us + -units_left * self.drain_us // self.drain_units,
            0,
            self.at_us,
            self.mark,
        )


class PrefetchTable:
    """The demand and the prefetched units of the keys of one name."""

    __slots__ = ("__weakref__", "batches", "demand_by_key")

    def __init__(self) -> None:
        self.batches: dict[str, PrefetchedUnits] = {}
        self.demand_by_key: OrderedDict[str, Demand] = OrderedDict()

    def demand(self, key: str, now_us: int) -> Demand:
        """Returns the demand for a key, newest last. Once the table is full, a new key makes it examine the two
        oldest."""
        demand_by_key = self.demand_by_key
        demand = demand_by_key.get(key)
        if demand is not None:
            demand_by_key.move_to_end(key)
            return demand
        for _ in range(min(_SWEEP_SIZE, len(demand_by_key) - _MAX_DEMANDS + 1)):
            old, idle_demand = demand_by_key.popitem(last=False)
            if idle_demand.in_transit or old in self.batches:
                demand_by_key[old] = idle_demand
        demand = demand_by_key[key] = Demand(now_us)
        return demand
