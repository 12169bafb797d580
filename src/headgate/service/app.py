"""The service over HTTP: which path answers what, and in which status.

    POST /v1/check, /v1/peek, /v1/checks, /v1/reserve        questions in JSON; a refusal is an answer, so 200
    POST /v1/refund, /v1/commit, /v1/cancel                  receipts, to be given back
    POST /v1/renew, /v1/release                              receipts that hold slots
    any  /auth/nginx                                         auth_request: 200 or 403, never a body
    any  /auth/forward                                       Traefik's and Caddy's: 200, or the client's answer
    any  /auth/envoy/...                                     ext_authz: the same, the client's path behind it
    POST /json                                               the reference rate limit service's
    GET  /healthz, /readyz, /openapi.json                    alive; fit to be asked; what all of this is; HEAD too

nginx makes a 500 of any sub-request's status but 2xx, 401 and 403, and opens a connection anew after any body. So
it is told 403 and, in X-Headgate-Code, what the client should get. A delay is waited for here, before the answer:
no gateway can do that for us. Slots that a gateway's question takes end by their ttl.

Statuses: 400 what cannot be judged, 404 and 405 what is not here, 404 a receipt that is none of ours, 409 one that
was used or is not fit for this, 408 a body that does not come, 413 too large, 503 who cannot decide, is told to
stop, or has too much to do. Each of them is a problem (RFC 9457) with a sentence. Health is told however much
there is to do: who asks for it would restart us.

Laws (tests/service/test_http.py, test_sizes.py): nothing that is sent gets a 500, and nothing waits for long.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from headgate.engine.local import LocalEngine
from headgate.errors import EngineUnavailable, InvalidCharge
from headgate.http import problem
from headgate.http.headers import Fields, headers
from headgate.model.decision import ALLOWED, DELAY_US, RETRY_AFTER_US
from headgate.model.limit import SECOND
from headgate.ruled.decision import RuledDecision
from headgate.service import schema
from headgate.service.check import Checker, Unfit
from headgate.service.envoy.rls import RateLimits, answer_json
from headgate.service.forwarded import Kind, NotForwarded, Wanted, forwarded
from headgate.service.known import LONG, Memory, plain
from headgate.service.openapi import VERBS, description
from headgate.service.overdue import Overdue
from headgate.service.reading import Reader
from headgate.service.receipts import NoReceipt
from headgate.service.settings import Settings
from headgate.text import parse

_JSON = [("content-type", "application/json")]
_PROBLEM = [("content-type", problem.PROBLEM)]
_CLOSED = [("connection", "close")]  # what is still to come of the body is not read
_LONGEST_WAIT = 60.0  # seconds that a gateway is kept waiting for a delayed call
_BODY_SECONDS = 10.0  # in which a body must have come
_DIGITS = 20  # of a length that are read: granian has seen that it is a number, and not a larger one
_PARTS = 1024  # in which a body may come, and more if it may be large: each costs as much as a request
_TITLES = {
    400: "This cannot be judged.",
    404: "There is nothing here.",
    405: "Not by this method.",
    408: "This takes too long.",
    409: "Not with this receipt.",
    413: "This is too large.",
    500: "This should not have happened.",
    503: "No decision can be made at the moment.",
}
_log = logging.getLogger("headgate.service")

Verb = Callable[[Any], Awaitable[msgspec.Struct]]


class Refused(Exception):
    """A request that is not answered, with its status and why."""

    def __init__(self, status: int, detail: str, fields: Fields | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.fields = status, detail, fields or []


class App:
    """The application that granian runs."""

    def __init__(self, checker: Checker, limits: RateLimits, settings: Settings) -> None:
        self._checker, self._limits = checker, limits
        self._limiter = checker.limiter
        self._trusted = settings.trusted
        self._most = settings.body
        self._own = None if settings.own_limit is None else LocalEngine().meter(parse(settings.own_limit), "own")
        self._description = msgspec.json.encode(description(settings.batch))
        self._overdue = Overdue(_BODY_SECONDS)
        self.draining = False
        self.left = asyncio.Event()  # those who still wait for a delay are told that nobody will serve it
        self._verbs: dict[str, tuple[Callable[[bytes], Any], Verb]] = {
            f"/v1/{verb.name}": (Reader(verb.asked), getattr(checker, verb.name)) for verb in VERBS
        }
        self._read_check = Reader(schema.Check)
        self._checks, self._subrequests = Memory(), Memory()
        self._fields = Wanted()
        self._encode = msgspec.json.Encoder().encode
        self._health = {"/healthz": self._alive, "/readyz": self._ready, "/openapi.json": self._describe}

    async def __rsgi__(self, scope: Any, proto: Any) -> None:
        path = scope.path
        try:
            health = self._health.get(path)
            if health is not None:
                if scope.method not in ("GET", "HEAD"):
                    raise Refused(405, "Ask by GET.", [("allow", "GET, HEAD")])
                health(proto)
                return
            if self._own is not None:
                self._enough(self._own)
            verb = self._verbs.get(path)
            if path == "/v1/check":
                await self._check(scope, proto)
            elif verb is not None:
                await self._ask(verb, scope, proto)
            elif path == "/auth/nginx":
                await self._for_nginx(scope, proto)
            elif path == "/auth/forward":
                await self._for_gateway("forward_auth", path, scope, proto)
            elif path == "/auth/envoy" or path.startswith("/auth/envoy/"):
                await self._for_gateway("ext_authz", path[11:], scope, proto)
            elif path == "/json":
                await self._reference(scope, proto)
            else:
                raise Refused(404, "See /openapi.json for what there is.")
        except Refused as error:
            if path == "/auth/nginx":
                proto.response_empty(403, [*error.fields, ("X-Headgate-Code", str(error.status))])
            else:
                self._trouble(proto, error.status, error.detail, error.fields)
        except NotForwarded as error:
            _log.warning("A gateway's question cannot be answered: %s", error)
            self._trouble(proto, 400, str(error))
        except InvalidCharge as error:
            status = 404 if isinstance(error, NoReceipt) else 409 if isinstance(error, Unfit) else 400
            self._trouble(proto, status, str(error))
        except EngineUnavailable as error:
            self._trouble(proto, 503, str(error), [("retry-after", "1")])
        except Exception:
            _log.exception("A request to %s could not be answered.", path[:200])
            self._trouble(proto, 500, "It was logged.")

    def _enough(self, own: Any) -> None:
        """Refuse what is more than this worker wants to answer."""
        facts = own.decide("", 1)
        if not facts[ALLOWED]:
            wait = math.ceil((facts[RETRY_AFTER_US] or 0) / SECOND)
            raise Refused(503, "This service has too much to do.", [("retry-after", str(max(wait, 1)))])

    async def _ask(self, verb: tuple[Callable[[bytes], Any], Verb], scope: Any, proto: Any) -> None:
        read, ask = verb
        answer = await ask(read(await self._body(scope, proto)))
        proto.response_bytes(200, _JSON, self._encode(answer))

    async def _check(self, scope: Any, proto: Any) -> None:
        """The verb that is asked most: who asks in the same words again is not read again."""
        body = await self._body(scope, proto)
        limiter = self._limiter
        known = self._checks.get(body, limiter.ruling)
        if known is not None:
            facts: Any = known.facts()
            if known.awaited:
                facts = await facts
            if plain(facts):
                proto.response_bytes(200, _JSON, known.document(facts))
                return
            answer = self._checker.answer(known.decision(facts))
        else:
            asked = self._read_check(body)
            call = limiter.call(asked.attributes, asked.cost)
            if len(body) <= LONG and not asked.verdicts and not asked.receipt:
                self._checks.keep(body, call)
            answer = self._checker.answer(await limiter.decided(call), asked.verdicts, asked.receipt)
        proto.response_bytes(200, _JSON, self._encode(answer))

    async def _body(self, scope: Any, proto: Any) -> bytes:
        if scope.method != "POST":
            raise Refused(405, "Ask by POST.", [("allow", "POST")])
        length = scope.headers.get("content-length")
        # HTTP allows for zeros without end before it, and Python reads no number of so many digits.
        if length is not None and int(length.lstrip("0")[:_DIGITS] or 0) > self._most:
            raise Refused(413, f"A body may have {self._most} bytes.", _CLOSED)
        waits = self._overdue.begin()
        try:
            if length is not None:
                return await proto()  # type: ignore[no-any-return]
            return await self._in_parts(proto)
        except asyncio.CancelledError:
            if self._overdue.is_over(waits):
                raise Refused(408, f"The body did not come within {_BODY_SECONDS:g} s.", _CLOSED) from None
            raise
        except RuntimeError:  # granian's word for a connection that has ended
            raise Refused(400, "The body ends too early.") from None
        finally:
            self._overdue.end(waits)

    async def _in_parts(self, proto: Any) -> bytes:
        body = bytearray()
        parts = 0
        async for part in proto:
            body += part
            parts += 1
            if len(body) > self._most or parts > _PARTS + self._most // 4096:
                raise Refused(413, f"A body may have {self._most} bytes.", _CLOSED)
        return bytes(body)

    async def _for_nginx(self, scope: Any, proto: Any) -> None:
        try:
            decision, fields = await self._decided("auth_request", "", scope)
        except EngineUnavailable as error:
            _log.warning("No decision for nginx: %s", error)
            proto.response_empty(403, [("X-Headgate-Code", "503"), ("Retry-After", "1")])
            return
        if decision is None:
            proto.response_empty(200, fields)
        else:
            refusal = decision.refusal
            status = 429 if refusal is None else refusal.status
            proto.response_empty(403, [*fields, *_spoke(decision), ("X-Headgate-Code", str(status))])

    async def _for_gateway(self, kind: Kind, path: str, scope: Any, proto: Any) -> None:
        accept = scope.headers.get("accept")
        try:
            decision, fields = await self._decided(kind, path, scope)
        except EngineUnavailable as error:
            _log.warning("No decision for a gateway: %s", error)
            answer = problem.undecided(accept, wait=1)
            proto.response_bytes(answer.status, [*answer.headers, ("Retry-After", "1")], answer.body)
            return
        if decision is None:
            proto.response_empty(200, fields)
        else:
            answer = problem.refused(decision, accept)
            status = answer.status if answer.status >= 300 else 429  # a 200 would let it pass
            proto.response_bytes(status, [*fields, *_spoke(decision), *answer.headers], answer.body)

    async def _decided(self, kind: Kind, path: str, scope: Any) -> tuple[RuledDecision | None, Fields]:
        """The decision if the call is refused, and the fields for either answer. A delay is over by then."""
        limiter, own = self._limiter, (scope.method, path, scope.query_string) if kind == "ext_authz" else None
        words = self._fields.words(limiter.rulebook, scope.headers.items())
        asked = kind, own, scope.peer, words
        known = None if words is None else self._subrequests.get(asked, limiter.ruling)
        if known is not None:
            facts: Any = known.facts()
            if known.awaited:
                facts = await facts
            if plain(facts) and not facts[DELAY_US]:
                return None, known.fields(facts)
            decision = known.decision(facts)
        else:
            given = forwarded(
                kind, scope.method, path, scope.query_string, scope.headers.items(), scope.client, self._trusted
            )
            call = limiter.call(given)
            if words is not None:
                self._subrequests.keep(asked, call)
            decision = await limiter.decided(call)
        if decision.allowed and decision.delay_us:
            await self._served(decision)
        return None if decision.allowed else decision, headers(decision, limiter.rulebook.headers)

    async def _served(self, decision: RuledDecision) -> None:
        """When the call's delay is over, unless the service cannot wait for it any more."""
        try:
            await asyncio.wait_for(self.left.wait(), min(decision.delay, _LONGEST_WAIT))
        except TimeoutError:
            return
        await self._limiter.cancel(decision)
        raise EngineUnavailable("This service stops.")

    async def _reference(self, scope: Any, proto: Any) -> None:
        status, body = await answer_json(await self._body(scope, proto), self._limits)
        proto.response_bytes(status, _JSON, body)

    def _alive(self, proto: Any) -> None:
        proto.response_bytes(200, [("content-type", "text/plain")], b"ok\n")

    def _ready(self, proto: Any) -> None:
        told = {"ready": not self.draining, "rules": len(self._limiter.rulebook)}
        proto.response_bytes(503 if self.draining else 200, _JSON, self._encode(told))

    def _describe(self, proto: Any) -> None:
        proto.response_bytes(200, _JSON, self._description)

    def _trouble(self, proto: Any, status: int, detail: str, fields: Fields | None = None) -> None:
        body = self._encode(schema.Trouble("about:blank", _TITLES[status], status, detail))
        proto.response_bytes(status, [*_PROBLEM, *(fields or [])], body)


def _spoke(decision: RuledDecision) -> Fields:
    """Which rule refused, as far as a field can say it."""
    rule = decision.rule or ""
    return [("X-Headgate-Rule", "".join(letter if " " <= letter <= "~" else "?" for letter in rule))]
