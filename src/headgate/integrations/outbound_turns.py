"""Turns of calls to somebody else's service: a limiter of keys, and an adaptive limit of the client, grant them.

    LimiterTurns   Limiter or AsyncLimiter by key, and adaptive= by key; outbound_rules.py has those of a rulebook

A call whose turn has come is in flight until its response has been read, or it failed. What that says about the
other side:

    429, from 500 on; a timeout, a broken connection     dropped
    a body that is not read to its end; other errors     ignored: the caller's doing
    every other response                                 success, with the time until its body was read
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from headgate.adaptive import gate as adaptive_gate
from headgate.adaptive.waiting_gate import WaitingGate
from headgate.adaptive.window import LimitAlgorithm
from headgate.algorithms.decision import Decision, DetachedLimit
from headgate.algorithms.limit import SECOND
from headgate.algorithms.slots import Slots
from headgate.clock import Clock
from headgate.enforcement.adaptive_rules import DROPPED, IGNORED, SUCCESS
from headgate.errors import EngineUnavailable, RateLimited
from headgate.flow import Flow
from headgate.integrations.finish_flows import outcome_of
from headgate.limiter_flows import MAX_PAUSED_SLEEP_US
from headgate.validation import MAX_PAUSE_S, check_cost, check_key

Request = TypeVar("Request")

MAX_GATES = 1000  # keys with an adaptive limit of their own
MAX_UNCHECKED_NS = (
    1_000_000  # between a call's turn and its sending; if it takes longer, it looks for a pause again
)

_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500
_GATE_OUTCOMES: Final = {
    SUCCESS: adaptive_gate.SUCCESS,
    DROPPED: adaptive_gate.DROPPED,
    IGNORED: adaptive_gate.IGNORED,
}

_log = logging.getLogger("headgate")


def outcome_of_answer(status: int) -> str:
    """Returns what a response says about the service that was called.

    >>> [outcome_of_answer(status) for status in (200, 404, 429, 500, 503)]
    ['success', 'success', 'dropped', 'dropped', 'dropped']
    """
    return DROPPED if status == _TOO_MANY_REQUESTS or status >= _SERVER_ERROR else outcome_of(status)


class Turn:
    """A call that may be sent now: in flight until it ends. It ends once."""

    __slots__ = ("_abandon", "_answered", "_end", "key", "pauses")

    def __init__(
        self,
        key: str,
        end: Callable[[str], None] | None = None,
        abandon: Callable[[], None] | None = None,
    ) -> None:
        self.key: str = key
        self._abandon = abandon  # ends it from a garbage collector, where no lock may be waited for
        self.pauses: tuple[tuple[str, str], ...] = ()  # the rules that a refusal pauses, with their keys
        self._end = end
        self._answered = SUCCESS

    @property
    def is_measured(self) -> bool:
        """Returns whether anybody wants to know how it ends."""
        return self._end is not None

    def answered(self, status: int) -> None:
        """Notes the status of the response, whose body is still to be read."""
        self._answered = outcome_of_answer(status)

    def end(self, outcome: str) -> None:
        """Ends the call; its status matters more than what became of its body."""
        end, self._end = self._end, None
        if end is not None:
            end(outcome if self._answered == SUCCESS else self._answered)

    def __del__(self) -> None:
        if self._end is not None and self._abandon is not None:  # a response that nobody read or closed
            self._abandon()


class ClientTurns(Generic[Request]):
    """The turns of a client's calls, and the pauses that its process keeps alone."""

    rate: float | None = None  # units per second, if the limiter has one rate

    def __init__(self, clock: Clock, awaited: bool, max_pause: float = MAX_PAUSE_S) -> None:
        self.now_us: Callable[[], int] = clock.now_us
        self._awaited = awaited
        self._max_pause = max_pause
        self._sleep_us: Callable[[int], Any] = clock.asleep_us if awaited else clock.sleep_us
        self._paused_until_us: dict[str, int] = {}

    def wait(self, request: Request) -> Flow[Turn]:
        """Waits until a call may be sent; raises RateLimited if that takes too long."""
        raise NotImplementedError

    def pause(self, turn: Turn, seconds: float) -> Flow[None]:
        """Pauses what a refused call counted against, for every process."""
        raise NotImplementedError

    def _wait_through_pauses_of_process(self, key: str) -> Flow[None]:
        while (paused_us := self._paused_until_us.get(key, 0) - self.now_us()) > 0:
            yield partial(self._sleep_us, paused_us)

    def _pause_alone(self, key: str, seconds: float) -> None:
        now_us = self.now_us()
        self._paused_until_us = {name: until for name, until in self._paused_until_us.items() if until > now_us}
        until_us = now_us + round(min(seconds, self._max_pause) * SECOND)
        self._paused_until_us[key] = max(until_us, self._paused_until_us.get(key, 0))


