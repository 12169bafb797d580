"""The verbs of a limiter that follows a rulebook.

    check     may this call pass all rules that apply to it?     peek      would it?
    wait      pass when there is room                            refund    give back what a decision charged
    reserve   take a place now, for later                        cancel    give that place back
    hold      check around a block; slots are held as long       release   give the slots of a decision back
    renew     hold them for longer
    reset     forget the counts of a call                        replace   go on by another rulebook
    check_together   may several calls pass, all or none?        give_back  units of a call whose decision is gone

    limiter = Limiter.from_rules("rules.yaml", engine="redis://localhost:6379/0")
    decision = limiter.check({"method": "POST", "path": "/login", "address": "192.0.2.7"})

RuleLimiter and AsyncRuleLimiter are the same but for the await. The rulebook is replaced whole, between two
calls; every call is decided by one book.

(The reason for the length of this file: every verb has two spellings, and an example.)
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, cast

from headgate import limiter_flows
from headgate.algorithms.decision import Decision, Outcome
from headgate.clock import Clock, check_clock
from headgate.enforcement import held_slots
from headgate.enforcement.call_plan import CallPlan, CompiledRulebook
from headgate.enforcement.check_together import Ask, Together, giving_back
from headgate.enforcement.open_rulebook import Rules, opened
from headgate.enforcement.override_checks import AsyncRuleOverrides, RuleOverrides
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.stored_decision import Written, redeemed, written
from headgate.engines import url_options
from headgate.engines.deadlines import set_deadline
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import AsyncEngine, Engine
from headgate.engines.url import open_async_engine, open_engine
from headgate.errors import InvalidCharge, InvalidRule
from headgate.flow import Flow, arun, run
from headgate.rules.distribution.watcher import RulebookWatcher
from headgate.rules.rule import Rulebook
from headgate.slot_renewal import AsyncHolding, Hold, Holding
from headgate.validation import check_cost, check_decision, check_engine, check_units, describe

Attributes = Mapping[str, Any]

RULEBOOK_WARNING = "headgate: %s"
_log = logging.getLogger("headgate")


class _Ruled:
    """What both limiters have: the engines, and the rulebook at work."""

    def __init__(self, rules: Rules, engine: Any, local: Any, clock: Clock, url: str | None, prefix: str) -> None:
        self.clock = clock
        self.engine = engine
        self._local = local
        self._opened = url is not None  # whoever brings an engine along has said how long it waits
        self._chosen = url_options.split(url)[1] if url is not None else url_options.Options()
        self.watch: RulebookWatcher[Rulebook] | None
        book, self.watch, self._close_rules = opened(rules, url, prefix, self.replace)
        self.replace(book)
        if self.watch is not None and not self.watch.start():
            self.call = self._call_and_watch  # type: ignore[method-assign]

    @property
    def rulebook(self) -> Rulebook:
        """The rulebook that is followed."""
        return self._ruling.book

    @property
    def refused_changes(self) -> int:
        """How many changes of the rulebook were refused because they could not be read."""
        return 0 if self.watch is None else self.watch.refused

    def replace(self, rulebook: Rulebook) -> None:
        """Goes on by another rulebook. Counts carry over: they belong to the names of rules and their limits.

        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.replace(Rulebook())
        >>> str(limiter.check({"user": "ann"}))
        'allowed: no limit applies'
        """
        if not isinstance(rulebook, Rulebook):
            raise InvalidRule(
                "A Rulebook is expected, as headgate.rules.load.read(path) or load.of(mapping) returns it; "
                f"not {describe(rulebook)}."
            )
        ruling = CompiledRulebook(rulebook, self.engine, self._local, self._chosen)
        if self._opened:
            set_deadline(self.engine, ruling.deadline)
        self._ruling = ruling
        for warning in rulebook.located_warnings:
            _log.warning(RULEBOOK_WARNING, warning)

    @property
    def ruling(self) -> CompiledRulebook:
        """The rulebook at work: another one after every change."""
        return self._ruling

    def call(self, attributes: object, cost: object = None) -> CallPlan:
        """Works out the charges of a call under the rules that apply; no engine is asked yet."""
        if not isinstance(attributes, Mapping):
            raise InvalidCharge(f'Attributes are a mapping such as {{"user": "ann"}}, not {attributes!r}.')
        return self._ruling.call(attributes, None if cost is None else check_cost(cost))

    def _call_and_watch(self, attributes: object, cost: object = None) -> CallPlan:
        """The same, as long as no thread could be started that follows the rulebook: try again."""
        if self.watch is None or self.watch.start():
            self.__dict__.pop("call", None)
        return type(self).call(self, attributes, cost)

    def together(self, asks: Sequence[Ask]) -> Together:
        """Works out the charges of several calls; no engine is asked yet."""
        return Together(self._ruling, asks)

    def _cancelling(self, decision: Decision) -> Flow[bool]:
        if not decision.allowed:
            return True
        yield from held_slots.release(decision)
        return (yield from limiter_flows.cancel(decision))

    def counts(self, attributes: Attributes) -> tuple[list[tuple[str, Any, str]], bool]:
        """Lists rule, meter and key of each count that may refuse a call; and whether a rule refuses it without
        counting."""
        call = self.call(attributes, None)
        heads = zip(call.heads, call.charges, strict=True)
        live = [(rule, meter, key) for (rule, aside), (meter, key, _) in heads if aside is None]
        return live, any(not match.shadow for _, match in call.denied)

    def receipts(self, decision: Decision) -> list[Written]:
        """Writes down what the decision charged and holds, in plain words that outlive this process.

        >>> limiter = Limiter.from_rules(RULES)
        >>> [(each.rule, each.key, each.cost) for each in limiter.receipts(limiter.check({"user": "ann"}))]
        [('login', 'user=ann', 1)]
        """
        return written(check_decision(decision))

    def redeemed(self, receipts: Sequence[Written]) -> RuleDecision:
        """Makes the decision again of its receipts: to be refunded, cancelled, renewed or released.

        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.refund(limiter.redeemed(limiter.receipts(limiter.check({"user": "ann"}))))
        True
        """
        return redeemed(receipts, self._ruling)

    def _resetting(self, attributes: Attributes) -> Flow[None]:
        for meter, key, _ in self.call(attributes, None).charges:
            yield partial(meter.reset, key)


class RuleLimiter(_Ruled):
    """Limits calls by a rulebook. Thread-safe.

    rules    a Rulebook, a mapping, a file (watched), or "pushed": what was pushed to the engine's server
    engine   where counts are kept: memory:// (this process), redis://host:port/db, or an engine

    The examples of its verbs go by these rules:

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
    ) -> None:
        clock = check_clock(clock)
        url = engine if isinstance(engine, str) else None
        if isinstance(engine, str):
            engine = open_engine(engine, prefix=prefix, clock=clock, ruled=True)
        else:
            check_engine(engine, awaited=False)
        local = engine if isinstance(engine, MemoryEngine) else MemoryEngine(clock)
        super().__init__(rules, engine, local, clock, url, prefix)

    def check(self, attributes: Attributes, cost: int | None = None) -> RuleDecision:
        """Decides whether a call may pass, and charges every rule that applies, or none: `cost` times what it
        states.

        >>> Limiter.from_rules(RULES).check({"user": "ann"}).rule
        'login'
        """
        call = self.call(attributes, cost)
        if not call.straight:
            return run(call.decide())
        if len(call.charges) != 1:
            return call.decision(self.engine.decide_all(call.charges) if call.charges else ())
        meter, key, cost = call.charges[0]
        return call.decision((meter.decide(key, cost),))

    def check_together(self, asks: Sequence[Ask]) -> tuple[RuleDecision, ...]:
        """Decides several calls, and charges them all or none; a decision for each, by its own verdict.

        >>> from headgate.enforcement.check_together import Ask
        >>> calls = [Ask({"user": "ann"}), Ask({"user": "bob"}, cost=3)]
        >>> [decision.allowed for decision in Limiter.from_rules(RULES).check_together(calls)]
        [True, False]
        """
        together = Together(self._ruling, asks)
        if not together.call.straight:
            return run(together.decide())
        charges = together.call.charges
        if len(charges) != 1:
            return together.decisions(self.engine.decide_all(charges) if charges else ())
        meter, key, cost = charges[0]
        return together.decisions((meter.decide(key, cost),))

    def peek(self, attributes: Attributes, cost: int | None = None) -> RuleDecision:
        """Decides what `check` would decide; charges nothing, counts nothing.

        >>> Limiter.from_rules(RULES).peek({"user": "ann"}).remaining
        2
        """
        return run(self.call(attributes, cost).decide(commit=False))

    def wait(self, attributes: Attributes, cost: int | None = None, timeout: float | None = None) -> RuleDecision:
        """Passes when there is room under every rule; refused at once if that is more than `timeout` away.

        >>> limiter = Limiter.from_rules(RULES, clock=ManualClock())
        >>> [limiter.wait({"user": "ann"}).delay for _ in range(3)]
        [0.0, 0.0, 30.0]
        """
        call = self.call(attributes, cost)
        flow = limiter_flows.wait(
            lambda call, patience_us: run(call.decide(patience_us)), call, timeout, self.clock.sleep_us
        )
        return cast(RuleDecision, run(flow))

    def reserve(
        self, attributes: Attributes, cost: int | None = None, timeout: float | None = None
    ) -> RuleDecision:
        """Takes a place now, served after the decision's delay; refused if that is more than `timeout` away.

        >>> limiter = Limiter.from_rules(RULES, clock=ManualClock())
        >>> [limiter.reserve({"user": "ann"}).delay for _ in range(3)]
        [0.0, 0.0, 30.0]
        """
        return run(self.call(attributes, cost).decide(limiter_flows.patience_us(timeout)))

    def cancel(self, decision: Decision) -> bool:
        """Gives a reserved place back, as far as nothing was built on it.

        False if a fallback answered, and some of it may be lost.

        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.cancel(limiter.reserve({"user": "ann"}))
        True
        """
        return run(self._cancelling(check_decision(decision, awaited=False)))

    def refund(self, decision: Decision, cost: int | None = None) -> bool:
        """Gives back what the decision charged, or `cost` of it, under every rule.

        False if a fallback answered, and some of it may be lost.

        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.refund(limiter.check({"user": "ann"}))
        True
        """
        return run(limiter_flows.refund(check_decision(decision, awaited=False), cost))

    def give_back(self, ask: Ask, units: int) -> RuleDecision:
        """Gives back units of a call whose decision is gone, as far as they are counted; returns how things stand
        then.

        >>> from headgate.enforcement.check_together import Ask
        >>> limiter = Limiter.from_rules(RULES)
        >>> limiter.check({"user": "ann"}).remaining, limiter.give_back(Ask({"user": "ann"}), 1).remaining
        (1, 2)
        """
        return run(giving_back(self._ruling, ask, check_units(units)))

    def renew(self, decision: Decision) -> bool:
        """Holds the decision's slots for another ttl; False if one was lost, and somebody else may hold it.

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

    @contextmanager
    def hold(self, attributes: Attributes, cost: int | None = None) -> Iterator[RuleDecision]:
        """Checks around a block: RateLimited if refused; slots are held as long as the block lasts.

        >>> with Limiter.from_rules({"rules": [{"name": "jobs", "limit": "2 slots"}]}).hold({}) as decision:
        ...     decision.remaining
        1
        """
        decision = self.check(attributes, cost).or_raise()
        hold = held_slots.hold(decision)
        if hold is None:
            yield decision
            return
        with Holding(hold, lambda: self.renew(decision), lambda: hold.over or self.release(decision)):
            yield decision

    def reset(self, attributes: Attributes) -> None:
        """Deletes the counts of a call: those of every rule that applies to it.

        >>> Limiter.from_rules(RULES).reset({"user": "ann"})
        """
        run(self._resetting(attributes))

    def overrides(self, rule: str) -> RuleOverrides:
        """Gives access to the limits that single keys of a rule have of their own: set, get, unset, list.

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
        self.engine.close()

    def __enter__(self) -> RuleLimiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncRuleLimiter(_Ruled):
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
    ) -> None:
        clock = check_clock(clock)
        url = engine if isinstance(engine, str) else None
        if isinstance(engine, str):
            engine = open_async_engine(engine, prefix=prefix, clock=clock, ruled=True)
        else:
            check_engine(engine, awaited=True)
        local = engine if isinstance(engine, AsyncMemoryEngine) else AsyncMemoryEngine(MemoryEngine(clock))
        super().__init__(rules, engine, local, clock, url, prefix)

    async def check(self, attributes: Attributes, cost: int | None = None) -> RuleDecision:
        """Decides whether a call may pass, and charges every rule that applies, or none: `cost` times what it
        states.
        """
        return await self.decided(self.call(attributes, cost))

    async def decided(self, call: CallPlan) -> RuleDecision:
        """The decision on a call whose charges are known."""
        if not call.straight:
            return await arun(call.decide())
        if len(call.charges) != 1:
            return call.decision(await self.engine.decide_all(call.charges) if call.charges else ())
        meter, key, cost = call.charges[0]
        return call.decision((await meter.decide(key, cost),))

    async def check_together(self, asks: Sequence[Ask]) -> tuple[RuleDecision, ...]:
        """Decides several calls, and charges them all or none; a decision for each, by its own verdict."""
        return await self.decided_together(self.together(asks))

    async def decided_together(self, together: Together) -> tuple[RuleDecision, ...]:
        """The decisions on calls whose charges are known."""
        if not together.call.straight:
            return await arun(together.decide())
        return together.decisions(await self.answered(together))

    async def peeked_together(self, together: Together) -> tuple[RuleDecision, ...]:
        """Decides what `decided_together` would decide, and charges nothing."""
        answers, apart = await arun(together.call.answered(commit=False))
        return together.decisions(answers, apart)

    async def answered(self, together: Together) -> Sequence[Outcome]:
        """Asks the engine about calls that need one question, and returns the facts of each charge."""
        charges = together.call.charges
        if len(charges) != 1:
            return await self.engine.decide_all(charges) if charges else ()
        meter, key, cost = charges[0]
        return (await meter.decide(key, cost),)

    async def peek(self, attributes: Attributes, cost: int | None = None) -> RuleDecision:
        """Decides what `check` would decide; charges nothing, counts nothing."""
        return await arun(self.call(attributes, cost).decide(commit=False))

    async def wait(
        self, attributes: Attributes, cost: int | None = None, timeout: float | None = None
    ) -> RuleDecision:
        """Passes when there is room under every rule; refused at once if that is more than `timeout` away."""
        call = self.call(attributes, cost)
        flow = limiter_flows.wait(
            lambda call, patience_us: arun(call.decide(patience_us)), call, timeout, self.clock.asleep_us
        )
        return cast(RuleDecision, await arun(flow))

    async def reserve(
        self, attributes: Attributes, cost: int | None = None, timeout: float | None = None
    ) -> RuleDecision:
        """Takes a place now, served after the decision's delay; refused if that is more than `timeout` away."""
        return await arun(self.call(attributes, cost).decide(limiter_flows.patience_us(timeout)))

    async def cancel(self, decision: Decision) -> bool:
        """Gives a reserved place back, as far as nothing was built on it.

        False if a fallback answered, and some of it may be lost.
        """
        return await arun(self._cancelling(check_decision(decision, awaited=True)))

    async def refund(self, decision: Decision, cost: int | None = None) -> bool:
        """Gives back what the decision charged, or `cost` of it, under every rule.

        False if a fallback answered, and some of it may be lost.
        """
        return await arun(limiter_flows.refund(check_decision(decision, awaited=True), cost))

    async def give_back(self, ask: Ask, units: int) -> RuleDecision:
        """Gives back units of a call whose decision is gone, as far as they are counted; returns how things
        stand then.
        """
        return await arun(giving_back(self._ruling, ask, check_units(units)))

    async def renew(self, decision: Decision) -> bool:
        """Holds the decision's slots for another ttl; False if one was lost, and somebody else may hold it."""
        return await arun(held_slots.renew(check_decision(decision, awaited=True)))

    async def release(self, decision: Decision) -> bool:
        """Gives back the slots that the decision holds; False if one was gone already.

        One that is not released ends by its ttl.
        """
        return await arun(held_slots.release(check_decision(decision, awaited=True)))

    @asynccontextmanager
    async def hold(self, attributes: Attributes, cost: int | None = None) -> AsyncIterator[RuleDecision]:
        """Checks around a block: RateLimited if refused; slots are held as long as the block lasts."""
        decision = (await self.check(attributes, cost)).or_raise()
        hold = held_slots.hold(decision)
        if hold is None:
            yield decision
            return
        async with AsyncHolding(hold, lambda: self.renew(decision), lambda: self._leave(decision, hold)):
            yield decision

    async def _leave(self, decision: Decision, hold: Hold) -> bool:
        return hold.over or await self.release(decision)

    async def reset(self, attributes: Attributes) -> None:
        """Deletes the counts of a call: those of every rule that applies to it."""
        await arun(self._resetting(attributes))

    def overrides(self, rule: str) -> AsyncRuleOverrides:
        """Gives access to the limits that single keys of a rule have of their own: set, get, unset, list."""
        return AsyncRuleOverrides(self.engine.overrides(rule), rule, lambda: self.rulebook)

    async def close(self) -> None:
        """Stops watching the rulebook, and closes the engine and its connections; a with statement does so,
        too.
        """
        self._close_rules()
        await self.engine.close()

    async def __aenter__(self) -> AsyncRuleLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
