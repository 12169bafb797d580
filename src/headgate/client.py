"""A client of the check service, for programs that do not decide themselves.

    with Client("http://127.0.0.1:8080") as gate:
        answer = gate.check({"path": "/login", "address": "192.0.2.7"})
        if not answer:
            return too_many_requests(answer.retry_after)

    check      may this call pass?                    peek      would it?
    together   may all of these? All or none          reserve   a place, to be served after answer.delay
    refund     give back what an answer charged       settle    count what the call really cost
    cancel     give a place back                      hold      check around a block; its slots are held as long
    renew      hold slots for another ttl             release   give them back
    finish     say how a call ended, for adaptive rules

Client and AsyncClient are the same but for the await. If no answer comes within `timeout`, or the service cannot
decide, EngineUnavailable is raised; or with `fallback` "allow" or "deny" that is the answer, marked as degraded.
Only an answer with a receipt can be given back; request one with receipt=True.

`url` is the service's base URL, and `timeout` is in seconds. An invalid one, or a call that cannot be sent, raises
InvalidCharge; so does a URL at which something else answers (401, 403, 404, 405, a redirect), with or without a
fallback.

hold renews its slots while the block runs. `answer.lost` is true if that failed, and another client may hold them;
then leaving the block raises LeaseLost, unless it raised something itself.

(The reason for the length of this file: every verb has two spellings, and an example.)
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from time import monotonic
from types import TracebackType
from typing import Any, Literal, NamedTuple

from headgate.errors import EngineUnavailable, HeadgateError, InvalidCharge
from headgate.extras import require
from headgate.slot_renewal import AsyncHolding, Holding, SlotHold

require("headgate.client", "client", "httpx")

import httpx  # noqa: E402

Attributes = Mapping[str, Any]
Fallback = Literal["allow", "deny"]
Outcome = Literal["success", "dropped", "ignored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The service's answer to a call; true if it may pass. Times are seconds.

    >>> answer = Answer(allowed=False, rule="login", retry_after=2.5)
    >>> bool(answer), answer.rule, answer.retry_after
    (False, 'login', 2.5)
    """

    allowed: bool
    rule: str | None = None
    limit: str | None = None
    remaining: int | None = None
    retry_after: float | None = None
    reset_after: float = 0.0
    delay: float = 0.0
    degraded: bool = False
    why: str | None = None
    refusal: Mapping[str, Any] | None = None
    verdicts: Sequence[Mapping[str, Any]] = ()
    receipt: str | None = None
    expires_after: float | None = None  # seconds for which its slots are held, if it holds any
    finish_within: float | None = None  # seconds within which an adaptive rule waits to be told how the call ended
    slot_hold: SlotHold | None = field(default=None, repr=False, compare=False)  # set by `hold`

    @property
    def lost(self) -> bool:
        """Returns whether another client may hold a slot of this block by now."""
        return self.slot_hold is not None and self.slot_hold.lost

    def __bool__(self) -> bool:
        return self.allowed


class Refused(HeadgateError):
    """The call was refused; ``answer`` has the rule, and when to retry.

    >>> str(Refused(Answer(allowed=False, rule="login")))
    'refused by rule "login"'
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(f'refused by rule "{answer.rule}"')
        self.answer = answer

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.answer,), vars(self)


MAX_TIMEOUT_S = 86_400.0  # sockets take no more than 24 days
_EXAMPLE_URL = "http://127.0.0.1:8080"
_UNKNOWN_PATH_DETAIL = "See /openapi.json"  # how a service's 404 for an unknown path begins

_ANSWER_FIELDS = frozenset(field.name for field in fields(Answer)) - {"slot_hold"}


class _Call(NamedTuple):
    """A call of the check API: its verb and its JSON body."""

    verb: str
    body: dict[str, Any]

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Returns the HTTP request; InvalidCharge names a value that JSON cannot represent."""
        try:
            return http.build_request("POST", f"/v1/{self.verb}", json=self.body)
        except (TypeError, ValueError, RecursionError):
            raise InvalidCharge(_unsendable_sentence(self.body)) from None

    def parse(self, response: httpx.Response) -> dict[str, Any]:
        """Returns the JSON of a response; raises an error if it is not an answer."""
        status, document = response.status_code, _json_object(response)
        path = response.request.url.path
        detail = str(document["detail"]) if document is not None and "detail" in document else None
        if status == 200:
            if document is None or not _REQUIRED_FIELDS[self.verb] <= document.keys():
                raise EngineUnavailable(
                    _wrong_url_sentence(response, f"its answer to POST {path} is not one of a check service")
                )
            return document
        no_receipt = status == 404 and detail is not None and not detail.startswith(_UNKNOWN_PATH_DETAIL)
        if (status in (401, 403, 404, 405) and not no_receipt) or response.is_redirect:
            target = f"see {response.headers.get('location')}" if response.is_redirect else detail or ""
            reason = f" ({target.rstrip('.')})" if target else ""
            raise InvalidCharge(_wrong_url_sentence(response, f"it answered {status} to POST {path}{reason}"))
        detail = detail or f"The service answered {status} to {self.verb}."
        if status in (400, 404, 409, 413):
            raise InvalidCharge(detail)
        raise EngineUnavailable(detail)


