"""Calls to somebody else's service: each waits its turn, and what the service answers slows all of them down.

The part of the client integrations that knows no HTTP client: httpx.py, requests.py and aiohttp_client.py stand on
it. One call goes like this, as a flow of steps that sync and async clients share:

    1. wait for a turn: limiter.wait(key), in the order of asking, across all processes that share the limiter
    2. with an adaptive limit, wait until fewer calls are in flight than it allows
    3. send; read the status and the fields of the response
    4. a 429, or a 503 with Retry-After, pauses the key for every process; a quota of which little is left does so
       for as long as spreads it (http/upstream_limits.py)
    5. a refused call is sent again, if `retries` allow it, after waiting its turn again

If the engine does not answer, the pause is kept in this process alone, and logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from headgate.adaptive.gate import DROPPED, IGNORED, SUCCESS
from headgate.adaptive.waiting_gate import WaitingGate
from headgate.adaptive.window import LimitAlgorithm, check_number
from headgate.algorithms.decision import Decision, DetachedLimit
from headgate.algorithms.limit import SECOND
from headgate.algorithms.slots import Slots
from headgate.clock import SystemClock
from headgate.errors import EngineUnavailable, InvalidRule, RateLimited
from headgate.flow import Flow
from headgate.http.upstream_limits import SLOW_BELOW, is_refusal, pause_after
from headgate.integrations.unknown_settings import reject_unknown
from headgate.limiter import AsyncLimiter, Limiter
from headgate.limiter_flows import patience_us
from headgate.validation import MAX_PAUSE_S, check_cost, check_key, describe

Request = TypeVar("Request")
Response = TypeVar("Response")

MAX_GATES = 1000  # keys with an adaptive limit of their own
MAX_UNCHECKED_NS = (
    1_000_000  # between a call's turn and its sending; if it takes longer, it looks for a pause again
)
MIN_PAUSE_S = 0.001  # what is shorter is not worth a request to the engine

_log = logging.getLogger("headgate")


class OutboundSettings(TypedDict, Generic[Request], total=False):
    """The settings of a client's calls, other than its limiter.

    adaptive    an algorithm that finds how many calls may be in flight, such as AdaptiveConcurrency(initial=1)
    key         whose limit a request counts against: a text, or a function of the request; its host unless given
    cost        units of a request: a number, or a function of the request
    timeout     seconds that a call waits for its turn at most; RateLimited if it would be longer
    retries     how often a refused call is sent again, after waiting its turn again
    slow_below  the share of the other side's quota below which the rest is spread; 0 never slows down
    """

    adaptive: LimitAlgorithm[Any] | None
    key: str | Callable[[Request], str] | None
    cost: int | Callable[[Request], int]
    timeout: float | None
    retries: int
    slow_below: float


class OutboundCalls(Generic[Request, Response]):
    """The flow of each of a client's calls.

    limiter     one that can be paused (pausable=True), with an engine that all processes share
    awaited     whether the client is async, and needs an AsyncLimiter
    host_of     returns the host of a request, whose limit it counts against without `key`
    answer_of   returns the status and the fields of a response
    """

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter | None,
        *,
        awaited: bool,
        host_of: Callable[[Request], str],
        answer_of: Callable[[Response], tuple[int, Iterable[tuple[str, str]]]],
        **settings: Unpack[OutboundSettings[Request]],
    ) -> None:
        reject_unknown(settings, OutboundSettings.__optional_keys__, "this client")
        adaptive, key = settings.get("adaptive"), settings.get("key")
        retries, slow_below = settings.get("retries", 0), settings.get("slow_below", SLOW_BELOW)
        _check_limiter(limiter, adaptive, awaited)
        if type(retries) is not int or retries < 0:
            raise InvalidRule(f"retries is a whole number of at least 0, not {retries!r}.")
        check_number("slow_below", slow_below, 0, 1)
        self._limiter: Any = limiter
        self._adaptive = adaptive
        self._key = host_of if key is None else key if callable(key) else check_key(key)
        cost, self._timeout = settings.get("cost", 1), settings.get("timeout")
        self._cost = cost if callable(cost) else check_cost(cost, spends=True)
        patience_us(self._timeout)
        self._retries = retries
        self._slow_below = slow_below
        self._answer_of = answer_of
        self._awaited = awaited
        clock = SystemClock() if limiter is None else limiter.clock
        self._now_us = clock.now_us
        self._sleep_us: Callable[[int], Any] = clock.asleep_us if awaited else clock.sleep_us
        self._rate = None if limiter is None else limiter.units_per_second
        self._gates: dict[str, WaitingGate] = {}
        self._paused_until_us: dict[str, int] = {}  # pauses that this process keeps alone

    def call(
        self,
        request: Request,
        send: Callable[[], Any],
        discard: Callable[[Response], Any],
        can_repeat: bool = True,
        drops: tuple[type[BaseException], ...] = (TimeoutError,),
    ) -> Flow[Response]:
        """Returns the flow of one call. `send` sends it, `discard` closes a response that is not returned."""
        key = check_key(self._key(request) if callable(self._key) else self._key)
        cost = check_cost(self._cost(request) if callable(self._cost) else self._cost, spends=True)
        left = self._retries if can_repeat else 0
        while True:
            if self._limiter is not None:
                decision: Decision = yield partial(self._limiter.wait, key, cost, self._timeout)
                decision.or_raise()
            while (paused_us := self._paused_until_us.get(key, 0) - self._now_us()) > 0:
                yield partial(self._sleep_us, paused_us)
            response: Response = yield from self._send(key, send, drops)
            status, fields = self._answer_of(response)
            fields = list(fields)
            seconds = pause_after(
                status, fields, now=self._now_us() / SECOND, rate=self._rate, slow_below=self._slow_below
            )
            if seconds >= MIN_PAUSE_S:
                yield from self._pause(key, seconds)
            if not left or not _is_refused(status, fields):
                return response
            left -= 1
            yield partial(discard, response)

    def _send(self, key: str, send: Callable[[], Any], drops: tuple[type[BaseException], ...]) -> Flow[Response]:
        """Sends the call, once the adaptive limit has room for it."""
        response: Response
        if self._adaptive is None:
            response = yield send
            return response
        gate = self._gate(key)
        requested_at_ns = time.monotonic_ns()
        entered: int = yield partial(gate.enter_async if self._awaited else gate.enter, self._timeout)
        if not entered:
            outcome = (False, 0, SECOND, 0, 0, self._now_us(), 0)
            raise RateLimited(Decision(outcome, DetachedLimit(Slots(gate.limit)), key, 1))
        ended = IGNORED
        started_ns = time.monotonic_ns()
        try:
            if self._limiter is not None and started_ns - requested_at_ns > MAX_UNCHECKED_NS:
                while paused := (yield partial(self._limiter.peek, key)).paused_for:
                    yield partial(self._sleep_us, round(paused * SECOND))
                started_ns = time.monotonic_ns()
            response = yield send
            status, fields = self._answer_of(response)
            ended = DROPPED if _is_refused(status, fields) or status == 503 else SUCCESS
            return response
        except drops:
            ended = DROPPED
            raise
        finally:
            gate.leave(entered, started_ns, ended)

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

    def _pause(self, key: str, seconds: float) -> Flow[None]:
        """Pauses the key for every process; in this one alone if there is no engine that answers."""
        if self._limiter is not None:
            try:
                yield partial(self._limiter.pause, key, seconds)
                return
            except EngineUnavailable as error:
                _log.error(
                    'headgate: a pause of "%s" for %g s holds in this process only: %s', key, seconds, error
                )
        longest = MAX_PAUSE_S if self._limiter is None else self._limiter.max_pause
        now_us = self._now_us()
        self._paused_until_us = {name: until for name, until in self._paused_until_us.items() if until > now_us}
        until_us = now_us + round(min(seconds, longest) * SECOND)
        self._paused_until_us[key] = max(until_us, self._paused_until_us.get(key, 0))


def _is_refused(status: int, fields: Iterable[tuple[str, str]]) -> bool:
    return is_refusal(status, any(name.lower() == "retry-after" for name, _ in fields))


def _check_limiter(limiter: object, adaptive: object, awaited: bool) -> None:
    """Raises InvalidRule unless this limiter can make calls wait, and be paused."""
    kind = AsyncLimiter if awaited else Limiter
    if limiter is None:
        if adaptive is None:
            raise InvalidRule("Give a limiter, or adaptive=AdaptiveConcurrency(initial=1) if no limit is known.")
        return
    if not isinstance(limiter, kind):
        needed = "an AsyncLimiter" if awaited else "a Limiter"
        raise InvalidRule(f"This client needs {needed}, not {describe(limiter)}.")
    if limiter.holds_slots:
        raise InvalidRule("Calls to somebody else wait for a rate, such as 10/s; slots are acquired and released.")
    if not limiter.pausable:
        raise InvalidRule("This limiter cannot be paused, as a 429 requires: make it with pausable=True.")
