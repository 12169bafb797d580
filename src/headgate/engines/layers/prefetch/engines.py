"""Prefetching: fetches units of hot keys ahead, and hands them out without a request to the engine.

The file is long for one reason: it states and proves the law, and spells the engine out twice, sync and async.

Picture a kiosk that orders from a warehouse. What sells is ordered ahead, as much as was sold lately, and sold
over the counter; what does not sell goes back before it spoils. Such an order is a fetch: one charge on the inner
engine of the call's cost and some extra, of which the extra stays here as a batch.

Sizing. A key with fewer than HOT_CALLS calls during the last hold time prefetches nothing. A hot one prefetches as
many units as were taken during that time: at most U (by default a tenth of what the limit holds at once), and at
most half of what the last answer left. So near the edge every call is a single take, decided exactly, and no fetch
is refused for nothing; one that is refused all the same is repeated for the call alone.

A batch lasts `hold`, never longer than the count it was charged to, reckoned from the moment before the fetch.
What is left then, on close, or when a call wants more than is left, is given back by the fetch's receipt. As
taking 3 is taking 1 three times at the same instant, each call gets the receipt of its own units, and may refund
them: into the batch they came from while it lasts, into the count after that.

LAW. Let N processes use a key, each holding at most U of its units, on the way out and on the way back included:
  - over any span, at most N * U units more are admitted than the limit alone admits;
  - at most N * U units are kept from others, for at most `hold`.
Proof, by the inner count less what is held (between 0 and N * U):
  - token bucket: the water less what is held rises by what is admitted, falls by no more than the hole drains
    (giving back lowers both), is never above the burst and never below -N * U. So over a span of t at most burst +
    rate * t + N * U units pass, whatever was given back meanwhile;
  - sliding window, sliding log: what was charged within the frame and not given back is at most the amount; all
    else that is admitted in it was held when it began;
  - fixed window: a batch expires with its window, so all that a window admits was charged in it: none more.
A process that dies, a return that fails (`lost_units`) and a fetch that arrives after a reset keep their units
from others until the limit refills. Only the process that makes a reset knows of it: the others hand out or give
back what they hold of the deleted count, at most U each. "For at most hold" is by the process's own clock.

Not prefetched: leaky bucket and smooth, because they decide when each call goes and a batch would let calls go
together; slots, which are held and not spent; reservations, peeks, and several limits at once, which the inner
engine decides as ever. (Units held here add to what a peek shows.)

A thread gives back what was not used. Without one nothing is fetched ahead, and each call tries to start it.
A rule's ChargeOptions may choose `hold` and U; options without prefetch are exact. So are rules with a lockout,
because each of their refusals must be counted, and with overrides, because only the engine knows them. An exact
meter calls the inner meter itself: nothing is counted here, and no time is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterator, Sequence
from threading import current_thread
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import SECOND, Limit, check_whole
from headgate.algorithms.slots import Slots
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.prefetch.hot_keys import HotKeys, PrefetchFlows, PrefetchHold
from headgate.engines.layers.prefetch.prefetched_units import PrefetchedUnits, PrefetchTable, max_prefetch
from headgate.engines.layers.prefetch.return_thread import MIN_WAKE_US, ReturnThread
from headgate.engines.memory.engine import Decide
from headgate.engines.port import AsyncEngine, AsyncMeter, AsyncSlotMeter, Engine, Meter, SlotMeter
from headgate.engines.stack import EngineLayer
from headgate.errors import InvalidCharge
from headgate.flow import Flow, arun, run

__all__ = ["AsyncPrefetchEngine", "PrefetchEngine", "guarantee", "max_prefetch"]

HOLD_US = 100_000
_log = logging.getLogger("headgate")
T = TypeVar("T")


def guarantee(limit: Limit, *, hold_us: int = HOLD_US, units: int | None = None, nodes: int) -> str:
    """Returns a sentence, with its numbers, on what prefetching costs at most."""
    max_units = max_prefetch(limit, units)
    if not max_units:
        return f"{limit} is never prefetched: every call is decided by the engine itself."
    total = check_whole("The number of processes", nodes) * max_units
    admitted = "not one unit more is" if limit.has_edges else f"at most {total} units more are"
    span = "in any window" if limit.has_edges else "over any span"
    return (
        f"{limit}, prefetched by {nodes} processes, at most {max_units} units each: {span} {admitted} admitted "
        f"than the limit alone admits, and at most {total} units are kept from others, "
        f"for at most {hold_us / 1000:g} ms."
    )


class _PrefetchBase(EngineLayer):
    """The base of both engines: the batches they hold, and the options that allow them."""

    def __init__(self, hold_us: int | None, units: int | None, clock: Clock | None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._hold = None if hold_us is None else PrefetchHold.create(hold_us, units)
        self._hot_keys = HotKeys()

    def _hold_for(self, limit: Limit, options: ChargeOptions | None) -> PrefetchHold | None:
        """Returns how units of this limit are held; None if they are not."""
        exact = not max_prefetch(limit) or (options is not None and not options.without_rule_state)
        return None if exact else self._chosen_hold(options)

    def _chosen_hold(self, options: ChargeOptions | None) -> PrefetchHold | None:
        if options is None:
            return self._hold
        return None if options.prefetch is None else PrefetchHold.create(*options.prefetch)

    def guarantees(
        self, limit: Limit, nodes: int, options: ChargeOptions | None = None
    ) -> Iterator[tuple[str, str]]:
        hold = self._chosen_hold(options)
        if hold is None:
            return
        if options is not None and not options.without_rule_state:
            yield "prefetch", f"{limit} is never prefetched, because its rule has a lockout or overrides."
        else:
            yield "prefetch", guarantee(limit, hold_us=hold.us, units=hold.units, nodes=nodes)

    @property
    def prefetched(self) -> int:
        """How many prefetched units were handed out."""
        return self._hot_keys.prefetched_total

    @property
    def lost_units(self) -> int:
        """How many units could not be given back; the limit refills them by itself."""
        return self._hot_keys.lost_units

    def shard(self, key: str) -> Hashable:
        return cast(Hashable, self.inner.shard(key))

    def overrides(self, rule: str) -> Any:
        return self.inner.overrides(rule)

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Any:
        return self.inner.quota_ledger(limit, name, ttl_us, grace_us)


class ExactMeter:
    """A meter that is not prefetched, sync or async: its methods are those of the inner meter."""

    def __init__(self, meter: Any, options: ChargeOptions | None) -> None:
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.options = options
        self.meter: Any = meter
        self.decide: Any = meter.decide
        self.refund: Any = meter.refund
        self.retune: Any = meter.retune
        self.reset: Any = meter.reset


class PrefetchEngine(_PrefetchBase):
    """A layer that hands out units of hot keys that were fetched ahead. Thread-safe.

    hold_us   how long units may be held; None: not at all, unless a rule's options allow it
    units     how many of a key at most; by default a tenth of what its limit holds at once
    """

    inner: Engine

    def __init__(
        self, inner: Engine, *, hold_us: int | None = HOLD_US, units: int | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(hold_us, units, clock)
        self.inner = inner
        self._meters: WeakValueDictionary[tuple[str, str], PrefetchMeter] = WeakValueDictionary()
        self._thread: ReturnThread | None = None
        self._has_warned = False
        on_fork(self.reset_after_fork)

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> Meter:
        hold = self._hold_for(limit, options)
        if hold is None:
            return ExactMeter(self.inner.meter(limit, name, options), options)
        with self._hot_keys.lock:
            latest = self._meters.get((limit.algorithm, name))
            if latest is None or latest.limit.text != limit.text or latest.options is not options:
                table = latest.table if latest else self._hot_keys.new_table()
                latest = PrefetchMeter(self, self.inner.meter(limit, name, options), options, table, hold)
                self._meters[limit.algorithm, name] = latest
        return latest

    def flows(self, meter: Meter, table: PrefetchTable, hold: PrefetchHold) -> PrefetchFlows:
        return PrefetchFlows(self._hot_keys, table, meter, hold, self.clock, self._ready, self._watch, run)

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> SlotMeter:
        return self.inner.slots(limit, name, options)

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        return self.inner.decide_all(_inner_charges(charges, PrefetchMeter), patience_us, commit)

    def give_back_expired(self) -> int | None:
        """Gives back expired batches; returns how many microseconds until the next, None if nothing is held."""
        for batch in self._hot_keys.remove_expired(self.clock.now_us()):
            run(self._hot_keys.give_back(batch))
        return self._hot_keys.due_us(self.clock.now_us())

    def _ready(self) -> bool:
        """Returns whether a thread can give back in time what is fetched now; starts one if there is none."""
        try:
            with self._hot_keys.lock:
                if self._thread is None or not self._thread.is_alive():
                    thread = ReturnThread(self)
                    thread.start()
                    self._thread, self._has_warned = thread, False
        except RuntimeError as error:  # the process has as many threads as it may have
            if not self._has_warned:
                self._has_warned = True
                _log.warning("headgate: nothing is fetched ahead, because no thread could be started: %s", error)
            return False
        return True

    def _watch(self, batch: PrefetchedUnits) -> None:
        """Wakes the thread for a batch. Without a thread, later calls for the key give it back, or close does."""
        if self._ready():
            with self._hot_keys.lock:
                if self._thread is not None and self._hot_keys.next_is(batch):
                    self._thread.wake.set()

    def keeps_thread(self, thread: ReturnThread, leaving: bool = False) -> bool:
        """Returns whether that thread is to go on; one that wants to end may, if nothing is held."""
        with self._hot_keys.lock:
            if leaving and self._thread is thread and not self._hot_keys.pending_count:
                self._thread = None
            return self._thread is thread

    def reset_after_fork(self) -> None:
        """Drops all batches without giving them back: in a forked child they are the parent's."""
        self._thread = None
        self._hot_keys.reset()

    def close(self) -> None:
        """Gives back all batches, and closes the inner engine."""
        thread, self._thread = self._thread, None
        if thread is not None and thread is not current_thread():
            thread.wake.set()
            thread.join()
        for batch in self._hot_keys.remove_expired(self.clock.now_us(), closing=True):
            run(self._hot_keys.give_back(batch))
        self.inner.close()


