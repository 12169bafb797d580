"""Spacing: one unit, and then none for a while. A toy, to show what a new algorithm takes.

The state is the instant from which on the next unit may pass.
"""

from __future__ import annotations

from fractions import Fraction

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.durations import format_period, in_words
from headgate.algorithms.limit import (
    HORIZON_US,
    REFUSAL_TEXT,
    SECOND,
    Description,
    Limit,
    ceil_seconds,
    check_microseconds,
    check_whole,
)

State = int


class Spaced(Limit):
    """Passes a unit, and none within the `amount`-th part of `per` seconds after it."""

    __slots__ = ("amount", "gap_us", "period_us")
    algorithm = "spaced"

    def __init__(self, amount: int, per: float = 1) -> None:
        self.amount = check_whole("The amount of a spaced limit", amount)
        self.period_us = check_microseconds("The period of a spaced limit", per)
        self.gap_us = -(-self.period_us // amount)
        self.text: str = f"{amount}/{format_period(self.period_us)} spaced"
        self.args: tuple[int | float, ...] = (self.gap_us,)

    @property
    def max_cost(self) -> int:
        return 1

    @property
    def window_seconds(self) -> int:
        return ceil_seconds(self.gap_us)

    @property
    def units_per_second(self) -> Fraction:
        return Fraction(SECOND, self.gap_us)

    def _share(self, units: int, sharers: int) -> Spaced:
        return Spaced(1, self.gap_us * sharers / SECOND)

    def explain(self) -> Description:
        yield "algorithm", "spacing: a toy"
        yield "passes", f"one every {in_words(self.gap_us)}"
        yield "refused", REFUSAL_TEXT


def decide(
    limit: Spaced, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Outcome, State | None]:
    wait_us = 0 if state is None else min(HORIZON_US, max(0, state - now_us))
    remaining = int(wait_us == 0)
    if cost == 1 and wait_us <= (patience_us or 0):
        reset_us = wait_us + limit.gap_us
        return (True, 0, 0, reset_us, wait_us, now_us, 0), now_us + reset_us
    retry_us = wait_us if cost <= 1 else None
    return (cost == 0 and wait_us == 0, remaining, retry_us, wait_us, 0, now_us, 0), state


def refund(
    limit: Spaced, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    return None


def surcharge(limit: Spaced, state: State | None, now_us: int, units: int, receipt: Receipt) -> State | None:
    return min(max(now_us, state or 0) + units * limit.gap_us, now_us + HORIZON_US)


def dead_at_us(limit: Spaced, state: State) -> int:
    return state


def pack(state: State) -> str:
    return str(state)


def unpack(text: str) -> State:
    return int(text)
