"""A client of the check service, for programs that do not decide themselves.

    with Client("http://127.0.0.1:8080") as gate:
        answer = gate.check({"path": "/login", "address": "192.0.2.7"})
        if not answer:
            return too_many_requests(answer.retry_after)

    check      may this call pass?                    peek      would it?
    together   may all of these? All or none          reserve   a place, to be served after answer.delay
    refund     give back what an answer charged       commit    so much was used: give back the rest
    cancel     give a place back                      hold      check around a block; its slots are held as long
    renew      hold slots for another ttl             release   give them back

Client and AsyncClient are the same but for the await. Where no answer comes within `timeout`, or the service
cannot decide, EngineUnavailable is raised; or with `fallback` "allow" or "deny" that is the answer, marked as
degraded. What is answered with a receipt can be given back; ask for one with receipt=True.

`url` is the service's base URL, and `timeout` seconds. What cannot be one, or cannot be sent, is InvalidCharge; so
is a URL at which something else answers (401, 403, 404, 405, a redirect), with or without a fallback.

hold renews its slots while the block runs. `answer.lost` tells if that failed, and somebody else may hold them;
then leaving the block raises LeaseLost, unless it raised something itself.

(The reason for the length of this file: every verb has two spellings, and an example.)
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields, replace
from time import monotonic
from types import TracebackType
from typing import Any, Literal, NamedTuple

from headgate.errors import EngineUnavailable, HeadgateError, InvalidCharge
from headgate.extras import require
from headgate.slot_renewal import AsyncHolding, Hold, Holding

require("headgate.client", "client", "httpx")

import httpx  # noqa: E402

Attributes = Mapping[str, Any]
Fallback = Literal["allow", "deny"]


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
    held: Hold | None = field(default=None, repr=False, compare=False)  # by a block

    @property
    def lost(self) -> bool:
        """Whether a slot that a block holds may be somebody else's by now."""
        return self.held is not None and self.held.lost

    def __bool__(self) -> bool:
        return self.allowed