# The fields that every answer to a verb has.
_REQUIRED_FIELDS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("check", "peek", "reserve"), frozenset(("allowed",))),
    "checks": frozenset(("answers",)),
    **dict.fromkeys(("renew", "release", "finish"), frozenset(("held",))),
    **dict.fromkeys(("refund", "settle", "cancel"), frozenset()),
}


def _json_object(response: httpx.Response) -> dict[str, Any] | None:
    """Returns the JSON object of a response, if it has one."""
    try:
        document = response.json()
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _wrong_url_sentence(response: httpx.Response, reason: str) -> str:
    """Returns the sentence for a URL that does not lead to a check service."""
    url = response.request.url
    base = f"{url.scheme}://{url.netloc.decode()}{url.path.rpartition('/v1/')[0]}"
    hint = (
        "Leave out /v1."
        if base.endswith("/v1")
        else f"Give the URL that headgate serve prints, such as {_EXAMPLE_URL}."
    )
    return f"{base} is not the base URL of a check service: {reason}. {hint}"


def _unsendable_sentence(body: Mapping[str, Any]) -> str:
    """Returns the sentence for a body that JSON cannot represent: it names the first such attribute or field."""
    for check in body.get("checks", [body]):
        for name, value in check.get("attributes", {}).items():
            if not isinstance(name, str):
                return f"The name of an attribute is a text, not {_show(name)}."
            if (reason := _json_error({name: value})) is not None:
                return (
                    f'The attribute "{name[:60]}" cannot be sent: {reason}. Give a text, a number, a bool or None.'
                )
    for name, value in body.items():
        if (reason := _json_error(value)) is not None:
            return f"{name} cannot be sent: {reason}."
    return "This call cannot be sent as JSON."


def _json_error(value: Any) -> str | None:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    except (TypeError, ValueError, RecursionError) as error:
        return str(error).rstrip(".")
    return None


def _show(value: object) -> str:
    return repr(value)[:60]


def _attributes(attributes: object) -> dict[str, Any]:
    if not isinstance(attributes, Mapping):
        raise InvalidCharge(f'Attributes are a mapping such as {{"user": "ann"}}, not {_show(attributes)}.')
    return dict(attributes)


def _check_call(verb: str, attributes: Attributes, cost: int | None, **options: Any) -> _Call:
    body: dict[str, Any] = {
        "attributes": _attributes(attributes),
        **{name: value for name, value in options.items() if value},
    }
    return _Call(verb, body if cost is None else {**body, "cost": cost})


def _together_call(calls: object, receipt: bool) -> _Call:
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise InvalidCharge(
            f'Calls are a list of attributes such as [{{"user": "ann"}}, {{"user": "bob"}}], not {_show(calls)}.'
        )
    checks = [{"attributes": _attributes(attributes), "receipt": receipt} for attributes in calls]
    return _Call("checks", {"checks": checks, "together": True})


def _receipt_call(
    verb: str,
    answer: Answer | str,
    cost: int | None = None,
    rule: str | None = None,
    outcome: Outcome | None = None,
) -> _Call:
    if not isinstance(answer, Answer | str):
        raise InvalidCharge(f"An answer of the service, or its receipt, is expected; not {repr(answer)[:60]}.")
    receipt = answer if isinstance(answer, str) else answer.receipt
    if receipt is None:
        raise InvalidCharge(f"This answer has no receipt, so there is nothing to {verb}: ask with receipt=True.")
    given = {"receipt": receipt, "cost": cost, "rule": rule, "outcome": outcome}
    return _Call(verb, {name: value for name, value in given.items() if value is not None})


def _parse_answer(document: Mapping[str, Any]) -> Answer:
    return Answer(**{name: value for name, value in document.items() if name in _ANSWER_FIELDS})


def _hold_of(answer: Answer) -> SlotHold | None:
    """Tracks the slots that an answer holds; returns None if it holds none."""
    return None if answer.expires_after is None else SlotHold(f"A slot of {answer.rule}", answer.expires_after)


