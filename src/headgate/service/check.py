"""Questions of the check API, and their answers.

    peek       would this call pass?                answer    what is told of any call
    checks     several, each by itself or together  reserve   a place, for later
    refund     give back what a receipt charged     commit    so much was used: give back the rest
    cancel     give a place back                    renew, release   the slots that a receipt holds

Each is a method that takes what stands in schema.py and answers with what stands there; the check itself is
app.py's, which knows what was asked before. Whatever cannot be judged raises InvalidCharge, and whatever cannot be
decided EngineUnavailable; app.py says what that is in HTTP. A receipt is used up before anything is given back,
never after: of two who show it at once, one gives back, and who is cut off in between gives back nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import UNSET

from headgate.algorithms.decision import ALLOWED, DegradedOutcome, Outcome, Verdict
from headgate.algorithms.limit import SECOND, UNLIMITED, Limit
from headgate.algorithms.slots import Slots
from headgate.enforcement.check_together import Ask
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.enforcement.stored_decision import Written
from headgate.engines.charge_options import ChargeOptions
from headgate.errors import EngineUnavailable, InvalidCharge
from headgate.limit_syntax import parse
from headgate.service import check_schema
from headgate.service.receipt_tokens import NAME, Office, Receipt

# A fallback that answers for the engine would count a use that the engine does not know. This one charges nothing.
_ENGINE_ONLY = ChargeOptions(NAME, fallback="deny")


class Unfit(InvalidCharge):
    """A receipt of ours with which this cannot be done, or not any more."""


class Checker:
    """Answers questions by a limiter."""

    def __init__(self, limiter: AsyncRuleLimiter, office: Office, batch: int) -> None:
        self.limiter = limiter
        self._office = office
        self._batch = batch

    async def peek(self, asked: check_schema.Peek) -> check_schema.Answer:
        decision = await self.limiter.peek(asked.attributes, asked.cost)
        return self.answer(decision, asked.verdicts, receipt=False)

    async def checks(self, asked: check_schema.Checks) -> check_schema.Answers:
        if len(asked.checks) > self._batch:
            raise InvalidCharge(f"These are {len(asked.checks)} checks; {self._batch} at a time are answered.")
        if asked.together:
            asks = [Ask(each.attributes, each.cost) for each in asked.checks]
            decisions = await self.limiter.check_together(asks)
        else:
            calls = [self.limiter.check(each.attributes, each.cost) for each in asked.checks]
            decisions = tuple(await asyncio.gather(*calls))
        passed = all(decision.allowed for decision in decisions)
        answers = [
            self.answer(decision, each.verdicts, each.receipt and (passed or not asked.together))
            for decision, each in zip(decisions, asked.checks, strict=True)
        ]
        return check_schema.Answers(passed, answers)

    async def reserve(self, asked: check_schema.Reserve) -> check_schema.Answer:
        decision = await self.limiter.reserve(asked.attributes, asked.cost, asked.timeout)
        return self.answer(decision, asked.verdicts, receipt=True)

    async def refund(self, asked: check_schema.Refund) -> check_schema.Given:
        receipt = self._taken(asked.receipt)
        await self._use(receipt)
        decision = self.limiter.redeemed(receipt.parts)
        given = _given(await self.limiter.refund(decision, asked.cost))
        rest = self.limiter.receipts(decision)
        if any(part.given_back < part.cost and not _slots(part) for part in rest):
            given.receipt = self._office.written(rest)
        return given

    async def commit(self, asked: check_schema.Commit) -> check_schema.Given:
        receipt = self._taken(asked.receipt)
        used = asked.cost
        # Each charge by itself: a rule that states its own cost keeps what was used of that.
        unused = [(part, part.cost - part.given_back) for part in receipt.parts if not _slots(part)]
        most = max((units for _, units in unused), default=None)
        if used is not None and most is not None and used > most:
            raise Unfit(f"{used} were used and {most} charged: ask for the rest by a check.")
        await self._use(receipt)
        answered = True
        for part, units in unused:
            if used is not None and units > used:
                answered &= await self.limiter.refund(self.limiter.redeemed([part]), units - used)
        return _given(answered)

    async def cancel(self, asked: check_schema.Redeem) -> check_schema.Given:
        receipt = self._office.read(asked.receipt)
        await self._use(receipt)
        return _given(await self.limiter.cancel(self.limiter.redeemed(receipt.parts)))

    async def undo(self, answer: check_schema.Answer | check_schema.Answers) -> None:
        """Give back what an answer brings that nobody hears: places and slots. What was taken stays taken."""
        for each in answer.answers if isinstance(answer, check_schema.Answers) else (answer,):
            if isinstance(each.receipt, str):
                await self.cancel(check_schema.Redeem(each.receipt))

    async def renew(self, asked: check_schema.Redeem) -> check_schema.Held:
        decision = self._holding(self._office.read(asked.receipt))
        held = await self.limiter.renew(decision)
        return check_schema.Held(True, _ttl(decision)) if held else check_schema.Held(False, None)

    async def release(self, asked: check_schema.Redeem) -> check_schema.Released:
        receipt = self._office.read(asked.receipt)
        held = await self.limiter.release(self._holding(receipt))
        await self._ask_about(receipt, 0)  # a fallback may have answered, and then nobody knows
        return check_schema.Released(True, held)

    def _taken(self, text: str) -> Receipt:
        """A receipt of something that was taken, and not only held."""
        receipt = self._office.read(text)
        if receipt.parts and all(map(_slots, receipt.parts)):
            raise Unfit("This receipt only holds slots: release it, or cancel it.")
        return receipt

    def _holding(self, receipt: Receipt) -> RuleDecision:
        decision = self.limiter.redeemed(receipt.parts)
        if not any(isinstance(part.limit, Slots) for part in decision.parts):
            raise Unfit("This receipt holds no slots: refund it, commit it or cancel it.")
        return decision

    async def _use(self, receipt: Receipt) -> None:
        """Once. Where the engine gives no answer it stays good, whatever the engine's fallback is."""
        facts = await self._ask_about(receipt, 1)
        if not facts[ALLOWED]:
            raise Unfit("This receipt was redeemed before.")

    async def _ask_about(self, receipt: Receipt, uses: int) -> Outcome:
        meter: Any = self.limiter.engine.meter(receipt.once, NAME, _ENGINE_ONLY)
        facts: Outcome = await meter.decide(receipt.key, uses)
        if isinstance(facts, DegradedOutcome):
            raise EngineUnavailable(
                "The engine gives no answer, so nothing was given back. Ask again with this receipt."
            )
        return facts

    def answer(self, decision: RuleDecision, verdicts: bool = False, receipt: bool = False) -> check_schema.Answer:
        """What is told of a decision."""
        if not verdicts and not receipt and len(decision.answers) == 1 and not decision.denied:
            facts, (rule, aside) = decision.answers[0], decision.heads[0]
            if type(facts) is tuple and facts[ALLOWED] and aside is None:
                return _passed(rule, decision.charges[0][0].limit, facts)
        allowed, remaining, retry_after_us, reset_after_us, delay_us, _, _ = decision.facts
        limit = decision.limit
        answer = check_schema.Answer(
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
                answer.refusal = check_schema.Refusal(refusal.status, refusal.body, refusal.type, refusal.redirect)
        elif receipt:
            answer.receipt = self._office.written(self.limiter.receipts(decision))
            answer.expires_after = UNSET if (ttl := _ttl(decision)) is None else ttl
        if verdicts:
            answer.verdicts = [_verdict(each) for each in (*decision.verdicts, *decision.asides)]
        return answer


def _passed(rule: str, limit: Limit, facts: Outcome) -> check_schema.Answer:
    """The same for most calls: one rule applied, by its own limit, and let it pass. The long way takes three times
    as long as the decision."""
    _, remaining, _, reset_after_us, delay_us, _, _ = facts
    return check_schema.Answer(
        True, rule, limit.text, remaining, 0.0, reset_after_us / SECOND, delay_us / SECOND, degraded=False
    )


def _ttl(decision: RuleDecision) -> float | None:
    """Seconds for which its slots are held; None if it holds none."""
    slots = (part.limit for part in decision.parts)
    return min((limit.ttl_us / SECOND for limit in slots if isinstance(limit, Slots)), default=None)


def _given(answered: bool) -> check_schema.Given:
    return check_schema.Given(True) if answered else check_schema.Given(True, degraded=True)


def _slots(part: Written) -> bool:
    return isinstance(parse(part.limit), Slots)


def _verdict(verdict: Verdict) -> check_schema.Verdict:
    return check_schema.Verdict(
        verdict.rule or "",
        None if verdict.limit is UNLIMITED else verdict.limit.text,
        verdict.allowed,
        verdict.remaining,
        verdict.retry_after,
        verdict.reset_after,
        verdict.delay,
        verdict.cost,
        verdict.aside,
    )
