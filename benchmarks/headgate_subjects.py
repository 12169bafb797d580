"""The subjects that call headgate: Limiter.take, through the public API."""

from collections.abc import Callable
from typing import Any

import headgate


def take(limit: str, engine: str = "memory://") -> Callable[[str], headgate.Decision]:
    return headgate.Limiter(limit, engine).take


def take_and_read(limit: str) -> Callable[[str], Any]:
    """The same, and what a program would look at."""
    take = headgate.Limiter(limit).take

    def read(key: str) -> tuple[Any, ...]:
        decision = take(key)
        return decision.allowed, decision.remaining, decision.retry_after, decision.reset_after

    return read
