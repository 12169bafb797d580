"""The limiters that a program calls: Limiter and AsyncLimiter.

    take      may this call pass?                   peek      would it?
    take_all  may these, together?                  wait      pass when there is room, first come first served
    reserve   take a place now, be served later     refund    give back what a decision charged
    settle    count what a call really cost         reset     delete the counters of a key
    acquire   hold a slot until released            pace      wait before each item of a loop
    pause     refuse a key for a while              guard     any of these around a block or a function
    explain   describe what is promised             from_rules    a limiter that follows a rulebook

Limiter and AsyncLimiter are the same but for the await, and the file is long for that reason. Operations of
several steps are flows, written once in limiter_flows.py and slot_queue.py; validation.py checks the arguments. A
Limiter knows no Redis, no HTTP and no framework.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from random import random
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from headgate import limiter_flows, pacing, slot_queue
from headgate.algorithms.decision import ALLOWED, Charge, Decision
from headgate.algorithms.limit import SECOND
from headgate.clock import Clock, check_clock
from headgate.engines.port import AsyncEngine, AsyncMeter, AsyncSlotMeter, Engine, Meter, SlotMeter
from headgate.engines.url import open_async_engine, open_engine
from headgate.errors import CorruptState, EngineUnavailable, RateLimited
from headgate.flow import arun, run
from headgate.guard import AsyncGuard, Guard
from headgate.lease import AsyncLease, Lease
from headgate.observer import ObservedDecision, Observer, Observers, elapsed_us
from headgate.reservation import AsyncReservation, Reservation
from headgate.validation import (
    MAX_PAUSE_S,
    BoundLimits,
    ChargeBatch,
    LimitLike,
    check_decision,
    check_engine,
    check_key,
    check_max_pause,
    limits_of,
    names_of,
    pause_name_of,
    pause_us,
)

if TYPE_CHECKING:
    from headgate.enforcement.open_rulebook import Rules
    from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter

T = TypeVar("T")


class Limiter:
    """Limits calls by key. Thread-safe.

    limit    a Limit, its text form ("100/s burst 200"), or several ("10/s; 500/hour"), decided together
    engine   where counts are kept: memory:// (this process), redis://host:port/db, or an engine
    name     what the counts are stored under; the limit's text unless given. With a name, the limit can change
             later and the counts stay.
    observers  receive every decision: counts, logs, metrics
    pausable   whether keys can be paused: the engine then looks for a pause with every decision
    max_pause  the longest pause, in seconds: a longer one is cut to this

    >>> limiter = Limiter("3/minute")
    >>> limiter.take("ann")
    <Decision allowed by 3/minute, 2 remaining>
    """

    def __init__(
        self,
        limit: LimitLike,
        engine: str | Engine = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "hg",
        name: str | None = None,
        observers: Sequence[Observer] = (),
        pausable: bool = False,
        max_pause: float = MAX_PAUSE_S,
    ) -> None:
        self.clock: Clock = check_clock(clock)
        self.observers: Observers | None = Observers(observers) if observers else None
        if isinstance(engine, str):
            engine = open_engine(engine, prefix=prefix, clock=self.clock)
        else:
            check_engine(engine, awaited=False)
        self.engine = engine
        self.max_pause: float = check_max_pause(max_pause, pausable)
        limits = limits_of(limit)
        names = names_of(limits, name)
        self._limits: BoundLimits[Meter, SlotMeter] = BoundLimits(
            limits, names, self.engine.meter, self.engine.slots, pause_name_of(names, name) if pausable else None
        )
        self._bind()
        if self.observers is not None:
            self.take = self._observed_take  # type: ignore[method-assign]
            self.observers.watch(self)

    @staticmethod
    def from_rules(
        rules: Rules,
        engine: str | Engine = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "hg",
        observers: Sequence[Observer] = (),
    ) -> RuleLimiter:
        """Makes a limiter that follows a rulebook: a file, a mapping, a Rulebook, or "pushed". See RuleLimiter.

        >>> limiter = Limiter.from_rules({"rules": [{"name": "all", "limit": "3/minute"}]})
        >>> limiter.check({"path": "/login"})
        <Decision allowed by rule "all" (3/minute), 2 remaining>
        """
        from headgate.enforcement.rule_limiter import RuleLimiter

        return RuleLimiter(rules, engine, clock=clock, prefix=prefix, observers=observers)

    def _bind(self) -> None:
        meters = self._limits.meters
        self._single = len(meters) == 1
        if self._single:
            self._meter, self._decide = meters[0], meters[0].decide

    def take(self, key: str, cost: int = 1) -> Decision:
        """Decides whether a call of this cost may pass, and charges it if so.

        >>> decision = Limiter("3/minute").take("ann", cost=2)
        >>> decision.allowed, decision.remaining
        (True, 1)
        """
        if key.__class__ is str and key and cost.__class__ is int and cost >= 0 and self._single:
            return Decision(self._decide(key, cost), self._meter, key, cost)
        return self._take_all(self._limits.charge_each(key, cost), None)

    def _observed_take(self, key: str, cost: int = 1) -> Decision:
        """Takes, and reports the decision to the observers: what `take` does, without another call in between."""
        observers: Any = self.observers
        draw = random() if observers.draws else 1.0
        started_ns = perf_counter_ns() if draw < observers.timed_share else 0
        try:
            if key.__class__ is str and key and cost.__class__ is int and cost >= 0 and self._single:
                decision = Decision(self._decide(key, cost), self._meter, key, cost)
            else:
                decision = self._take_all(self._limits.charge_each(key, cost), None)
        except (EngineUnavailable, CorruptState) as error:
            observers.failed(error, elapsed_us(started_ns))
            raise
        if cost:
            latency_us = elapsed_us(started_ns) if started_ns else None
            for report in observers.decided_reports:
                try:
                    report(decision, latency_us, False)
                except Exception as error:
                    observers.report_error(report, error)
            if draw < observers.sampled_share or (observers.has_sample and not decision.outcome[ALLOWED]):
                observers.decided_sample(decision, latency_us, False, draw)
        return decision

    def peek(self, key: str) -> Decision:
        """Returns what is left and charges nothing; `allowed` says whether a call of cost 1 would pass.

        >>> Limiter("3/minute").peek("ann").remaining
        3
        """
        if self.holds_slots:
            meter = self._limits.slot_meter(key)
            return Decision(meter.free(key), meter, key, 0)
        return self.take(key, 0)

    def take_all(self, charges: Sequence[Charge | tuple[str, LimitLike]]) -> Decision:
        """Decides several charges together, and charges all of them or none.

        >>> limiter = Limiter("3/minute")
        >>> limiter.take_all([Charge("ann"), Charge("everybody", "100/s", cost=2)]).allowed
        True
        """
        return self._observed_take_all(self._limits.batch(charges), None)

    def _observed_take_all(self, batch: ChargeBatch[Meter], patience_us: int | None) -> Decision:
        if self.observers is None:
            return self._take_all(batch, patience_us)
        with ObservedDecision(self.observers) as observed:
            decision = self._take_all(batch, patience_us)
            observed.report(decision)
            return decision

    def _take_all(self, batch: ChargeBatch[Meter], patience_us: int | None) -> Decision:
        if len(batch.distinct) == 1:
            meter, key, cost = batch.distinct[0]
            return batch.decision([meter.decide(key, cost, patience_us)])
        return batch.decision(self.engine.decide_all(batch.distinct, patience_us))

    def wait(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Waits until the call may pass, first come, first served; refuses at once if `timeout` is too short.

        >>> limiter = Limiter("10/s burst 1", clock=ManualClock())
        >>> limiter.wait("ann").delay, limiter.wait("ann").delay
        (0.0, 0.1)
        """
        batch = self._limits.charge_each(key, cost, spends=True)
        if self.pausable:
            peek = partial(self._take_all, self._limits.charge_each(key, 0), None)
            return run(
                limiter_flows.wait_through_pauses(
                    self._observed_take_all, peek, batch, timeout, self.clock.sleep_us
                )
            )
        return run(limiter_flows.wait(self._observed_take_all, batch, timeout, self.clock.sleep_us))

    def reserve(self, key: str, cost: int = 1, timeout: float | None = None) -> Reservation:
        """Takes a place now; the caller sleeps `delay` before going on, or cancels.

        >>> limiter = Limiter("1/s", clock=ManualClock())
        >>> [limiter.reserve("ann").delay for _ in range(3)]
        [0.0, 1.0, 2.0]
        """
        batch = self._limits.charge_each(key, cost, spends=True)
        return Reservation(self._observed_take_all(batch, limiter_flows.patience_us(timeout)))

    def refund(self, decision: Decision, cost: int | None = None) -> None:
        """Gives back what the decision charged, or `cost` of it: at most what that charge still holds.

        >>> limiter = Limiter("3/hour")
        >>> decision = limiter.take("ann", cost=3)
        >>> limiter.refund(decision, cost=2)
        >>> limiter.peek("ann").remaining
        2
        """
        run(limiter_flows.refund(check_decision(decision, awaited=False), cost))

    def settle(self, decision: Decision | Reservation, cost: int) -> None:
        """Makes the count say what the call really cost, once that is known: what was charged too much is given
        back, as by a refund, and what is missing is charged, even beyond the limit. Once settled, a decision is
        final: settling, refunding or cancelling it again changes nothing.

        >>> limiter = Limiter("100/minute", clock=ManualClock())
        >>> decision = limiter.take("ann", cost=20)
        >>> limiter.settle(decision, 130)
        >>> limiter.take("ann").retry_after
        18.6
        """
        run(limiter_flows.settle(check_decision(_decision_of(decision), awaited=False), cost))

    def pause(self, key: str, seconds: float) -> float:
        """Refuses every call on the key for so many seconds, in every process; callers that wait are served after
        it, in order. Returns for how long the key is paused now: a pause never shortens a longer one. `reset` ends
        it.

        >>> limiter = Limiter("3/minute", clock=ManualClock(), pausable=True)
        >>> limiter.pause("partner", 30)
        30.0
        >>> limiter.take("partner")
        <Decision refused while paused: retry after 30 s>
        """
        meter, duration_us = self._limits.pausable_meter(key), pause_us(seconds, self.max_pause)
        return meter.pause(key, duration_us) / SECOND

    def reset(self, key: str) -> None:
        """Deletes the counts of the key, and ends its pause.

        >>> limiter = Limiter("1/hour")
        >>> limiter.take("ann").remaining, limiter.reset("ann"), limiter.peek("ann").remaining
        (0, None, 1)
        """
        check_key(key)
        for meter in (*self._limits.meters, self._limits.slots):
            if meter is not None:
                meter.reset(key)

    def set_limit(self, limit: LimitLike, *keys: str) -> None:
        """Changes the limit and keeps the counts; those of `keys` are converted to it at this instant.

        >>> limiter = Limiter("3/hour fixed", name="api")
        >>> used = limiter.take("ann", cost=2)
        >>> limiter.set_limit("5/hour fixed")
        >>> limiter.peek("ann").remaining
        3
        """
        for key in keys:
            check_key(key)
        self._limits = self._limits.with_limits(limit)
        self._bind()
        for meter in self._limits.meters:
            for key in keys:
                meter.retune(key)

    def acquire(self, key: str, timeout: float = 0) -> Lease:
        """Holds a slot; raises RateLimited if none comes free within `timeout`. Use it in a with statement.

        >>> with Limiter("20 slots").acquire("exports") as lease:
        ...     lease.decision.remaining
        19
        """
        meter = self._limits.slot_meter(key)
        flow = slot_queue.acquire(meter, key, limiter_flows.patience_us(timeout), self.clock.sleep_us)
        if self.observers is None:
            return Lease(meter, key, run(flow))
        with ObservedDecision(self.observers) as observed:
            try:
                decision = run(flow)
            except RateLimited as error:
                observed.report(error.decision)
                raise
            observed.report(decision)
            return Lease(meter, key, decision)

    @property
    def units_per_second(self) -> float | None:
        """The lowest rate of this limiter's limits; None if none of them has a rate."""
        rates = [meter.limit.units_per_second for meter in self._limits.meters]
        return min((float(rate) for rate in rates if rate is not None), default=None)

    @property
    def pausable(self) -> bool:
        """Returns whether keys of this limiter can be paused."""
        return self._limits.pause_name is not None

    @property
    def holds_slots(self) -> bool:
        """Returns whether this limiter's limit is acquired and released, not taken."""
        return self._limits.slots is not None

    def explain(self, nodes: int = 1) -> str:
        """Describes what this limiter guarantees, in words and numbers, with so many processes using it.

        >>> Limiter("6/minute").explain().splitlines()[2].strip()
        'passes      6 at once from a full bucket, then one every 10 s'
        """
        from headgate.explain import explain_limits

        limits = [meter.limit for meter in (*self._limits.meters, self._limits.slots) if meter is not None]
        return explain_limits(limits, self.engine, nodes)

    def guard(self, key: str | Callable[..., str], cost: int = 1, timeout: float = 0) -> Guard:
        """Limits a block or a function: takes (or waits, or acquires), and raises RateLimited if refused.

        >>> limiter = Limiter("3/minute")
        >>> @limiter.guard(lambda user: user)
        ... def greet(user: str) -> str:
        ...     return f"Hello {user}"
        >>> greet("ann")
        'Hello ann'
        """
        return Guard(self, key, cost, timeout)

    def pace(
        self,
        items: Iterable[T],
        key: str | Callable[[T], str],
        cost: int | Callable[[T], int] = 1,
        timeout: float | None = None,
    ) -> Iterator[T]:
        """Iterates over the items, and waits before each until it may pass; raises RateLimited if refused.

        >>> clock = ManualClock()
        >>> limiter = Limiter("1/s burst 1", clock=clock)
        >>> list(limiter.pace("abc", "crawler")), (clock.now_us() - ManualClock().now_us()) / 1_000_000
        (['a', 'b', 'c'], 2.0)
        """
        return pacing.pace(self, items, key, cost, timeout)

    def close(self) -> None:
        """Closes the engine and its connections; a with statement does so, too.

        >>> with Limiter("3/minute") as limiter:
        ...     limiter.take("ann").allowed
        True
        """
        self.engine.close()
        if self.observers is not None:
            self.observers.close()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncLimiter:
    """Limits calls by key, awaited. Works from several event loops. Every verb is that of Limiter.

    >>> async def main() -> Decision:
    ...     async with AsyncLimiter("3/minute") as limiter:
    ...         return await limiter.take("ann")
    >>> asyncio.run(main())
    <Decision allowed by 3/minute, 2 remaining>
    """

    def __init__(
        self,
        limit: LimitLike,
        engine: str | AsyncEngine = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "hg",
        name: str | None = None,
        observers: Sequence[Observer] = (),
        pausable: bool = False,
        max_pause: float = MAX_PAUSE_S,
    ) -> None:
        self.clock: Clock = check_clock(clock)
        self.observers: Observers | None = Observers(observers) if observers else None
        if isinstance(engine, str):
            engine = open_async_engine(engine, prefix=prefix, clock=self.clock)
        else:
            check_engine(engine, awaited=True)
        self.engine = engine
        self.max_pause: float = check_max_pause(max_pause, pausable)
        limits = limits_of(limit)
        names = names_of(limits, name)
        self._limits: BoundLimits[AsyncMeter, AsyncSlotMeter] = BoundLimits(
            limits, names, self.engine.meter, self.engine.slots, pause_name_of(names, name) if pausable else None
        )
        self._bind()
        if self.observers is not None:
            self.take = self._observed_take  # type: ignore[method-assign]
            self.observers.watch(self)

    @staticmethod
    def from_rules(
        rules: Rules,
        engine: str | AsyncEngine = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "hg",
        observers: Sequence[Observer] = (),
    ) -> AsyncRuleLimiter:
        """Makes a limiter that follows a rulebook: a file, a mapping, a Rulebook, or "pushed"."""
        from headgate.enforcement.rule_limiter import AsyncRuleLimiter

        return AsyncRuleLimiter(rules, engine, clock=clock, prefix=prefix, observers=observers)

    def _bind(self) -> None:
        meters = self._limits.meters
        self._single = len(meters) == 1
        if self._single:
            self._meter, self._decide = meters[0], meters[0].decide

    async def take(self, key: str, cost: int = 1) -> Decision:
        """Decides whether a call of this cost may pass, and charges it if so."""
        if key.__class__ is str and key and cost.__class__ is int and cost >= 0 and self._single:
            return Decision(await self._decide(key, cost), self._meter, key, cost)
        return await self._take_all(self._limits.charge_each(key, cost), None)

    async def _observed_take(self, key: str, cost: int = 1) -> Decision:
        """Takes, and reports the decision to the observers: what `take` does, without another call in between."""
        observers: Any = self.observers
        draw = random() if observers.draws else 1.0
        started_ns = perf_counter_ns() if draw < observers.timed_share else 0
        try:
            if key.__class__ is str and key and cost.__class__ is int and cost >= 0 and self._single:
                decision = Decision(await self._decide(key, cost), self._meter, key, cost)
            else:
                decision = await self._take_all(self._limits.charge_each(key, cost), None)
        except (EngineUnavailable, CorruptState) as error:
            observers.failed(error, elapsed_us(started_ns))
            raise
        if cost:
            latency_us = elapsed_us(started_ns) if started_ns else None
            for report in observers.decided_reports:
                try:
                    report(decision, latency_us, False)
                except Exception as error:
                    observers.report_error(report, error)
            if draw < observers.sampled_share or (observers.has_sample and not decision.outcome[ALLOWED]):
                observers.decided_sample(decision, latency_us, False, draw)
        return decision

    async def peek(self, key: str) -> Decision:
        """Returns what is left and charges nothing; `allowed` says whether a call of cost 1 would pass."""
        if self.holds_slots:
            meter = self._limits.slot_meter(key)
            return Decision(await meter.free(key), meter, key, 0)
        return await self.take(key, 0)

    async def take_all(self, charges: Sequence[Charge | tuple[str, LimitLike]]) -> Decision:
        """Decides several charges together, and charges all of them or none."""
        batch = self._limits.batch(charges)
        if self.observers is None:
            return await self._take_all(batch, None)
        return await self._observed_take_all(batch, None)

    async def _observed_take_all(self, batch: ChargeBatch[AsyncMeter], patience_us: int | None) -> Decision:
        if self.observers is None:
            return await self._take_all(batch, patience_us)
        with ObservedDecision(self.observers) as observed:
            decision = await self._take_all(batch, patience_us)
            observed.report(decision)
            return decision

    async def _take_all(self, batch: ChargeBatch[AsyncMeter], patience_us: int | None) -> Decision:
        if len(batch.distinct) == 1:
            meter, key, cost = batch.distinct[0]
            return batch.decision([await meter.decide(key, cost, patience_us)])
        return batch.decision(await self.engine.decide_all(batch.distinct, patience_us))

    async def wait(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Waits until the call may pass, first come, first served; refuses at once if `timeout` is too short."""
        batch = self._limits.charge_each(key, cost, spends=True)
        if self.pausable:
            peek = partial(self._take_all, self._limits.charge_each(key, 0), None)
            return await arun(
                limiter_flows.wait_through_pauses(
                    self._observed_take_all, peek, batch, timeout, self.clock.asleep_us
                )
            )
        return await arun(limiter_flows.wait(self._observed_take_all, batch, timeout, self.clock.asleep_us))

    async def reserve(self, key: str, cost: int = 1, timeout: float | None = None) -> AsyncReservation:
        """Takes a place now; the caller sleeps `delay` before going on, or cancels."""
        batch = self._limits.charge_each(key, cost, spends=True)
        return AsyncReservation(await self._observed_take_all(batch, limiter_flows.patience_us(timeout)))

    async def refund(self, decision: Decision, cost: int | None = None) -> None:
        """Gives back what the decision charged, or `cost` of it: at most what that charge still holds."""
        await arun(limiter_flows.refund(check_decision(decision, awaited=True), cost))

    async def settle(self, decision: Decision | AsyncReservation, cost: int) -> None:
        """Makes the count say what the call really cost, once that is known: what was charged too much is given
        back, as by a refund, and what is missing is charged, even beyond the limit. Once settled, a decision is
        final: settling, refunding or cancelling it again changes nothing."""
        await arun(limiter_flows.settle(check_decision(_decision_of(decision), awaited=True), cost))

    async def pause(self, key: str, seconds: float) -> float:
        """Refuses every call on the key for so many seconds, in every process; callers that wait are served after
        it, in order. Returns for how long the key is paused now: a pause never shortens a longer one. `reset` ends
        it."""
        meter, duration_us = self._limits.pausable_meter(key), pause_us(seconds, self.max_pause)
        return await meter.pause(key, duration_us) / SECOND

    async def reset(self, key: str) -> None:
        """Deletes the counts of the key, and ends its pause."""
        check_key(key)
        for meter in (*self._limits.meters, self._limits.slots):
            if meter is not None:
                await meter.reset(key)

    async def set_limit(self, limit: LimitLike, *keys: str) -> None:
        """Changes the limit and keeps the counts; those of `keys` are converted to it at this instant."""
        for key in keys:
            check_key(key)
        self._limits = self._limits.with_limits(limit)
        self._bind()
        for meter in self._limits.meters:
            for key in keys:
                await meter.retune(key)

    async def acquire(self, key: str, timeout: float = 0) -> AsyncLease:
        """Holds a slot; raises RateLimited if none comes free within `timeout`. Use it in a with statement."""
        meter = self._limits.slot_meter(key)
        flow = slot_queue.acquire(meter, key, limiter_flows.patience_us(timeout), self.clock.asleep_us)
        if self.observers is None:
            return AsyncLease(meter, key, await arun(flow))
        with ObservedDecision(self.observers) as observed:
            try:
                decision = await arun(flow)
            except RateLimited as error:
                observed.report(error.decision)
                raise
            observed.report(decision)
            return AsyncLease(meter, key, decision)

    @property
    def units_per_second(self) -> float | None:
        """The lowest rate of this limiter's limits; None if none of them has a rate."""
        rates = [meter.limit.units_per_second for meter in self._limits.meters]
        return min((float(rate) for rate in rates if rate is not None), default=None)

    @property
    def pausable(self) -> bool:
        """Returns whether keys of this limiter can be paused."""
        return self._limits.pause_name is not None

    @property
    def holds_slots(self) -> bool:
        """Returns whether this limiter's limit is acquired and released, not taken."""
        return self._limits.slots is not None

    def explain(self, nodes: int = 1) -> str:
        """Describes what this limiter guarantees, in words and numbers, with so many processes using it."""
        from headgate.explain import explain_limits

        limits = [meter.limit for meter in (*self._limits.meters, self._limits.slots) if meter is not None]
        return explain_limits(limits, self.engine, nodes)

    def guard(self, key: str | Callable[..., str], cost: int = 1, timeout: float = 0) -> AsyncGuard:
        """Limits a block or a function: takes (or waits, or acquires), and raises RateLimited if refused."""
        return AsyncGuard(self, key, cost, timeout)

    def pace(
        self,
        items: Iterable[T] | AsyncIterable[T],
        key: str | Callable[[T], str],
        cost: int | Callable[[T], int] = 1,
        timeout: float | None = None,
    ) -> AsyncIterator[T]:
        """Iterates over the items, awaited or not, and awaits the turn of each; raises RateLimited if refused."""
        return pacing.pace_async(self, items, key, cost, timeout)

    async def close(self) -> None:
        """Closes the engine and its connections; a with statement does so, too."""
        await self.engine.close()
        if self.observers is not None:
            self.observers.close()

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _decision_of(charged: Decision | Reservation | AsyncReservation) -> Decision:
    return charged.decision if isinstance(charged, Reservation | AsyncReservation) else charged
