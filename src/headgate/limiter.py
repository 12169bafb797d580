"""The verbs that a program calls.

    take      may this call pass?                   peek      would it?
    take_all  may these, together?                  wait      pass when there is room, first come first served
    reserve   take a place now, be served later     refund    give back what a decision charged
    reset     forget a key                          acquire   hold a slot until released
    guard     any of these around a block or a function
    explain   what is promised, in words            from_rules    a limiter that follows a rulebook

Limiter and AsyncLimiter are the same but for the await. What takes several steps is a flow, spelled once in
steps.py; what is checked is checked in asking.py. A Limiter knows no Redis, no HTTP and no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from headgate import slot_steps, steps
from headgate.asking import Asked, Asking, LimitLike, check_decision, check_engine, check_key, limits_of, names_of
from headgate.clock import Clock, SystemClock
from headgate.engine.port import AsyncEngine, AsyncMeter, AsyncSlotMeter, Engine, Meter, SlotMeter
from headgate.engine.url import open_async_engine, open_engine
from headgate.explain import page
from headgate.flow import arun, run
from headgate.guard import AsyncGuard, Guard
from headgate.lease import AsyncLease, Lease
from headgate.model.decision import Charge, Decision
from headgate.reservation import AsyncReservation, Reservation
from headgate.ruled.limiter import AsyncRuledLimiter, RuledLimiter
from headgate.ruled.opening import Rules


class Limiter:
    """Limits calls by key. Thread-safe.

    limit    a Limit, its text form ("100/s burst 200"), or several ("10/s; 500/hour"), decided together
    engine   where counts are kept: memory:// (this process), redis://host:port/db, or an engine
    name     what the counts are filed under; the limit's text unless given. Give one to be able to change the
             limit later without forgetting the counts.
    """

    def __init__(
        self,
        limit: LimitLike,
        engine: str | Engine = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "hg",
        name: str | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        if isinstance(engine, str):
            engine = open_engine(engine, prefix=prefix, clock=self.clock)
        else:
            check_engine(engine, awaited=False)
        self.engine = engine
        limits = limits_of(limit)
        self._asking: Asking[Meter, SlotMeter] = Asking(
            limits, names_of(limits, name), self.engine.meter, self.engine.slots
        )
        self._bind()

    @staticmethod
    def from_rules(
        rules: Rules, engine: str | Engine = "memory://", *, clock: Clock | None = None, prefix: str = "hg"
    ) -> RuledLimiter:
        """A limiter that follows a rulebook: a file, a mapping, a Rulebook, or "pushed". See RuledLimiter."""
        return RuledLimiter(rules, engine, clock=clock, prefix=prefix)

    def _bind(self) -> None:
        meters = self._asking.meters
        self._single = len(meters) == 1
        if self._single:
            self._meter, self._decide = meters[0], meters[0].decide

    def take(self, key: str, cost: int = 1) -> Decision:
        """May a call of this cost pass? Charges it if so."""
        if key.__class__ is str and key and cost.__class__ is int and cost >= 0 and self._single:
            return Decision(self._decide(key, cost), self._meter, key, cost)
        return self._take_all(self._asking.of(key, cost), None)

    def peek(self, key: str) -> Decision:
        """How things stand; allowed says whether a call of cost 1 would pass. Charges nothing."""
        if self.holds_slots:
            meter = self._asking.slots_of(key)
            return Decision(meter.free(key), meter, key, 0)
        return self.take(key, 0)

    def take_all(self, charges: Sequence[Charge | tuple[str, LimitLike]]) -> Decision:
        """May all of these pass together? Charges all of them, or none."""
        return self._take_all(self._asking.charges(charges), None)

    def _take_all(self, asked: Asked[Meter], patience_us: int | None) -> Decision:
        if len(asked.distinct) == 1:
            meter, key, cost = asked.distinct[0]
            return asked.decision([meter.decide(key, cost, patience_us)])
        return asked.decision(self.engine.decide_all(asked.distinct, patience_us))

    def wait(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Pass when there is room, in the order of asking. Refused at once if that is more than `timeout` away."""
        asked = self._asking.of(key, cost, spends=True)
        return run(steps.wait(self._take_all, asked, timeout, self.clock.sleep_us))

    def reserve(self, key: str, cost: int = 1, timeout: float | None = None) -> Reservation:
        """Take a place now; the caller sleeps `delay` before going on, or cancels."""
        asked = self._asking.of(key, cost, spends=True)
        return Reservation(self._take_all(asked, steps.patience_us(timeout)))

    def refund(self, decision: Decision, cost: int | None = None) -> None:
        """Give back what the decision charged, or `cost` of it: at most what that charge still holds."""
        run(steps.refund(check_decision(decision, awaited=False), cost))

    def reset(self, key: str) -> None:
        """Forget the key."""
        check_key(key)
        for meter in (*self._asking.meters, self._asking.slots):
            if meter is not None:
                meter.reset(key)

    def set_limit(self, limit: LimitLike, *keys: str) -> None:
        """Go on under another limit with the same counts; `keys` are reckoned anew at this instant."""
        for key in keys:
            check_key(key)
        self._asking = self._asking.changed(limit)
        self._bind()
        for meter in self._asking.meters:
            for key in keys:
                meter.retune(key)

    def acquire(self, key: str, timeout: float = 0) -> Lease:
        """Hold a slot; raises RateLimited if none comes free within `timeout`. Use it in a with statement."""
        meter = self._asking.slots_of(key)
        flow = slot_steps.acquire(meter, key, steps.patience_us(timeout), self.clock.sleep_us)
        return Lease(meter, key, run(flow))

    @property
    def holds_slots(self) -> bool:
        """Whether this limiter's limit is acquired and released, not taken."""
        return self._asking.slots is not None

    def explain(self, nodes: int = 1) -> str:
        """What this limiter promises, in words and numbers, when so many processes use it."""
        limits = [meter.limit for meter in (*self._asking.meters, self._asking.slots) if meter is not None]
        return page(limits, self.engine, nodes)

    def guard(self, key: str | Callable[..., str], cost: int = 1, timeout: float = 0) -> Guard:
        """Around a block or a function: take (or wait, or acquire), and raise RateLimited if refused."""
        return Guard(self, key, cost, timeout)

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncLimiter:
    """Limits calls by key, awaited. Works from several event loops. See Limiter."""

    def __init__(
        self,
        limit: LimitLike,
        engine: str | AsyncEngine = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "hg",
        name: str | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        if isinstance(engine, str):
            engine = open_async_engine(engine, prefix=prefix, clock=self.clock)
        else:
            check_engine(engine, awaited=True)
        self.engine = engine
        limits = limits_of(limit)
        self._asking: Asking[AsyncMeter, AsyncSlotMeter] = Asking(
            limits, names_of(limits, name), self.engine.meter, self.engine.slots
        )
        self._bind()

    @staticmethod
    def from_rules(
        rules: Rules, engine: str | AsyncEngine = "memory://", *, clock: Clock | None = None, prefix: str = "hg"
    ) -> AsyncRuledLimiter:
        """A limiter that follows a rulebook: a file, a mapping, a Rulebook, or "pushed". See RuledLimiter."""
        return AsyncRuledLimiter(rules, engine, clock=clock, prefix=prefix)

    def _bind(self) -> None:
        meters = self._asking.meters
        self._single = len(meters) == 1
        if self._single:
            self._meter, self._decide = meters[0], meters[0].decide

    async def take(self, key: str, cost: int = 1) -> Decision:
        """May a call of this cost pass? Charges it if so."""
        if key.__class__ is str and key and cost.__class__ is int and cost >= 0 and self._single:
            return Decision(await self._decide(key, cost), self._meter, key, cost)
        return await self._take_all(self._asking.of(key, cost), None)

    async def peek(self, key: str) -> Decision:
        """How things stand; allowed says whether a call of cost 1 would pass. Charges nothing."""
        if self.holds_slots:
            meter = self._asking.slots_of(key)
            return Decision(await meter.free(key), meter, key, 0)
        return await self.take(key, 0)

    async def take_all(self, charges: Sequence[Charge | tuple[str, LimitLike]]) -> Decision:
        """May all of these pass together? Charges all of them, or none."""
        return await self._take_all(self._asking.charges(charges), None)

    async def _take_all(self, asked: Asked[AsyncMeter], patience_us: int | None) -> Decision:
        if len(asked.distinct) == 1:
            meter, key, cost = asked.distinct[0]
            return asked.decision([await meter.decide(key, cost, patience_us)])
        return asked.decision(await self.engine.decide_all(asked.distinct, patience_us))

    async def wait(self, key: str, cost: int = 1, timeout: float | None = None) -> Decision:
        """Pass when there is room, in the order of asking. Refused at once if that is more than `timeout` away."""
        asked = self._asking.of(key, cost, spends=True)
        return await arun(steps.wait(self._take_all, asked, timeout, self.clock.asleep_us))

    async def reserve(self, key: str, cost: int = 1, timeout: float | None = None) -> AsyncReservation:
        """Take a place now; the caller sleeps `delay` before going on, or cancels."""
        asked = self._asking.of(key, cost, spends=True)
        return AsyncReservation(await self._take_all(asked, steps.patience_us(timeout)))

    async def refund(self, decision: Decision, cost: int | None = None) -> None:
        """Give back what the decision charged, or `cost` of it: at most what that charge still holds."""
        await arun(steps.refund(check_decision(decision, awaited=True), cost))

    async def reset(self, key: str) -> None:
        """Forget the key."""
        check_key(key)
        for meter in (*self._asking.meters, self._asking.slots):
            if meter is not None:
                await meter.reset(key)

    async def set_limit(self, limit: LimitLike, *keys: str) -> None:
        """Go on under another limit with the same counts; `keys` are reckoned anew at this instant."""
        for key in keys:
            check_key(key)
        self._asking = self._asking.changed(limit)
        self._bind()
        for meter in self._asking.meters:
            for key in keys:
                await meter.retune(key)

    async def acquire(self, key: str, timeout: float = 0) -> AsyncLease:
        """Hold a slot; raises RateLimited if none comes free within `timeout`. Use it in an async with."""
        meter = self._asking.slots_of(key)
        flow = slot_steps.acquire(meter, key, steps.patience_us(timeout), self.clock.asleep_us)
        return AsyncLease(meter, key, await arun(flow))

    @property
    def holds_slots(self) -> bool:
        """Whether this limiter's limit is acquired and released, not taken."""
        return self._asking.slots is not None

    def explain(self, nodes: int = 1) -> str:
        """What this limiter promises, in words and numbers, when so many processes use it."""
        limits = [meter.limit for meter in (*self._asking.meters, self._asking.slots) if meter is not None]
        return page(limits, self.engine, nodes)

    def guard(self, key: str | Callable[..., str], cost: int = 1, timeout: float = 0) -> AsyncGuard:
        """Around a block or a function: take (or wait, or acquire), and raise RateLimited if refused."""
        return AsyncGuard(self, key, cost, timeout)

    async def close(self) -> None:
        await self.engine.close()

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
