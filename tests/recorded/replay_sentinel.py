"""Sentinel's LeapArray is a SlidingWindow with as many cells as it has buckets, cut on the same epoch."""

from collections.abc import Iterator

from headgate import Limiter, SlidingWindow
from tests.recorded.driven_engines import ReplayEngine
from tests.recorded.step_result import LIMIT_0, NEGATIVE, StepResult, compared_step, equal_fact, rest_not_compared
from tests.recorded.uncharged_costs import uncharged_result
from tests.recorded.vectors import VectorCase, VectorStep
from tests.servers import BASE_US

_KEY = "key"
_THIS_CENTURY_MS = 10**12


def replay(case: VectorCase, engine: ReplayEngine) -> Iterator[StepResult]:
    config = case.config
    amount, interval_ms = config.whole("limit"), config.whole("interval_ms")
    if amount <= 0:
        yield from rest_not_compared(LIMIT_0, case.steps)
        return
    limit = SlidingWindow(amount, interval_ms / 1000, config.whole("buckets"))
    # The recorder's times are absolute; small ones, if any, are moved by whole intervals.
    absolute = all(step.at_ns >= _THIS_CENTURY_MS * 1_000_000 for step in case.steps)
    start_us = 0 if absolute else -(-BASE_US // (interval_ms * 1000)) * interval_ms * 1000
    with engine.limiter(limit) as limiter:
        for index, step in enumerate(case.steps):
            engine.at(start_us + step.at_us)
            outcome = uncharged_result(limiter, _KEY, step.cost)
            yield outcome or _take(step, limiter, amount)
            if outcome is not None and outcome.apart == NEGATIVE:
                yield from rest_not_compared(NEGATIVE, case.steps[index + 1 :])
                return


def _take(step: VectorStep, limiter: Limiter, amount: int) -> StepResult:
    decision = limiter.take(_KEY, step.cost)
    facts = [equal_fact("allowed", step.expect.flag("allowed"), decision.allowed)]
    if "count_before" in step.expect and decision.allowed == step.expect.flag("allowed"):
        spent = step.expect.whole("count_before") + (step.cost if decision.allowed else 0)
        facts.append(equal_fact("remaining", amount - spent, decision.remaining))
    return compared_step(*facts)