class Refused(HeadgateError):
    """The call was refused; ``answer`` says by what, and when to come back.

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
_NO_SUCH_PATH = "See /openapi.json"  # how a service's answer begins at a path that it does not have

_KNOWN = frozenset(field.name for field in fields(Answer)) - {"held"}


class _Question(NamedTuple):
    verb: str
    body: dict[str, Any]

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """The request that asks it; InvalidCharge names what JSON cannot hold."""
        try:
            return http.build_request("POST", f"/v1/{self.verb}", json=self.body)
        except (TypeError, ValueError, RecursionError):
            raise InvalidCharge(_not_sendable(self.body)) from None

    def answered(self, response: httpx.Response) -> dict[str, Any]:
        """The document of an answer; an error if it is none."""
        status, document = response.status_code, _document(response)
        path = response.request.url.path
        detail = str(document["detail"]) if document is not None and "detail" in document else None
        if status == 200:
            if document is None or not _EXPECTED[self.verb] <= document.keys():
                raise EngineUnavailable(
                    _elsewhere(response, f"its answer to POST {path} is not one of a check service")
                )
            return document
        no_receipt = status == 404 and detail is not None and not detail.startswith(_NO_SUCH_PATH)
        if (status in (401, 403, 404, 405) and not no_receipt) or response.is_redirect:
            to = f"see {response.headers.get('location')}" if response.is_redirect else detail or ""
            why = f" ({to.rstrip('.')})" if to else ""
            raise InvalidCharge(_elsewhere(response, f"it answered {status} to POST {path}{why}"))
        detail = detail or f"The service answered {status} to {self.verb}."
        if status in (400, 404, 409, 413):
            raise InvalidCharge(detail)
        raise EngineUnavailable(detail)


# What an answer to each verb has at least.
_EXPECTED: dict[str, frozenset[str]] = {
    **dict.fromkeys(("check", "peek", "reserve"), frozenset(("allowed",))),
    "checks": frozenset(("answers",)),
    **dict.fromkeys(("renew", "release"), frozenset(("held",))),
    **dict.fromkeys(("refund", "commit", "cancel"), frozenset()),
}


def _document(response: httpx.Response) -> dict[str, Any] | None:
    """The JSON object of a response, if it has one."""
    try:
        document = response.json()
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _elsewhere(response: httpx.Response, why: str) -> str:
    """The sentence for a URL that does not lead to a check service."""
    url = response.request.url
    base = f"{url.scheme}://{url.netloc.decode()}{url.path.rpartition('/v1/')[0]}"
    hint = (
        "Leave out /v1."
        if base.endswith("/v1")
        else f"Give the URL that headgate serve prints, such as {_EXAMPLE_URL}."
    )
    return f"{base} is not the base URL of a check service: {why}. {hint}"


def _not_sendable(body: Mapping[str, Any]) -> str:
    """The sentence for a body that JSON cannot hold: it names the first such attribute, or field."""
    for each in body.get("checks", [body]):
        for name, value in each.get("attributes", {}).items():
            if not isinstance(name, str):
                return f"The name of an attribute is a text, not {_shown(name)}."
            if (why := _json_error({name: value})) is not None:
                return f'The attribute "{name[:60]}" cannot be sent: {why}. Give a text, a number, a bool or None.'
    for name, value in body.items():
        if (why := _json_error(value)) is not None:
            return f"{name} cannot be sent: {why}."
    return "This call cannot be sent as JSON."


def _json_error(value: Any) -> str | None:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    except (TypeError, ValueError, RecursionError) as error:
        return str(error).rstrip(".")
    return None


def _shown(value: object) -> str:
    return repr(value)[:60]


def _attributes(attributes: object) -> dict[str, Any]:
    if not isinstance(attributes, Mapping):
        raise InvalidCharge(f'Attributes are a mapping such as {{"user": "ann"}}, not {_shown(attributes)}.')
    return dict(attributes)


def _check(verb: str, attributes: Attributes, cost: int | None, **more: Any) -> _Question:
    body: dict[str, Any] = {
        "attributes": _attributes(attributes),
        **{name: value for name, value in more.items() if value},
    }
    return _Question(verb, body if cost is None else {**body, "cost": cost})


def _together(calls: object, receipt: bool) -> _Question:
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise InvalidCharge(
            f'Calls are a list of attributes such as [{{"user": "ann"}}, {{"user": "bob"}}], not {_shown(calls)}.'
        )
    checks = [{"attributes": _attributes(each), "receipt": receipt} for each in calls]
    return _Question("checks", {"checks": checks, "together": True})


def _redeem(verb: str, answer: Answer | str, cost: int | None = None) -> _Question:
    if not isinstance(answer, Answer | str):
        raise InvalidCharge(f"An answer of the service, or its receipt, is expected; not {repr(answer)[:60]}.")
    receipt = answer if isinstance(answer, str) else answer.receipt
    if receipt is None:
        raise InvalidCharge(f"This answer has no receipt, so there is nothing to {verb}: ask with receipt=True.")
    return _Question(verb, {"receipt": receipt} if cost is None else {"receipt": receipt, "cost": cost})


def _answer(document: Mapping[str, Any]) -> Answer:
    return Answer(**{name: value for name, value in document.items() if name in _KNOWN})


def _hold(answer: Answer) -> Hold | None:
    """Track the slots that an answer holds; None if it holds none."""
    return None if answer.expires_after is None else Hold(f"A slot of {answer.rule}", answer.expires_after)


def _released(answer: Answer | str, document: Mapping[str, Any]) -> bool:
    if isinstance(answer, Answer) and answer.held is not None:
        answer.held.ended()
    return bool(document["held"])


class _Asking:
    """What both clients have."""

    def __init__(self, url: str, timeout: float, fallback: Fallback | None) -> None:
        if fallback not in (None, "allow", "deny"):
            raise InvalidCharge(f"fallback is None, allow or deny; not {fallback!r}.")
        _check_timeout(timeout)
        _check_url(url)
        self.url: str = url.rstrip("/")
        self._timeout = timeout
        self._fallback = fallback

    def _instead(self, error: EngineUnavailable) -> Answer:
        """The answer of whoever has said what to do without one."""
        if self._fallback is None:
            raise error
        return Answer(
            allowed=self._fallback == "allow", degraded=True, retry_after=0.0 if self._fallback == "allow" else 1.0
        )

    def _silent(self, error: httpx.TransportError) -> EngineUnavailable:
        why = str(error).rstrip(".") or type(error).__name__
        return EngineUnavailable(f"The service at {_without_login(self.url)} gave no answer: {why}.")


def _check_timeout(timeout: object) -> None:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool) and math.isfinite(timeout)
    if not number or not 0 < timeout <= MAX_TIMEOUT_S:  # type: ignore[operator]
        raise InvalidCharge(
            f"timeout is a number of seconds above 0 and at most a day, such as 0.05; not {_shown(timeout)}."
        )


def _check_url(url: object) -> None:
    """Refuses what is not the base URL of an HTTP service."""
    hint = ""
    if isinstance(url, str):
        try:
            parsed = httpx.URL(url)
            more = parsed.query or parsed.fragment or not 0 < (80 if parsed.port is None else parsed.port) < 65_536
            if parsed.scheme in ("http", "https") and parsed.host and not more:
                return
            completed = "" if "://" in url or not url else httpx.URL(f"http://{url}").host
            hint = f" Write http://{_without_login(url)}." if completed else ""
        except (httpx.InvalidURL, ValueError):
            pass
    shown = _without_login(url) if isinstance(url, str) else url
    raise InvalidCharge(f"A check service's URL is such as {_EXAMPLE_URL}, not {_shown(shown)}.{hint}")


def _without_login(url: str) -> str:
    scheme, colon, rest = url.rpartition("://")
    return f"{scheme}{colon}{rest.rpartition('@')[2]}"


class Client(_Asking):
    """Asks a check service. Thread-safe.

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
        return self._decided(_check("check", attributes, cost, receipt=receipt, verdicts=verdicts))

    def peek(self, attributes: Attributes, cost: int | None = None, *, verdicts: bool = False) -> Answer:
        """Decides what `check` would decide, and charges nothing.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.peek({"user": "nobody yet"}).remaining
        20
        """
        return self._decided(_check("peek", attributes, cost, verdicts=verdicts))

    def together(self, calls: Sequence[Attributes], *, receipt: bool = False) -> list[Answer]:
        """Decides several calls: one answer for each; all of them pass and are charged, or none is.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> [answer.allowed for answer in gate.together([{"user": "bob"}, {"user": "cat"}])]
        [True, True]
        """
        question = _together(calls, receipt)
        try:
            document = self._ask(question)
        except EngineUnavailable as error:
            return [self._instead(error) for _ in calls]
        return [_answer(each) for each in document["answers"]]

    def reserve(self, attributes: Attributes, cost: int | None = None, timeout: float | None = None) -> Answer:
        """Takes a place, to be served after `answer.delay`; refused if that is more than `timeout` away.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.reserve({"user": "dan"}, timeout=2).delay
        0.0
        """
        return self._decided(_check("reserve", attributes, cost, timeout=timeout))

    def refund(self, answer: Answer | str, cost: int | None = None) -> str | None:
        """Gives back what an answer charged, or `cost` of it; returns a receipt of the rest, if there is one.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.refund(gate.check({"user": "eve"}, 3, receipt=True))
        """
        rest: str | None = self._ask(_redeem("refund", answer, cost)).get("receipt")
        return rest

    def commit(self, answer: Answer | str, cost: int | None = None) -> None:
        """Settles an answer: so much was used, and the rest is given back.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.commit(gate.check({"user": "fay"}, 5, receipt=True), 2)
        """
        self._ask(_redeem("commit", answer, cost))

    def cancel(self, answer: Answer | str) -> None:
        """Gives a reserved place back.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.cancel(gate.check({"user": "gus"}, receipt=True))
        """
        self._ask(_redeem("cancel", answer))

    def renew(self, answer: Answer | str) -> bool:
        """Holds the slots of an answer for another ttl; False if one was lost.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.renew(gate.check({"path": "/jobs"}, receipt=True))
        True
        """
        return bool(self._ask(_redeem("renew", answer))["held"])

    def release(self, answer: Answer | str) -> bool:
        """Gives the slots of an answer back; False if one was lost before.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> gate.release(gate.check({"path": "/jobs"}, receipt=True))
        True
        """
        return _released(answer, self._ask(_redeem("release", answer)))

    @contextmanager
    def hold(self, attributes: Attributes, cost: int | None = None) -> Iterator[Answer]:
        """Checks around a block: Refused if it may not pass; slots are held and renewed as long as the block
        lasts.

        >>> gate = Client("http://127.0.0.1:8080")
        >>> with gate.hold({"user": "jim"}) as answer:
        ...     answer.allowed
        True
        """
        answer = self.check(attributes, cost, receipt=True)
        if not answer:
            raise Refused(answer)
        hold = _hold(answer)
        if hold is None:
            yield answer
            return
        with Holding(hold, lambda: self._renew(answer, hold), lambda: hold.over or self.release(answer)):
            yield replace(answer, held=hold)

    def _renew(self, answer: Answer, hold: Hold) -> None:
        asked_at = monotonic()
        hold.renewed(asked_at, self.renew(answer))

    def _decided(self, question: _Question) -> Answer:
        try:
            return _answer(self._ask(question))
        except EngineUnavailable as error:
            return self._instead(error)

    def _ask(self, question: _Question) -> Any:
        request = question.request(self._http)
        try:
            response = self._http.send(request)
        except httpx.TransportError as error:
            raise self._silent(error) from error
        return question.answered(response)

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


