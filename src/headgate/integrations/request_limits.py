"""Decides the requests of one application: by a rulebook, by limits in code, or both, on one engine.

RequestLimits (sync) and AsyncRequestLimits belong to one application. The engine is opened at the first request,
and closed with the application. What they share is written once, in request_flows.py.

A request is decided in one stage or several: in a middleware, and again where its route is known. All limits of
one stage are one atomic decision. If a later stage refuses, the charges of the earlier ones are given back.

Laws (tests/integrations/test_request_limits.py):
  - a refused request has charged nothing, in any stage;
  - an engine that does not answer is a 503, never an exception, unless the rule's fallback decides;
  - whatever happens to the request, `finish` refunds, settles and releases at most once; what the application
    has settled is charged also if it failed afterwards, or if the client went away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from inspect import isawaitable
from typing import Any, cast

from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
from headgate.engines.port import AsyncEngine, Engine
from headgate.engines.url_schemes import MEMORY, scheme_of
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge
from headgate.flow import arun, run
from headgate.http.refusal_body import RefusalResponse
from headgate.integrations.application_settings import LimitSettings
from headgate.integrations.code_limit import BoundLimit
from headgate.integrations.loop_turns import go_on_in_turn
from headgate.integrations.request_flows import RequestFlows
from headgate.integrations.request_plan_cache import AddressPlan
from headgate.integrations.request_record import RequestRecord
from headgate.lazy_property import lazy_property
from headgate.slot_renewal import AsyncHolding, Holding

__all__ = ["AsyncRequestLimits", "LimitSettings", "RequestLimits"]


class RequestLimits(RequestFlows[RuleLimiter]):
    """Decides the requests of a sync application. Thread-safe."""

    awaited = False

    def _open(self) -> RuleLimiter:
        return RuleLimiter(
            self.rules,
            cast("str | Engine", self.engine_or_url),
            clock=self.clock,
            prefix=self.prefix,
            observers=self.observers,
        )

    def decide(
        self, record: RequestRecord, limits: Sequence[BoundLimit] = (), *, with_rules: bool = True
    ) -> RefusalResponse | None:
        """Decides the rulebook (`with_rules`) and these limits together; returns the response of a refusal."""
        cached = self._cached_plan(record, limits, with_rules)
        if cached is None:
            return run(self._decide(record, limits, with_rules))
        try:
            decision = self.limiter.decide_plan(cached.plan)
        except (EngineUnavailable, CorruptState) as error:
            return run(self._undecided(record, error))
        if cached.passes_at_once(decision) and not self._outages.active:
            record.add(decision, cached)
            return None
        return run(self._conclude(record, limits, cached.plan, decision))

    def finish(self, record: RequestRecord, status: int, response: Any = None) -> None:
        """Refunds, settles and releases after the response. Call it once for every request, also for one that
        failed."""
        if record.unfinished:
            run(self._finish(record, status, response))

    def close(self) -> None:
        """Closes the engine, if it was opened."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.close()

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        result = function(*args)
        if isawaitable(result):
            if hasattr(result, "close"):
                result.close()
            raise InvalidCharge("A function of the request is a coroutine, but this application is sync.")
        return result

    def _sleep_us(self, duration_us: int) -> None:
        self.limiter.clock.sleep_us(duration_us)

    def _holding(self, decision: RuleDecision, hold: Any) -> Holding:
        limiter = self.limiter
        return Holding(
            hold, lambda: limiter.renew(decision), lambda: hold.is_released or limiter.release(decision)
        )

    def _enter(self, holding: Holding) -> None:
        holding.__enter__()

    def _leave(self, holding: Holding) -> None:
        holding.__exit__(None, None, None)


