"""Serves the check API over HTTP: which path is handled by what, and with which status.

    POST /v1/check, /v1/peek, /v1/checks, /v1/reserve        checks in JSON; a refusal is an answer, so 200
    POST /v1/refund, /v1/settle, /v1/cancel                  undo or correct a charge, by its receipt
    POST /v1/renew, /v1/release                              receipts that hold slots
    POST /v1/finish                                          how a call ended, for adaptive rules
    any  /auth/nginx                                         auth_request: 200 or 403, never a body
    any  /auth/forward                                       Traefik's and Caddy's: 200, or the client's response
    any  /auth/envoy/...                                     ext_authz: the same; the client's path follows
    POST /json                                               as in envoyproxy/ratelimit
    GET  /healthz, /readyz                                   alive; ready; both say what is degraded; HEAD too
    GET  /openapi.json                                       the description
    GET  /metrics                                            for Prometheus
    GET  /healthcheck                                        as in envoyproxy/ratelimit: readiness

nginx turns any sub-request's status but 2xx, 401 and 403 into a 500, and reconnects after any body. So it gets 403
and, in X-Headgate-Code, the status for the client. The service waits out a delay before it responds: no gateway
can. Slots that a gateway's sub-request takes expire by their ttl.

Statuses: 400 a request that cannot be decided about, 404 and 405 an unknown path or method, 404 a receipt that was
not signed here, 409 a receipt that was used or does not allow this, 408 a body that does not come, 413 too large,
501 an extra is not installed, 503 no decision can be made, the service stops, or it has too much to do. Each of
them is a problem (RFC 9457) with a sentence. Health is answered under any load: an orchestrator would restart the
service.

Laws (tests/service/test_check_api.py, test_size_and_time_limits.py): no request gets a 500, and none waits long.
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
from headgate.enforcement import adaptive_rules
from headgate.enforcement.call_plan import CallPlan
from headgate.enforcement.rule_decision import RuleDecision
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge
from headgate.extras import INSTALL_ENVOY
from headgate.http import refusal_body
from headgate.http.headers import Fields, headers
from headgate.limit_syntax import parse
from headgate.service import check_schema
from headgate.service.asgi import Handler, HttpError, RawHeaders, Request, Response, encode_headers
from headgate.service.check import Checker
from headgate.service.degradations import Degradations
from headgate.service.forward_auth import GatewayKind, InvalidSubrequest, RelevantFields, forwarded_attributes
from headgate.service.json_decoding import JsonDecoder
from headgate.service.metrics import WorkerMetrics
from headgate.service.openapi import VERBS, Verb, description
from headgate.service.receipt_tokens import InvalidReceipt, ReceiptNotUsable
from headgate.service.request_cache import MAX_CACHED_REQUEST_BYTES, CachedCheck, RequestCache, is_plain_pass
from headgate.service.settings import Settings
from headgate.telemetry.counts import Counts
from headgate.telemetry.fast_pass_reports import pass_reports

if TYPE_CHECKING:
    from headgate.service.envoy.rls import RateLimits

_JSON = encode_headers([("content-type", "application/json")])
_TEXT = encode_headers([("content-type", "text/plain")])
_METRICS = encode_headers([("content-type", "text/plain; version=0.0.4; charset=utf-8")])
_MAX_DELAY_S = 60.0  # that a gateway waits for a delayed call
_log = logging.getLogger("headgate.service")


class App:
    """The application that granian runs. `rate_limits` is None without the extra `envoy`."""

    def __init__(
        self,
        checker: Checker,
        rate_limits: RateLimits | None,
        settings: Settings,
        degradations: Degradations | None = None,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._degradations = degradations or Degradations(checker.limiter)
        self._metrics = metrics or WorkerMetrics(Counts())
        self._checker, self._rate_limits = checker, rate_limits
        self._limiter = checker.limiter
        self._trusted_proxies = settings.trusted
        self._self_limit = (
            None if settings.own_limit is None else MemoryEngine().meter(parse(settings.own_limit), "own")
        )
        self._description = msgspec.json.encode(description(settings.batch))
        self.draining = False
        # Set when `drain` is over: calls that still wait for their delay get a 503.
        self.shutdown_timed_out: asyncio.Event = asyncio.Event()
        self._decode_check = JsonDecoder(check_schema.CheckBody)
        self._check_cache: RequestCache[CachedCheck] = RequestCache()
        self._subrequest_cache: RequestCache[CachedCheck] = RequestCache()
        self._count_passes = pass_reports(self._limiter.observers)
        self._relevant_fields = RelevantFields()
        self._encode = msgspec.json.Encoder().encode
        self._info_handlers = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/healthcheck": self._healthcheck,
            "/openapi.json": self._openapi,
            "/metrics": self._metrics_text,
        }
        post_handlers = {f"/v1/{verb.name}": self._handler_of(verb) for verb in VERBS if verb.name != "check"}
        post_handlers |= {"/v1/check": self._check, "/json": self._reference_json}
        self._handlers: dict[str, tuple[int | None, Handler]] = {
            **{path: (settings.body, handler) for path, handler in post_handlers.items()},
            "/auth/nginx": (None, self._nginx_auth),
            "/auth/forward": (None, partial(self._forward_auth, "forward_auth", "")),
            "/auth/envoy": (None, self._envoy_auth),
        }

    def route(self, request: Request) -> tuple[int | None, Handler]:
        """Returns the largest body in bytes, None if it is not read; and the handler of the request."""
        path = request.path
        entry = self._handlers.get(path)
        if entry is None:
            if path in self._info_handlers:
                return None, self._info
            if not path.startswith("/auth/envoy/"):
                raise HttpError(404, "See /openapi.json for all paths.")
            entry = self._handlers["/auth/envoy"]
        if self._self_limit is not None:
            self._limit_worker_load(self._self_limit)
        if entry[0] is not None and request.method != "POST":
            raise HttpError(405, "Ask by POST.", [("allow", "POST")])
        return entry

    def error_response(self, request: Request, error: Exception) -> Response:
        """Returns the response to a request whose handler raised an error."""
        match error:
            case HttpError() if request.path == "/auth/nginx":
                return 403, encode_headers([*error.fields, ("X-Headgate-Code", str(error.status))]), b""
            case HttpError():
                return self._problem(error.status, error.detail, error.fields)
            case InvalidSubrequest():
                _log.warning("A gateway's question cannot be answered: %s", error)
                return self._problem(400, str(error))
            case InvalidCharge():
                status = 409 if isinstance(error, ReceiptNotUsable) else 400
                status = 404 if isinstance(error, InvalidReceipt) else status
                return self._problem(status, str(error))
            case EngineUnavailable():
                return self._problem(503, str(error), [("retry-after", "1")])
            case CorruptState():
                _log.error("A request to %s could not be decided: %s", request.path[:200], error)
                return self._problem(500, str(error))
        _log.error("A request to %s could not be answered.", request.path[:200], exc_info=error)
        return self._problem(500, "This is a defect of the service. Its log says more: please report that.")

    def _problem(self, status: int, detail: str, fields: Fields | None = None) -> Response:
        body = self._encode(check_schema.ErrorBody("about:blank", refusal_body.REASONS[status], status, detail))
        return status, encode_headers([("content-type", refusal_body.PROBLEM), *(fields or [])]), body

    def _limit_worker_load(self, meter: Any) -> None:
        """Raises 503 if this worker has more requests than its own limit."""
        outcome = meter.decide("", 1)
        if not outcome[ALLOWED]:
            wait = math.ceil((outcome[RETRY_AFTER_US] or 0) / SECOND)
            raise HttpError(
                503,
                "This service has too much to do. Ask again after the seconds that Retry-After says.",
                [("retry-after", str(max(wait, 1)))],
            )

    def _handler_of(self, verb: Verb) -> Handler:
        decode = JsonDecoder(verb.request_type)
        method: Callable[[Any], Awaitable[msgspec.Struct]] = getattr(self._checker, verb.name)

        async def handler(request: Request) -> Response:
            body = decode(request.body)
            if not _returns_receipt(body):
                return 200, _JSON, self._encode(await method(body))
            return 200, _JSON, self._encode(await request.unless_disconnected(method(body), self._checker.undo))

        return handler

    def _check(self, request: Request) -> Response | Awaitable[Response]:
        """Handles the most frequent request: a body that came before is not parsed again."""
        cached = self._check_cache.get(request.body, self._limiter.compiled_rulebook)
        if cached is None:
            return self._new_check(request)
        if cached.decide_now is None:
            return self._cached_check(cached)
        return self._check_response(cached, cached.decide_now())

    async def _new_check(self, request: Request) -> Response:
        body, check = request.body, self._decode_check(request.body)
        plan = self._limiter.plan_call(check.attributes, check.cost)
        if (
            len(body) <= MAX_CACHED_REQUEST_BYTES
            and not check.verdicts
            and not check.receipt
            and self._check_cache.is_repeat(body)
        ):
            cached = CachedCheck.from_plan(plan, self._limiter.observers, self._count_passes)
            self._check_cache.store(body, plan.compiled_rulebook, cached)
        answer = self._decided_check(check, plan)
        if check.receipt:
            return 200, _JSON, self._encode(await request.unless_disconnected(answer, self._checker.undo))
        return 200, _JSON, self._encode(await answer)

    async def _decided_check(self, check: check_schema.CheckBody, plan: CallPlan) -> check_schema.DecisionBody:
        return self._checker.answer(await self._limiter.decide_plan(plan), check.verdicts, check.receipt)

    async def _cached_check(self, cached: CachedCheck) -> Response:
        return self._check_response(cached, await cached.decide())

    def _check_response(self, cached: CachedCheck, outcome: Outcome) -> Response:
        if is_plain_pass(outcome):
            return 200, _JSON, cached.document(outcome)
        return 200, _JSON, self._encode(self._checker.answer(cached.decision(outcome)))

    async def _nginx_auth(self, request: Request) -> Response:
        try:
            decision, fields = await self._decide_subrequest("auth_request", "", request)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("No decision for nginx: %s", error)
            return 403, encode_headers([("X-Headgate-Code", "503"), ("Retry-After", "1")]), b""
        if decision is None:
            return 200, fields, b""
        refusal = decision.refusal
        code = ("X-Headgate-Code", str(429 if refusal is None else refusal.status))
        return 403, [*fields, *encode_headers([_rule_field(decision), code])], b""

    async def _envoy_auth(self, request: Request) -> Response:
        return await self._forward_auth("ext_authz", request.path[len("/auth/envoy") :], request)

    async def _forward_auth(self, kind: GatewayKind, path: str, request: Request) -> Response:
        try:
            decision, fields = await self._decide_subrequest(kind, path, request)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("No decision for a gateway: %s", error)
            response = refusal_body.undecided_response(request.field(b"accept"), wait=1)
            return response.status, encode_headers(response.headers), response.body
        if decision is None:
            return 200, fields, b""
        response = refusal_body.refusal_response(decision, request.field(b"accept"))
        status = response.status if response.status >= 300 else 429  # a 200 would let it pass
        return status, [*fields, *encode_headers([_rule_field(decision), *response.headers])], response.body

    async def _decide_subrequest(
        self, kind: GatewayKind, path: str, request: Request
    ) -> tuple[RuleDecision | None, RawHeaders]:
        """Returns the decision if the call is refused, and the header fields. A delay is over by then."""
        limiter, target = self._limiter, (request.method, path, request.query) if kind == "ext_authz" else None
        fields = self._relevant_fields.select(limiter.rulebook, request.headers)
        cache_key = kind, target, request.peer, fields
        cached = None if fields is None else self._subrequest_cache.get(cache_key, limiter.compiled_rulebook)
        if cached is not None:
            outcome = cached.decide_now() if cached.decide_now is not None else await cached.decide()
            if is_plain_pass(outcome) and not outcome[DELAY_US]:
                return None, cached.fields(outcome)
            decision = cached.decision(outcome)
        else:
            attributes = forwarded_attributes(
                kind, request.method, path, request.query, request.headers, request.client, self._trusted_proxies
            )
            plan = limiter.plan_call(attributes)
            if fields is not None and self._subrequest_cache.is_repeat(cache_key):
                cached = CachedCheck.from_plan(plan, limiter.observers, self._count_passes)
                self._subrequest_cache.store(cache_key, plan.compiled_rulebook, cached)
            decision = await limiter.decide_plan(plan)
            adaptive_rules.abandon(decision)  # no gateway reports how the call ends
        if decision.allowed and decision.delay_us:
            await request.unless_disconnected(self._wait_delay(decision))
        return None if decision.allowed else decision, encode_headers(headers(decision, limiter.rulebook.headers))

    async def _wait_delay(self, decision: RuleDecision) -> None:
        """Waits until the call's delay is over; raises if the service stops before."""
        try:
            await asyncio.wait_for(self.shutdown_timed_out.wait(), min(decision.delay, _MAX_DELAY_S))
        except TimeoutError:
            return
        except asyncio.CancelledError:
            await self._limiter.cancel(decision)
            raise
        await self._limiter.cancel(decision)
        raise EngineUnavailable("This service stops.")

    async def _reference_json(self, request: Request) -> Response:
        if self._rate_limits is None:
            raise HttpError(501, f"Envoy's messages need protobuf: {INSTALL_ENVOY}.")
        status, body = await self._rate_limits.answer_json(request.body)
        return status, _JSON, body

    async def _info(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise HttpError(405, "Ask by GET.", [("allow", "GET, HEAD")])
        return self._info_handlers[request.path]()

    def _healthz(self) -> Response:
        degraded = self._degradations.sentences()
        return 200, _TEXT, "\n".join(["degraded", *degraded, ""] if degraded else ["ok", ""]).encode()

    def _readyz(self) -> Response:
        status = {
            "ready": not self.draining,
            "rules": len(self._limiter.rulebook),
            "degraded": self._degradations.sentences(),
        }
        return 503 if self.draining else 200, _JSON, self._encode(status)

    def _healthcheck(self) -> Response:
        return (503, _TEXT, b"") if self.draining else (200, _TEXT, b"OK")

    def _metrics_text(self) -> Response:
        return 200, _METRICS, self._metrics.text()

    def _openapi(self) -> Response:
        return 200, _JSON, self._description


def _returns_receipt(body: object) -> bool:
    """Returns whether the answer has a receipt that the client must give back."""
    match body:
        case check_schema.ReserveBody():
            return True
        case check_schema.ChecksBody():
            return any(check.receipt for check in body.checks)
    return False


def _rule_field(decision: RuleDecision) -> tuple[str, str]:
    """Returns the header field that names the rule which refused, in printable ASCII."""
    rule = decision.rule or ""
    return "X-Headgate-Rule", "".join(char if " " <= char <= "~" else "?" for char in rule)
