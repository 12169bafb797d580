"""What a process holds of hot keys: how they are asked, and what is left of what was fetched ahead."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import Any

from headgate.algorithms.decision import AT_US, MARK, REMAINING, RESET_AFTER_US, Outcome, Receipt
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.token_bucket import TokenBucket

HOT = 4  # asked so often during one hold time, a key is hot

_REMEMBERED = 4096  # keys of a name whose demand is known
_TRAY = 64  # units laid out at once
_LOOKED_AT = 2  # old keys examined for each new one


def bound(limit: Limit, units: int | None = None) -> int:
    """How many units of a key one process holds at most: U. None are held of a limit that paces its calls."""
    if isinstance(limit, TokenBucket):
        capacity = limit.burst
    elif isinstance(limit, FixedWindow | SlidingWindow | SlidingLog):
        capacity = limit.amount
    else:
        return 0
    return max(1, capacity // 10) if units is None else units


class Demand:
    """How a key was asked lately: this hold time, the one before it, and what the last answer left."""

    __slots__ = ("calls", "moving", "past_calls", "past_units", "remaining", "seen_us", "start_us", "units")

    start_us: int
    seen_us: int
    calls: int
    units: int
    past_calls: int
    past_units: int
    remaining: int

    def __init__(self, now_us: int) -> None:
        self.start_us = self.seen_us = now_us
        self.calls = self.units = self.past_calls = self.past_units = self.remaining = 0
        self.moving: int = 0  # orders on their way out or back

    def note(self, now_us: int, hold_us: int, units: int) -> None:
        if not 0 <= now_us - self.seen_us < hold_us:  # quiet for so long, or the clock stepped back
            self.start_us = now_us
            self.calls = self.units = self.past_calls = self.past_units = 0
        elif (elapsed_us := now_us - self.start_us) >= hold_us:
            self.start_us = now_us
            self.past_calls = self.calls * hold_us // elapsed_us
            self.past_units = self.units * hold_us // elapsed_us
            self.calls = self.units = 0
        self.seen_us = now_us
        self.calls += 1
        self.units += units

    def add(self, calls: int, units: int, until_us: int) -> None:
        """Calls that were handed out from stock until then."""
        if calls:
            self.calls += calls
            self.units += units
            self.seen_us = max(self.seen_us, until_us)

    def lately(self, hold_us: int) -> tuple[int, int]:
        """Calls and units of the last hold time, as of the call that was noted last."""
        share_us = max(0, hold_us - (self.seen_us - self.start_us))
        return (
            self.calls + self.past_calls * share_us // hold_us,
            self.units + self.past_units * share_us // hold_us,
        )


class PrefetchedUnits:
    """The extra units of one order, and what is left of them.

    Some are laid out on a tray, each as the facts of the call that will take it. list.pop is atomic, so whoever
    takes one unit takes it without a lock; all else about a stock is done under the lock of `leases`.
    """

    __slots__ = (
        *("at_us", "calls", "demand", "end_us", "extra", "key", "left", "mark", "meter", "rate"),
        *("receipt", "shelf", "since_ns", "since_us", "spread", "told", "tray", "until_ns", "until_us"),
    )

    since_us: int
    until_us: int
    since_ns: int
    until_ns: int
    extra: int
    left: int
    told: int
    at_us: int
    end_us: int
    mark: int
    spread: int
    rate: int

    def __init__(
        self, meter: Any, key: str, facts: Outcome, cost: int, extra: int, shelf: Shelf, demand: Demand
    ) -> None:
        self.meter: Any = meter
        self.key: str = key
        self.shelf: Shelf = shelf
        self.demand: Demand = demand
        self.since_us = self.until_us = self.since_ns = self.until_ns = 0
        self.extra = self.left = extra  # left: those on the tray are not
        self.tray: list[Outcome] = []
        self.calls: int = 0
        self.receipt: Receipt = Receipt.of(facts, cost + extra)
        self.told, self.at_us = facts[REMAINING], facts[AT_US]
        self.end_us, self.mark = facts[RESET_AFTER_US], facts[MARK]
        self.spread, self.rate = 0, 1
        if isinstance(meter.limit, TokenBucket):
            # A unit's water ends where that of the units after it begins. The part of a microsecond in the mark is
            # left out: that is to the safe side.
            self.spread, self.rate = meter.limit.period_us, meter.limit.amount
            part = self.mark % self.rate
            self.end_us, self.mark = self.end_us - (part > 0), self.mark - part

    @property
    def on_shelf(self) -> bool:
        return self.shelf.stocks.get(self.key) is self

    def last(self, since_us: int, until_us: int) -> None:
        self.since_us, self.until_us = since_us, until_us
        self.since_ns, self.until_ns = since_us * 1000, until_us * 1000

    def lasts(self, now_us: int) -> bool:
        return self.since_us <= now_us < self.until_us  # a clock that stepped back behind a stock ends it

    @property
    def held(self) -> int:
        return self.left + len(self.tray)

    def lay_out(self) -> None:
        """Units onto the tray, which is empty."""
        count = min(_TRAY, self.left)
        self.left -= count
        self.calls += count
        told, at_us, mark = self.told, self.at_us, self.mark
        end_us, spread, rate = self.end_us, self.spread, self.rate
        # As facts() has them, without so many calls.
        self.tray += [
            (True, told + left, 0, end_us + -left * spread // rate, 0, at_us, mark)
            for left in range(self.left, self.left + count)
        ]

    def clear(self) -> None:
        """What is on the tray goes back."""
        with suppress(IndexError):  # the tray is empty
            while True:
                self.tray.pop()
                self.left += 1
                self.calls -= 1

    def facts(self, left: int) -> Outcome:
        """The facts of the call after which so many units are left."""
        return True, self.told + left, 0, self.end_us + -left * self.spread // self.rate, 0, self.at_us, self.mark


class Shelf:
    """What is known and held of the keys of one name."""

    __slots__ = ("__weakref__", "demands", "stocks")

    def __init__(self) -> None:
        self.stocks: dict[str, PrefetchedUnits] = {}
        self.demands: OrderedDict[str, Demand] = OrderedDict()

    def demand(self, key: str, now_us: int) -> Demand:
        """The key's, newest last. A new one makes the shelf look at the two oldest, once it is full."""
        demands = self.demands
        known = demands.get(key)
        if known is not None:
            demands.move_to_end(key)
            return known
        for _ in range(min(_LOOKED_AT, len(demands) - _REMEMBERED + 1)):
            old, quiet = demands.popitem(last=False)
            if quiet.moving or old in self.stocks:
                demands[old] = quiet
        known = demands[key] = Demand(now_us)
        return known
