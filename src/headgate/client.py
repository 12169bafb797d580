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

hold renews its slots while the block runs. `answer.lost` tells if that failed, and somebody else may hold them;
then leaving the block raises LeaseLost, unless it raised something itself.

(The reason for the length of this file: every verb has two spellings, and an example.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields, replace
from time import monotonic
from types import TracebackType
from typing import Any, Literal, NamedTuple

from headgate.errors import EngineUnavailable, HeadgateError, InvalidCharge
from headgate.extras import require
from headgate.renewal import AsyncHolding, Hold, Holding

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


_KNOWN = frozenset(field.name for field in fields(Answer)) - {"held"}


class _Question(NamedTuple):
    verb: str
    body: dict[str, Any]

    def answered(self, response: httpx.Response) -> Any:
        """The document of an answer; an error if it is none."""
        if response.status_code == 200:
            return response.json()
        try:
            detail = str(response.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = f"The service answered {response.status_code} to {self.verb}."
        if response.status_code in (400, 404, 409, 413):
            raise InvalidCharge(detail)
        raise EngineUnavailable(detail)


def _check(verb: str, attributes: Attributes, cost: int | None, **more: Any) -> _Question:
    body: dict[str, Any] = {
        "attributes": dict(attributes),
        **{name: value for name, value in more.items() if value},
    }
    return _Question(verb, body if cost is None else {**body, "cost": cost})


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
        why = str(error) or type(error).__name__
        return EngineUnavailable(f"The service at {self.url} gave no answer: {why}.")


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
        asked = [{"attributes": dict(each), "receipt": receipt} for each in calls]
        try:
            document = self._ask(_Question("checks", {"checks": asked, "together": True}))
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
        try:
            response = self._http.post(f"/v1/{question.verb}", json=question.body)
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
        asked = [{"attributes": dict(each), "receipt": receipt} for each in calls]
        try:
            document = await self._ask(_Question("checks", {"checks": asked, "together": True}))
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
        try:
            response = await self._http.post(f"/v1/{question.verb}", json=question.body)
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
