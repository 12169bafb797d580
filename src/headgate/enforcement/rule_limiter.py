"""The verbs of a limiter that follows a rulebook.

    check     may this call pass all rules that apply to it?     peek      would it?
    wait      pass when there is room                            refund    give back what a decision charged
    reserve   take a place now, for later                        cancel    give that place back
    hold      check around a block, and hold slots meanwhile     release   give the slots of a decision back
    renew     hold them for longer                               settle    count what a call really cost
    reset     delete the counters of a call                      replace   switch to another rulebook
    pause     refuse a key of a rule for a while
    check_together   may several calls pass, all or none?        give_back  units of a call whose decision is gone

    limiter = Limiter.from_rules("rules.yaml", engine="redis://localhost:6379/0")
    decision = limiter.check({"method": "POST", "path": "/login", "address": "192.0.2.7"})

RuleLimiter and AsyncRuleLimiter differ only in the await, and the file is long for that reason: they are read side
by side. Which rulebook they decide by, and what a call is charged by it: rulebook_follower.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from random import random
from time import perf_counter_ns
from types import TracebackType
from typing import Any, cast

from headgate import limiter_flows
from headgate.algorithms.decision import Decision
from headgate.algorithms.limit import SECOND
from headgate.clock import Clock, check_clock
from headgate.enforcement import adaptive_rules, held_slots
from headgate.enforcement.adaptive_rules import SUCCESS, CallEnd, check_outcome
from headgate.enforcement.call_plan import CallPlan
from headgate.enforcement.check_together import BatchedCall, CallBatch, refund_untracked
from headgate.enforcement.open_rulebook import Rules
from headgate.enforcement.override_checks import AsyncRuleOverrides, RuleOverrides
from headgate.enforcement.paused_keys import pausable_key, wait_through_pauses
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rulebook_follower import Attributes, RulebookFollower
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import AsyncEngine, Engine
from headgate.engines.url import build_async_engine, build_engine, parse_engine_url
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge
from headgate.flow import arun, run
from headgate.observer import ObservedDecision, Observer, elapsed_us
from headgate.slot_renewal import AsyncHolding, Holding, SlotHold
from headgate.validation import check_decision, check_engine, check_units


class RuleLimiter(RulebookFollower):
    """Limits calls by a rulebook. Thread-safe.

    rules    a Rulebook, a mapping, a file (watched), or "pushed": what was pushed to the engine's server
    engine   where counters are stored: memory:// (this process), redis://host:port/db, or an engine
    observers  who is told of every decision: counts, logs, metrics

    The examples of its verbs use these rules:

    >>> RULES = {"rules": [{"name": "login", "key": "user", "missing": "deny", "limit": "2/minute"}]}
    >>> limiter = Limiter.from_rules(RULES)
    >>> limiter.check({"user": "ann"})
    <Decision allowed by rule "login" (2/minute), 1 remaining>
    """

    def __init__(
        self,
        rules: Rules,
        engine: str | Engine = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "hg",
        observers: Sequence[Observer] = (),
    ) -> None:
        clock, url = check_clock(clock), None
        if isinstance(engine, str):
            url = parse_engine_url(engine, ruled=True)
            engine = build_engine(url, prefix, clock, ruled=True)
        else:
            check_engine(engine, awaited=False)
        local = engine if isinstance(engine, MemoryEngine) else MemoryEngine(clock)
        super().__init__(rules, engine, local, clock, url, prefix, observers)
        if self.observers is not None:
            self.decide_plan = self._observed_decide_plan  # type: ignore[method-assign]

    def check(self, attributes: Attributes, cost: int | None = None) -> RuleDecision:
        """Decides whether a call may pass, and charges every rule that applies, or none: `cost` times what it
        states.

        >>> Limiter.from_rules(RULES).check({"user": "ann"}).rule
        'login'
        """
        return self.decide_plan(self.plan_call(attributes, cost))

    def decide_plan(self, plan: CallPlan, response_follows: bool = False) -> RuleDecision:
        """Decides a call whose charges are planned. `response_follows`: the caller reports the response later.

        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.decide_plan(limiter.plan_call({"user": "ann"})).rule
        'login'
        """
        if not plan.is_single_request:
            return run(plan.decide())
        if len(plan.charges) != 1:
            return plan.decision(self.engine.decide_all(plan.charges) if plan.charges else ())
        meter, key, cost = plan.charges[0]
        return plan.decision((meter.decide(key, cost),))

    def _observed_decide_plan(self, plan: CallPlan, response_follows: bool = False) -> RuleDecision:
        """Decides, and reports the decision to the observers: an ObservedDecision without its calls."""
        observers: Any = self.observers
        draw = random() if observers.draws else 1.0
        started_ns = perf_counter_ns() if draw < observers.timed_share else 0
        try:
            decision = RuleLimiter.decide_plan(self, plan)
        except (EngineUnavailable, CorruptState) as error:
            observers.failed(error, elapsed_us(started_ns))
            raise
        decision.attributes, decision.stated_cost = plan.attributes, plan.stated_cost
        observers.decided(decision, elapsed_us(started_ns), response_follows, draw)
        return decision

    def _reserve(self, plan: CallPlan, patience_us: int | None) -> RuleDecision:
        if self.observers is None:
            return run(plan.decide(patience_us))
        with ObservedDecision(self.observers) as observed:
            decision = run(plan.decide(patience_us))
            decision.patience_us = patience_us
            observed.report(decision, plan.attributes, False, plan.stated_cost)
            return decision

    def check_together(self, calls: Sequence[BatchedCall]) -> tuple[RuleDecision, ...]:
        """Decides several calls, and charges them all or none; returns a decision for each.

        >>> from headgate.enforcement.check_together import BatchedCall
        >>> calls = [BatchedCall({"user": "ann"}), BatchedCall({"user": "bob"}, cost=3)]
        >>> [decision.allowed for decision in Limiter.from_rules(RULES).check_together(calls)]
        [True, False]
        """
        batch = CallBatch(self._compiled, calls)
        if self.observers is None:
            return self._decide_batch(batch)
        with ObservedDecision(self.observers) as observed:
            decisions = self._decide_batch(batch)
            batch.report(observed, decisions)
            return decisions

    def _decide_batch(self, batch: CallBatch) -> tuple[RuleDecision, ...]:
        if not batch.joint_plan.is_single_request:
            return run(batch.decide())
        charges = batch.joint_plan.charges
        if len(charges) != 1:
            return batch.decisions(self.engine.decide_all(charges) if charges else ())
        meter, key, cost = charges[0]
        return batch.decisions((meter.decide(key, cost),))

    def peek(self, attributes: Attributes, cost: int | None = None) -> RuleDecision:
        """Decides what `check` would decide; charges nothing, counts nothing.

        >>> Limiter.from_rules(RULES).peek({"user": "ann"}).remaining
        2
        """
        return run(self.plan_call(attributes, cost).decide(commit=False))

    def wait(self, attributes: Attributes, cost: int | None = None, timeout: float | None = None) -> RuleDecision:
        """Passes when there is room under every rule; refused at once if that is more than `timeout` away.

        >>> limiter = Limiter.from_rules(RULES, clock=ManualClock())
        >>> [limiter.wait({"user": "ann"}).delay for _ in range(3)]
        [0.0, 0.0, 30.0]
        """
        return self.wait_plan(self.plan_call(attributes, cost), timeout)

    def wait_plan(self, plan: CallPlan, timeout: float | None = None) -> RuleDecision:
        """Waits for a call whose charges are planned.

        >>> limiter = Limiter.from_rules(RULES, clock=ManualClock())
        >>> limiter.wait_plan(limiter.plan_call({"user": "ann"})).delay
        0.0
        """
        if plan.can_be_paused:
            flow = wait_through_pauses(plan, self._reserve, run, timeout, self.clock.sleep_us)
        else:
            flow = limiter_flows.wait(self._reserve, plan, timeout, self.clock.sleep_us)
        return cast(RuleDecision, run(flow))

    def reserve(
        self, attributes: Attributes, cost: int | None = None, timeout: float | None = None
    ) -> RuleDecision:
        """Takes a place now, for use after the decision's delay; refused if that is more than `timeout` away.

        >>> limiter = Limiter.from_rules(RULES, clock=ManualClock())
        >>> [limiter.reserve({"user": "ann"}).delay for _ in range(3)]
        [0.0, 0.0, 30.0]
        """
        return self.reserve_plan(self.plan_call(attributes, cost), timeout)

    def reserve_plan(self, plan: CallPlan, timeout: float | None = None) -> RuleDecision:
        """Takes a place for a call whose charges are planned.

        >>> limiter = Limiter.from_rules(RULES, clock=ManualClock())
        >>> limiter.reserve_plan(limiter.plan_call({"user": "ann"})).delay
        0.0
        """
        return self._reserve(plan, limiter_flows.patience_us(timeout))

    def cancel(self, decision: Decision) -> bool:
        """Gives a reserved place back, as far as no later one depends on it.

        False if a fallback answered, and some of it may be lost.

        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.cancel(limiter.reserve({"user": "ann"}))
        True
        """
        return run(self._cancel_flow(check_decision(decision, awaited=False)))

    def refund(self, decision: Decision, cost: int | None = None) -> bool:
        """Gives back what the decision charged, or `cost` of it, under every rule.

        False if a fallback answered, and some of it may be lost.

        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.refund(limiter.check({"user": "ann"}))
        True
        """
        return run(limiter_flows.refund(check_decision(decision, awaited=False), cost))

    def settle(self, decision: Decision, cost: int, rule: str | None = None) -> bool:
        """Makes the counts say what the call really cost, once that is known: what was charged too much is given
        back, as by a refund, and what is missing is charged, even beyond the limit. Under every rule; if one of
        several states a cost of its own, name the one that is meant.

        Once settled, a decision is final: settling, refunding or cancelling it again changes nothing. False if a
        fallback answered, and some of it may be lost.

        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.settle(limiter.check({"user": "ann"}), 2), limiter.peek({"user": "ann"}).remaining
        (True, 0)
        """
        return run(limiter_flows.settle(part_of_rule(check_decision(decision, awaited=False), rule), cost))

    def give_back(self, call: BatchedCall, units: int) -> RuleDecision:
        """Gives back units of a call whose decision is gone, as far as they are counted; returns the state
        after that.

        >>> from headgate.enforcement.check_together import BatchedCall
        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.check({"user": "ann"}).remaining, limiter.give_back(BatchedCall({"user": "ann"}), 1).remaining
        (1, 2)
        """
        return run(refund_untracked(self._compiled, call, check_units(units)))

    def renew(self, decision: Decision) -> bool:
        """Holds the decision's slots for another ttl; False if one is lost: another caller may hold it.

        >>> limiter = Limiter.from_rules({"rules": [{"name": "jobs", "limit": "2 slots"}]})
        >>> limiter.renew(limiter.check({}))
        True
        """
        return run(held_slots.renew(check_decision(decision, awaited=False)))

    def release(self, decision: Decision) -> bool:
        """Gives back the slots that the decision holds; False if one was gone already.

        One that is not released ends by its ttl.

        >>> limiter = Limiter.from_rules({"rules": [{"name": "jobs", "limit": "2 slots"}]})
        >>> limiter.release(limiter.check({}))
        True
        """
        return run(held_slots.release(check_decision(decision, awaited=False)))

    def finish(self, decision: Decision, outcome: str = SUCCESS) -> bool:
        """Ends a call: tells adaptive rules how it went and how long it took, and releases its slots.

        ``outcome``: success; dropped, if it timed out or was turned away; or ignored, if it says nothing about the
        service. Only the first end of a call counts. False if a slot was gone already.

        >>> rules = {"rules": [{"name": "app", "limit": {"adaptive": "concurrency"}}]}
        >>> limiter = Limiter.from_rules(rules)
        >>> decision = limiter.check({})
        >>> decision.remaining, limiter.finish(decision), limiter.peek({}).remaining
        (19, True, 20)
        """
        adaptive_rules.end(check_decision(decision, awaited=False), check_outcome(outcome))
        return run(held_slots.release(decision))

    @contextmanager
    def hold(self, attributes: Attributes, cost: int | None = None) -> Iterator[RuleDecision]:
        """Checks around a block: RateLimited if refused; slots are held as long as the block lasts.

        An adaptive rule learns how long the block took; a TimeoutError tells it that the call was dropped, any
        other exception tells it nothing.

        >>> with Limiter.from_rules({"rules": [{"name": "jobs", "limit": "2 slots"}]}).hold({}) as decision:
        ...     decision.remaining
        1
        """
        decision = self.check(attributes, cost).or_raise()
        hold = held_slots.hold(decision)
        if hold is None:
            with CallEnd(decision):
                yield decision
            return
        with (
            CallEnd(decision),
            Holding(hold, lambda: self.renew(decision), lambda: hold.is_released or self.release(decision)),
        ):
            yield decision

    def pause(self, rule: str, key: str | Attributes, seconds: float) -> float:
        """Refuses every call on a key of a rule for so many seconds, in every process and gateway. The rule says
        `pausable: true`; the key is its key text, or the attributes of a call. Returns for how long it is paused
        now: a pause never shortens a longer one. `reset` ends it.

        >>> limiter = Limiter.from_rules({"rules": [RULES["rules"][0] | {"pausable": True}]}, clock=ManualClock())
        >>> limiter.pause("login", {"user": "ann"}, 30), limiter.pause("login", "user=ann", 10)
        (30.0, 30.0)
        >>> limiter.check({"user": "ann"})
        <Decision refused by rule "login" (2/minute), because its key is paused: retry after 30 s>
        """
        meter, key, duration_us = pausable_key(self._compiled, rule, key, seconds)
        return float(meter.pause(key, duration_us) / SECOND)

    def reset(self, attributes: Attributes) -> None:
        """Deletes the counters of a call: those of every rule that applies to it.

        >>> Limiter.from_rules(RULES).reset({"user": "ann"})
        """
        run(self._reset_flow(attributes))

    def overrides(self, rule: str) -> RuleOverrides:
        """Gives access to the overrides of a rule, limits of single keys: set, get, unset, list.

        >>> api = {"name": "api", "key": "user", "missing": "deny", "limit": "2/s", "overrides": True}
        >>> limiter = Limiter.from_rules({"rules": [api]})
        >>> limiter.overrides("api").set("user=ann", "9/s"), limiter.peek({"user": "ann"}).remaining
        (True, 9)
        """
        return RuleOverrides(self.engine.overrides(rule), rule, lambda: self.rulebook)

    def close(self) -> None:
        """Stops watching the rulebook, and closes the engine and its connections; a with statement does so, too.

        >>> with Limiter.from_rules(RULES) as limiter:
        ...     limiter.check({"user": "ann"}).allowed
        True
        """
        self._close_rules()
        self._close_agreement()
        self.engine.close()
        if self.observers is not None:
            self.observers.close()

    def __enter__(self) -> RuleLimiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncRuleLimiter(RulebookFollower):
    """Limits calls by a rulebook, awaited. Works from several event loops. Every verb is that of RuleLimiter.

    >>> async def main() -> RuleDecision:
    ...     async with AsyncLimiter.from_rules(RULES) as limiter:
    ...         return await limiter.check({"user": "ann"})
    >>> asyncio.run(main())
    <Decision allowed by rule "login" (2/minute), 1 remaining>
    """

    def __init__(
        self,
        rules: Rules,
        engine: str | AsyncEngine = "memory://",
        *,
        clock: Clock | None = None,
        prefix: str = "hg",
        observers: Sequence[Observer] = (),
    ) -> None:
        clock, url = check_clock(clock), None
        if isinstance(engine, str):
            url = parse_engine_url(engine, ruled=True)
            engine = build_async_engine(url, prefix, clock, ruled=True)
        else:
            check_engine(engine, awaited=True)
        local = engine if isinstance(engine, AsyncMemoryEngine) else AsyncMemoryEngine(MemoryEngine(clock))
        super().__init__(rules, engine, local, clock, url, prefix, observers)
        if self.observers is not None:
            self.decide_plan = self._observed_decide_plan  # type: ignore[method-assign]

    async def check(self, attributes: Attributes, cost: int | None = None) -> RuleDecision:
        """Decides whether a call may pass, and charges every rule that applies, or none: `cost` times what it
        states.
        """
        return await self.decide_plan(self.plan_call(attributes, cost))

    async def decide_plan(self, plan: CallPlan, response_follows: bool = False) -> RuleDecision:
        """Decides a call whose charges are planned. `response_follows`: the caller reports the response later."""
        if not plan.is_single_request:
            return await arun(plan.decide())
        if len(plan.charges) != 1:
            return plan.decision(await self.engine.decide_all(plan.charges) if plan.charges else ())
        meter, key, cost = plan.charges[0]
        return plan.decision((await meter.decide(key, cost),))

    async def _observed_decide_plan(self, plan: CallPlan, response_follows: bool = False) -> RuleDecision:
        """Decides, and reports the decision to the observers: an ObservedDecision without its calls."""
        observers: Any = self.observers
        draw = random() if observers.draws else 1.0
        started_ns = perf_counter_ns() if draw < observers.timed_share else 0
        try:
            decision = await AsyncRuleLimiter.decide_plan(self, plan)
        except (EngineUnavailable, CorruptState) as error:
            observers.failed(error, elapsed_us(started_ns))
            raise
        decision.attributes, decision.stated_cost = plan.attributes, plan.stated_cost
        observers.decided(decision, elapsed_us(started_ns), response_follows, draw)
        return decision

    async def _reserve(self, plan: CallPlan, patience_us: int | None) -> RuleDecision:
        if self.observers is None:
            return await arun(plan.decide(patience_us))
        with ObservedDecision(self.observers) as observed:
            decision = await arun(plan.decide(patience_us))
            decision.patience_us = patience_us
            observed.report(decision, plan.attributes, False, plan.stated_cost)
            return decision

    async def check_together(self, calls: Sequence[BatchedCall]) -> tuple[RuleDecision, ...]:
        """Decides several calls, and charges them all or none; returns a decision for each."""
        return await self.decide_batch(self.plan_batch(calls))

    async def decide_batch(self, batch: CallBatch) -> tuple[RuleDecision, ...]:
        """Decides several calls whose charges are planned."""
        if self.observers is None:
            return await self._decide_batch(batch)
        with ObservedDecision(self.observers) as observed:
            decisions = await self._decide_batch(batch)
            batch.report(observed, decisions)
            return decisions

    async def _decide_batch(self, batch: CallBatch) -> tuple[RuleDecision, ...]:
        if not batch.joint_plan.is_single_request:
            return await arun(batch.decide())
        charges = batch.joint_plan.charges
        if len(charges) != 1:
            return batch.decisions(await self.engine.decide_all(charges) if charges else ())
        meter, key, cost = charges[0]
        return batch.decisions((await meter.decide(key, cost),))

    async def peek_batch(self, batch: CallBatch) -> tuple[RuleDecision, ...]:
        """Decides what `decide_batch` would decide, and charges nothing."""
        outcomes, several_requests = await arun(batch.joint_plan.outcomes(commit=False))
        return batch.decisions(outcomes, several_requests)

    async def peek(self, attributes: Attributes, cost: int | None = None) -> RuleDecision:
        """Decides what `check` would decide; charges nothing, counts nothing."""
        return await arun(self.plan_call(attributes, cost).decide(commit=False))

    async def wait(
        self, attributes: Attributes, cost: int | None = None, timeout: float | None = None
    ) -> RuleDecision:
        """Passes when there is room under every rule; refused at once if that is more than `timeout` away."""
        return await self.wait_plan(self.plan_call(attributes, cost), timeout)

    async def wait_plan(self, plan: CallPlan, timeout: float | None = None) -> RuleDecision:
        """Waits for a call whose charges are planned."""
        if plan.can_be_paused:
            flow = wait_through_pauses(plan, self._reserve, arun, timeout, self.clock.asleep_us)
        else:
            flow = limiter_flows.wait(self._reserve, plan, timeout, self.clock.asleep_us)
        return cast(RuleDecision, await arun(flow))

    async def reserve(
        self, attributes: Attributes, cost: int | None = None, timeout: float | None = None
    ) -> RuleDecision:
        """Takes a place now, for use after the decision's delay; refused if that is more than `timeout` away."""
        return await self.reserve_plan(self.plan_call(attributes, cost), timeout)

    async def reserve_plan(self, plan: CallPlan, timeout: float | None = None) -> RuleDecision:
        """Takes a place for a call whose charges are planned."""
        return await self._reserve(plan, limiter_flows.patience_us(timeout))

    async def cancel(self, decision: Decision) -> bool:
        """Gives a reserved place back, as far as no later one depends on it.

        False if a fallback answered, and some of it may be lost.
        """
        return await arun(self._cancel_flow(check_decision(decision, awaited=True)))

    async def refund(self, decision: Decision, cost: int | None = None) -> bool:
        """Gives back what the decision charged, or `cost` of it, under every rule.

        False if a fallback answered, and some of it may be lost.
        """
        return await arun(limiter_flows.refund(check_decision(decision, awaited=True), cost))

    async def settle(self, decision: Decision, cost: int, rule: str | None = None) -> bool:
        """Makes the counts say what the call really cost, once that is known: what was charged too much is given
        back, as by a refund, and what is missing is charged, even beyond the limit. Under every rule; if one of
        several states a cost of its own, name the one that is meant.

        Once settled, a decision is final: settling, refunding or cancelling it again changes nothing. False if a
        fallback answered, and some of it may be lost.
        """
        return await arun(limiter_flows.settle(part_of_rule(check_decision(decision, awaited=True), rule), cost))

    async def give_back(self, call: BatchedCall, units: int) -> RuleDecision:
        """Gives back units of a call whose decision is gone, as far as they are counted; returns the
        state after that.
        """
        return await arun(refund_untracked(self._compiled, call, check_units(units)))

    async def renew(self, decision: Decision) -> bool:
        """Holds the decision's slots for another ttl; False if one is lost: another caller may hold it."""
        return await arun(held_slots.renew(check_decision(decision, awaited=True)))

    async def release(self, decision: Decision) -> bool:
        """Gives back the slots that the decision holds; False if one was gone already.

        One that is not released ends by its ttl.
        """
        return await arun(held_slots.release(check_decision(decision, awaited=True)))

    async def finish(self, decision: Decision, outcome: str = SUCCESS) -> bool:
        """Ends a call: tells adaptive rules how it went and how long it took, and releases its slots.

        ``outcome``: success; dropped, if it timed out or was turned away; or ignored, if it says nothing about the
        service. Only the first end of a call counts. False if a slot was gone already.
        """
        adaptive_rules.end(check_decision(decision, awaited=True), check_outcome(outcome))
        return await arun(held_slots.release(decision))

    @asynccontextmanager
    async def hold(self, attributes: Attributes, cost: int | None = None) -> AsyncIterator[RuleDecision]:
        """Checks around a block: RateLimited if refused; slots are held as long as the block lasts.

        An adaptive rule learns how long the block took; a TimeoutError tells it that the call was dropped, any
        other exception tells it nothing.
        """
        decision = (await self.check(attributes, cost)).or_raise()
        hold = held_slots.hold(decision)
        if hold is None:
            with CallEnd(decision):
                yield decision
            return
        with CallEnd(decision):
            async with AsyncHolding(hold, lambda: self.renew(decision), lambda: self._leave(decision, hold)):
                yield decision

    async def _leave(self, decision: Decision, hold: SlotHold) -> bool:
        return hold.is_released or await self.release(decision)

    async def pause(self, rule: str, key: str | Attributes, seconds: float) -> float:
        """Refuses every call on a key of a rule for so many seconds, in every process and gateway. The rule says
        `pausable: true`; the key is its key text, or the attributes of a call. Returns for how long it is paused
        now: a pause never shortens a longer one. `reset` ends it."""
        meter, key, duration_us = pausable_key(self._compiled, rule, key, seconds)
        return float(await meter.pause(key, duration_us) / SECOND)

    async def reset(self, attributes: Attributes) -> None:
        """Deletes the counters of a call: those of every rule that applies to it."""
        await arun(self._reset_flow(attributes))

    def overrides(self, rule: str) -> AsyncRuleOverrides:
        """Gives access to the overrides of a rule, limits of single keys: set, get, unset, list."""
        return AsyncRuleOverrides(self.engine.overrides(rule), rule, lambda: self.rulebook)

    async def close(self) -> None:
        """Stops watching the rulebook, and closes the engine and its connections; a with statement does so,
        too.
        """
        self._close_rules()
        self._close_agreement()
        await self.engine.close()
        if self.observers is not None:
            self.observers.close()

    async def __aenter__(self) -> AsyncRuleLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def part_of_rule(decision: Decision, rule: str | None) -> Decision:
    """Returns the part of a decision that this rule decided; all of it if none is named."""
    if rule is None:
        return decision
    rules = list(dict.fromkeys(name for name, _ in decision.labels)) if isinstance(decision, RuleDecision) else []
    if not isinstance(decision, RuleDecision) or rule not in rules:
        charged = " and ".join(f'"{name}"' for name in rules) or "no rule"
        raise InvalidCharge(f"The rule {rule!r} did not charge this call; {charged} did.")
    return decision.only({rule})
