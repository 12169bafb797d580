"""A request of the dashboard: its form, its cookies, and the responses that pages return."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from headgate.http.headers import Fields
from headgate.service.asgi import HttpError, Request, Response, encode_headers

# No code and no style in pages, nothing from elsewhere, no page inside another.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SAFE_FIELDS: Final[Fields] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
]
_NO_STORE: Final[Fields] = [("cache-control", "no-store")]
_MAX_FIELDS: Final = 40


def page_response(page: bytes, status: int = 200, fields: Fields | None = None) -> Response:
    """Returns a page."""
    headers = [("content-type", "text/html; charset=utf-8"), *_NO_STORE, *SAFE_FIELDS, *(fields or [])]
    return status, encode_headers(headers), page


def json_response(document: Any, status: int = 200) -> Response:
    """Returns a document for a script."""
    headers = [("content-type", "application/json"), *_NO_STORE, *SAFE_FIELDS]
    return status, encode_headers(headers), msgspec.json.encode(document, enc_hook=str)


def redirect(path: str, fields: Fields | None = None) -> Response:
    """Sends the browser to another page, after a change."""
    return 303, encode_headers([("location", path), *_NO_STORE, *SAFE_FIELDS, *(fields or [])]), b""


def form_of(request: Request) -> dict[str, str]:
    """Returns the fields of a form."""
    try:
        text = request.body.decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"))
    except ValueError:
        raise HttpError(400, "The form cannot be read: it is not percent-encoded UTF-8.") from None


def query_of(request: Request) -> dict[str, str]:
    """Returns the fields of the query."""
    try:
        return dict(parse_qsl(request.query, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"))
    except ValueError:
        raise HttpError(400, "The query cannot be read: it is not percent-encoded UTF-8.") from None


def cookies_of(request: Request) -> dict[str, str]:
    """Returns the cookies; none if they cannot be read."""
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(request.field(b"cookie") or "")
    except CookieError:
        return {}
    return {name: morsel.value for name, morsel in jar.items()}


def set_cookie(name: str, value: str, max_age_s: int, *, secure: bool, http_only: bool = True) -> tuple[str, str]:
    """Returns the header field that sets a cookie of the dashboard."""
    flags = ("; Secure" if secure else "") + ("; HttpOnly" if http_only else "")
    return "set-cookie", f"{name}={value}; Path=/dashboard; Max-Age={max_age_s}; SameSite=Strict{flags}"
