"""The result of a replayed step: compared, or counted separately under a named reason."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple

# Apart, and only these: where ours is meant to answer otherwise, or where the answer is not ours to give.
COST_0 = "cost 0 (ours peeks)"
NEGATIVE = "negative cost (ours refuses)"
LIMIT_0 = "limit 0 (ours refuses)"
HINGES = "hinges on less than 1 us"
CHANGED = "follows a set_limit or set_burst (ours keeps the time, Go the tokens)"
STEPPED_BACK = "follows a step back of the clock (ours credits no time twice)"
NEVER_LIMITS = "Spring never limits (burst < rate / 2)"
NOTHING = "no answer was recorded"

_MICROSECOND = Fraction(1)
# What nanoseconds cut off, and sums of doubles, may add up to in Go.
NOISE_US = Fraction(1, 100)


class ComparedFact(NamedTuple):
    """One thing that was recorded, and what ours said of it."""

    name: str
    expected: object
    got: object
    same: bool


class StepResult(NamedTuple):
    apart: str | None
    facts: tuple[ComparedFact, ...] = ()

    @property
    def differs(self) -> bool:
        return not all(fact.same for fact in self.facts)


def equal_fact(name: str, expected: object, got: object) -> ComparedFact:
    return ComparedFact(name, expected, got, expected == got)


def near_fact(name: str, expected_us: Fraction | int, got_us: int | None) -> ComparedFact:
    """Two waits in whole microseconds that agree to within one; None is never."""
    agree = got_us is not None and abs(got_us - Fraction(expected_us)) <= _MICROSECOND
    return _waits(name, expected_us, got_us, agree)


def rounded_up(name: str, expected_us: Fraction | None, got_us: Fraction | int | None) -> ComparedFact:
    """A wait known to the nanosecond, and ours, which is rounded up to the microsecond; None is never."""
    if expected_us is None or got_us is None:
        return _waits(name, expected_us, got_us, expected_us is got_us)
    agree = -NOISE_US <= got_us - expected_us <= _MICROSECOND + NOISE_US
    return _waits(name, expected_us, got_us, agree)


def _waits(
    name: str, expected_us: Fraction | int | None, got_us: Fraction | int | None, agree: bool
) -> ComparedFact:
    expected, got = ("never" if us is None else f"{float(us):.10g} us" for us in (expected_us, got_us))
    return ComparedFact(name, expected, got, agree)


def compared_step(*facts: ComparedFact) -> StepResult:
    return StepResult(None, facts) if facts else StepResult(NOTHING)


def not_compared(reason: str) -> StepResult:
    return StepResult(reason)


def rest_not_compared(reason: str, steps: Iterable[object]) -> Iterator[StepResult]:
    """All of these steps, apart."""
    return (StepResult(reason) for _ in steps)