class AsyncClient(_Asking):
    """Asks a check service, awaited. Every verb is that of Client.

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
        return await self._decided(_check("check", attributes, cost, receipt=receipt, verdicts=verdicts))

    async def peek(self, attributes: Attributes, cost: int | None = None, *, verdicts: bool = False) -> Answer:
        """Decides what `check` would decide, and charges nothing."""
        return await self._decided(_check("peek", attributes, cost, verdicts=verdicts))

    async def together(self, calls: Sequence[Attributes], *, receipt: bool = False) -> list[Answer]:
        """Decides several calls: one answer for each; all of them pass and are charged, or none is."""
        question = _together(calls, receipt)
        try:
            document = await self._ask(question)
        except EngineUnavailable as error:
            return [self._instead(error) for _ in calls]
        return [_answer(each) for each in document["answers"]]

    async def reserve(
        self, attributes: Attributes, cost: int | None = None, timeout: float | None = None
    ) -> Answer:
        """Takes a place, to be served after `answer.delay`; refused if that is more than `timeout` away."""
        return await self._decided(_check("reserve", attributes, cost, timeout=timeout))

    async def refund(self, answer: Answer | str, cost: int | None = None) -> str | None:
        """Gives back what an answer charged, or `cost` of it; returns a receipt of the rest, if there is one."""
        rest: str | None = (await self._ask(_redeem("refund", answer, cost))).get("receipt")
        return rest

    async def commit(self, answer: Answer | str, cost: int | None = None) -> None:
        """Settles an answer: so much was used, and the rest is given back."""
        await self._ask(_redeem("commit", answer, cost))

    async def cancel(self, answer: Answer | str) -> None:
        """Gives a reserved place back."""
        await self._ask(_redeem("cancel", answer))

    async def renew(self, answer: Answer | str) -> bool:
        """Holds the slots of an answer for another ttl; False if one was lost."""
        return bool((await self._ask(_redeem("renew", answer)))["held"])

    async def release(self, answer: Answer | str) -> bool:
        """Gives the slots of an answer back; False if one was lost before."""
        return _released(answer, await self._ask(_redeem("release", answer)))

    async def _leave(self, answer: Answer, hold: Hold) -> bool:
        return hold.over or await self.release(answer)

    @asynccontextmanager
    async def hold(self, attributes: Attributes, cost: int | None = None) -> AsyncIterator[Answer]:
        """Checks around a block: Refused if it may not pass; slots are held and renewed as long as the block
        lasts.
        """
        answer = await self.check(attributes, cost, receipt=True)
        if not answer:
            raise Refused(answer)
        hold = _hold(answer)
        if hold is None:
            yield answer
            return
        async with AsyncHolding(hold, lambda: self._renew(answer, hold), lambda: self._leave(answer, hold)):
            yield replace(answer, held=hold)

    async def _renew(self, answer: Answer, hold: Hold) -> None:
        asked_at = monotonic()
        hold.renewed(asked_at, await self.renew(answer))

    async def _decided(self, question: _Question) -> Answer:
        try:
            return _answer(await self._ask(question))
        except EngineUnavailable as error:
            return self._instead(error)

    async def _ask(self, question: _Question) -> Any:
        request = question.request(self._http)
        try:
            response = await self._http.send(request)
        except httpx.TransportError as error:
            raise self._silent(error) from error
        return question.answered(response)

    async def close(self) -> None:
        """Closes the connections; a with statement does so, too."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