def _outcome_of(error: BaseException | None) -> Outcome:
    """Returns what the end of a block says about the service that was called in it."""
    return "success" if error is None else "dropped" if isinstance(error, TimeoutError) else "ignored"


def _released(answer: Answer | str, document: Mapping[str, Any]) -> bool:
    if isinstance(answer, Answer) and answer.slot_hold is not None:
        answer.slot_hold.mark_released()
    return bool(document["held"])


class _BaseClient:
    """The settings and errors that both clients share."""

    def __init__(self, url: str, timeout: float, fallback: Fallback | None) -> None:
        if fallback not in (None, "allow", "deny"):
            raise InvalidCharge(f"fallback is None, allow or deny; not {fallback!r}.")
        _check_timeout(timeout)
        _check_url(url)
        self.url: str = url.rstrip("/")
        self._fallback = fallback

    def _fallback_answer(self, error: EngineUnavailable) -> Answer:
        """Returns the fallback's answer, or raises the error if there is no fallback."""
        if self._fallback is None:
            raise error
        return Answer(
            allowed=self._fallback == "allow", degraded=True, retry_after=0.0 if self._fallback == "allow" else 1.0
        )

    def _no_answer(self, error: httpx.TransportError) -> EngineUnavailable:
        reason = str(error).rstrip(".") or type(error).__name__
        return EngineUnavailable(f"The service at {_without_password(self.url)} gave no answer: {reason}.")


def _check_timeout(timeout: object) -> None:
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool) and math.isfinite(timeout)
    if not is_number or not 0 < timeout <= MAX_TIMEOUT_S:  # type: ignore[operator]
        raise InvalidCharge(
            f"timeout is a number of seconds above 0 and at most a day, such as 0.05; not {_show(timeout)}."
        )


def _check_url(url: object) -> None:
    """Raises InvalidCharge unless this is the base URL of an HTTP service."""
    hint = ""
    if isinstance(url, str):
        try:
            parsed = httpx.URL(url)
            extra = (
                parsed.query or parsed.fragment or not 0 < (80 if parsed.port is None else parsed.port) < 65_536
            )
            if parsed.scheme in ("http", "https") and parsed.host and not extra:
                return
            host = "" if "://" in url or not url else httpx.URL(f"http://{url}").host
            hint = f" Write http://{_without_password(url)}." if host else ""
        except (httpx.InvalidURL, ValueError):
            pass
    safe_url = _without_password(url) if isinstance(url, str) else url
    raise InvalidCharge(f"A check service's URL is such as {_EXAMPLE_URL}, not {_show(safe_url)}.{hint}")


def _without_password(url: str) -> str:
    scheme, colon, rest = url.rpartition("://")
    return f"{scheme}{colon}{rest.rpartition('@')[2]}"


