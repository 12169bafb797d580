"""GCRA as throttled and redis-cell have it is a TokenBucket of max_burst + 1.

Their emission interval is a whole number of nanoseconds, cut off: 7 per second is one per 142857142 ns. A bucket
of 1000 units per so many microseconds is exactly that, so not even a nanosecond is left to tolerance.
"""

from collections.abc import Iterator
from fractions import Fraction

from headgate import Limiter, TokenBucket
from tests.recorded.driven_engines import ReplayEngine
from tests.recorded.step_result import (
    LIMIT_0,
    NEGATIVE,
    STEPPED_BACK,
    StepResult,
    compared_step,
    equal_fact,
    rest_not_compared,
    rounded_up,
)
from tests.recorded.uncharged_costs import uncharged_result
from tests.recorded.vectors import RecordedFields, VectorCase, VectorStep
from tests.servers import BASE_US

_KEY = "key"


def replay(case: VectorCase, engine: ReplayEngine) -> Iterator[StepResult]:
    config = case.config
    burst = config.whole("max_burst") + 1
    if burst <= 0 or ("count" in config and config.number("count") <= 0):
        yield from rest_not_compared(LIMIT_0, case.steps)
        return
    with engine.limiter(TokenBucket(1000, _interval_ns(config) / 1_000_000, burst)) as limiter:
        latest = case.steps[0].at_ns if case.steps else Fraction(0)
        for index, step in enumerate(case.steps):
            if step.at_ns < latest:
                yield from rest_not_compared(STEPPED_BACK, case.steps[index:])
                return
            latest = step.at_ns
            engine.at(BASE_US + step.at_us)
            outcome = uncharged_result(limiter, _KEY, step.cost)
            yield outcome or _take(step, limiter, burst)
            if outcome is not None and outcome.apart == NEGATIVE:
                yield from rest_not_compared(NEGATIVE, case.steps[index + 1 :])
                return


def _interval_ns(config: RecordedFields) -> int:
    if "emission_interval_ns" in config:
        return config.whole("emission_interval_ns")
    return config.whole("period_ns") // config.whole("count")


def _take(step: VectorStep, limiter: Limiter, burst: int) -> StepResult:
    allowed = step.expect.flag("allowed")
    decision = limiter.take(_KEY, step.cost)
    facts = [equal_fact("allowed", allowed, decision.allowed)]
    if not allowed and not decision.allowed and "retry_after_ns" in step.expect:
        # -1 ns here, -1 s there: a cost above the burst never passes.
        never = step.cost > burst
        expected_us = None if never else step.expect.number("retry_after_ns") / 1000
        facts.append(rounded_up("retry_after", expected_us, decision.verdicts[0].retry_after_us))
    return compared_step(*facts)
