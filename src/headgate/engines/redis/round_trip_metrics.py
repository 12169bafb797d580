"""Measurements of round trips to servers, for metrics: how many requests shared one, and how long it took."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

MAX_ROUND_TRIPS: Final = 128  # that are kept until somebody reads them; the oldest are dropped

RoundTrips = deque[tuple[int, float]]  # requests, seconds


def take_measurements(parts: Iterable[RoundTrips]) -> Iterator[tuple[str, float | list[float]]]:
    """Yields what was measured since the last call, and forgets it."""
    taken: list[tuple[int, float]] = []
    with suppress(IndexError):  # several readers empty them at once
        for part in parts:
            while part:
                taken.append(part.popleft())
    yield "round_trip_seconds", [seconds for _, seconds in taken]
    yield "batch_requests", [float(requests) for requests, _ in taken]
