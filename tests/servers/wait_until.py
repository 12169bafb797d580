"""Waits for real servers until a condition holds, no longer than allowed."""

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.02


def until(missing: Callable[[], str | None], seconds: float) -> None:
    """Return once `missing()` is None. It says in words what is still missing; the last words are the error's."""
    deadline = time.monotonic() + seconds
    while words := missing():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still so after {seconds} s: {words}")
        time.sleep(LOOK_EVERY_S)
