"""Guava's RateLimiter is a Smooth limit.

    create              set_limit at the recorder's time 0: what was idle since then counts
    acquire             reserve, with unlimited patience; the wait is the reservation's delay
    try_acquire         reserve with that timeout
    setRate             set_limit on the key

A refusal and a setRate have no wait of their own; there the wait that stands is compared, which Guava keeps as
next_free.
"""

from collections.abc import Iterator
from fractions import Fraction

from headgate import Limiter, Smooth
from tests.recorded.driven_engines import ReplayEngine
from tests.recorded.step_result import (
    NEGATIVE,
    ComparedFact,
    StepResult,
    compared_step,
    equal_fact,
    near_fact,
    rest_not_compared,
)
from tests.recorded.uncharged_costs import uncharged_result
from tests.recorded.vectors import RecordedFields, UnreadableVector, VectorCase, VectorStep
from tests.servers import BASE_US

_KEY = "key"


def replay(case: VectorCase, engine: ReplayEngine) -> Iterator[StepResult]:
    with engine.limiter(_limit(case.config, case.config.number("rate"))) as limiter:
        engine.at(BASE_US)
        limiter.set_limit(_limit(case.config, case.config.number("rate")), _KEY)
        for index, step in enumerate(case.steps):
            engine.at(BASE_US + step.at_us)
            if step.text("op", "acquire") == "set_rate":
                limiter.set_limit(_limit(case.config, step.number("rate")), _KEY)
                yield compared_step(*_next_wait(step, limiter))
            elif (outcome := uncharged_result(limiter, _KEY, step.cost)) is not None:
                yield outcome
                if outcome.apart == NEGATIVE:
                    yield from rest_not_compared(NEGATIVE, case.steps[index + 1 :])
                    return
            else:
                yield _acquire(step, limiter)


def _limit(config: RecordedFields, rate: Fraction) -> Smooth:
    match config.text("kind"):
        case "bursty":
            return Smooth(float(rate), burst=float(config.number("max_burst_seconds", 1)))
        case "warmup":
            warmup = float(config.number("warmup_us") / 1_000_000)
            return Smooth(float(rate), warmup=warmup, cold=float(config.number("cold_factor", 3)))
        case kind:
            raise UnreadableVector(f"{config.what} is of the unknown kind {kind!r}.")


def _acquire(step: VectorStep, limiter: Limiter) -> StepResult:
    match step.text("op", "acquire"):
        case "acquire":
            timeout = None
        case "try_acquire":
            timeout = float(max(Fraction(0), step.number("timeout_us", 0)) / 1_000_000)
        case op:
            raise UnreadableVector(f"{step.what} does something unknown: {op!r}.")
    allowed = step.expect.flag("allowed")
    decision = limiter.reserve(_KEY, step.cost, timeout).decision
    facts = [equal_fact("allowed", allowed, decision.allowed)]
    if not allowed and not decision.allowed:
        facts += _next_wait(step, limiter)
    elif allowed and "wait_us" in step.expect:
        facts.append(near_fact("wait", step.expect.number("wait_us"), decision.delay_us))
    return compared_step(*facts)


def _next_wait(step: VectorStep, limiter: Limiter) -> list[ComparedFact]:
    """Returns how long the next one would have to wait."""
    if "next_free_us" not in step.expect:
        return []
    wait_us = max(Fraction(0), step.expect.number("next_free_us") - step.at_us)
    return [near_fact("the next one's wait", wait_us, limiter.peek(_KEY).verdicts[0].retry_after_us)]
