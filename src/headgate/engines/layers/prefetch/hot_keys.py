"""Who hands out the units of hot keys, fetches them ahead and gives them back.

The steps behind lease.py, where the story and the law stand. It knows no engine: what has to be asked it yields as
steps, so the sync and the async engine drive the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakSet

from headgate.algorithms.decision import ALLOWED, REMAINING, RESET_AFTER_US, Outcome, Receipt
from headgate.algorithms.limit import whole
from headgate.clock import Clock, nanoseconds
from headgate.engines.layers.prefetch.prefetched_units import HOT, Demand, PrefetchedUnits, Shelf, bound
from headgate.errors import CorruptState, EngineUnavailable
from headgate.flow import Flow


class HotKeys:
    """All that one engine holds, in the order in which it ends."""

    def __init__(self) -> None:
        self._shelves: WeakSet[Shelf] = WeakSet()
        self._number = count()  # no two dues are alike
        self.forget()

    def forget(self) -> None:
        self.lock: Lock = Lock()
        self._handed_out = 0
        self.lost: int = 0
        self._dues: list[tuple[int, int, PrefetchedUnits]] = []
        for shelf in self._shelves:
            shelf.stocks.clear()
            shelf.demands.clear()

    def shelf(self) -> Shelf:
        shelf = Shelf()
        self._shelves.add(shelf)
        return shelf

    def put(self, stock: PrefetchedUnits, since_us: int, hold_us: int) -> bool:
        """On the shelf, until it ends; whether it is there. The caller holds the lock."""
        if stock.shelf.demands.get(stock.key) is not stock.demand:
            # The key was reset meanwhile, before or after this charge: nobody knows.
            self.lost += stock.extra
            return False
        stock.last(since_us, since_us + min(hold_us, stock.receipt.reset_after_us))
        stock.shelf.stocks[stock.key] = stock
        heapq.heappush(self._dues, (stock.until_us, next(self._number), stock))
        return True

    @property
    def held(self) -> int:
        """Stocks that are still to end; those that were used up before their time are among them."""
        return len(self._dues)

    def next_is(self, stock: PrefetchedUnits) -> bool:
        return bool(self._dues) and self._dues[0][-1] is stock

    def end(self, shelf: Shelf, key: str, now_us: int) -> PrefetchedUnits | None:
        """Off the shelf; the stock, if there is anything to give back. The caller holds the lock."""
        stock = shelf.stocks.pop(key, None)
        if stock is None:
            return None
        stock.clear()
        used = max(0, stock.extra - stock.left)
        self._handed_out += used
        stock.demand.add(stock.calls, used, min(now_us, stock.until_us))
        if not stock.left or now_us >= stock.since_us + stock.receipt.reset_after_us:
            return None  # nothing is left, or it ended with the count that it was charged to
        stock.demand.moving += 1
        return stock

    def ended(self, now_us: int, *, closing: bool = False) -> list[PrefetchedUnits]:
        """What has to be given back at this instant: what has expired, or all there is."""
        ended, dues = [], self._dues
        with self.lock:
            while dues and (closing or not dues[0][-1].lasts(now_us)):
                stock = heapq.heappop(dues)[-1]
                if stock.on_shelf and self.end(stock.shelf, stock.key, now_us):
                    ended.append(stock)
        return ended

    def give_back(self, stock: PrefetchedUnits) -> Flow[None]:
        """What is left of a stock that was ended. No answer is no caller's error: the limit refills by itself."""
        try:
            yield partial(stock.meter.refund, stock.key, stock.left, stock.receipt)
        except BaseException as error:
            with self.lock:
                self.lost += stock.left
            if not isinstance(error, CorruptState | EngineUnavailable):
                raise
        finally:
            with self.lock:
                stock.demand.moving -= 1

    def due_us(self, now_us: int) -> int | None:
        """How long until the next stock ends, if there is one."""
        with self.lock:
            if not self._dues:
                return None
            until_us, _, stock = self._dues[0]
            return min(until_us - stock.since_us, max(0, until_us - now_us))  # the clock may have stepped back

    @property
    def leased(self) -> int:
        """Units handed out from stock."""
        with self.lock:
            held = [stock for *_, stock in self._dues if stock.on_shelf]
            return self._handed_out + sum(max(0, stock.extra - stock.held) for stock in held)


class Hold(NamedTuple):
    """How long units may be held, and how many at most; a tenth of what the limit holds at once unless given."""

    us: int
    units: int | None

    @classmethod
    def checked(cls, us: int, units: int | None) -> Hold:
        whole("The time that prefetched units are held, in microseconds,", us)
        return cls(us, None if units is None else whole("The number of prefetched units", units))


