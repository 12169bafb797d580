"""AdaptiveLimiter: a limit on the calls in flight that follows the service, around blocks, functions and
coroutines.

    limiter = AdaptiveLimiter()
    with limiter.guard(): ...                                @limiter.guard()
    async with limiter.guard(priority="low"): ...            async def report(): ...

Each call tells the limiter how it went: a success with its response time; dropped, if it timed out or the
service turned it away; or ignored, if it says nothing about the service (a bad request, a cancelled call). An
exception that is listed in `drops` means dropped, any other ignored; `call.drop()` and `call.ignore()` say it
without one.

A call that is refused raises RateLimited, with a decision like that of any other limiter. One limiter serves
threads and event loops at the same time: nothing in it waits, unless a queue is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from random import Random, random
from threading import Lock
from typing import Any, NamedTuple

from headgate.adaptive.adaptive_concurrency import AdaptiveConcurrency
from headgate.adaptive.call_in_flight import AdaptiveCall
from headgate.adaptive.carried_state import carried_state
from headgate.adaptive.gate import IGNORED, ConcurrencyGate
from headgate.adaptive.guard import AdaptiveGuard, QueuedCall
from headgate.adaptive.overload_signals import Signal
from headgate.adaptive.priority import QUEUED, PriorityGate, new_gate
from headgate.adaptive.rate_gate import RateGate
from headgate.adaptive.target_rate import TargetRate
from headgate.adaptive.window import LimitAlgorithm, check_number
from headgate.algorithms.decision import Decision, ShedOutcome
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.errors import InvalidCharge, InvalidRule, RateLimited
from headgate.observer import LimitChange, Observer, Observers

_NS_PER_SECOND = 1_000_000_000


class AdaptiveSource(NamedTuple):
    """The source of an adaptive limiter's decision: its limit at that moment."""

    limit: Limit
    name: str


