"""The methods of the check API, and their answers.

    peek       would this call pass?                answer    the JSON of any decision
    checks     several, each by itself or together  reserve   a place, for later
    refund     give back what a receipt charged     settle    count what the call really cost
    cancel     give a place back                    renew, release   the slots that a receipt holds
    finish     report how a call ended, to adaptive rules; release its slots

Each is a method that takes a struct of check_schema.py and returns one; the check itself is in app.py, because of
its request cache. A request that cannot be decided about raises InvalidCharge, and a decision that cannot be made
EngineUnavailable; app.py turns these into HTTP. A receipt is used up before anything is given back, never after:
of two callers that send it at once, one gives back, and a caller that is cut off in between gives back nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import UNSET

from headgate import limiter_flows
from headgate.algorithms.decision import ALLOWED, AT_US, DegradedOutcome, Outcome, Verdict, is_plain
from headgate.algorithms.limit import SECOND, UNLIMITED, Limit
from headgate.algorithms.slots import Slots
from headgate.enforcement import adaptive_rules
from headgate.enforcement.check_together import BatchedCall
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import AsyncRuleLimiter, part_of_rule
from headgate.enforcement.stored_decision import ChargeReceipt
from headgate.engines.charge_options import ChargeOptions
from headgate.errors import EngineUnavailable, InvalidCharge
from headgate.limit_syntax import parse
from headgate.service import check_schema
from headgate.service.calls_in_flight import CallsInFlight
from headgate.service.receipt_tokens import METER_NAME, DecisionReceipt, ReceiptNotUsable, ReceiptSigner

# A fallback that answers for the engine would count a use that the engine does not know. This one charges nothing.
_ENGINE_ONLY = ChargeOptions(METER_NAME, fallback="deny")


class Checker:
    """Implements the methods of the check API with a limiter."""

    def __init__(
        self, limiter: AsyncRuleLimiter, receipts: ReceiptSigner, batch: int, finish_within: float = 30.0
    ) -> None:
        self.limiter = limiter
        self.calls: CallsInFlight = CallsInFlight(finish_within)
        self._receipts = receipts
        self._batch = batch

    async def peek(self, request: check_schema.PeekBody) -> check_schema.DecisionBody:
        decision = await self.limiter.peek(request.attributes, request.cost)
        return self.answer(decision, request.verdicts, receipt=False)

    async def checks(self, request: check_schema.ChecksBody) -> check_schema.DecisionsBody:
        if len(request.checks) > self._batch:
            raise InvalidCharge(f"These are {len(request.checks)} checks; {self._batch} at a time are answered.")
        if request.together:
            batched_calls = [BatchedCall(check.attributes, check.cost) for check in request.checks]
            decisions = await self.limiter.check_together(batched_calls)
        else:
            calls = [self.limiter.check(check.attributes, check.cost) for check in request.checks]
            decisions = tuple(await asyncio.gather(*calls))
        passed = all(decision.allowed for decision in decisions)
        answers = [
            self.answer(decision, check.verdicts, check.receipt and (passed or not request.together))
            for decision, check in zip(decisions, request.checks, strict=True)
        ]
        return check_schema.DecisionsBody(passed, answers)

    async def reserve(self, request: check_schema.ReserveBody) -> check_schema.DecisionBody:
        decision = await self.limiter.reserve(request.attributes, request.cost, request.timeout)
        return self.answer(decision, request.verdicts, receipt=True)

    async def refund(self, request: check_schema.RefundBody) -> check_schema.RefundResultBody:
        receipt = self._read_charged(request.receipt)
        await self._redeem_once(receipt)
        self._cancel_call(receipt)
        decision = self.limiter.restore_decision(receipt.charges)
        response = _given_back(await self.limiter.refund(decision, request.cost))
        rest = self.limiter.receipts(decision)
        if any(charge.refunded_units < charge.cost and not _is_slots(charge) for charge in rest):
            response.receipt = self._receipts.write(rest)
        return response

    async def settle(self, request: check_schema.SettleBody) -> check_schema.RefundResultBody:
        receipt = self._read_charged(request.receipt)
        if receipt.call is not None and not receipt.charges:
            raise ReceiptNotUsable(
                "This receipt is of an adaptive rule, which charges nothing: report the call to /v1/finish."
            )
        charged = self.limiter.restore_decision(receipt.charges)
        try:
            decision = part_of_rule(charged, request.rule)
        except InvalidCharge as error:
            raise ReceiptNotUsable(str(error)) from None
        cost = None if request.cost is None else limiter_flows.check_settlement(decision, request.cost)
        outcome = await self._redeem_once(receipt)
        if cost is None:
            return check_schema.RefundResultBody(True)
        parts = *decision.counter_decisions, *decision.shadow_decisions
        if any(cost > part.cost - part.refunded_units and not isinstance(part.limit, Slots) for part in parts):
            receipt.check_age(outcome[AT_US])
        return _given_back(await self.limiter.settle(decision, cost))

    async def cancel(self, request: check_schema.ReceiptBody) -> check_schema.RefundResultBody:
        receipt = self._receipts.read(request.receipt)
        await self._redeem_once(receipt)
        self._cancel_call(receipt)
        return _given_back(await self.limiter.cancel(self.limiter.restore_decision(receipt.charges)))

    async def undo(self, answer: check_schema.DecisionBody | check_schema.DecisionsBody) -> None:
        """Gives back the places and slots of an answer that cannot be delivered. Charged units stay charged."""
        for each in answer.answers if isinstance(answer, check_schema.DecisionsBody) else (answer,):
            if isinstance(each.receipt, str):
                await self.cancel(check_schema.ReceiptBody(each.receipt))

    async def renew(self, request: check_schema.ReceiptBody) -> check_schema.HeldSlotsBody:
        decision = self._decision_with_slots(self._receipts.read(request.receipt))
        held = await self.limiter.renew(decision)
        return (
            check_schema.HeldSlotsBody(True, _slots_ttl_s(decision))
            if held
            else check_schema.HeldSlotsBody(False, None)
        )

    async def release(self, request: check_schema.ReceiptBody) -> check_schema.ReleaseResultBody:
        receipt = self._receipts.read(request.receipt)
        held = await self.limiter.release(self._decision_with_slots(receipt))
        await self._count_use(receipt, 0)  # raises if a fallback answers: then the release is not certain
        return check_schema.ReleaseResultBody(True, held)

    async def finish(self, request: check_schema.FinishBody) -> check_schema.ReleaseResultBody:
        receipt = self._receipts.read(request.receipt)
        if receipt.call is None and not any(map(_is_slots, receipt.charges)):
            raise ReceiptNotUsable(
                "This receipt is of no adaptive rule and holds no slots: nothing is to be ended."
            )
        decision: RuleDecision | None = None
        if receipt.call is not None:
            decision = self.calls.take(receipt.call)
            if decision is None:
                raise ReceiptNotUsable(self._why_not_in_flight(receipt))
            adaptive_rules.end(decision, request.outcome)
        try:
            held = await self.limiter.release(self.limiter.restore_decision(receipt.charges))
            if any(map(_is_slots, receipt.charges)):
                await self._count_use(receipt, 0)  # raises if a fallback answers: then the release is not certain
        except EngineUnavailable:
            if receipt.call is not None and decision is not None:
                self.calls.put_back(receipt.call, decision)  # its call has ended; the report can be repeated
            raise
        return check_schema.ReleaseResultBody(True, held)

    def _cancel_call(self, receipt: DecisionReceipt) -> None:
        """Ends the call of a receipt as one that did not begin, if it is in flight."""
        if receipt.call is not None and (decision := self.calls.take(receipt.call)) is not None:
            adaptive_rules.cancel(decision)

    def _why_not_in_flight(self, receipt: DecisionReceipt) -> str:
        """Returns why the call of a receipt cannot be ended."""
        if receipt.call is not None and receipt.call[0] != self.calls.process:
            return (
                "This call is in flight in another process of the service, or in one that has ended: adaptive "
                "rules learn in the process that decides. Report to the one that answered; run one worker."
            )
        return f"This call has ended: it was reported before, or not within {self.calls.within:g} s."

    def _read_charged(self, token: str) -> DecisionReceipt:
        """Reads a receipt that has charged units, and does not only hold slots."""
        receipt = self._receipts.read(token)
        if receipt.charges and all(map(_is_slots, receipt.charges)):
            raise ReceiptNotUsable("This receipt only holds slots: release it, or cancel it.")
        return receipt

    def _decision_with_slots(self, receipt: DecisionReceipt) -> RuleDecision:
        decision = self.limiter.restore_decision(receipt.charges)
        if not any(isinstance(part.limit, Slots) for part in decision.counter_decisions):
            raise ReceiptNotUsable("This receipt holds no slots: refund it, settle it or cancel it.")
        return decision

    async def _redeem_once(self, receipt: DecisionReceipt) -> Outcome:
        """Redeems a receipt, once. If the engine gives no answer it stays valid, whatever the fallback is."""
        outcome = await self._count_use(receipt, 1)
        if not outcome[ALLOWED]:
            raise ReceiptNotUsable("This receipt was redeemed before.")
        return outcome

    async def _count_use(self, receipt: DecisionReceipt, uses: int) -> Outcome:
        meter: Any = self.limiter.engine.meter(receipt.one_use_limit, METER_NAME, _ENGINE_ONLY)
        outcome: Outcome = await meter.decide(receipt.key, uses)
        if isinstance(outcome, DegradedOutcome):
            raise EngineUnavailable(
                "The engine gives no answer, so nothing was given back. Ask again with this receipt."
            )
        return outcome

    def answer(
        self, decision: RuleDecision, verdicts: bool = False, receipt: bool = False
    ) -> check_schema.DecisionBody:
        """Returns the JSON answer for a decision."""
        if not verdicts and not receipt and len(decision.outcomes) == 1 and not decision.denied_matches:
            outcome, (rule, shadow) = decision.outcomes[0], decision.labels[0]
            if is_plain(outcome) and outcome[ALLOWED] and shadow is None:
                return _single_pass(rule, decision.charges[0][0].limit, outcome)
        allowed, remaining, retry_after_us, reset_after_us, delay_us, _, _ = decision.outcome
        limit = decision.limit
        answer = check_schema.DecisionBody(
            allowed,
            decision.rule,
            None if limit is None else limit.text,
            None if limit is None else remaining,
            None if retry_after_us is None else retry_after_us / SECOND,
            reset_after_us / SECOND,
            delay_us / SECOND,
            decision.degraded,
        )
        if not allowed:
            answer.why = decision.why
            refusal = decision.refusal
            if refusal is not None:
                answer.refusal = check_schema.RefusalBody(
                    refusal.status, refusal.body, refusal.type, refusal.redirect
                )
        elif receipt:
            call = self.calls.add(decision)
            answer.receipt = self._receipts.write(self.limiter.receipts(decision), call)
            answer.finish_within = UNSET if call is None else self.calls.within
            answer.expires_after = UNSET if (ttl := _slots_ttl_s(decision)) is None else ttl
        if not receipt:
            adaptive_rules.abandon(decision)
        if verdicts:
            answer.verdicts = [_verdict(each) for each in (*decision.verdicts, *decision.shadow_verdicts)]
        return answer


def _single_pass(rule: str, limit: Limit, outcome: Outcome) -> check_schema.DecisionBody:
    """Returns the answer of most calls: one rule applied, by its own limit, and allowed it.

    The general way takes three times as long as the decision.
    """
    _, remaining, _, reset_after_us, delay_us, _, _ = outcome
    return check_schema.DecisionBody(
        True, rule, limit.text, remaining, 0.0, reset_after_us / SECOND, delay_us / SECOND, degraded=False
    )


def _slots_ttl_s(decision: RuleDecision) -> float | None:
    """Returns the seconds for which its slots are held; None if it holds none."""
    slots = (part.limit for part in decision.counter_decisions)
    return min((limit.ttl_us / SECOND for limit in slots if isinstance(limit, Slots)), default=None)


def _given_back(by_engine: bool) -> check_schema.RefundResultBody:
    return check_schema.RefundResultBody(True) if by_engine else check_schema.RefundResultBody(True, degraded=True)


def _is_slots(charge: ChargeReceipt) -> bool:
    return isinstance(parse(charge.limit), Slots)


def _verdict(verdict: Verdict) -> check_schema.VerdictBody:
    return check_schema.VerdictBody(
        verdict.rule or "",
        None if verdict.limit is UNLIMITED else verdict.limit.text,
        verdict.allowed,
        verdict.remaining,
        verdict.retry_after,
        verdict.reset_after,
        verdict.delay,
        verdict.cost,
        verdict.shadow_kind,
    )
