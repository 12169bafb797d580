"""A request of the dashboard: its form, its cookies, and the responses that pages return.

A form is percent-encoded, as browsers send it, or a JSON object of texts, as our scripts send it. Its token comes
in the field X-Headgate-Form, or in the first 64 KiB of the body, so that it is checked before the body is parsed.
"""

from __future__ import annotations

import re
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
    ("x-frame-options", "DENY"),
]
_NO_STORE: Final[Fields] = [("cache-control", "no-store")]
_MAX_FIELDS: Final = 40
_MAX_COOKIES: Final = 10  # of one name
SMALL_FORM_BYTES: Final = 65_536
FORM_TOKEN_HEADER: Final = b"x-headgate-form"
_form_token = re.compile(rb"(?:^|&)form=([\w-]{1,200})(?=&|$)", re.ASCII)
_whole_number = re.compile(r"[0-9]{1,15}")


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


def form_token_of(request: Request) -> str:
    """Returns the token that a form shows, without parsing the form; empty if there is none."""
    token = request.field(FORM_TOKEN_HEADER)
    if token is not None:
        return token
    match = _form_token.search(request.body[:SMALL_FORM_BYTES])
    return match[1].decode() if match else ""


def form_of(request: Request) -> dict[str, str]:
    """Returns the fields of a form."""
    if (request.field(b"content-type") or "").partition(";")[0].strip().lower() == "application/json":
        try:
            return msgspec.json.decode(request.body, type=dict[str, str])
        except (msgspec.DecodeError, ValueError):
            raise HttpError(400, "The form cannot be read: it is not a JSON object of texts.") from None
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


def cookies_of(request: Request, name: str) -> list[str]:
    """Returns the values of the cookies of this name. What other programs of this host have set is not parsed."""
    values: list[str] = []
    for field, text in request.headers:
        if field == b"cookie":
            for part in text.decode("latin-1").split(";"):
                cookie, _, value = part.strip().partition("=")
                if cookie == name:
                    values.append(value.strip().strip('"'))
    return values[:_MAX_COOKIES]


def set_cookie(name: str, value: str, max_age_s: int, *, secure: bool) -> tuple[str, str]:
    """Returns the header field that sets a cookie of the dashboard."""
    flags = "; HttpOnly; Secure" if secure else "; HttpOnly"
    return "set-cookie", f"{name}={value}; Path=/dashboard; Max-Age={max_age_s}; SameSite=Strict{flags}"


def is_foreign(request: Request) -> bool:
    """Returns whether a page of another site sends the request, as far as the browser says."""
    origin = request.field(b"origin")
    host = (request.field(b"host") or "").lower()
    return origin is not None and (not host or origin.partition("://")[2].lower() != host)


def content_length(request: Request) -> int:
    """Returns the length that the request announces for its body; 0 if it announces none."""
    text = (request.field(b"content-length") or "").lstrip("0")
    return int(text) if _whole_number.fullmatch(text) else 0


def whole_number(name: str, text: str) -> int:
    """Returns the number in a field; raises HttpError unless it is one."""
    if not _whole_number.fullmatch(text):
        raise HttpError(400, f"{name} is a whole number of at most 15 digits, not {text[:20]!r}.")
    return int(text)