class AsyncRequestLimits(RequestFlows[AsyncRuleLimiter]):
    """Decides the requests of an async application."""

    awaited = True

    def _open(self) -> AsyncRuleLimiter:
        return AsyncRuleLimiter(
            self.rules,
            cast("str | AsyncEngine", self.engine_or_url),
            clock=self.clock,
            prefix=self.prefix,
            observers=self.observers,
        )

    @lazy_property
    def _in_memory(self) -> bool:
        return isinstance(self.engine_or_url, str) and scheme_of(self.engine_or_url) == MEMORY

    def decide(
        self, record: RequestRecord, limits: Sequence[BoundLimit] = (), *, with_rules: bool = True
    ) -> Coroutine[Any, Any, RefusalResponse | None]:
        """Decides the rulebook (`with_rules`) and these limits together; returns the response of a refusal."""
        return self._decide_in_turn(record, limits, with_rules, self._cached_plan(record, limits, with_rules))

    def decide_at_once(
        self, record: RequestRecord, limits: Sequence[BoundLimit]
    ) -> Coroutine[Any, Any, RefusalResponse | None] | None:
        """Decides like `decide`; returns None if the request passed, otherwise what is to be awaited.

        A request that was planned before is decided in memory without a coroutine.
        """
        cached = self._cached_plan(record, limits, True)
        if cached is None or cached.decide_now is None:
            return self._decide_in_turn(record, limits, True, cached)
        try:
            decision = cached.plan.decision((cached.decide_now(),))
        except (EngineUnavailable, CorruptState) as error:
            return arun(self._undecided(record, error))
        if cached.passes_at_once(decision) and not self._outages.active:
            record.add(decision, cached)
            return None
        return arun(self._conclude(record, limits, cached.plan, decision))

    def _decide_in_turn(
        self, record: RequestRecord, limits: Sequence[BoundLimit], with_rules: bool, cached: AddressPlan | None
    ) -> Coroutine[Any, Any, RefusalResponse | None]:
        decided: Coroutine[Any, Any, RefusalResponse | None]
        if cached is None:
            decided = arun(self._decide(record, limits, with_rules))
        else:
            decided = self._decide_cached(record, limits, cached)
        return decided if self._in_memory else go_on_in_turn(record, decided)

    async def _decide_cached(
        self, record: RequestRecord, limits: Sequence[BoundLimit], cached: AddressPlan
    ) -> RefusalResponse | None:
        try:
            if cached.charge is None:
                decision = await self.limiter.decide_plan(cached.plan)
            else:  # as decide_plan does, in one coroutine less
                meter, key, cost = cached.charge
                decision = cached.plan.decision((await meter.decide(key, cost),))
        except (EngineUnavailable, CorruptState) as error:
            return await arun(self._undecided(record, error))
        if cached.passes_at_once(decision) and not self._outages.active:
            record.add(decision, cached)
            return None
        return await arun(self._conclude(record, limits, cached.plan, decision))

    async def return_units(self, record: RequestRecord, status: int, response: Any = None) -> None:
        """Refunds and releases before the last byte of a response, after which the client may send its next
        request. `finish` does the rest."""
        await arun(self._return_units(record, status, response))

    async def finish(self, record: RequestRecord, status: int, response: Any = None) -> None:
        """Refunds, settles and releases after the response. Call it once for every request, also for one that
        failed."""
        if record.unfinished:
            await arun(self._finish(record, status, response))

    async def close(self) -> None:
        """Closes the engine, if it was opened."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            await limiter.close()

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        result = function(*args)
        return await result if isawaitable(result) else result

    def _sleep_us(self, duration_us: int) -> Awaitable[None]:
        return self.limiter.clock.asleep_us(duration_us)

    def _holding(self, decision: RuleDecision, hold: Any) -> AsyncHolding:
        limiter = self.limiter

        async def release() -> bool:
            return bool(hold.is_released or await limiter.release(decision))

        return AsyncHolding(hold, lambda: limiter.renew(decision), release)

    def _enter(self, holding: AsyncHolding) -> Awaitable[Any]:
        return holding.__aenter__()

    def _leave(self, holding: AsyncHolding) -> Awaitable[None]:
        return holding.__aexit__(None, None, None)
