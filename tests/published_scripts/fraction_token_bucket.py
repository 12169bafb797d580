"""A token bucket in fractions: slow, obvious, and written without a look at ours."""

from fractions import Fraction


class ExactBucket:
    """Starts full. `rate` is per second and may be a decimal in text."""

    def __init__(self, burst: int, rate: int | str | Fraction) -> None:
        self.burst = Fraction(burst)
        self.rate = Fraction(rate) / 1_000_000
        self.tokens = self.burst
        self.seen_us: int | None = None

    def take(self, at_us: int, cost: int) -> bool:
        if self.seen_us is not None:
            self.tokens = min(self.burst, self.tokens + (at_us - self.seen_us) * self.rate)
        self.seen_us = at_us
        if cost > self.tokens:
            return False
        self.tokens -= cost
        return True
