"""Turns of calls to somebody else's service by a rulebook: its rates first, then its adaptive limits.

A call waits for the rates that apply to it, in the order of asking, across all processes. Then it waits in this
process, first come, first served, until its adaptive limits have room: they count what is in flight, so nothing
that still waits for a rate may count. A call that finds no room in time gives its rates back.

Each line belongs to the rules and keys that its calls wait for, so a slow host holds up no other.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event, Lock
from typing import Any, Final, TypeVar

from headgate.adaptive.adaptive_limit import AdaptiveLimit
from headgate.algorithms.limit import SECOND
from headgate.algorithms.slots import Slots
from headgate.enforcement import adaptive_rules
from headgate.enforcement.adaptive_rules import AdaptiveMeter
from headgate.enforcement.call_plan import CallPlan, limit_cases
from headgate.enforcement.rule_decision import RuleDecision
from headgate.errors import CorruptState, EngineUnavailable, InvalidRule, InvalidSetting, RateLimited
from headgate.flow import Flow, arun, run
from headgate.integrations.outbound_turns import (
    MAX_UNCHECKED_NS,
    ClientTurns,
    Turn,
    log_pause_of_this_process,
)
from headgate.limiter_flows import MAX_PAUSED_SLEEP_US
from headgate.rules.match import Match
from headgate.rules.rule import Rulebook

Request = TypeVar("Request")

MAX_LINES: Final = 1000
LOOK_AGAIN_S: Final = 0.05  # the limit may also grow, or calls of others end, without a word to the line


class RuleTurns(ClientTurns[Request]):
    """Turns by the rules of a rulebook that apply to a call.

    attributes_of   returns the attributes of a request: method, path, host, header.*, argument.*
    extra           returns more of them; a function of the request
    host_of         returns its host, which a refusal pauses in this process if no rule of the call can be paused
    """

    def __init__(
        self,
        limiter: Any,
        awaited: bool,
        attributes_of: Callable[[Request], dict[str, Any]],
        extra: Callable[[Request], Mapping[str, Any]] | None,
        host_of: Callable[[Request], str],
        cost: int | Callable[[Request], int] | None,
        timeout: float | None,
    ) -> None:
        super().__init__(limiter.clock, awaited)
        check_holds_no_slots(limiter.rulebook)
        self._limiter = limiter
        self._attributes_of = attributes_of
        self._extra = extra
        self._host_of = host_of
        self._cost = cost
        self._timeout = timeout
        self._drive: Callable[[Flow[Any]], Any] = arun if awaited else run
        self._lines: dict[tuple[tuple[str, str], ...], CallLine] = {}
        self._lock = Lock()

    def wait(self, request: Request) -> Flow[Turn]:
        compiled, attributes = self._limiter.compiled_rulebook, self._all_attributes(request)
        cost = self._cost(request) if callable(self._cost) else self._cost
        waits_since = time.monotonic()
        matches = compiled.match(attributes, cost)
        rates = CallPlan(compiled, [each for each in matches if not _is_adaptive(each)], attributes, cost)
        rooms = CallPlan(compiled, [each for each in matches if _is_adaptive(each)], attributes, cost)
        if any(isinstance(meter.limit, Slots) for meter, _, _ in rates.charges):
            check_holds_no_slots(compiled.book)
        decision: RuleDecision | None = None
        if rates.charges or rates.denied_matches or not rooms.charges:
            decision = yield partial(self._limiter.wait_plan, rates, self._timeout)
            decision.or_raise()
        host = self._host_of(request)
        yield from self._wait_through_pauses_of_process(host)
        turn = Turn(host)
        if rooms.charges:
            try:
                turn = yield from self._wait_for_room(host, rates, rooms, waits_since)
            except BaseException:
                if decision is not None:
                    with suppress(EngineUnavailable, CorruptState):  # it stays charged until it has run out
                        yield partial(self._limiter.refund, decision)
                raise
        turn.pauses = tuple(
            dict.fromkeys(
                (rule, key)
                for (rule, kind), (_, key, _) in zip(rates.labels, rates.charges, strict=True)
                if kind is None and rule in compiled.pause_options
            )
        )
        return turn

    def _all_attributes(self, request: Request) -> dict[str, Any]:
        attributes = self._attributes_of(request)
        if self._extra is not None:
            more = self._extra(request) or {}
            if not isinstance(more, Mapping):
                raise InvalidSetting(f'attributes= returns a mapping such as {{"plan": "pro"}}, not {more!r}.')
            attributes.update(more)
        return attributes

    def _wait_for_room(self, host: str, rates: CallPlan, rooms: CallPlan, waits_since: float) -> Flow[Turn]:
        """Waits in line until the adaptive limits have room."""
        line = self._line(rooms)
        decision = yield from self._enter(line, rooms, waits_since)
        try:
            if rates.can_be_paused and time.monotonic() - waits_since > MAX_UNCHECKED_NS / 1e9:
                while paused := (yield from self._paused_for(rates)):
                    yield partial(self._sleep_us, min(round(paused * SECOND), MAX_PAUSED_SLEEP_US))
        except BaseException:
            adaptive_rules.cancel(decision)
            line.wake_first()
            raise
        adaptive_rules.restart(decision)

        def end(outcome: str) -> None:
            adaptive_rules.end(decision, outcome)
            line.wake_first()

        return Turn(host, end)

    def _enter(self, line: CallLine, rooms: CallPlan, waits_since: float) -> Flow[RuleDecision]:
        place = (AwaitedLinePlace if self._awaited else LinePlace)()
        line.join(place)
        try:
            while True:
                left = None if self._timeout is None else waits_since + self._timeout - time.monotonic()
                is_last_try = left is not None and left <= 0
                if is_last_try or (line.is_first(place) and _have_room(rooms)):
                    decision: RuleDecision = yield partial(self._limiter.decide_plan, rooms)
                    if decision.allowed:
                        return decision
                    if is_last_try:
                        raise RateLimited(decision)
                yield partial(place.wait, LOOK_AGAIN_S if left is None else min(LOOK_AGAIN_S, max(0.0, left)))
        finally:
            line.leave(place)

    def _paused_for(self, rates: CallPlan) -> Flow[float]:
        now: RuleDecision = yield lambda: self._drive(rates.decide(commit=False))
        return max((part.paused_for for part in now.counter_decisions), default=0.0)

    def _line(self, rooms: CallPlan) -> CallLine:
        names = tuple(
            (meter.name, key)
            for (_, kind), (meter, key, _) in zip(rooms.labels, rooms.charges, strict=True)
            if kind is None
        )
        with self._lock:
            line = self._lines.get(names)
            if line is None:
                if len(self._lines) >= MAX_LINES:
                    self._lines = {each: line for each, line in self._lines.items() if line.is_used}
                line = self._lines[names] = CallLine()
            return line

    def pause(self, turn: Turn, seconds: float) -> Flow[None]:
        """Pauses every rule of the call that can be paused, for all processes; if there is none, or no engine
        answers, the host in this process alone."""
        try:
            for rule, key in turn.pauses:
                yield partial(self._limiter.pause, rule, key, seconds)
        except EngineUnavailable as error:
            log_pause_of_this_process(turn.key, seconds, error)
        else:
            if turn.pauses:
                return
        self._pause_alone(turn.key, seconds)


class LinePlace:
    """A thread's place in a line."""

    def __init__(self) -> None:
        self._woken = Event()

    def wake(self) -> None:
        self._woken.set()

    def wait(self, seconds: float) -> Any:
        """Waits until it is woken, at most so long."""
        self._woken.wait(seconds)
        self._woken.clear()


