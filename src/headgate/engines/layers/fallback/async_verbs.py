"""The verbs of the fallback layer: what each does when the engine does not answer; settling of accounts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headgate.algorithms.decision import ALLOWED, REMAINING, Outcome, Receipt
from headgate.engines.layers.fallback.breaker import CALL, FALL_BACK, PROBE, BreakerRoute
from headgate.engines.layers.fallback.degraded_answers import FALLBACK_MARK, all_allowed, as_degraded
from headgate.engines.layers.fallback.routing import FallbackRouting, has_no_fallback, inner_charges, live_allowed
from headgate.engines.layers.fallback.settlement import MeterCharge
from headgate.engines.layers.fallback.shard import Shard, Tag
from headgate.errors import EngineUnavailable


class AsyncFallbackVerbs(FallbackRouting):
    """Runs the verbs of the engine and its meters where calls are not simply passed on."""

    async def decide_charges(
        self, charges: Sequence[MeterCharge], patience_us: int | None, commit: bool = True
    ) -> list[Outcome]:
        """Decides after a failure, with unsettled units, or several charges together."""
        if has_no_fallback(charges):
            return await self._call_engine(charges, patience_us, commit)
        reachable = self.reachable_charges(charges)
        if len(reachable) < len(charges):
            reached = iter(await self.decide_charges([charges[index] for index in reachable], patience_us, commit))
            allowed = as_degraded((True, 0, 0, 0, 0, self.clock.now_us(), 0))
            return [next(reached) if index in reachable else allowed for index in range(len(charges))]
        routes = self.choose_routes(charges)
        if routes is None:
            return self.answer_without_engine(charges, patience_us, commit)
        shared = [charge for charge in charges if charge[0].uses_share]
        max_wait_us = self.max_settle_wait_us(charges)
        by_share: list[Outcome] = []
        try:
            for meter, key, _ in shared:
                is_settled = await self.settle_count(self.shard_of(key), meter.tag(key), max_wait_us=max_wait_us)
                if not is_settled:
                    for shard, route in routes.items():
                        self.note_success(shard, route)
                    return self.answer_without_engine(charges, patience_us, commit)
            if self.must_pass_both(routes) and any(cost for _, _, cost in shared):
                by_share = self.decide_by_share(shared, patience_us, commit)
                if not all_allowed(by_share):
                    await self._probe(charges, routes)
                    return self.tally_degraded(charges, self.merge_answers(charges, by_share))
            answers = await self._call_engine(charges, patience_us, commit)
        except EngineUnavailable as error:
            for shard, route in routes.items():
                if error.key is None or self.shard_of(error.key) is shard:
                    self.note_failure(shard, route, error)
                else:
                    shard.on_withdrawal(route, self.clock.now_us())
            if by_share and all_allowed(by_share) and self.others_allow(charges):
                if commit:
                    self.note_unsettled(charges)
                return self.tally_degraded(charges, self.merge_answers(charges, by_share))
            if commit:
                self.give_back(shared, by_share)
            return self.answer_without_engine(charges, patience_us, commit, error)
        except BaseException as error:
            self.note_interruption(routes, error)
            if commit:
                self.give_back(shared, by_share)
            raise
        self.note_answers(charges, answers)
        shadow_failures = self.shadow_only_failures(charges, answers)
        for shard, route in routes.items():
            if shard in shadow_failures:
                shard.on_withdrawal(route, self.clock.now_us())
            else:
                self.note_success(shard, route)
        if commit and not live_allowed(charges, answers):
            self.give_back(shared, by_share)
        return answers

    async def _call_engine(
        self, charges: Sequence[MeterCharge], patience_us: int | None, commit: bool
    ) -> list[Outcome]:
        if len(charges) == 1 and commit:
            meter, key, cost = charges[0]
            return [await meter.meter.decide(key, cost, patience_us)]
        answers: list[Outcome] = await self.inner.decide_all(inner_charges(charges), patience_us, commit)
        return answers

    async def _probe(self, charges: Sequence[MeterCharge], routes: dict[Shard, BreakerRoute]) -> None:
        """Probes the engine with a peek, because the share refused the charge that was to be the probe."""
        for shard, route in routes.items():
            if route is PROBE:
                candidates = [(meter, key) for meter, key, _ in charges if self.shard_of(key) is shard]
                if not candidates:  # another part answers for the key by now
                    shard.on_withdrawal(route, self.clock.now_us())
                    continue
                meter, key = candidates[0]
                outcome = await meter.meter.decide(key, 0)
                self.note_answers([(meter, key, 0)], [outcome])
                self.note_success(shard, route)

    async def refund_charge(self, meter: Any, key: str, units: int, receipt: Receipt, cancel: bool) -> Outcome:
        if receipt.mark <= FALLBACK_MARK:
            return self.refund_locally(
                meter, key, units, receipt._replace(mark=FALLBACK_MARK - receipt.mark), cancel
            )
        request = partial(meter.meter.refund, key, units, receipt, cancel)
        if meter.fallback is None:
            refunded: Outcome = await request()
            return refunded
        outcome: Outcome | None = await self.try_engine(key, request)
        if outcome is None:
            self.shard_of(key).tally("lost_refunds")
            return self.peek_without_engine(meter, key)
        self.note_answers([(meter, key, 0)], [outcome])
        return outcome

    async def surcharge_count(self, meter: Any, key: str, units: int, receipt: Receipt) -> Outcome:
        request = partial(meter.meter.surcharge, key, units, receipt)
        if meter.fallback is None:
            charged: Outcome = await request()
            return charged
        outcome: Outcome | None = await self.try_engine(key, request)
        if outcome is None:
            return self.surcharge_locally(meter, key, units, receipt)
        self.note_answers([(meter, key, 0)], [outcome])
        return outcome

    async def retune_count(self, meter: Any, key: str) -> None:
        await self._change(meter, key, partial(meter.meter.retune, key))

    async def reset_count(self, meter: Any, key: str) -> None:
        shard, tag = self.shard_of(key), meter.tag(key)
        self.recent.drop(tag)
        with shard.lock:
            shard.unsettled.pop(tag, None)
            count = shard.counts.get(tag)
            if count is not None:
                count.unsettled_units = 0
                count.meter.reset(key)
        await self._change(meter, key, partial(meter.meter.reset, key))

    async def _change(self, meter: Any, key: str, request: Callable[[], Any]) -> None:
        if meter.fallback is None:
            await request()
            return
        done = await self.try_engine(key, request, boxed=True)
        if done is None:
            self.shard_of(key).tally("lost_resets")

    async def try_engine(self, key: str, request: Callable[[], Any], boxed: bool = False) -> Any:
        """Sends a request unless the breaker is open; returns None, and raises nothing, if the engine did not
        answer. A reply that may itself be None is boxed in a 1-tuple."""
        shard = self.shard_of(key)
        route = shard.choose_route(self.clock.now_us())
        if route is FALL_BACK:
            return None
        try:
            reply = await request()
        except EngineUnavailable as error:
            self.note_failure(shard, route, error)
            return None
        except BaseException as error:
            self.note_interruption({shard: route}, error)
            raise
        self.note_success(shard, route)
        return (reply,) if boxed else reply

    def note_success(self, shard: Shard, route: BreakerRoute) -> None:
        """Reports an answered request to the breaker of a part, and settles in the background."""
        shard.on_success(route, self.clock.now_us())
        if shard.unsettled:
            self.settle_in_background(shard)

    def settle_in_background(self, shard: Shard) -> None:
        """Drives `settle_shard(shard)` in the background."""
        raise NotImplementedError

    async def on_heartbeat(self) -> None:
        """Settles after a successful heartbeat: the engine is there, and a process without calls may have
        accounts."""
        for shard in tuple(self.shards.values()):
            self.move_counts(shard)
            for count in tuple(shard.unsettled.values())[:1]:
                shard.on_contact(self.clock.now_us())
                await self.try_engine(count.key, partial(count.engine_meter.meter.decide, count.key, 0))

    async def settle_count(
        self, shard: Shard, tag: Tag, *, max_wait_us: int | None = None, engine_answers: bool = False
    ) -> bool:
        """Charges the engine with what a share still holds, before it decides about that count. Returns whether it
        is settled.

        Unless the engine has just answered, a peek first checks that it is there, because settling is done once:
        if no answer comes, the engine may have been charged. A caller cannot wait long: with its own request there
        are up to four, and if the first takes more than a quarter of the deadline, the background settles the
        count. Then this returns False.
        """
        count = shard.unsettled.get(tag)
        if count is None:
            return True
        decide_inner, key, started_us = count.engine_meter.meter.decide, count.key, self.clock.now_us()
        counts_refusals = count.engine_meter.options is not None and count.engine_meter.options.lockout is not None
        outcome: Outcome | None = None if engine_answers and not counts_refusals else await decide_inner(key, 0)
        if max_wait_us is not None and self.clock.now_us() - started_us > max_wait_us:
            return tag not in shard.unsettled  # or another caller has settled it meanwhile
        unsettled_units = shard.take_unsettled(tag)
        if counts_refusals and outcome is not None:
            unsettled_units = min(unsettled_units, outcome[REMAINING])
        if unsettled_units:
            outcome = await decide_inner(key, unsettled_units)
            if not outcome[ALLOWED] and outcome[REMAINING]:
                outcome = await decide_inner(key, outcome[REMAINING])
        if outcome is not None:
            self.remember([(count.engine_meter, key, unsettled_units)], [outcome])
        shard.mark_settled(tag, count)
        return True

    async def settle_shard(self, shard: Shard) -> None:
        """Settles every count of a part, one after the other, for as long as settling lasts."""
        until_us, engine_answers = self.clock.now_us() + self.settle_us, False
        try:
            while shard.unsettled and self.clock.now_us() < until_us:
                engine_answers = await self.settle_count(
                    shard, next(iter(shard.unsettled), ()), engine_answers=engine_answers
                )
        except EngineUnavailable as error:
            self.note_failure(shard, CALL, error)
