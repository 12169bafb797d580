"""Spring Cloud Gateway's script is a TokenBucket on a clock of whole seconds, which it is fed here.

A negative cost mints tokens there and is refused by ours; ours is then brought to the tokens that were left, so
that what follows is compared again. Below rate / 2 a burst has a life of 0 s there, and nothing is ever limited.
"""

from collections.abc import Iterator

from headgate import Limiter, TokenBucket
from tests.recorded.driven_engines import ReplayEngine
from tests.recorded.step_result import (
    LIMIT_0,
    NEGATIVE,
    NEVER_LIMITS,
    STEPPED_BACK,
    StepResult,
    compared_step,
    equal_fact,
    rest_not_compared,
)
from tests.recorded.uncharged_costs import uncharged_result
from tests.recorded.vectors import VectorCase, VectorStep
from tests.servers import BASE_US

_KEY = "key"
_SECOND = 1_000_000


def replay(case: VectorCase, engine: ReplayEngine) -> Iterator[StepResult]:
    rate, burst = case.config.whole("replenishRate"), case.config.whole("burstCapacity")
    if rate <= 0 or burst <= 0:
        yield from rest_not_compared(LIMIT_0, case.steps)
        return
    if 2 * burst < rate:
        yield from rest_not_compared(NEVER_LIMITS, case.steps)
        return
    with engine.limiter(TokenBucket(rate, 1, burst)) as limiter:
        latest = _second(case.steps[0]) if case.steps else 0
        for index, step in enumerate(case.steps):
            if _second(step) < latest:
                yield from rest_not_compared(STEPPED_BACK, case.steps[index:])
                return
            latest = _second(step)
            engine.at(latest * _SECOND)
            outcome = uncharged_result(limiter, _KEY, step.cost)
            yield outcome or _take(step, limiter)
            if outcome is not None and outcome.apart == NEGATIVE:
                if "tokens_left" not in step.expect:
                    yield from rest_not_compared(NEGATIVE, case.steps[index + 1 :])
                    return
                _leave(limiter, burst, step.expect.whole("tokens_left"))


def _second(step: VectorStep) -> int:
    """The whole second that the script was told, or read."""
    if "now_s" in step:
        return step.whole("now_s")
    stated = step.text("now_arg", "")
    return int(stated) if stated.isdecimal() else (BASE_US + step.at_us) // _SECOND


def _take(step: VectorStep, limiter: Limiter) -> StepResult:
    decision = limiter.take(_KEY, step.cost)
    facts = [equal_fact("allowed", step.expect.flag("allowed"), decision.allowed)]
    if "tokens_left" in step.expect:
        facts.append(equal_fact("tokens left", step.expect.whole("tokens_left"), decision.remaining))
    return compared_step(*facts)


def _leave(limiter: Limiter, burst: int, tokens: int) -> None:
    """Bring the bucket to so many tokens; a full one is one that was never used."""
    limiter.reset(_KEY)
    if tokens < burst:
        limiter.take(_KEY, burst - max(0, tokens))
