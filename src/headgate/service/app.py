"""The service over HTTP: which path answers what, and in which status.

    POST /v1/check, /v1/peek, /v1/checks, /v1/reserve        questions in JSON; a refusal is an answer, so 200
    POST /v1/refund, /v1/commit, /v1/cancel                  receipts, to be given back
    POST /v1/renew, /v1/release                              receipts that hold slots
    any  /auth/nginx                                         auth_request: 200 or 403, never a body
    any  /auth/forward                                       Traefik's and Caddy's: 200, or the client's answer
    any  /auth/envoy/...                                     ext_authz: the same, the client's path behind it
    POST /json                                               the reference rate limit service's
    GET  /healthz, /readyz, /openapi.json                    alive; fit to be asked; what all of this is; HEAD too
    GET  /healthcheck                                        the reference rate limit service's: fit to be asked

nginx makes a 500 of any sub-request's status but 2xx, 401 and 403, and opens a connection anew after any body. So
it is told 403 and, in X-Headgate-Code, what the client should get. A delay is waited for here, before the answer:
no gateway can do that for us. Slots that a gateway's question takes end by their ttl.

Statuses: 400 what cannot be judged, 404 and 405 what is not here, 404 a receipt that is none of ours, 409 one that
was used or is not fit for this, 408 a body that does not come, 413 too large, 501 what needs an extra that is not
installed, 503 who cannot decide, is told to stop, or has too much to do. Each of them is a problem (RFC 9457) with
a sentence. Health is told however much there is to do: who asks for it would restart us.

Laws (tests/service/test_check_api.py, test_sizes.py): nothing that is sent gets a 500, and nothing waits for long.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.algorithms.decision import ALLOWED, DELAY_US, RETRY_AFTER_US, Outcome
from headgate.algorithms.limit import SECOND
from headgate.enforcement.call_plan import CallPlan
from headgate.enforcement.rule_decision import RuleDecision
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge
from headgate.extras import INSTALL_ENVOY
from headgate.http import refusal_body
from headgate.http.headers import Fields, headers
from headgate.limit_syntax import parse
from headgate.service import check_schema
from headgate.service.asgi import Answer, Answers, Pairs, Refused, Request, encoded
from headgate.service.check import Checker, Unfit
from headgate.service.forward_auth import Kind, NotForwarded, Wanted, forwarded
from headgate.service.json_decoding import Reader
from headgate.service.openapi import VERBS, Verb, description
from headgate.service.receipt_tokens import NoReceipt
from headgate.service.request_cache import LONG, CachedCheck, RequestCache, plain
from headgate.service.settings import Settings

if TYPE_CHECKING:
    from headgate.service.envoy.rls import RateLimits

_JSON = encoded([("content-type", "application/json")])
_TEXT = encoded([("content-type", "text/plain")])
_LONGEST_WAIT = 60.0  # seconds that a gateway is kept waiting for a delayed call
_log = logging.getLogger("headgate.service")


class App:
    """The application that granian runs. `limits` is None without the extra `envoy`."""

    def __init__(self, checker: Checker, limits: RateLimits | None, settings: Settings) -> None:
        self._checker, self._limits = checker, limits
        self._limiter = checker.limiter
        self._trusted = settings.trusted
        self._own = None if settings.own_limit is None else MemoryEngine().meter(parse(settings.own_limit), "own")
        self._description = msgspec.json.encode(description(settings.batch))
        self.draining = False
        self.left: asyncio.Event = (
            asyncio.Event()
        )  # those who still wait for a delay are told that nobody will serve it
        self._read_check = Reader(check_schema.Check)
        self._checks: RequestCache[CachedCheck] = RequestCache()
        self._subrequests: RequestCache[CachedCheck] = RequestCache()
        self._fields = Wanted()
        self._encode = msgspec.json.Encoder().encode
        self._health = {
            "/healthz": self._alive,
            "/readyz": self._ready,
            "/healthcheck": self._serves,
            "/openapi.json": self._describe,
        }
        posted = {f"/v1/{verb.name}": self._verb(verb) for verb in VERBS if verb.name != "check"}
        posted |= {"/v1/check": self._check, "/json": self._reference}
        self._paths: dict[str, tuple[int | None, Answers]] = {
            **{path: (settings.body, answers) for path, answers in posted.items()},
            "/auth/nginx": (None, self._for_nginx),
            "/auth/forward": (None, partial(self._for_gateway, "forward_auth", "")),
            "/auth/envoy": (None, self._for_envoy),
        }

    def asked(self, request: Request) -> tuple[int | None, Answers]:
        """How many bytes its body may have, and who answers it then."""
        path = request.path
        found = self._paths.get(path)
        if found is None:
            if path in self._health:
                return None, self._told
            if not path.startswith("/auth/envoy/"):
                raise Refused(404, "See /openapi.json for what there is.")
            found = self._paths["/auth/envoy"]
        if self._own is not None:
            self._enough(self._own)
        if found[0] is not None and request.method != "POST":
            raise Refused(405, "Ask by POST.", [("allow", "POST")])
        return found

    def trouble(self, request: Request, error: Exception) -> Answer:
        """What is answered where that came to nothing."""
        match error:
            case Refused() if request.path == "/auth/nginx":
                return 403, encoded([*error.fields, ("X-Headgate-Code", str(error.status))]), b""
            case Refused():
                return self._problem(error.status, error.detail, error.fields)
            case NotForwarded():
                _log.warning("A gateway's question cannot be answered: %s", error)
                return self._problem(400, str(error))
            case InvalidCharge():
                status = 404 if isinstance(error, NoReceipt) else 409 if isinstance(error, Unfit) else 400
                return self._problem(status, str(error))
            case EngineUnavailable():
                return self._problem(503, str(error), [("retry-after", "1")])
            case CorruptState():
                _log.error("A request to %s could not be decided: %s", request.path[:200], error)
                return self._problem(500, str(error))
        _log.error("A request to %s could not be answered.", request.path[:200], exc_info=error)
        return self._problem(500, "This is a defect of the service. Its log says more: please report that.")

    def _problem(self, status: int, detail: str, fields: Fields | None = None) -> Answer:
        body = self._encode(check_schema.Trouble("about:blank", refusal_body.REASONS[status], status, detail))
        return status, encoded([("content-type", refusal_body.PROBLEM), *(fields or [])]), body

    def _enough(self, own: Any) -> None:
        """Refuse what is more than this worker wants to answer."""
        facts = own.decide("", 1)
        if not facts[ALLOWED]:
            wait = math.ceil((facts[RETRY_AFTER_US] or 0) / SECOND)
            raise Refused(
                503,
                "This service has too much to do. Ask again after the seconds that Retry-After says.",
                [("retry-after", str(max(wait, 1)))],
            )

    def _verb(self, verb: Verb) -> Answers:
        read = Reader(verb.asked)
        ask: Callable[[Any], Awaitable[msgspec.Struct]] = getattr(self._checker, verb.name)

        async def answered(request: Request) -> Answer:
            asked = read(request.body)
            if not _gives_receipts(asked):
                return 200, _JSON, self._encode(await ask(asked))
            return 200, _JSON, self._encode(await request.unless_gone(ask(asked), self._checker.undo))

        return answered

    def _check(self, request: Request) -> Answer | Awaitable[Answer]:
        """The verb that is asked most: who asks in the same words again is not read again."""
        known = self._checks.get(request.body, self._limiter.ruling)
        if known is None:
            return self._new_check(request)
        return self._known_check(known) if known.at_once is None else self._checked(known, known.at_once())

    async def _new_check(self, request: Request) -> Answer:
        body, asked = request.body, self._read_check(request.body)
        call = self._limiter.call(asked.attributes, asked.cost)
        if len(body) <= LONG and not asked.verdicts and not asked.receipt and self._checks.again(body):
            self._checks.keep(body, call.ruling, CachedCheck.of(call))
        answer = self._decided_check(asked, call)
        if asked.receipt:
            return 200, _JSON, self._encode(await request.unless_gone(answer, self._checker.undo))
        return 200, _JSON, self._encode(await answer)

    async def _decided_check(self, asked: check_schema.Check, call: CallPlan) -> check_schema.Answer:
        return self._checker.answer(await self._limiter.decided(call), asked.verdicts, asked.receipt)

    async def _known_check(self, known: CachedCheck) -> Answer:
        return self._checked(known, await known.awaited())

    def _checked(self, known: CachedCheck, facts: Outcome) -> Answer:
        if plain(facts):
            return 200, _JSON, known.document(facts)
        return 200, _JSON, self._encode(self._checker.answer(known.decision(facts)))

    async def _for_nginx(self, request: Request) -> Answer:
        try:
            decision, fields = await self._decided("auth_request", "", request)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("No decision for nginx: %s", error)
            return 403, encoded([("X-Headgate-Code", "503"), ("Retry-After", "1")]), b""
        if decision is None:
            return 200, fields, b""
        refusal = decision.refusal
        code = ("X-Headgate-Code", str(429 if refusal is None else refusal.status))
        return 403, [*fields, *encoded([_spoke(decision), code])], b""

    async def _for_envoy(self, request: Request) -> Answer:
        return await self._for_gateway("ext_authz", request.path[len("/auth/envoy") :], request)

    async def _for_gateway(self, kind: Kind, path: str, request: Request) -> Answer:
        try:
            decision, fields = await self._decided(kind, path, request)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("No decision for a gateway: %s", error)
            answer = refusal_body.undecided(request.field(b"accept"), wait=1)
            return answer.status, encoded([*answer.headers, ("Retry-After", "1")]), answer.body
        if decision is None:
            return 200, fields, b""
        answer = refusal_body.refused(decision, request.field(b"accept"))
        status = answer.status if answer.status >= 300 else 429  # a 200 would let it pass
        return status, [*fields, *encoded([_spoke(decision), *answer.headers])], answer.body

    async def _decided(self, kind: Kind, path: str, request: Request) -> tuple[RuleDecision | None, Pairs]:
        """The decision if the call is refused, and the fields for either answer. A delay is over by then."""
        limiter, own = self._limiter, (request.method, path, request.query) if kind == "ext_authz" else None
        words = self._fields.words(limiter.rulebook, request.headers)
        asked = kind, own, request.peer, words
        known = None if words is None else self._subrequests.get(asked, limiter.ruling)
        if known is not None:
            facts = known.at_once() if known.at_once is not None else await known.awaited()
            if plain(facts) and not facts[DELAY_US]:
                return None, known.fields(facts)
            decision = known.decision(facts)
        else:
            given = forwarded(
                kind, request.method, path, request.query, request.headers, request.client, self._trusted
            )
            call = limiter.call(given)
            if words is not None and self._subrequests.again(asked):
                self._subrequests.keep(asked, call.ruling, CachedCheck.of(call))
            decision = await limiter.decided(call)
        if decision.allowed and decision.delay_us:
            await request.unless_gone(self._served(decision))
        return None if decision.allowed else decision, encoded(headers(decision, limiter.rulebook.headers))

    async def _served(self, decision: RuleDecision) -> None:
        """When the call's delay is over, unless the service cannot wait for it any more."""
        try:
            await asyncio.wait_for(self.left.wait(), min(decision.delay, _LONGEST_WAIT))
        except TimeoutError:
            return
        except asyncio.CancelledError:
            await self._limiter.cancel(decision)
            raise
        await self._limiter.cancel(decision)
        raise EngineUnavailable("This service stops.")

    async def _reference(self, request: Request) -> Answer:
        if self._limits is None:
            raise Refused(501, f"Envoy's messages need protobuf: {INSTALL_ENVOY}.")
        status, body = await self._limits.answer_json(request.body)
        return status, _JSON, body

    async def _told(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, "Ask by GET.", [("allow", "GET, HEAD")])
        return self._health[request.path]()

    def _alive(self) -> Answer:
        return 200, _TEXT, b"ok\n"

    def _ready(self) -> Answer:
        told = {"ready": not self.draining, "rules": len(self._limiter.rulebook)}
        return 503 if self.draining else 200, _JSON, self._encode(told)

    def _serves(self) -> Answer:
        return (503, _TEXT, b"") if self.draining else (200, _TEXT, b"OK")

    def _describe(self) -> Answer:
        return 200, _JSON, self._description


def _gives_receipts(asked: object) -> bool:
    """Whether the answer holds something that its client must give back."""
    match asked:
        case check_schema.Reserve():
            return True
        case check_schema.Checks():
            return any(each.receipt for each in asked.checks)
    return False


def _spoke(decision: RuleDecision) -> tuple[str, str]:
    """Which rule refused, as far as a field can say it."""
    rule = decision.rule or ""
    return "X-Headgate-Rule", "".join(letter if " " <= letter <= "~" else "?" for letter in rule)