class PrefetchMeter:
    """A limit bound to the prefetch engine."""

    def __init__(
        self,
        engine: PrefetchEngine,
        meter: Meter,
        options: ChargeOptions | None,
        table: PrefetchTable,
        hold: PrefetchHold,
    ) -> None:
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.options = options
        self.meter = meter
        self.table = table
        self._flows = engine.flows(meter, table, hold)
        self.decide: Decide = self._flows.fast_decide(self._decide_slowly)

    def _decide_slowly(self, key: str, cost: int, patience_us: int | None) -> Outcome:
        if patience_us is not None:
            return self.meter.decide(key, cost, patience_us)
        return run(self._flows.take(key, cost) if cost else self._flows.peek(key))

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return run(self._flows.refund(key, units, receipt, cancel))

    def retune(self, key: str) -> None:
        run(self._flows.retune(key))

    def reset(self, key: str) -> None:
        run(self._flows.reset(key))


class AsyncPrefetchEngine(_PrefetchBase):
    """A PrefetchEngine whose methods are awaited. Works from several event loops."""

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
        self._tasks: set[asyncio.Task[Any]] = set()  # they go on if their caller is cancelled
        on_fork(self.reset_after_fork)

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> AsyncMeter:
        hold = self._hold_for(limit, options)
        if hold is None:
            return ExactMeter(self.inner.meter(limit, name, options), options)
        with self._hot_keys.lock:
            latest = self._meters.get((limit.algorithm, name))
            if latest is None or latest.limit.text != limit.text or latest.options is not options:
                table = latest.table if latest else self._hot_keys.new_table()
                latest = AsyncPrefetchMeter(self, self.inner.meter(limit, name, options), options, table, hold)
                self._meters[limit.algorithm, name] = latest
        return latest

    def flows(self, meter: AsyncMeter, table: PrefetchTable, hold: PrefetchHold) -> PrefetchFlows:
        return PrefetchFlows(
            self._hot_keys, table, meter, hold, self.clock, lambda: True, self._watch, self._shield
        )

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> AsyncSlotMeter:
        return self.inner.slots(limit, name, options)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        return await self.inner.decide_all(_inner_charges(charges, AsyncPrefetchMeter), patience_us, commit)

    async def give_back_expired(self) -> None:
        for batch in self._hot_keys.remove_expired(self.clock.now_us()):
            await arun(self._hot_keys.give_back(batch))

    async def _watch(self, batch: PrefetchedUnits) -> None:
        self._schedule_return(batch, asyncio.get_running_loop())

    def _schedule_return(self, batch: PrefetchedUnits, loop: asyncio.AbstractEventLoop) -> None:
        """Sets a timer for a batch, again if it fired early; the next loop finds batches of an ended one."""
        now_us = self.clock.now_us()
        if batch.is_held and batch.is_valid(now_us):
            loop.call_later(max(batch.until_us - now_us, MIN_WAKE_US) / SECOND, self._schedule_return, batch, loop)
        elif self._hot_keys.due_us(now_us) == 0:
            self._track(loop.create_task(self.give_back_expired()))

    async def _shield(self, flow: Flow[Outcome]) -> Outcome:
        """Finishes the flow even if its caller is cancelled, so that fetched units are stored."""
        return await asyncio.shield(self._track(asyncio.create_task(arun(flow))))

    def _track(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its caller may be gone
        return task

    def reset_after_fork(self) -> None:
        self._tasks.clear()
        self._hot_keys.reset()

    async def close(self) -> None:
        own_tasks = [task for task in self._tasks if task.get_loop() is asyncio.get_running_loop()]
        await asyncio.gather(*own_tasks, return_exceptions=True)
        for batch in self._hot_keys.remove_expired(self.clock.now_us(), closing=True):
            await arun(self._hot_keys.give_back(batch))
        await self.inner.close()


class AsyncPrefetchMeter:
    """A PrefetchMeter whose methods are awaited."""

    def __init__(
        self,
        engine: AsyncPrefetchEngine,
        meter: AsyncMeter,
        options: ChargeOptions | None,
        table: PrefetchTable,
        hold: PrefetchHold,
    ) -> None:
        self.limit: Limit = meter.limit
        self.name: str = meter.name
        self.options = options
        self.meter = meter
        self.table = table
        self._flows = engine.flows(meter, table, hold)
        self._decide = self._flows.fast_decide(self._decide_slowly)

    async def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        answer = self._decide(key, cost, patience_us)
        outcome: Outcome = answer if answer.__class__ is tuple else await answer
        return outcome

    async def _decide_slowly(self, key: str, cost: int, patience_us: int | None) -> Outcome:
        if patience_us is not None:
            return await self.meter.decide(key, cost, patience_us)
        return await arun(self._flows.take(key, cost) if cost else self._flows.peek(key))

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return await arun(self._flows.refund(key, units, receipt, cancel))

    async def retune(self, key: str) -> None:
        await arun(self._flows.retune(key))

    async def reset(self, key: str) -> None:
        await arun(self._flows.reset(key))


def _inner_charges(charges: Sequence[tuple[Any, str, int]], kind: type[Any]) -> list[tuple[Any, str, int]]:
    kinds = kind, ExactMeter
    inner = [(meter.meter, key, cost) for meter, key, cost in charges if isinstance(meter, kinds)]
    if len(inner) != len(charges):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return inner
