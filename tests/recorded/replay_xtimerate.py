"""Go's x/time/rate is a TokenBucket: AllowN takes, ReserveN reserves, CancelAt cancels the reservation.

Beside the answers, the tokens that were recorded are compared as the wait they stand for: that of a refused
charge, and after a cancel that of one unit.

A step hinges on less than a microsecond if ours answers otherwise, and Go admitted it although less than a
microsecond's worth of tokens was missing at the microsecond that ours saw (Go's waits are cut off to nanoseconds,
our times to microseconds), or refused it for no more than the noise of its doubles. Ours is then brought to where
Go is, by a reservation that waits a microsecond or by a refund, and the next step is compared again.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from headgate import InvalidRule, Limiter, Reservation, TokenBucket
from tests.recorded.driven_engines import ReplayEngine
from tests.recorded.step_result import (
    CHANGED,
    HINGES,
    LIMIT_0,
    NEGATIVE,
    NOISE_US,
    STEPPED_BACK,
    ComparedFact,
    StepResult,
    compared_step,
    equal_fact,
    not_compared,
    rest_not_compared,
    rounded_up,
)
from tests.recorded.uncharged_costs import uncharged_result
from tests.recorded.vectors import UnreadableVector, VectorCase, VectorStep
from tests.servers import BASE_US

_KEY = "key"
_SECOND = 1_000_000

# Go's own arithmetic is in doubles: a rate that differs by less is the same rate.
_DOUBLE = Fraction(1, 2**52)


class _HeldReservation(NamedTuple):
    reservation: Reservation
    ours_us: int  # when it is served
    theirs_ns: Fraction


def replay(case: VectorCase, engine: ReplayEngine) -> Iterator[StepResult]:
    rate, burst = case.config.number("limit_per_s"), case.config.whole("burst")
    if rate <= 0 or burst <= 0:
        yield from rest_not_compared(LIMIT_0, case.steps)
        return
    with engine.limiter(per_second_bucket(rate, burst)) as limiter:
        replayed = _ReplayedLimiter(engine, limiter, rate, burst)
        latest = case.steps[0].at_ns if case.steps else Fraction(0)
        for index, step in enumerate(case.steps):
            op = step.text("op", "allow")
            if op in ("set_limit", "set_burst"):
                yield from rest_not_compared(CHANGED, case.steps[index:])
                return
            if step.at_ns < latest:
                yield from rest_not_compared(STEPPED_BACK, case.steps[index:])
                return
            latest = step.at_ns
            engine.at(BASE_US + step.at_us)
            outcome = None if op == "cancel" else uncharged_result(limiter, _KEY, step.cost)
            yield outcome or replayed.step(op, step)
            if outcome is not None and outcome.apart == NEGATIVE:
                yield from rest_not_compared(NEGATIVE, case.steps[index + 1 :])
                return


def per_second_bucket(rate: Fraction, burst: int) -> TokenBucket:
    """So many per second, exactly; or, where that has too many digits, to within a double's rounding."""
    try:
        return TokenBucket(rate.numerator, rate.denominator, burst)
    except InvalidRule:
        for digits in range(3, 13):
            near = rate.limit_denominator(10**digits)
            if near and abs(near - rate) <= rate * _DOUBLE:
                return TokenBucket(near.numerator, near.denominator, burst)
        raise


class _ReplayedLimiter:
    """One limiter, and the reservations that it holds."""

    def __init__(self, engine: ReplayEngine, limiter: Limiter, rate: Fraction, burst: int) -> None:
        self._place = engine
        self._limiter = limiter
        self._rate = rate
        self._burst = burst
        self._held: dict[int, _HeldReservation] = {}

    def step(self, op: str, step: VectorStep) -> StepResult:
        match op:
            case "allow":
                return self._allow(step)
            case "reserve":
                return self._reserve(step)
            case "cancel":
                return self._cancel(step)
            case _:
                raise UnreadableVector(f"{step.what} does something unknown: {op!r}.")

    def _allow(self, step: VectorStep) -> StepResult:
        allowed = step.expect.flag("allowed")
        decision = self._limiter.take(_KEY, step.cost)
        facts = [equal_fact("allowed", allowed, decision.allowed)]
        if decision.allowed == allowed:
            if not allowed and step.cost <= self._burst:
                facts += self._wait("retry_after", step, step.cost, decision.verdicts[0].retry_after_us)
            return compared_step(*facts)
        if not self._hinges(step, allowed):
            return compared_step(*facts)
        if decision.allowed:
            self._limiter.refund(decision)
        elif self._limiter.reserve(_KEY, step.cost).decision.delay_us != 1:
            return compared_step(*facts)
        return not_compared(HINGES)

    def _hinges(self, step: VectorStep, allowed: bool) -> bool:
        if "tokens" not in step.expect or step.cost > self._burst:
            return False
        spare = step.expect.number("tokens") - (0 if allowed else step.cost)
        spare_us = spare / self._rate * _SECOND
        if allowed:
            return -1 < spare_us - _beyond_us(step) < 0
        return -NOISE_US < spare_us < 0

    def _reserve(self, step: VectorStep) -> StepResult:
        allowed = step.expect.flag("allowed")
        reservation = self._limiter.reserve(_KEY, step.cost)
        facts = [equal_fact("allowed", allowed, reservation.granted)]
        if allowed and reservation.granted:
            wait_ns = _wait_ns(step)
            ours_us = step.at_us + reservation.decision.delay_us
            facts.append(rounded_up("delay", wait_ns / 1000, ours_us - step.at_ns / 1000))
            if "id" in step:
                self._held[step.whole("id")] = _HeldReservation(reservation, ours_us, step.at_ns + wait_ns)
        return compared_step(*facts)

    def _cancel(self, step: VectorStep) -> StepResult:
        held = self._held.get(step.whole("id"))
        if held is not None:
            pending = held.theirs_ns >= step.at_ns
            if pending != (held.ours_us >= step.at_us) and abs(held.theirs_ns - step.at_ns) < 1000:
                # Served or not by less than a microsecond: as Go has it.
                if pending:
                    self._place.at(BASE_US + held.ours_us)
                    held.reservation.cancel()
                return not_compared(HINGES)
            held.reservation.cancel()
        peeked = self._limiter.peek(_KEY).verdicts[0]
        return compared_step(*self._wait("the next one's wait", step, 1, peeked.retry_after_us))

    def _wait(self, name: str, step: VectorStep, cost: int, got_us: int | None) -> list[ComparedFact]:
        """Compares a wait with the recorded tokens, if there are any."""
        if "tokens" not in step.expect or got_us is None:
            return []
        lacking = cost - step.expect.number("tokens")
        expected_us = max(Fraction(0), lacking / self._rate * _SECOND)
        return [rounded_up(name, expected_us, max(Fraction(0), got_us - _beyond_us(step)))]


def _beyond_us(step: VectorStep) -> Fraction:
    """Returns how far the step lies beyond the whole microsecond that ours sees."""
    return step.at_ns / 1000 - step.at_us


def _wait_ns(step: VectorStep) -> Fraction:
    if "wait_ns" in step.expect:
        return step.expect.number("wait_ns")
    return step.expect.number("wait_ms") * 1_000_000