class Counter:
    """Where the units of one limit are handed out. The clock, `ready`, `watch` and `unbroken` are the shell's:
    whether somebody can see to it that a stock ends in time, who does, and who drives a flow to its end, even if
    the caller leaves meanwhile."""

    def __init__(
        self,
        leases: HotKeys,
        shelf: Shelf,
        meter: Any,
        hold: Hold,
        clock: Clock,
        ready: Callable[[], bool],
        watch: Callable[[PrefetchedUnits], Any],
        unbroken: Callable[[Flow[Outcome]], Any],
    ) -> None:
        self.leases: HotKeys = leases
        self.shelf: Shelf = shelf
        self.meter: Any = meter
        self._now, self._now_ns = clock.now_us, nanoseconds(clock)
        self._ready, self._watch, self._unbroken = ready, watch, unbroken
        self._hold_us, self._bound = hold.us, bound(meter.limit, hold.units)

    def or_else(self, otherwise: Callable[[str, int, int | None], Any]) -> Callable[..., Any]:
        """The busiest way of all, as a closure: the facts of what is in stock, if that is enough."""
        meter, in_stock, now, from_stock = self.meter, self.shelf.stocks.get, self._now_ns, self._from_stock

        def decide(key: str, cost: int, patience_us: int | None = None) -> Any:
            if patience_us is None and cost:
                stock = in_stock(key)
                if stock is not None and stock.since_ns <= now() < stock.until_ns and stock.meter is meter:
                    if cost == 1 and stock.tray:
                        try:
                            return stock.tray.pop()
                        except IndexError:
                            pass  # another thread was faster
                    facts = from_stock(key, cost)
                    if facts is not None:
                        return facts
            return otherwise(key, cost, patience_us)

        return decide

    def _from_stock(self, key: str, cost: int) -> Outcome | None:
        """What the tray does not hold, or does not hold any more."""
        with self.leases.lock:
            stock = self.shelf.stocks.get(key)
            if stock is None or not self._usable(stock, self._now()):
                return None
            stock.clear()
            if stock.left < cost:
                return None
            stock.left -= cost
            stock.calls += 1
            facts = stock.facts(stock.left)
            if cost == 1:
                stock.lay_out()
            return facts

    def take(self, key: str, cost: int) -> Flow[Outcome]:
        """What is not in stock: ask for it, and for more if the key is hot."""
        leases, shelf, now_us = self.leases, self.shelf, self._now()
        with leases.lock:
            demand = shelf.demand(key, now_us)
            stock = shelf.stocks.get(key)
            # Another thread may have put one there a moment ago.
            enough = stock is not None and self._usable(stock, now_us) and stock.held >= cost
            old = None if enough else leases.end(shelf, key, now_us)
            demand.note(now_us, self._hold_us, cost)
        if old:
            yield from leases.give_back(old)
        with leases.lock:
            extra = self._extra(key, demand, cost)
            demand.moving += extra > 0
        if extra and not self._ready():
            extra = 0
            with leases.lock:
                demand.moving -= 1
        if not extra:
            return (yield from self._fetch(key, cost, 0, demand))
        facts: Outcome = yield partial(self._unbroken, self._fetch(key, cost, extra, demand))
        return facts

    def _fetch(self, key: str, cost: int, extra: int, demand: Demand) -> Flow[Outcome]:
        leases, shelf, meter = self.leases, self.shelf, self.meter
        try:
            since_us = self._now()
            facts: Outcome = yield partial(meter.decide, key, cost + extra)
            leased = extra > 0 and facts[ALLOWED]
            if extra and not leased:
                facts = yield partial(meter.decide, key, cost)
        except BaseException:
            with leases.lock:
                demand.moving -= extra > 0
            raise
        with leases.lock:
            demand.moving -= extra > 0
            demand.remaining = facts[REMAINING]
            if not leased:
                return facts
            stock = PrefetchedUnits(meter, key, facts, cost, extra, shelf, demand)
            there = leases.put(stock, since_us, self._hold_us)
        if there:
            yield partial(self._watch, stock)
        return stock.facts(extra)

    def _extra(self, key: str, demand: Demand, cost: int) -> int:
        calls, units = demand.lately(self._hold_us)
        if calls < HOT or demand.moving or key in self.shelf.stocks:
            return 0
        # A multiple of the cost, so that calls of one cost leave nothing behind.
        return min(self._bound, units, demand.remaining // 2) // cost * cost

    def peek(self, key: str) -> Flow[Outcome]:
        facts: Outcome = yield partial(self.meter.decide, key, 0)
        with self.leases.lock:
            stock = self.shelf.stocks.get(key)
            if stock is None or not stock.held or not self._usable(stock, self._now()):
                return facts
            return True, facts[REMAINING] + stock.held, 0, *facts[RESET_AFTER_US:]

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool) -> Flow[Outcome]:
        """Into the stock that the units came from, never more than was taken from it; else into the count."""
        with self.leases.lock:
            stock = self.shelf.stocks.get(key)
            if stock is not None and not cancel and self._usable(stock, self._now()):
                stock.clear()
                left = stock.left + max(0, min(units, receipt.cost - receipt.returned))
                its_own = receipt.at_us == stock.at_us and receipt.mark == stock.mark
                if its_own and left <= min(stock.receipt.cost, self._bound):
                    stock.left = left
                    return stock.facts(left)
        facts: Outcome = yield partial(self.meter.refund, key, units, receipt, cancel)
        return facts

    def retune(self, key: str) -> Flow[None]:
        with self.leases.lock:
            old = self.leases.end(self.shelf, key, self._now())
        if old:
            yield from self.leases.give_back(old)
        yield partial(self.meter.retune, key)

    def reset(self, key: str) -> Flow[None]:
        """The count is forgotten, and so is what was charged to it."""
        with self.leases.lock:
            self.leases.end(self.shelf, key, self._now())
            self.shelf.demands.pop(key, None)
        yield partial(self.meter.reset, key)

    def _usable(self, stock: PrefetchedUnits, now_us: int) -> bool:
        """Prefetched under this very limit, and still in time."""
        return stock.meter is self.meter and stock.lasts(now_us)