class AdaptiveLimiter:
    """Limits the calls in flight to what the service can work on, and finds that number itself.

    ``algorithm``: AdaptiveConcurrency unless given; a TargetRate limits calls per second.
    ``priorities``: names of classes, the most important first;
    the least important calls are refused first. ``queue``: seconds that a call may wait for its turn. ``fair``:
    heavy users of a class are refused first. ``drops``: exceptions that mean that a call was dropped.
    ``signals``: guards such as CpuUsage. ``observers``: counts and logs, which receive every call and every change
    of the limit, under its name, and its key if there are several of one name.

    >>> limiter = AdaptiveLimiter()
    >>> with limiter.guard():
    ...     answer = 42
    >>> limiter.limit, limiter.in_flight
    (20, 0)
    """

    def __init__(
        self,
        algorithm: LimitAlgorithm[Any] | TargetRate | None = None,
        *,
        priorities: Sequence[str] = (),
        queue: float = 0.0,
        fair: bool = False,
        drops: tuple[type[BaseException], ...] = (TimeoutError,),
        signals: Sequence[Signal] = (),
        name: str = "adaptive",
        key: str = "",
        clock_ns: Callable[[], int] = time.monotonic_ns,
        observers: Sequence[Observer] = (),
    ) -> None:
        algorithm = AdaptiveConcurrency() if algorithm is None else algorithm
        _check_settings(algorithm, priorities, drops, signals)
        if fair and not priorities:
            raise InvalidRule('Fairness is among the calls of a class: give priorities, such as ("all",).')
        self.name: str = name
        self.key: str = key
        self._observers = Observers(observers) if observers else None
        self.on_change: Callable[[LimitChange], None] | None = (
            None if self._observers is None else self._observers.limit_changed
        )
        self.drops: tuple[type[BaseException], ...] = drops
        self._classes = {text: number for number, text in enumerate(priorities)}
        self._queue = check_number("queue", queue, 0, 60)
        self._clock_ns = clock_ns
        self._signals = tuple(signals)
        self._lock = Lock()
        self._priority: PriorityGate | None = None
        self._gate: ConcurrencyGate | RateGate
        if isinstance(algorithm, TargetRate) and queue:
            raise InvalidRule("A rate has no queue: limit the calls in flight for that.")
        if priorities or queue:
            self._priority = PriorityGate(
                algorithm,
                clock_ns(),
                max(1, len(priorities)),
                max_wait_ns=queue * _NS_PER_SECOND,
                fair=fair,
                random=Random(),
            )
            self._gate = self._priority.gate
        else:
            self._gate = new_gate(algorithm, clock_ns())
        if signals:
            self._gate.strained = self._strained

    @property
    def limit(self) -> int:
        """Returns how many calls may be in flight now."""
        return self._gate.limit

    @property
    def in_flight(self) -> int:
        """Returns how many calls are in flight."""
        return self._gate.in_flight

    @property
    def room(self) -> int:
        """Returns how many calls could begin now."""
        with self._lock:
            return self._gate.room(self._clock_ns())

    @property
    def reason(self) -> str:
        """Returns why the limit is what it is, in a word or two: `no queue`, `queueing`, `dropped`."""
        return self._gate.reason

    def guard(self, priority: str | None = None, user: Hashable = None) -> AdaptiveGuard:
        """Returns a guard for a block (with, async with), or for each call of a function or coroutine function.

        >>> limiter = AdaptiveLimiter()
        >>> @limiter.guard()
        ... def double(number):
        ...     return 2 * number
        >>> double(21)
        42
        """
        self._class_of(priority)
        return AdaptiveGuard(self, priority, user)

    def acquire(self, priority: str | None = None, user: Hashable = None) -> AdaptiveCall:
        """Begins a call, or raises RateLimited at once. Whoever calls this ends it: success, ignore or drop.

        >>> call = AdaptiveLimiter().acquire()
        >>> call.success()
        """
        number = self._class_of(priority)
        with self._lock:
            now_ns = self._clock_ns()
            if self._priority is None:
                entered = self._gate.try_enter(now_ns)
            else:
                entered = self._priority.enter(now_ns, None, number, user, may_wait=False)
        if entered <= 0:
            raise RateLimited(self._reported(self.refusal()))
        return self._begin(entered, now_ns)

    def observe(self, priority: str | None = None, user: Hashable = None) -> tuple[AdaptiveCall, Decision | None]:
        """Begins a call in any case, and returns it with the refusal that it would have got; None if it passes.

        >>> call, refusal = AdaptiveLimiter().observe()
        >>> call.success(), refusal
        (None, None)
        """
        try:
            return self.acquire(priority, user), None
        except RateLimited as refused:
            with self._lock:
                entered, now_ns = self._gate.enter_above(), self._clock_ns()
            return AdaptiveCall(self, entered, now_ns), refused.decision

    def change(
        self,
        algorithm: LimitAlgorithm[Any] | TargetRate,
        *,
        keep: bool = False,
        priorities: Sequence[str] | None = None,
    ) -> None:
        """Goes on with other settings. Calls in flight stay; the queue and the kind of limit cannot change.

        ``keep``: with what was learned, as far as it fits; ``priorities``: other classes.

        >>> limiter = AdaptiveLimiter()
        >>> limiter.change(AdaptiveConcurrency(initial=8, ceiling=10))
        >>> limiter.limit
        8
        >>> limiter.change(AdaptiveConcurrency(initial=20), keep=True)
        >>> limiter.limit
        8
        """
        _check_settings(algorithm, () if priorities is None else priorities, self.drops, ())
        if isinstance(algorithm, TargetRate) != isinstance(self._gate, RateGate):
            raise InvalidRule("A limit on calls in flight does not become a rate, nor a rate such a limit.")
        if priorities is not None and self._queue:
            raise InvalidRule("The classes of a limiter with a queue cannot change: calls wait in it.")
        with self._lock:
            before, now_ns = self._gate.limit, self._clock_ns()
            state = carried_state(self._gate.state, algorithm) if keep else None
            self._gate.change(algorithm, now_ns, state)  # type: ignore[arg-type]
            if priorities is not None and list(priorities) != list(self._classes):
                self._classes = {text: number for number, text in enumerate(priorities)}
                self._priority = (
                    PriorityGate(algorithm, now_ns, len(priorities), random=Random(), gate=self._gate)
                    if priorities
                    else None
                )
            after, reason = self._gate.limit, self._gate.reason
        self._report_change(before, after, reason)

    @property
    def windows(self) -> int:
        """Returns how many windows of calls it has learned from."""
        return self._gate.windows

    def go_on_from(self, limit: float) -> None:
        """Goes on from another limit, such as one that several processes agreed on.

        >>> limiter = AdaptiveLimiter()
        >>> limiter.go_on_from(12.0)
        >>> limiter.limit
        12
        """
        with self._lock:
            before = self._gate.limit
            self._gate.go_on_from(limit)
            after, reason = self._gate.limit, self._gate.reason
        self._report_change(before, after, reason)

    def _enter(self, priority: str | None, user: Hashable, queued: Callable[[], QueuedCall]) -> Any:
        """Returns a call that has begun, or one that waits in the queue; raises RateLimited."""
        if self._priority is None or not self._queue:
            return self.acquire(priority, user)
        number = self._class_of(priority)
        token = queued()
        with self._lock:
            now_ns = self._clock_ns()
            entered = self._priority.enter(now_ns, token, number, user)
        if entered == QUEUED:
            return token
        if not entered:
            raise RateLimited(self._reported(self.refusal()))
        return self._begin(entered, now_ns)

    def _admitted(self, token: QueuedCall) -> AdaptiveCall:
        """Returns the call of a token that has waited; raises RateLimited if its turn did not come."""
        assert self._priority is not None
        with self._lock:
            if not token.entered and self._priority.withdraw(token):
                self._priority.rejection.found_no_room()
            started_ns = self._clock_ns()
        if not token.entered:
            raise RateLimited(self._reported(self.refusal()))
        return self._begin(token.entered, started_ns)

    def _abandon(self, token: QueuedCall) -> None:
        """Removes a token whose caller is gone; ends its call if that had begun."""
        assert self._priority is not None
        with self._lock:
            self._priority.withdraw(token)
        if token.entered:
            self._leave(token.entered, self._clock_ns(), IGNORED)

    def _leave(self, entered: int, started_ns: int, outcome: int) -> None:
        admitted: list[tuple[Any, int]] = []
        with self._lock:
            before, now_ns = self._gate.limit, self._clock_ns()
            if self._priority is None:
                self._gate.leave(entered, started_ns, now_ns, outcome)
            else:
                admitted = self._priority.leave(entered, started_ns, now_ns, outcome)
            for token, its_entered in admitted:
                token.entered = its_entered
            after, reason = self._gate.limit, self._gate.reason
        for token, _ in admitted:
            token.wake()
        self._report_change(before, after, reason)

    def _cancel(self, entered: int, started_ns: int) -> None:
        if isinstance(self._gate, RateGate):
            with self._lock:
                self._gate.cancel()
        else:
            self._leave(entered, started_ns, IGNORED)

    def _report_change(self, before: int, after: int, reason: str) -> None:
        """Reports a limit that has moved. Without the lock: observers may take their time."""
        if before != after and self.on_change is not None:
            self.on_change(LimitChange(self.name, self.key, before, after, reason))

    def _class_of(self, priority: str | None) -> int:
        if priority is None:
            return 0
        if callable(priority):
            raise InvalidCharge("A guard decorates a function with brackets: write @limiter.guard() above it.")
        try:
            return self._classes[priority]
        except (KeyError, TypeError):
            valid = ", ".join(self._classes) or "none, give the limiter priorities"
            raise InvalidCharge(f"{priority!r} is no priority of this limiter. Known: {valid}.") from None

    def _strained(self) -> bool:
        readings = [signal.strained() for signal in self._signals]  # all of them, so that each is up to date
        return any(readings)

    def _begin(self, entered: int, started_ns: int) -> AdaptiveCall:
        """Returns a call that has begun, and reports that it passed."""
        if self._observers is not None:
            remaining = max(0, self._gate.limit - self.in_flight)
            outcome = (True, remaining, 0, 0, 0, time.time_ns() // 1000, 0)
            self._reported(Decision(outcome, self._source(), self.name, 1))
        return AdaptiveCall(self, entered, started_ns)

    def _source(self) -> AdaptiveSource:
        return AdaptiveSource(Slots(self._gate.limit), self.name)

    def _reported(self, decision: Decision) -> Decision:
        """Reports a decision to the observers, and returns it."""
        if self._observers is not None:
            self._observers.decided(decision, None, draw=random())
        return decision

    def refusal(self) -> Decision:
        """Returns the decision of a refused call. It may pass as soon as any call ends: about a response time,
        divided by the calls in flight, from now.

        >>> AdaptiveLimiter().refusal().allowed
        False
        """
        response_ns = getattr(self._gate.state, "response_ns", 0.0) or _NS_PER_SECOND / 10
        wait_us = max(1, int(response_ns / max(1, self._gate.limit) / 1000))
        outcome = (False, 0, wait_us, int(response_ns / 1000), 0, time.time_ns() // 1000, 0)
        return Decision(ShedOutcome(outcome), self._source(), self.name, 1)


def _check_settings(algorithm: object, priorities: object, drops: object, signals: object) -> None:
    """Raises InvalidRule unless these are what a limiter takes."""
    verbs = ("start", "update", "is_complete" if isinstance(algorithm, TargetRate) else "window_of")
    if isinstance(algorithm, type) or not all(hasattr(algorithm, verb) for verb in verbs):
        raise InvalidRule(f"An algorithm is an object such as AdaptiveConcurrency(floor=4); not {algorithm!r}.")
    if not isinstance(priorities, list | tuple) or len(set(map(str, priorities))) != len(priorities):
        raise InvalidRule(f'Priorities are names that differ, such as ("high", "low"); not {priorities!r}.')
    if not isinstance(drops, tuple) or not all(isinstance(each, type) for each in drops):
        raise InvalidRule(f"drops is a tuple of exceptions, such as (TimeoutError,); not {drops!r}.")
    if not isinstance(signals, list | tuple) or not all(
        callable(getattr(each, "strained", None)) for each in signals
    ):
        raise InvalidRule(f"signals is a list such as [CpuUsage(threshold=0.9)]; not {signals!r}.")
