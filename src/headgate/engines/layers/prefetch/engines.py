"""Prefetching: units of hot keys are fetched ahead, and handed out here without asking.

Picture a kiosk that orders from a warehouse. What sells is ordered ahead, as much as was sold lately, and sold
over the counter; what does not sell goes back before it spoils. Such an order is a take of the call's
cost and some extra, one charge on the inner engine, of which the extra stays here as a stock.

Sizing. A key that was asked fewer than HOT times during the last hold time prefetches nothing. A hot one
prefetches what was asked for during that time: at most U units (a tenth of what the limit holds at once, unless
given), and at most half of what the last answer left. So near the edge every call is a single take, decided
exactly, and no order is refused for nothing; one that is refused all the same is asked again for the call alone.

A stock lasts `hold`, never longer than the count it was charged to, reckoned from the moment before it was asked
for. What is left then, on close, or when a call wants more than is left, is given back by the order's receipt. As
taking 3 is taking 1 three times at the same instant, each call gets the receipt of its own units, and may give
them back: into the stock they came from while it lasts, into the count after that.

LAW. Let N processes use a key, each holding at most U of its units, on the way out and on the way back included:
  - over any span, at most N * U units more are admitted than the limit alone admits;
  - at most N * U units are kept from others, for at most `hold`.
Proof, by what the inner count says less what is held (between 0 and N * U):
  - token bucket: the water less what is held rises by what is admitted, falls by no more than the hole drains
    (giving back lowers both), is never above the burst and never below -N * U. So over a span of t at most
    burst + rate * t + N * U units pass, whatever was given back meanwhile;
  - sliding window, sliding log: what was charged within the frame and not given back is at most the amount; all
    else that is admitted in it was held when it began;
  - fixed window: a stock ends with its window, so all that a window admits was charged in it: not one unit more.
A process that dies, a give-back that fails (`lost_units`) and an order that arrives after a reset keep their units
from others until the limit refills. A reset is known to the process that makes it: the others hand out or give
back what they hold of the forgotten count, at most U each. "For at most hold" is by the process's own clock.

Not prefetched: leaky bucket and smooth, because they say when each call goes and a stock would let calls go
together; slots, which are held and not spent; reservations, peeks, and several limits at once, which the inner
engine decides as ever. (What is in stock here adds to what a peek shows.)

A thread gives back in time what was not asked for. Where none can be started, nothing is fetched ahead: every call
asks for its own cost alone, and tries to start the thread again.

Whether, for how long and how much is the rule's to say, where there is one: U and `hold` are then those of its
Terms, and terms that say nothing are exact. Nor is a rule prefetched that has a lockout, because each of its
refusals must be counted, or overrides, because only the engine knows them. Who is not prefetched asks the inner
meter itself: nothing is counted here, and no time is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterator, Sequence
from threading import current_thread
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import SECOND, Limit, whole
from headgate.algorithms.slots import Slots
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.deadlines import set_deadline
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.prefetch.hot_keys import Counter, Hold, HotKeys
from headgate.engines.layers.prefetch.prefetched_units import PrefetchedUnits, Shelf, bound
from headgate.engines.layers.prefetch.return_thread import LEAST_US, ReturnThread
from headgate.engines.memory.engine import Decide
from headgate.engines.port import AsyncEngine, AsyncMeter, AsyncSlotMeter, Engine, Meter, SlotMeter
from headgate.errors import InvalidCharge
from headgate.flow import Flow, arun, run

__all__ = ["AsyncPrefetchEngine", "PrefetchEngine", "bound", "law"]

HOLD_US = 100_000
_log = logging.getLogger("headgate")
T = TypeVar("T")


def law(limit: Limit, *, hold_us: int = HOLD_US, units: int | None = None, nodes: int) -> str:
    """States in a sentence, with its numbers, what prefetching costs at most."""
    most = bound(limit, units)
    if not most:
        return f"{limit} is never prefetched: every call is decided by the engine itself."
    total = whole("The number of processes", nodes) * most
    more = "not one unit more is" if isinstance(limit, FixedWindow) else f"at most {total} units more are"
    where = "in any window" if isinstance(limit, FixedWindow) else "over any span"
    return (
        f"{limit}, prefetched by {nodes} processes, at most {most} units each: {where} {more} admitted than the "
        f"limit alone admits, and at most {total} units are kept from others, for at most {hold_us / 1000:g} ms."
    )


class _Lending:
    """What both engines have: what is held, on whose terms, and what becomes of it."""

    inner: Any

    def __init__(self, hold_us: int | None, units: int | None, clock: Clock | None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._hold = None if hold_us is None else Hold.checked(hold_us, units)
        self._leases = HotKeys()

    def _held(self, limit: Limit, terms: ChargeOptions | None) -> Hold | None:
        """How units of this limit are held; None if they are not."""
        return self._said(terms) if bound(limit) and (terms is None or terms.plain) else None

    def _said(self, terms: ChargeOptions | None) -> Hold | None:
        if terms is None:
            return self._hold
        return None if terms.prefetch is None else Hold.checked(*terms.prefetch)

    def laws(self, limit: Limit, nodes: int, terms: ChargeOptions | None = None) -> Iterator[tuple[str, str]]:
        said = self._said(terms)
        if said is None:
            return
        if terms is not None and not terms.plain:
            yield "prefetch", f"{limit} is never prefetched, because its rule has a lockout or overrides."
        else:
            yield "prefetch", law(limit, hold_us=said.us, units=said.units, nodes=nodes)

    @property
    def prefetched(self) -> int:
        """Units that were handed out of those fetched ahead."""
        return self._leases.leased

    @property
    def lost_units(self) -> int:
        """Units that could not be given back; the limit refills them by itself."""
        return self._leases.lost

    def shard(self, key: str) -> Hashable:
        return cast(Hashable, self.inner.shard(key))

    def overrides(self, rule: str) -> Any:
        return self.inner.overrides(rule)

    def assignments(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Any:
        return self.inner.assignments(limit, name, ttl_us, grace_us)

    def set_deadline(self, seconds: float) -> None:
        set_deadline(self.inner, seconds)


class ExactMeter:
    """A hand on a limit that is not prefetched, in either spelling: the verbs are those of the inner meter."""

    def __init__(self, meter: Any, terms: ChargeOptions | None) -> None:
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.terms = terms
        self.meter: Any = meter
        self.decide: Any = meter.decide
        self.refund: Any = meter.refund
        self.retune: Any = meter.retune
        self.reset: Any = meter.reset


class PrefetchEngine(_Lending):
    """Around an engine: hands out units of hot keys that were fetched ahead. Thread-safe.

    hold_us   how long units may be held; None: not at all, unless a rule's terms say so
    units     how many of a key at most; a tenth of what its limit holds at once unless given
    """

    inner: Engine

    def __init__(
        self, inner: Engine, *, hold_us: int | None = HOLD_US, units: int | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(hold_us, units, clock)
        self.inner = inner
        self._meters: WeakValueDictionary[tuple[str, str], PrefetchMeter] = WeakValueDictionary()
        self._watcher: ReturnThread | None = None
        self._warned = False
        on_fork(self.forget)

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> Meter:
        hold = self._held(limit, terms)
        if hold is None:
            return ExactMeter(self.inner.meter(limit, name, terms), terms)
        with self._leases.lock:
            latest = self._meters.get((limit.algorithm, name))
            if latest is None or latest.limit.text != limit.text or latest.terms is not terms:
                shelf = latest.shelf if latest else self._leases.shelf()
                latest = PrefetchMeter(self, self.inner.meter(limit, name, terms), terms, shelf, hold)
                self._meters[limit.algorithm, name] = latest
        return latest

    def counter(self, meter: Meter, shelf: Shelf, hold: Hold) -> Counter:
        return Counter(self._leases, shelf, meter, hold, self.clock, self._ready, self._watch, run)

    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> SlotMeter:
        return self.inner.slots(limit, name, terms)

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        return self.inner.decide_all(_inside(charges, PrefetchMeter), patience_us, commit)

    def give_back_expired(self) -> int | None:
        """Give back what has expired; how many microseconds until there is more to do, if anything is held."""
        for stock in self._leases.ended(self.clock.now_us()):
            run(self._leases.give_back(stock))
        return self._leases.due_us(self.clock.now_us())

    def _ready(self) -> bool:
        """Whether a thread can give back in time what is fetched now; started if there is none."""
        try:
            with self._leases.lock:
                if self._watcher is None or not self._watcher.is_alive():
                    watcher = ReturnThread(self)
                    watcher.start()
                    self._watcher, self._warned = watcher, False
        except RuntimeError as error:  # the process has as many as it may have
            if not self._warned:
                self._warned = True
                _log.warning("headgate: nothing is fetched ahead, because no thread could be started: %s", error)
            return False
        return True

    def _watch(self, stock: PrefetchedUnits) -> None:
        """If no thread can be started by now, later calls for the key give back what is left, or close does."""
        if self._ready():
            with self._leases.lock:
                if self._watcher is not None and self._leases.next_is(stock):
                    self._watcher.wake.set()

    def watched_by(self, watcher: ReturnThread, leaving: bool = False) -> bool:
        """Whether that thread is to go on; one that leaves is let go only if nothing is held."""
        with self._leases.lock:
            if leaving and self._watcher is watcher and not self._leases.held:
                self._watcher = None
            return self._watcher is watcher

    def forget(self) -> None:
        """Drop all that is held without giving it back: after a fork it is the parent's."""
        self._watcher = None
        self._leases.forget()

    def close(self) -> None:
        """Give back all that is held, and close the inner engine."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None and watcher is not current_thread():
            watcher.wake.set()
            watcher.join()
        for stock in self._leases.ended(self.clock.now_us(), closing=True):
            run(self._leases.give_back(stock))
        self.inner.close()


class PrefetchMeter:
    """The prefetching engine's hand on one limit."""

    def __init__(
        self, engine: PrefetchEngine, meter: Meter, terms: ChargeOptions | None, shelf: Shelf, hold: Hold
    ) -> None:
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.terms = terms
        self.meter = meter
        self.shelf = shelf
        self._counter = engine.counter(meter, shelf, hold)
        self.decide: Decide = self._counter.or_else(self._ask)

    def _ask(self, key: str, cost: int, patience_us: int | None) -> Outcome:
        if patience_us is not None:
            return self.meter.decide(key, cost, patience_us)
        return run(self._counter.take(key, cost) if cost else self._counter.peek(key))

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return run(self._counter.refund(key, units, receipt, cancel))

    def retune(self, key: str) -> None:
        run(self._counter.retune(key))

    def reset(self, key: str) -> None:
        run(self._counter.reset(key))