class Client(_BaseClient):
    """A client of a check service. Thread-safe.

    >>> with Client("http://127.0.0.1:8080") as gate:
    ...     gate.check({"user": "ann"}).allowed
    True
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8080", *, timeout: float = 1.0, fallback: Fallback | None = None
    ) -> None:
        super().__init__(url, timeout, fallback)
        self._http = httpx.Client(base_url=self.url, timeout=timeout)

    def check(
        self, attributes: Attributes, cost: int | None = None, *, receipt: bool = False, verdicts: bool = False
    ) -> Answer:
        """Decides whether a call may pass, and charges it if so.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.check({"user": "ann"}).rule
        'user'
        """
        return self._decide(_check_call("check", attributes, cost, receipt=receipt, verdicts=verdicts))

    def peek(self, attributes: Attributes, cost: int | None = None, *, verdicts: bool = False) -> Answer:
        """Decides what `check` would decide, and charges nothing.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.peek({"user": "nobody yet"}).remaining
        20
        """
        return self._decide(_check_call("peek", attributes, cost, verdicts=verdicts))

    def together(self, calls: Sequence[Attributes], *, receipt: bool = False) -> list[Answer]:
        """Decides several calls: all of them pass and are charged, or none. Returns one answer for each.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> [answer.allowed for answer in gate.together([{"user": "bob"}, {"user": "cat"}])]
        [True, True]
        """
        call = _together_call(calls, receipt)
        try:
            document = self._send(call)
        except EngineUnavailable as error:
            return [self._fallback_answer(error) for _ in calls]
        return [_parse_answer(each) for each in document["answers"]]

    def reserve(self, attributes: Attributes, cost: int | None = None, timeout: float | None = None) -> Answer:
        """Reserves a place, to be served after `answer.delay`; refused if that is more than `timeout` seconds.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.reserve({"user": "dan"}, timeout=2).delay
        0.0
        """
        return self._decide(_check_call("reserve", attributes, cost, timeout=timeout))

    def refund(self, answer: Answer | str, cost: int | None = None) -> str | None:
        """Gives back what an answer charged, or `cost` of it; returns a receipt for the rest, if there is any.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.refund(gate.check({"user": "eve"}, 3, receipt=True))
        """
        rest: str | None = self._send(_receipt_call("refund", answer, cost)).get("receipt")
        return rest

    def settle(self, answer: Answer | str, cost: int | None = None, rule: str | None = None) -> None:
        """Counts what the call really cost, under the rule that is named or under all: gives back the rest of what
        the answer charged, or charges what is missing, even beyond the limit.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.settle(gate.check({"user": "fay"}, 5, receipt=True), 7)
        """
        self._send(_receipt_call("settle", answer, cost, rule))

    def cancel(self, answer: Answer | str) -> None:
        """Gives a reserved place back.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.cancel(gate.check({"user": "gus"}, receipt=True))
        """
        self._send(_receipt_call("cancel", answer))

    def renew(self, answer: Answer | str) -> bool:
        """Holds the slots of an answer for another ttl; returns False if one was lost.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.renew(gate.check({"path": "/jobs"}, receipt=True))
        True
        """
        return bool(self._send(_receipt_call("renew", answer))["held"])

    def release(self, answer: Answer | str) -> bool:
        """Releases the slots of an answer; returns False if one was lost before.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.release(gate.check({"path": "/jobs"}, receipt=True))
        True
        """
        return _released(answer, self._send(_receipt_call("release", answer)))

    def finish(self, answer: Answer | str, outcome: Outcome = "success") -> bool:
        """Says how a call ended: a success, dropped (it timed out, or was turned away), or ignored (it says
        nothing about the service). Adaptive rules learn from that; slots are released. Returns False if one was
        lost before.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.finish(gate.check({"path": "/jobs"}, receipt=True))
        True
        """
        return _released(answer, self._send(_receipt_call("finish", answer, outcome=outcome)))

    def _finish_block(self, answer: Answer, error: BaseException | None = None) -> None:
        if answer.finish_within is not None:
            with suppress(HeadgateError):  # the block's own result matters more; the service drops it in time
                self.finish(answer, _outcome_of(error))

    @contextmanager
    def hold(self, attributes: Attributes, cost: int | None = None) -> Iterator[Answer]:
        """Checks before a block, and renews its slots while it runs; raises Refused if it may not pass. Adaptive
        rules learn how the block ended: a TimeoutError is a drop, any other exception says nothing.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> with gate.hold({"user": "jim"}) as answer:
        ...     answer.allowed
        True
        """
        answer = self.check(attributes, cost, receipt=True)
        if not answer:
            raise Refused(answer)
        hold = _hold_of(answer)
        try:
            if hold is None:
                yield answer
            else:
                with Holding(
                    hold, lambda: self._renew(answer, hold), lambda: hold.is_released or self.release(answer)
                ):
                    yield replace(answer, slot_hold=hold)
        except BaseException as error:
            self._finish_block(answer, error)
            raise
        self._finish_block(answer)

    def _renew(self, answer: Answer, hold: SlotHold) -> None:
        sent_at = monotonic()
        hold.record_renewal(sent_at, self.renew(answer))

    def _decide(self, call: _Call) -> Answer:
        try:
            return _parse_answer(self._send(call))
        except EngineUnavailable as error:
            return self._fallback_answer(error)

    def _send(self, call: _Call) -> Any:
        request = call.request(self._http)
        try:
            response = self._http.send(request)
        except httpx.TransportError as error:
            raise self._no_answer(error) from error
        return call.parse(response)

    def close(self) -> None:
        """Closes the connections; a with statement does so, too.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.close()
        """
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_BaseClient):
    """A client of a check service for asyncio. Its verbs are those of Client.

    >>> async def main() -> bool:
    ...     async with AsyncClient("http://127.0.0.1:8080") as gate:
    ...         return (await gate.check({"user": "kim"})).allowed
    >>> asyncio.run(main())
    True
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8080", *, timeout: float = 1.0, fallback: Fallback | None = None
    ) -> None:
        super().__init__(url, timeout, fallback)
        self._http = httpx.AsyncClient(base_url=self.url, timeout=timeout)

    async def check(
        self, attributes: Attributes, cost: int | None = None, *, receipt: bool = False, verdicts: bool = False
    ) -> Answer:
        """Decides whether a call may pass, and charges it if so."""
        return await self._decide(_check_call("check", attributes, cost, receipt=receipt, verdicts=verdicts))

    async def peek(self, attributes: Attributes, cost: int | None = None, *, verdicts: bool = False) -> Answer:
        """Decides what `check` would decide, and charges nothing."""
        return await self._decide(_check_call("peek", attributes, cost, verdicts=verdicts))

    async def together(self, calls: Sequence[Attributes], *, receipt: bool = False) -> list[Answer]:
        """Decides several calls: all of them pass and are charged, or none. Returns one answer for each."""
        call = _together_call(calls, receipt)
        try:
            document = await self._send(call)
        except EngineUnavailable as error:
            return [self._fallback_answer(error) for _ in calls]
        return [_parse_answer(each) for each in document["answers"]]

    async def reserve(
        self, attributes: Attributes, cost: int | None = None, timeout: float | None = None
    ) -> Answer:
        """Reserves a place, to be served after `answer.delay`; refused if that is more than `timeout` seconds."""
        return await self._decide(_check_call("reserve", attributes, cost, timeout=timeout))

    async def refund(self, answer: Answer | str, cost: int | None = None) -> str | None:
        """Gives back what an answer charged, or `cost` of it; returns a receipt for the rest, if there is any."""
        rest: str | None = (await self._send(_receipt_call("refund", answer, cost))).get("receipt")
        return rest

    async def settle(self, answer: Answer | str, cost: int | None = None, rule: str | None = None) -> None:
        """Counts what the call really cost, under the rule that is named or under all: gives back the rest of what
        the answer charged, or charges what is missing, even beyond the limit."""
        await self._send(_receipt_call("settle", answer, cost, rule))

    async def cancel(self, answer: Answer | str) -> None:
        """Gives a reserved place back."""
        await self._send(_receipt_call("cancel", answer))

    async def renew(self, answer: Answer | str) -> bool:
        """Holds the slots of an answer for another ttl; returns False if one was lost."""
        return bool((await self._send(_receipt_call("renew", answer)))["held"])

    async def release(self, answer: Answer | str) -> bool:
        """Releases the slots of an answer; returns False if one was lost before."""
        return _released(answer, await self._send(_receipt_call("release", answer)))

    async def finish(self, answer: Answer | str, outcome: Outcome = "success") -> bool:
        """Says how a call ended: a success, dropped (it timed out, or was turned away), or ignored (it says
        nothing about the service). Adaptive rules learn from that; slots are released. Returns False if one was
        lost before.
        """
        return _released(answer, await self._send(_receipt_call("finish", answer, outcome=outcome)))

    async def _finish_block(self, answer: Answer, error: BaseException | None = None) -> None:
        if answer.finish_within is not None:
            with suppress(HeadgateError):  # the block's own result matters more; the service drops it in time
                await self.finish(answer, _outcome_of(error))

    async def _release_unless_over(self, answer: Answer, hold: SlotHold) -> bool:
        return hold.is_released or await self.release(answer)

    @asynccontextmanager
    async def hold(self, attributes: Attributes, cost: int | None = None) -> AsyncIterator[Answer]:
        """Checks before a block, and renews its slots while it runs; raises Refused if it may not pass. Adaptive
        rules learn how the block ended: a TimeoutError is a drop, any other exception says nothing.
        """
        answer = await self.check(attributes, cost, receipt=True)
        if not answer:
            raise Refused(answer)
        hold = _hold_of(answer)
        try:
            if hold is None:
                yield answer
            else:
                async with AsyncHolding(
                    hold, lambda: self._renew(answer, hold), lambda: self._release_unless_over(answer, hold)
                ):
                    yield replace(answer, slot_hold=hold)
        except BaseException as error:
            await self._finish_block(answer, error)
            raise
        await self._finish_block(answer)

    async def _renew(self, answer: Answer, hold: SlotHold) -> None:
        sent_at = monotonic()
        hold.record_renewal(sent_at, await self.renew(answer))

    async def _decide(self, call: _Call) -> Answer:
        try:
            return _parse_answer(await self._send(call))
        except EngineUnavailable as error:
            return self._fallback_answer(error)

    async def _send(self, call: _Call) -> Any:
        request = call.request(self._http)
        try:
            response = await self._http.send(request)
        except httpx.TransportError as error:
            raise self._no_answer(error) from error
        return call.parse(response)

    async def close(self) -> None:
        """Closes the connections; a with statement does so, too."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
