"""Costs that ours does not charge: 0 peeks, and a negative one is refused."""

from headgate import InvalidCharge, Limiter
from tests.recorded.step_result import COST_0, NEGATIVE, StepResult, apart, compared, same


def uncharged(limiter: Limiter, key: str, cost: int) -> StepResult | None:
    """What to say of a cost below 1; None if it is an ordinary one. Leaves the count as it is."""
    if cost > 0:
        return None
    if cost == 0:
        limiter.take(key, 0)
        return apart(COST_0)
    try:
        limiter.take(key, cost)
    except InvalidCharge:
        return apart(NEGATIVE)
    return compared(same("a negative cost", "refused", "taken"))
