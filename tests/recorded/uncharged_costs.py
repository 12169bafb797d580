"""Costs that ours does not charge: 0 peeks, and a negative one is refused."""

from headgate import InvalidCharge, Limiter
from tests.recorded.step_result import COST_0, NEGATIVE, StepResult, compared_step, equal_fact, not_compared


def uncharged_result(limiter: Limiter, key: str, cost: int) -> StepResult | None:
    """Returns the expected answer to a cost below 1; None for an ordinary cost. Leaves the count as it is."""
    if cost > 0:
        return None
    if cost == 0:
        limiter.take(key, 0)
        return not_compared(COST_0)
    try:
        limiter.take(key, cost)
    except InvalidCharge:
        return not_compared(NEGATIVE)
    return compared_step(equal_fact("a negative cost", "refused", "taken"))
