"""A case to simulate: a server, a load, and the limiters to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NO_PRIORITIES: Mapping[str, float] = {"all": 1.0}


@dataclass(frozen=True)
class Stage:
    """A part of the load; times in seconds, rates per second. Priorities are shares of the calls, the most
    important first. `variation` is the standard deviation of the work, in its mean; 0 if all calls are equal."""

    duration: float
    rate: float
    work: float
    even: bool = False
    priorities: Mapping[str, float] = field(default_factory=lambda: NO_PRIORITIES)
    threads: int | None = None  # from this stage on; None for as many as before, 0 for a pause
    variation: float = 0.0


@dataclass(frozen=True)
class ClosedLoad:
    """One client that has so many requests, one more every `interval` seconds, and sends them as fast as its limit
    allows. `work` is that of each call; a server with a delay does not look at it."""

    requests: int
    interval: float = 0.0
    work: float | None = None  # the server's delay, unless given


@dataclass(frozen=True)
class ThreadsSettings:
    """A server with threads that does each call's work in slices."""

    threads: int
    slices: int = 100


@dataclass(frozen=True)
class LimiterSettings:
    """A limiter to simulate: its kind, and what it is given."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name in tables: the kind and its options."""
        values = [f"{value:g}" if isinstance(value, float) else str(value) for value in self.options.values()]
        if self.kind in ("bulkhead", "rate"):
            return " ".join([self.kind, *values])
        return " ".join([self.kind, *(f"{name}={text}" for name, text in zip(self.options, values, strict=True))])


@dataclass(frozen=True)
class SimulationCase:
    """Everything about one case. `settle` seconds at the start of each stage are not measured."""

    name: str
    seeds: tuple[int, ...]
    server: ThreadsSettings | Mapping[str, float]
    load: tuple[Stage, ...] | ClosedLoad
    limiters: tuple[LimiterSettings, ...]
    timeout: float | None = None
    settle: float = 0.0
