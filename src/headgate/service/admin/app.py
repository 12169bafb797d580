"""The admin application: authentication, rate limit, size limits, and the status of each error.

    Authorization: Bearer TOKEN         on every request; compared in constant time
    X-Headgate-Author: ann              on every change

Laws (tests/service/admin/test_memory_engine.py, test_requests.py):
  - nothing is read, returned or done for a request without a token, or with a wrong one;
  - from one address (one network of IPv6) a worker answers 20 requests at once and 10 a second, right or wrong;
  - wrong tokens are counted together with those of the dashboard's login (service/token_guesses.py), and a client
    that guesses keeps no other client out;
  - no body is read beyond its bound, and no change is made without an author;
  - every change is one line in the log, and no token ever is.

Statuses: 400 an invalid request, with every problem of a rulebook; 401 no token; 404, 405 an unknown path or
method; 409 not with these settings, or not any more; 412 another change came first; 413 too large; 415 an unknown
format; 429 too many requests; 503 the engine does not answer. Each of them is a problem (RFC 9457) with a
sentence.
"""

from __future__ import annotations

import hmac
import re
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from headgate.algorithms.decision import ALLOWED, RETRY_AFTER_US
from headgate.algorithms.limit import SECOND
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import CorruptState, EngineUnavailable, HeadgateError
from headgate.http.client_ip import UNIX
from headgate.http.headers import Fields
from headgate.http.refusal_body import PROBLEM, REASONS
from headgate.limit_syntax import parse
from headgate.rules.distribution.published_versions import VersionConflict
from headgate.rules.distribution.rulebook_version import MAX_BYTES
from headgate.rules.find_rule import NoSuchRule
from headgate.service.admin import audit_log, schema
from headgate.service.admin.find_handlers import AdminHandlers
from headgate.service.admin.openapi import description
from headgate.service.admin.request import AdminRequest, Conflict, KeyScanBusy, NotFound, UnpublishableRulebook
from headgate.service.admin.routes import QUERY_PARAMETERS, ROUTES, RULEBOOK_FORMATS, RULEBOOK_TEXT, AdminRoute
from headgate.service.asgi import Handler, HttpError, Request, Response, encode_headers
from headgate.service.check_schema import MAX_NAME_CHARS, MAX_VALUE_CHARS
from headgate.service.json_decoding import JsonDecoder
from headgate.service.settings import Settings
from headgate.service.token_guesses import TokenGuesses, TooManyGuesses
from headgate.telemetry.counts import Counts

REQUEST_LIMIT = "10/s burst 20"
MAX_NUMBER_CHARS = 40  # in a query
OPERATOR_TOKEN = "operator"  # the role of whoever shows it
_STATUSES: tuple[tuple[type[HeadgateError], int], ...] = (
    (VersionConflict, 412),
    (NoSuchRule, 404),
    (NotFound, 404),
    (Conflict, 409),
    (KeyScanBusy, 503),
    (EngineUnavailable, 503),
    (CorruptState, 500),
    (HeadgateError, 400),
)
_NO_STORE = ("cache-control", "no-store")
_JSON = encode_headers([_NO_STORE, ("content-type", "application/json")])
_MAX_PATH_CHARS = {"rule": MAX_NAME_CHARS, "key": MAX_VALUE_CHARS}
_version_number = re.compile(r'(?:W/)?"?([0-9]{1,15})"?')