class AsyncPrefetchEngine(_Lending):
    """The same, awaited. Works from several event loops."""

    inner: AsyncEngine

    def __init__(
        self,
        inner: AsyncEngine,
        *,
        hold_us: int | None = HOLD_US,
        units: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(hold_us, units, clock)
        self.inner = inner
        self._meters: WeakValueDictionary[tuple[str, str], AsyncPrefetchMeter] = WeakValueDictionary()
        self._under_way: set[asyncio.Task[Any]] = set()  # whoever waits for it, it is not broken off
        on_fork(self.forget)

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> AsyncMeter:
        hold = self._held(limit, terms)
        if hold is None:
            return ExactMeter(self.inner.meter(limit, name, terms), terms)
        with self._leases.lock:
            latest = self._meters.get((limit.algorithm, name))
            if latest is None or latest.limit.text != limit.text or latest.terms is not terms:
                shelf = latest.shelf if latest else self._leases.shelf()
                latest = AsyncPrefetchMeter(self, self.inner.meter(limit, name, terms), terms, shelf, hold)
                self._meters[limit.algorithm, name] = latest
        return latest

    def counter(self, meter: AsyncMeter, shelf: Shelf, hold: Hold) -> Counter:
        return Counter(self._leases, shelf, meter, hold, self.clock, lambda: True, self._watch, self._unbroken)

    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> AsyncSlotMeter:
        return self.inner.slots(limit, name, terms)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        return await self.inner.decide_all(_inside(charges, AsyncPrefetchMeter), patience_us, commit)

    async def give_back_expired(self) -> None:
        for stock in self._leases.ended(self.clock.now_us()):
            await arun(self._leases.give_back(stock))

    async def _watch(self, stock: PrefetchedUnits) -> None:
        self._look_at(stock, asyncio.get_running_loop())

    def _look_at(self, stock: PrefetchedUnits, loop: asyncio.AbstractEventLoop) -> None:
        """A timer for each stock, on the loop that ordered it; what a loop that ended has left is found by
        the next. A timer may be early by the wall clock: then it is set again."""
        now_us = self.clock.now_us()
        if stock.on_shelf and stock.lasts(now_us):
            loop.call_later(max(stock.until_us - now_us, LEAST_US) / SECOND, self._look_at, stock, loop)
        elif self._leases.due_us(now_us) == 0:
            self._in_background(loop.create_task(self.give_back_expired()))

    async def _unbroken(self, flow: Flow[Outcome]) -> Outcome:
        """Finish the flow even if its caller is cancelled, so that fetched units reach the shelf."""
        return await asyncio.shield(self._in_background(asyncio.create_task(arun(flow))))

    def _in_background(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait for it
        return task

    def forget(self) -> None:
        """Drop all that is held without giving it back: after a fork it is the parent's."""
        self._under_way.clear()
        self._leases.forget()

    async def close(self) -> None:
        """Give back all that is held, and close the inner engine."""
        ours = [task for task in self._under_way if task.get_loop() is asyncio.get_running_loop()]
        await asyncio.gather(*ours, return_exceptions=True)
        for stock in self._leases.ended(self.clock.now_us(), closing=True):
            await arun(self._leases.give_back(stock))
        await self.inner.close()


class AsyncPrefetchMeter:
    """The same hand, awaited."""

    def __init__(
        self, engine: AsyncPrefetchEngine, meter: AsyncMeter, terms: ChargeOptions | None, shelf: Shelf, hold: Hold
    ) -> None:
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.terms = terms
        self.meter = meter
        self.shelf = shelf
        self._counter = engine.counter(meter, shelf, hold)
        self._decide = self._counter.or_else(self._ask)

    async def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        answer = self._decide(key, cost, patience_us)
        facts: Outcome = answer if answer.__class__ is tuple else await answer
        return facts

    async def _ask(self, key: str, cost: int, patience_us: int | None) -> Outcome:
        if patience_us is not None:
            return await self.meter.decide(key, cost, patience_us)
        return await arun(self._counter.take(key, cost) if cost else self._counter.peek(key))

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return await arun(self._counter.refund(key, units, receipt, cancel))

    async def retune(self, key: str) -> None:
        await arun(self._counter.retune(key))

    async def reset(self, key: str) -> None:
        await arun(self._counter.reset(key))


def _inside(charges: Sequence[tuple[Any, str, int]], leased: type[Any]) -> list[tuple[Any, str, int]]:
    ours = leased, ExactMeter
    inside = [(meter.meter, key, cost) for meter, key, cost in charges if isinstance(meter, ours)]
    if len(inside) != len(charges):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return inside
