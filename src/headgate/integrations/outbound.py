"""Calls to somebody else's service: each waits its turn, and what the service answers slows all of them down.

The part of the client integrations that knows no HTTP client: httpx.py, requests.py and aiohttp_client.py stand on
it. One call goes like this, as a flow of steps that sync and async clients share:

    1. wait for a turn (outbound_turns.py, outbound_rules.py): limiter.wait(key), in the order of asking, across
       all processes that share the limiter; with an adaptive limit, wait until it has room for one more call in
       flight
    2. send; read the status and the fields of the response
    3. a 429, or a 503 with Retry-After, pauses the key for every process; a quota of which little is left does so
       for as long as spreads it (http/upstream_limits.py)
    4. a refused call is sent again, if `retries` allow it, after waiting its turn again
    5. an adaptive limit learns how the call went, once its response has been read

If the engine does not answer, the pause is kept in this process alone, and logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from headgate.adaptive.window import LimitAlgorithm, check_number
from headgate.algorithms.limit import SECOND
from headgate.clock import SystemClock
from headgate.enforcement.adaptive_rules import DROPPED, IGNORED
from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
from headgate.errors import InvalidRule, InvalidSetting
from headgate.flow import Flow
from headgate.http.upstream_limits import SLOW_BELOW, is_refusal, pause_after
from headgate.integrations.outbound_rules import RuleTurns
from headgate.integrations.outbound_turns import ClientTurns, LimiterTurns, Turn
from headgate.integrations.unknown_settings import reject_unknown
from headgate.limiter import AsyncLimiter, Limiter
from headgate.limiter_flows import patience_us
from headgate.rules import attributes
from headgate.validation import check_cost, check_key, describe

Request = TypeVar("Request")
Response = TypeVar("Response")

MIN_PAUSE_S = 0.001  # what is shorter is not worth a request to the engine

Fields = Iterable[tuple[str, str]]


class OutboundSettings(TypedDict, Generic[Request], total=False):
    """The settings of a client's calls, other than its limiter.

    adaptive    an algorithm that finds how many calls may be in flight, such as AdaptiveConcurrency(initial=1)
    key         whose limit a request counts against: a text, or a function of the request; its host unless given
    cost        units of a request: a number, or a function of the request
    timeout     seconds that a call waits for its turn at most; RateLimited if it would be longer
    retries     how often a refused call is sent again, after waiting its turn again
    slow_below  the share of the other side's quota below which the rest is spread; 0 never slows down
    attributes  with a rulebook: a function of the request that returns more attributes than those of its HTTP
    """

    adaptive: LimitAlgorithm[Any] | None
    key: str | Callable[[Request], str] | None
    cost: int | Callable[[Request], int]
    timeout: float | None
    retries: int
    slow_below: float
    attributes: Callable[[Request], Mapping[str, Any]] | None


class OutboundCalls(Generic[Request, Response]):
    """The flow of each of a client's calls.

    limiter     one that can be paused (pausable=True), or that of a rulebook; all processes share its engine
    awaited     whether the client is async, and needs an AsyncLimiter
    host_of     returns the host of a request, whose limit it counts against without `key`
    parts_of    returns the method, the path with the query, and the fields of a request, for a rulebook
    answer_of   returns the status and the fields of a response
    watch_body  ends a turn when the body of a response has been read, or cannot be
    drops       exceptions that tell that the other side did not answer, or too late
    """

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter | RuleLimiter | AsyncRuleLimiter | None,
        *,
        awaited: bool,
        host_of: Callable[[Request], str],
        parts_of: Callable[[Request], tuple[str, str, Fields]],
        answer_of: Callable[[Response], tuple[int, Fields]],
        watch_body: Callable[[Response, Turn], None],
        drops: tuple[type[BaseException], ...],
        **settings: Unpack[OutboundSettings[Request]],
    ) -> None:
        reject_unknown(settings, OutboundSettings.__optional_keys__, "this client")
        retries, slow_below = settings.get("retries", 0), settings.get("slow_below", SLOW_BELOW)
        if type(retries) is not int or retries < 0:
            raise InvalidRule(f"retries is a whole number of at least 0, not {retries!r}.")
        check_number("slow_below", slow_below, 0, 1)
        patience_us(settings.get("timeout"))
        key, cost = settings.get("key"), settings.get("cost")
        if key is not None and not callable(key):
            check_key(key)
        if cost is not None and not callable(cost):
            check_cost(cost, spends=True)
        self._turns: ClientTurns[Request]
        if isinstance(limiter, AsyncRuleLimiter if awaited else RuleLimiter):
            _check_rule_settings(settings)

            def attributes_of(request: Request) -> dict[str, Any]:
                method, target, fields = parts_of(request)
                return attributes.request(method, target, fields, host=host_of(request))

            self._turns = RuleTurns(
                limiter,
                awaited,
                attributes_of,
                settings.get("attributes"),
                host_of,
                settings.get("cost"),
                settings.get("timeout"),
            )
        else:
            _check_limiter(limiter, settings, awaited)
            self._turns = LimiterTurns(
                limiter,
                settings.get("adaptive"),
                SystemClock() if limiter is None else limiter.clock,
                awaited,
                host_of if key is None else key,
                settings.get("cost", 1),
                settings.get("timeout"),
            )
        self._retries = retries
        self._slow_below = slow_below
        self._answer_of = answer_of
        self._watch_body = watch_body
        self._drops = drops

    def call(
        self,
        request: Request,
        send: Callable[[], Any],
        discard: Callable[[Response], Any],
        can_repeat: bool = True,
    ) -> Flow[Response]:
        """Returns the flow of one call. `send` sends it, `discard` closes a response that is not returned."""
        turns, left = self._turns, self._retries if can_repeat else 0
        while True:
            turn = yield from turns.wait(request)
            try:
                response: Response = yield send
            except BaseException as error:
                turn.end(DROPPED if isinstance(error, self._drops) else IGNORED)
                raise
            status, fields = self._answer_of(response)
            fields = list(fields)
            turn.answered(status)
            if turn.is_measured:
                self._watch_body(response, turn)
            seconds = pause_after(
                status, fields, now=turns.now_us() / SECOND, rate=turns.rate, slow_below=self._slow_below
            )
            if seconds >= MIN_PAUSE_S:
                yield from turns.pause(turn, seconds)
            if not left or not _is_refused(status, fields):
                return response
            left -= 1
            yield partial(discard, response)
            turn.end(IGNORED)


def _is_refused(status: int, fields: Iterable[tuple[str, str]]) -> bool:
    return is_refusal(status, any(name.lower() == "retry-after" for name, _ in fields))


def _check_rule_settings(settings: Mapping[str, Any]) -> None:
    """Raises InvalidSetting for settings that a rulebook replaces."""
    if settings.get("key") is not None:
        raise InvalidSetting(
            "A rulebook says which calls count together: write `key: host` in a rule, and leave out key=. "
            "What else a request tells is returned by attributes=."
        )
    if settings.get("adaptive") is not None:
        raise InvalidSetting(
            "A rulebook has its adaptive limits as rules: write limit: {adaptive: concurrency} in one, and leave "
            "out adaptive=."
        )


def _check_limiter(limiter: Any, settings: Mapping[str, Any], awaited: bool) -> None:
    """Raises InvalidRule unless this limiter can make calls wait, and be paused."""
    if settings.get("attributes") is not None:
        raise InvalidSetting(
            "attributes= is for a rulebook: make the limiter with from_rules(...), or give key= instead."
        )
    if limiter is None:
        if settings.get("adaptive") is None:
            raise InvalidRule("Give a limiter, or adaptive=AdaptiveConcurrency(initial=1) if no limit is known.")
        return
    if not isinstance(limiter, AsyncLimiter if awaited else Limiter):
        needed = "an AsyncLimiter" if awaited else "a Limiter"
        raise InvalidRule(f"This client needs {needed}, not {describe(limiter)}.")
    if limiter.holds_slots:
        raise InvalidRule("Calls to somebody else wait for a rate, such as 10/s; slots are acquired and released.")
    if not limiter.pausable:
        raise InvalidRule("This limiter cannot be paused, as a 429 requires: make it with pausable=True.")