class Admin:
    """The application that granian runs at the admin address."""

    def __init__(self, limiter: AsyncRuleLimiter, settings: Settings, token: str, counts: Counts) -> None:
        self.handlers: AdminHandlers = AdminHandlers(limiter, settings, counts)
        self._token = token.encode()
        self._max_body_bytes = settings.body
        self.guesses: TokenGuesses = TokenGuesses()
        self._rate_limit = MemoryEngine().meter(parse(REQUEST_LIMIT), "admin")
        self._encode = msgspec.json.Encoder().encode
        self._description = description()
        self._routes = [(route.pattern, route, self.handlers.handler(route.handler)) for route in ROUTES]
        self._decoders: dict[Any, JsonDecoder[Any]] = {
            route.request_type: JsonDecoder(route.request_type)
            for route in ROUTES
            if isinstance(route.request_type, type)
        }

    async def close(self) -> None:
        """Closes the connections to engines."""
        await self.handlers.close()

    def route(self, request: Request) -> tuple[int | None, Handler]:
        """Authorizes a request; returns the largest body in bytes, None if it is not read, and the handler."""
        self._authorize(request)
        if request.path == "/openapi.json" and request.method == "GET":
            return None, lambda _: (200, _JSON, self._description)
        route, handler, path = self._match_route(request)
        admin_request = _parse_request(request, route, path)
        max_bytes = None if route.request_type is None else self._max_body_bytes
        if route.request_type is RULEBOOK_TEXT:
            max_bytes = MAX_BYTES
        return max_bytes, partial(self._respond, route, handler, admin_request)

    async def _respond(
        self, route: AdminRoute, handler: Any, admin_request: AdminRequest, request: Request
    ) -> Response:
        decode = self._decoders.get(route.request_type)
        admin_request = admin_request._replace(body=request.body if decode is None else decode(request.body))
        try:
            answer = await handler(admin_request)
        except EngineUnavailable:
            if route.is_change:  # the engine may have made the change without an answer
                audit_log.log_uncertain_change(
                    route.handler, admin_request.author, admin_request.remote, admin_request.path
                )
            raise
        version = getattr(answer, "version", None)
        if isinstance(version, schema.VersionInfo):
            return 200, [*_JSON, *encode_headers([("etag", f'"{version.version}"')])], self._encode(answer)
        return 200, _JSON, self._encode(answer)

    def error_response(self, request: Request, error: Exception) -> Response:
        """Returns the response to a request whose handler raised an error."""
        match error:
            case HttpError():
                return self._problem(error.status, error.detail, error.fields)
            case UnpublishableRulebook():
                problems = [schema.RulebookProblemBody(each.line, each.problem) for each in error.problems]
                return self._problem(400, str(error), problems=problems)
            case HeadgateError():
                status = next(status for kind, status in _STATUSES if isinstance(error, kind))
                return self._problem(status, str(error), [("retry-after", "1")] if status == 503 else None)
        audit_log.log_failure(f"{request.method} {request.path[:200]!r}", error)
        return self._problem(500, "This is a defect of the service. Its log says more: please report that.")

    def _authorize(self, request: Request) -> None:
        outcome = self._rate_limit.decide(rate_limit_key(request.client), 1)
        if not outcome[ALLOWED]:
            wait = max(1, -(-(outcome[RETRY_AFTER_US] or 0) // SECOND))
            raise HttpError(
                429,
                f"At most {REQUEST_LIMIT} from one address. Wait for the seconds that Retry-After says.",
                [("retry-after", str(wait))],
            )
        scheme, _, token = (request.field(b"authorization") or "").partition(" ")
        token = token.strip()
        valid = hmac.compare_digest(token.encode("utf-8", "replace"), self._token)
        problem = "Show the admin token: Authorization: Bearer TOKEN."
        fields = [("www-authenticate", "Bearer")]
        if token:  # a browser that asks for /favicon.ico guesses nothing
            try:
                self.guesses.count(rate_limit_key(request.client), OPERATOR_TOKEN if valid else None)
            except TooManyGuesses as error:  # a right token gets the same answer as a wrong one
                valid, problem = False, str(error)
                fields.append(("retry-after", str(int(error.retry_after) + 1)))
        if not valid or scheme.lower() != "bearer":
            audit_log.log_wrong_token(request.client or UNIX)
            raise HttpError(401, problem, fields)

    def _match_route(self, request: Request) -> tuple[AdminRoute, Any, dict[str, str]]:
        methods: list[str] = []
        for pattern, route, handler in self._routes:
            match = pattern.fullmatch(request.path)
            if match and route.method == request.method:
                return route, handler, match.groupdict()
            if match:
                methods.append(route.method)
        if methods:
            allow = ", ".join(methods)
            raise HttpError(405, f"Ask by {' or '.join(methods)}.", [("allow", allow)])
        raise HttpError(404, "See /openapi.json for all paths.")

    def _problem(
        self,
        status: int,
        detail: str,
        fields: Fields | None = None,
        problems: list[schema.RulebookProblemBody] | None = None,
    ) -> Response:
        document = schema.AdminErrorBody("about:blank", REASONS[status], status, detail)
        if problems:
            document.problems = problems
        headers = encode_headers([_NO_STORE, ("content-type", PROBLEM), *(fields or [])])
        return status, headers, self._encode(document)


def _parse_request(request: Request, route: AdminRoute, path: dict[str, str]) -> AdminRequest:
    """Parses a request, except its body."""
    for name, value in path.items():
        if len(value) > _MAX_PATH_CHARS.get(name, MAX_VALUE_CHARS):
            raise HttpError(400, f"A {name} may have {_MAX_PATH_CHARS[name]} characters.")
    query = _query(request.query, route)
    author = audit_log.author_of(request.field(audit_log.AUTHOR_HEADER.encode())) if route.is_change else ""
    expected = _expected_version(query, request.field(b"if-match")) if "expected" in route.queries else None
    rulebook_format = _format(request.field(b"content-type")) if route.request_type is RULEBOOK_TEXT else ""
    return AdminRequest(path, query, None, rulebook_format, expected, author, request.client or UNIX)


def _query(text: str, route: AdminRoute) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        raise HttpError(400, "The query cannot be read. Write name=value, percent-encoded as UTF-8.") from None
    for name, value in pairs:
        if name not in route.queries:
            hint = f"Known: {', '.join(route.queries)}." if route.queries else "There are none."
            raise HttpError(400, f'"{name[:40]}" is not a parameter here. {hint}')
        max_chars = QUERY_PARAMETERS[name][0].get("maxLength", MAX_NUMBER_CHARS)
        if len(value) > max_chars:
            raise HttpError(400, f"{name} may have {max_chars} characters.")
    return dict(pairs)


def _expected_version(query: dict[str, str], field: str | None) -> int | None:
    """Returns the version that must be in force, from the query or If-Match."""
    versions: list[int] = []
    for text in (query.get("expected"), field):
        if text is None or (text is field and text.strip() == "*"):
            continue
        match = _version_number.fullmatch(text.strip())
        if match is None:
            raise HttpError(400, f'A version is expected by its number, such as "3"; not {text[:40]!r}.')
        versions.append(int(match[1]))
    if len(set(versions)) > 1:
        raise HttpError(400, "expected and If-Match name different versions. Send one of them.")
    return versions[0] if versions else None


def _format(field: str | None) -> str:
    media_type = (field or "").partition(";")[0].strip().lower()
    if media_type not in RULEBOOK_FORMATS:
        raise HttpError(
            415,
            "Say how the rulebook is written: Content-Type: application/yaml, application/toml, application/json.",
        )
    return RULEBOOK_FORMATS[media_type]


def rate_limit_key(client: str) -> str:
    """Returns the key that a client's requests are limited by: its address, or its IPv6 network."""
    host = client.rpartition(":")[0].strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        return UNIX
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, 64), strict=False))
    return host