class AwaitedLinePlace(LinePlace):
    """A task's place in a line."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Event()

    def wake(self) -> None:
        with suppress(RuntimeError):  # its loop is closed, and it waits no longer
            self._loop.call_soon_threadsafe(self._turn.set)

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._turn.wait()
        self._turn.clear()


class CallLine:
    """Calls that wait for the same adaptive limits, first come, first served."""

    def __init__(self) -> None:
        self._places: deque[LinePlace] = deque()
        self._lock = Lock()

    @property
    def is_used(self) -> bool:
        """Returns whether a call waits in it."""
        return bool(self._places)

    def join(self, place: LinePlace) -> None:
        with self._lock:
            self._places.append(place)

    def is_first(self, place: LinePlace) -> bool:
        """Returns whether it is this place's turn."""
        with self._lock:
            return bool(self._places) and self._places[0] is place

    def leave(self, place: LinePlace) -> None:
        """Removes a place; the next one looks whether there is room for it, too."""
        with self._lock:
            self._places.remove(place)
        self.wake_first()

    def wake_first(self) -> None:
        with self._lock:
            first = self._places[0] if self._places else None
        if first is not None:
            first.wake()


def check_holds_no_slots(book: Rulebook) -> None:
    """Raises InvalidRule if a rule holds slots."""
    for rule in book.rules:
        if any(isinstance(limit, Slots) for _, limits in limit_cases(rule) for limit in limits):
            raise InvalidRule(
                f'Rule "{rule.name}" holds slots, and calls to somebody else wait for a rate or an adaptive '
                "limit: write 10/s, or {adaptive: concurrency}."
            )


def _is_adaptive(match: Match) -> bool:
    return bool(match.limits) and isinstance(match.limits[0], AdaptiveLimit)


def _have_room(rooms: CallPlan) -> bool:
    """Returns whether the adaptive limits of a call would let it pass now, without a trace."""
    for (_, kind), (meter, key, _) in zip(rooms.labels, rooms.charges, strict=True):
        if kind is None and isinstance(meter, AdaptiveMeter) and not meter.free(key)[0]:
            return False
    return True
