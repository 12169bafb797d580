"""The admin application: who is let in, how often and with how much, and in which status it is answered.

    Authorization: Bearer TOKEN         on every request; compared in constant time
    X-Headgate-Author: ann              on every change

Laws (tests/service/admin/test_memory_engine.py, test_admin_asked.py):
  - nothing is read, told or done for who shows no token, or a wrong one;
  - from one address (one network of IPv6) a worker answers 20 requests at once and 10 a second, right or wrong: so
    no token is guessed faster, and whoever guesses keeps nobody else out;
  - no body is read beyond its bound, and no change is made without an author;
  - every change is one line in the log, and no token ever is.

Statuses: 400 what cannot be, with every problem of a rulebook; 401 no token; 404, 405 what is not here; 409 not
with these settings, or not any more; 412 somebody was faster; 413 too large; 415 no format that is known; 429 too
often; 503 the engine does not answer. Each of them is a problem (RFC 9457) with a sentence.
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
from headgate.rules.distribution.version import LARGEST
from headgate.rules.distribution.versions import VersionConflict
from headgate.rules.lookup import NoSuchRule
from headgate.service.admin import audit_log, schema
from headgate.service.admin.handlers import AdminHandlers
from headgate.service.admin.openapi import description
from headgate.service.admin.request import AdminRequest, Conflict, KeyScanBusy, NotFound, UnpublishableRulebook
from headgate.service.admin.routes import QUERY_PARAMETERS, ROUTES, RULEBOOK_FORMATS, RULEBOOK_TEXT, Route
from headgate.service.asgi import Handler, HttpError, Request, Response, encode_headers
from headgate.service.check_schema import MAX_NAME_CHARS, MAX_VALUE_CHARS
from headgate.service.json_decoding import JsonDecoder
from headgate.service.settings import Settings

REQUEST_LIMIT = "10/s burst 20"
MAX_NUMBER_CHARS = 40  # characters of a number in a query
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
_LONGEST = {"rule": MAX_NAME_CHARS, "key": MAX_VALUE_CHARS}
_etag = re.compile(r'(?:W/)?"?([0-9]{1,15})"?')


class Admin:
    """The application that granian runs at the admin address."""

    def __init__(self, limiter: AsyncRuleLimiter, settings: Settings, token: str) -> None:
        self._desk = AdminHandlers(limiter, settings)
        self._token = token.encode()
        self._most = settings.body
        self._pace = MemoryEngine().meter(parse(REQUEST_LIMIT), "admin")
        self._encode = msgspec.json.Encoder().encode
        self._description = description()
        self._routes = [(route.pattern, route, self._desk.verb(route.verb)) for route in ROUTES]
        self._readers: dict[Any, JsonDecoder[Any]] = {
            route.asked: JsonDecoder(route.asked) for route in ROUTES if isinstance(route.asked, type)
        }

    async def close(self) -> None:
        """Give up the lines to servers."""
        await self._desk.close()

    def asked(self, request: Request) -> tuple[int | None, Handler]:
        """How many bytes its body may have, and who answers it then, if whoever asks may."""
        self._let_in(request)
        if request.path == "/openapi.json" and request.method == "GET":
            return None, lambda _: (200, _JSON, self._description)
        route, verb, path = self._routed(request)
        asked = _asked(request, route, path)
        most = LARGEST if route.asked is RULEBOOK_TEXT else None if route.asked is None else self._most
        return most, partial(self._answer, route, verb, asked)

    async def _answer(self, route: Route, verb: Any, asked: AdminRequest, request: Request) -> Response:
        read = self._readers.get(route.asked)
        asked = asked._replace(body=request.body if read is None else read(request.body))
        try:
            answer = await verb(asked)
        except EngineUnavailable:
            if route.changes:  # what was sent and not answered may have been done
                audit_log.log_uncertain_change(route.verb, asked.author, asked.remote, asked.path)
            raise
        edition = getattr(answer, "edition", None)
        if isinstance(edition, schema.Edition):
            return 200, [*_JSON, *encode_headers([("etag", f'"{edition.version}"')])], self._encode(answer)
        return 200, _JSON, self._encode(answer)

    def trouble(self, request: Request, error: Exception) -> Response:
        """What is answered where that came to nothing."""
        match error:
            case HttpError():
                return self._problem(error.status, error.detail, error.fields)
            case UnpublishableRulebook():
                problems = [schema.Problem(each.line, each.problem) for each in error.problems]
                return self._problem(400, str(error), problems=problems)
            case HeadgateError():
                status = next(status for kind, status in _STATUSES if isinstance(error, kind))
                return self._problem(status, str(error), [("retry-after", "1")] if status == 503 else None)
        audit_log.log_failure(f"{request.method} {request.path[:200]!r}", error)
        return self._problem(500, "This is a defect of the service. Its log says more: please report that.")

    def _let_in(self, request: Request) -> None:
        facts = self._pace.decide(_whence(request.client), 1)
        if not facts[ALLOWED]:
            wait = max(1, -(-(facts[RETRY_AFTER_US] or 0) // SECOND))
            raise HttpError(
                429,
                f"At most {REQUEST_LIMIT} from one address. Wait for the seconds that Retry-After says.",
                [("retry-after", str(wait))],
            )
        scheme, _, shown = (request.field(b"authorization") or "").partition(" ")
        right = hmac.compare_digest(shown.strip().encode("utf-8", "replace"), self._token)
        if not right or scheme.lower() != "bearer":
            audit_log.log_wrong_token(request.client or UNIX)
            raise HttpError(
                401, "Show the admin token: Authorization: Bearer TOKEN.", [("www-authenticate", "Bearer")]
            )

    def _routed(self, request: Request) -> tuple[Route, Any, dict[str, str]]:
        others: list[str] = []
        for pattern, route, verb in self._routes:
            found = pattern.fullmatch(request.path)
            if found and route.method == request.method:
                return route, verb, found.groupdict()
            if found:
                others.append(route.method)
        if others:
            allow = ", ".join(others)
            raise HttpError(405, f"Ask by {' or '.join(others)}.", [("allow", allow)])
        raise HttpError(404, "See /openapi.json for what there is.")

    def _problem(
        self,
        status: int,
        detail: str,
        fields: Fields | None = None,
        problems: list[schema.Problem] | None = None,
    ) -> Response:
        trouble = schema.Trouble("about:blank", REASONS[status], status, detail)
        if problems:
            trouble.problems = problems
        told = encode_headers([_NO_STORE, ("content-type", PROBLEM), *(fields or [])])
        return status, told, self._encode(trouble)


def _asked(request: Request, route: Route, path: dict[str, str]) -> AdminRequest:
    """All of it but its body."""
    for name, value in path.items():
        if len(value) > _LONGEST.get(name, MAX_VALUE_CHARS):
            raise HttpError(400, f"A {name} may have {_LONGEST[name]} characters.")
    query = _query(request.query, route)
    author = audit_log.author_of(request.field(audit_log.AUTHOR_HEADER.encode())) if route.changes else ""
    expected = _expected(query, request.field(b"if-match")) if "expected" in route.queries else None
    form = _format(request.field(b"content-type")) if route.asked is RULEBOOK_TEXT else ""
    return AdminRequest(path, query, None, form, expected, author, request.client or UNIX)


def _query(text: str, route: Route) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        raise HttpError(400, "The query cannot be read. Write name=value, percent-encoded as UTF-8.") from None
    for name, value in pairs:
        if name not in route.queries:
            known = f"Known: {', '.join(route.queries)}." if route.queries else "There are none."
            raise HttpError(400, f'"{name[:40]}" is not a parameter here. {known}')
        most = QUERY_PARAMETERS[name][0].get("maxLength", MAX_NUMBER_CHARS)
        if len(value) > most:
            raise HttpError(400, f"{name} may have {most} characters.")
    return dict(pairs)


def _expected(query: dict[str, str], field: str | None) -> int | None:
    """The edition that must be in force, by the query or by If-Match."""
    found: list[int] = []
    for said in (query.get("expected"), field):
        if said is None or (said is field and said.strip() == "*"):
            continue
        number = _etag.fullmatch(said.strip())
        if number is None:
            raise HttpError(400, f'An edition is expected by its number, such as "3"; not {said[:40]!r}.')
        found.append(int(number[1]))
    if len(set(found)) > 1:
        raise HttpError(400, "expected and If-Match name different editions. Send one of them.")
    return found[0] if found else None


def _format(field: str | None) -> str:
    kind = (field or "").partition(";")[0].strip().lower()
    if kind not in RULEBOOK_FORMATS:
        raise HttpError(
            415,
            "Say how the rulebook is written: Content-Type: application/yaml, application/toml, application/json.",
        )
    return RULEBOOK_FORMATS[kind]


def _whence(client: str) -> str:
    """Whose pace a request goes by."""
    host = client.rpartition(":")[0].strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        return UNIX
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, 64), strict=False))
    return host
