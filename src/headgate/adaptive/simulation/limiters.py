"""The limiters that a case can compare, behind one face: enter, leave, and calls that wait in a queue."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from random import Random
from typing import Any

from headgate.adaptive.adaptive_concurrency import AdaptiveConcurrency
from headgate.adaptive.aimd import Aimd
from headgate.adaptive.gate import DROPPED, ConcurrencyGate
from headgate.adaptive.gradient2 import Gradient2
from headgate.adaptive.priority import PriorityGate
from headgate.adaptive.rate_gate import RateGate
from headgate.adaptive.simulation.case import ClosedLoad, LimiterSettings, SimulationCase
from headgate.adaptive.target_rate import TargetRate
from headgate.adaptive.vegas import Vegas
from headgate.algorithms import algorithm
from headgate.algorithms.limit import Limit


class SimulatedAnswer(Enum):
    """The answer of a simulated limiter to a call that arrives."""

    ADMITTED = 1
    REFUSED = 2
    QUEUED = 3


ADMITTED, REFUSED, QUEUED = SimulatedAnswer
DEFAULT_QUEUE = 0.1  # seconds that calls may wait if they are not of the least important class


class SimulatedLimiter:
    """No limit: every call is admitted. The other limiters differ by what they override."""

    limit: float | None = None
    expires_ns: float = inf  # when the next call in the queue has waited too long

    def has_room(self) -> bool:
        """Returns whether a client that follows this limit may send one more call."""
        return True

    def enter(self, now_ns: float, call: Any) -> SimulatedAnswer:
        return ADMITTED

    def leave(self, now_ns: float, call: Any, outcome: int) -> Sequence[Any]:
        """Counts a call that ended, and returns the calls of the queue that are admitted now."""
        return ()

    def expire(self, now_ns: float) -> Sequence[Any]:
        """Returns the calls of the queue that have waited too long."""
        return ()


class Bulkhead(SimulatedLimiter):
    """A fixed number of calls in flight."""

    def __init__(self, limit: int) -> None:
        self.limit: float | None = limit
        self._in_flight = 0

    def has_room(self) -> bool:
        return self.limit is None or self._in_flight < self.limit

    def enter(self, now_ns: float, call: Any) -> SimulatedAnswer:
        if not self.has_room():
            return REFUSED
        self._in_flight += 1
        return ADMITTED

    def leave(self, now_ns: float, call: Any, outcome: int) -> Sequence[Any]:
        self._in_flight -= 1
        return ()


class FixedRate(SimulatedLimiter):
    """A limit that knows nothing of response times: a token bucket."""

    def __init__(self, limit: Limit) -> None:
        self._limit, self._decide = limit, algorithm(limit).decide
        self._state: Any = None

    def enter(self, now_ns: float, call: Any) -> SimulatedAnswer:
        outcome, state = self._decide(self._limit, self._state, int(now_ns / 1000) + 1, 1)
        if not outcome[0]:
            return REFUSED
        self._state = state
        return ADMITTED


class CircuitBreaker(SimulatedLimiter):
    """Opens when at least half of the last 20 calls timed out or failed; tries one call after 5 s."""

    _CALLS, _SHARE, _OPEN_NS = 20, 0.5, 5e9

    def __init__(self) -> None:
        self._results: list[bool] = []
        self._opened_ns: float | None = None
        self._trial: Any = None

    def enter(self, now_ns: float, call: Any) -> SimulatedAnswer:
        if self._opened_ns is None:
            return ADMITTED
        if self._trial is not None or now_ns - self._opened_ns < self._OPEN_NS:
            return REFUSED
        self._trial = call
        return ADMITTED

    def leave(self, now_ns: float, call: Any, outcome: int) -> Sequence[Any]:
        failed = outcome == DROPPED
        if call is self._trial:
            self._trial = None
            self._opened_ns = now_ns if failed else None
            self._results.clear()
        elif self._opened_ns is None:
            self._results = [*self._results[-self._CALLS + 1 :], failed]
            if len(self._results) == self._CALLS and sum(self._results) >= self._SHARE * self._CALLS:
                self._opened_ns = now_ns
        return ()


class AdaptiveBulkhead(SimulatedLimiter):
    """A number of calls in flight, or a rate, that an algorithm moves."""

    def __init__(self, algorithm: Any) -> None:
        self._gate: ConcurrencyGate | RateGate
        self._gate = (
            RateGate(algorithm, 0.0) if isinstance(algorithm, TargetRate) else ConcurrencyGate(algorithm, 0.0)
        )
        self.limit: float | None = self._gate.limit

    def has_room(self) -> bool:
        if isinstance(self._gate, RateGate) or self._gate.in_flight < self._gate.limit:
            return True
        self._gate.wait()
        return False

    def enter(self, now_ns: float, call: Any) -> SimulatedAnswer:
        call.entered = self._gate.try_enter(now_ns)
        return ADMITTED if call.entered else REFUSED

    def leave(self, now_ns: float, call: Any, outcome: int) -> Sequence[Any]:
        self._gate.leave(call.entered, call.started_ns, now_ns, outcome)
        self.limit = self._gate.limit
        return ()


class PrioritizedBulkhead(SimulatedLimiter):
    """The same for calls of several priorities: the least important are refused first."""

    def __init__(self, algorithm: Any, classes: int, seed: int, max_wait: float) -> None:
        random = Random(seed * 104_729 + 2)
        self._gate = PriorityGate(algorithm, 0.0, classes, max_wait_ns=max_wait * 1e9, random=random)
        self.limit: float | None = self._gate.gate.limit
        self.expires_ns: float = inf

    def enter(self, now_ns: float, call: Any) -> SimulatedAnswer:
        call.entered = self._gate.enter(now_ns, call, call.priority)
        self.expires_ns = self._gate.expires_ns
        return QUEUED if call.entered < 0 else ADMITTED if call.entered else REFUSED

    def leave(self, now_ns: float, call: Any, outcome: int) -> Sequence[Any]:
        admitted = []
        for waiting, entered in self._gate.leave(call.entered, call.started_ns, now_ns, outcome):
            waiting.entered = entered
            admitted.append(waiting)
        self.limit = self._gate.gate.limit
        self.expires_ns = self._gate.expires_ns
        return admitted

    def expire(self, now_ns: float) -> Sequence[Any]:
        expired = self._gate.expire(now_ns)
        self.expires_ns = self._gate.expires_ns
        return expired


ALGORITHMS: dict[str, Any] = {
    "aimd": Aimd,
    "vegas": Vegas,
    "gradient2": Gradient2,
    "adaptive": AdaptiveConcurrency,
    "target_rate": TargetRate,
}


def open_limiter(settings: LimiterSettings, case: SimulationCase, seed: int) -> SimulatedLimiter:
    """Returns a limiter that nobody has called yet. A client that waits for its limit starts at 1: it refuses
    nobody meanwhile."""
    options = dict(settings.options)
    match settings.kind:
        case "none":
            return SimulatedLimiter()
        case "bulkhead":
            return Bulkhead(options["limit"])
        case "rate":
            return FixedRate(options["limit"])
        case "breaker":
            return CircuitBreaker()
    client = isinstance(case.load, ClosedLoad)
    if client and settings.kind == "adaptive":
        options.setdefault("initial", max(1, options.get("floor", 1)))
    max_wait = options.pop("queue", DEFAULT_QUEUE) if settings.kind == "adaptive" else 0.0
    adaptive = ALGORITHMS[settings.kind](**options)
    classes = 1 if isinstance(case.load, ClosedLoad) else max(len(stage.priorities) for stage in case.load)
    if settings.kind == "adaptive" and classes > 1:
        return PrioritizedBulkhead(adaptive, classes, seed, max_wait)
    return AdaptiveBulkhead(adaptive)