class LimiterTurns(ClientTurns[Request]):
    """Turns by a limiter, an adaptive limit or both, under a key."""

    def __init__(
        self,
        limiter: Any,
        adaptive: LimitAlgorithm[Any] | None,
        clock: Clock,
        awaited: bool,
        key: str | Callable[[Request], str],
        cost: int | Callable[[Request], int],
        timeout: float | None,
    ) -> None:
        super().__init__(clock, awaited, MAX_PAUSE_S if limiter is None else limiter.max_pause)
        self._limiter = limiter
        self._adaptive = adaptive
        self._key = key
        self._cost = cost
        self._timeout = timeout
        self.rate: float | None = None if limiter is None else limiter.units_per_second
        self._gates: dict[str, WaitingGate] = {}

    def wait(self, request: Request) -> Flow[Turn]:
        key = check_key(self._key(request) if callable(self._key) else self._key)
        cost = check_cost(self._cost(request) if callable(self._cost) else self._cost, spends=True)
        if self._limiter is not None:
            decision: Decision = yield partial(self._limiter.wait, key, cost, self._timeout)
            decision.or_raise()
        yield from self._wait_through_pauses_of_process(key)
        return Turn(key) if self._adaptive is None else (yield from self._enter(key))

    def _enter(self, key: str) -> Flow[Turn]:
        """Waits until the adaptive limit has room."""
        gate = self._gate(key)
        waits_since_ns = time.monotonic_ns()
        entered: int = yield partial(gate.enter_async if self._awaited else gate.enter, self._timeout)
        if not entered:
            outcome = (False, 0, SECOND, 0, 0, self.now_us(), 0)
            raise RateLimited(Decision(outcome, DetachedLimit(Slots(gate.limit)), key, 1))
        started_ns = time.monotonic_ns()
        if self._limiter is not None and started_ns - waits_since_ns > MAX_UNCHECKED_NS:
            try:
                while paused := (yield partial(self._limiter.peek, key)).paused_for:
                    yield partial(self._sleep_us, min(round(paused * SECOND), MAX_PAUSED_SLEEP_US))
            except BaseException:
                gate.leave(entered, started_ns, adaptive_gate.IGNORED)
                raise
            started_ns = time.monotonic_ns()
        return Turn(
            key,
            lambda outcome: gate.leave(entered, started_ns, _GATE_OUTCOMES[outcome]),
            lambda: gate.abandon(entered, started_ns),
        )

    def _gate(self, key: str) -> WaitingGate:
        assert self._adaptive is not None
        gate = self._gates.get(key)
        if gate is None:
            for idle in [name for name, each in self._gates.items() if not each.in_flight and not each.waiting]:
                if len(self._gates) < MAX_GATES:
                    break
                del self._gates[idle]
            gate = self._gates.setdefault(key, WaitingGate(self._adaptive))
        return gate

    def pause(self, turn: Turn, seconds: float) -> Flow[None]:
        """Pauses the key for every process; in this one alone if there is no engine that answers."""
        if self._limiter is not None:
            try:
                yield partial(self._limiter.pause, turn.key, seconds)
                return
            except EngineUnavailable as error:
                log_pause_of_this_process(turn.key, seconds, error)
        self._pause_alone(turn.key, seconds)


def log_pause_of_this_process(key: str, seconds: float, error: Exception) -> None:
    """Logs that a pause could not be stored."""
    _log.error('headgate: a pause of "%s" for %g s holds in this process only: %s', key, seconds, error)
