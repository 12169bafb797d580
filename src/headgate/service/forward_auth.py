"""Turns a gateway's sub-request (auth_request, forward_auth, ext_authz) into attributes of the client's request.

    auth_request   nginx     X-Original-Method, X-Original-URI, X-Original-Host, X-Forwarded-For
    forward_auth   Traefik   X-Forwarded-Method, X-Forwarded-Uri, X-Forwarded-Host, X-Forwarded-For
                   Caddy     the same
    ext_authz      Envoy     the request itself, behind our prefix, with its Host; X-Forwarded-For

All other fields are the client's own and become attributes, except those between proxies: X-Original-*,
X-Forwarded-*, X-Envoy-*, X-Real-IP, Via, Content-Length and hop-by-hop fields. Gateways add few of their own:
Traefik a User-Agent where the client has none, and it and Caddy an Accept-Encoding; Envoy sends only the fields
that its allowed_headers name.

Trust. A gateway passes on what its client sent, unless it writes that field itself. So a field that is read here
only if it happens to be there could be the client's: a client that sends X-Real-IP through a gateway that does not
set it would choose whose key is counted. Hence every field that is read is required, and none has an alternative:
a gateway that does not write one fails at its first honest request, with a sentence about what to set, and not
silently at the first dishonest one. X-Real-IP, x-envoy-external-address and x-envoy-original-path are not read:
Caddy passes the first on as it came, and Envoy the others, unless it is at the edge.

What each gateway writes, and what an operator must set:
    nginx     nothing by itself. In the location of the sub-request:
                  proxy_set_header X-Original-Method $request_method;
                  proxy_set_header X-Original-URI    $request_uri;
                  proxy_set_header X-Original-Host   $host;
                  proxy_set_header X-Forwarded-For   $proxy_add_x_forwarded_for;
    Traefik   all four, always, over the client's. With trustForwardHeader it accepts them from the entry point's
              forwardedHeaders.trustedIPs: list proxies of yours there, and never set `insecure`.
              Its X-Forwarded-Uri has dots and double slashes removed from the path
    Caddy     all four, always, over the client's; it keeps those of its trusted_proxies
    Envoy     X-Forwarded-For, if use_remote_address is true; otherwise it is the client's. It sends the field
              here only if allowed_headers names it. For a client on loopback Envoy writes its own address

Envoy joins repeated fields into one line, with commas: of two Cookie lines sid=1 and n=2 it makes sid=1,n=2, and a
second line would change the session of the first. So a comma in Envoy's Cookie ends a cookie: of a value that has
one, only the part before it is used; and a cookie that then has two values is refused.

The peer must be a trusted proxy; otherwise its statements about a client are not used.

Bytes. Fields arrive as they were sent. granian has decoded the path's escapes, with U+FFFD for what is not UTF-8:
of Envoy's clients, paths that differ only in bytes which are not UTF-8 are one path.

Laws (tests/service/test_forward_auth.py):
  - for any request, the attributes made from the sub-request are those of the request with the same address, but
    for the fields above;
  - no field that a client sends changes method, path, host or address behind a gateway that writes its own;
  - what cannot be trusted or parsed is InvalidSubrequest, a sentence to the operator; nothing else is ever raised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from headgate.errors import InvalidCharge
from headgate.http.client_ip import Proxies
from headgate.rules.attributes import MAX_CACHED_LENGTH, Attributes, Raw, ascii_lower, request, to_text
from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.rule import Rulebook
from headgate.service.request_cache import MAX_CACHED_REQUEST_BYTES

GatewayKind = Literal["auth_request", "forward_auth", "ext_authz"]


class InvalidSubrequest(InvalidCharge):
    """A sub-request that does not describe the client's request, or is not trusted. For the gateway's operator."""


_FORWARDED_FOR = "x-forwarded-for"
_GATEWAY_FIELDS: dict[
    GatewayKind, tuple[str, ...]
] = {  # client, host, method, target; Envoy's sub-request itself has the last two
    "auth_request": (_FORWARDED_FOR, "x-original-host", "x-original-method", "x-original-uri"),
    "forward_auth": (_FORWARDED_FOR, "x-forwarded-host", "x-forwarded-method", "x-forwarded-uri"),
    "ext_authz": (_FORWARDED_FOR, "host"),
}
_ALL_GATEWAY_FIELDS = frozenset(field for fields in _GATEWAY_FIELDS.values() for field in fields)
_PROXY_FIELDS = frozenset(
    ("host", "x-real-ip", "via", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "connection")
)
_PROXY_PREFIXES = ("x-original-", "x-forwarded-", "x-envoy-", "keep-alive", "proxy-connection")

_ADVICE: dict[GatewayKind, str] = {
    "auth_request": "Where nginx asks, set proxy_set_header {};",
    "forward_auth": "Traefik's forwardAuth and Caddy's forward_auth write it: ask through one of these.",
    "ext_authz": "In Envoy, set use_remote_address: true, and allow ext_authz x-forwarded-for in allowed_headers.",
}
_NGINX_VARIABLES = {
    "x-original-method": ("X-Original-Method", "$request_method"),
    "x-original-uri": ("X-Original-URI", "$request_uri"),
    "x-original-host": ("X-Original-Host", "$host"),
    _FORWARDED_FOR: ("X-Forwarded-For", "$proxy_add_x_forwarded_for"),
}


def forwarded_attributes(
    kind: GatewayKind,
    method: str,
    path: str,
    query: str,
    headers: Sequence[tuple[Raw, Raw]],
    peer: str,
    proxies: Proxies,
) -> Attributes:
    """Returns the attributes of the request that a gateway's sub-request is about.

    ``path``: without escapes, the part after our prefix; ``query``: as it came.
    """
    fields = _GATEWAY_FIELDS[kind]
    gateway_values: dict[str, str] = {}
    repeated: str | None = None
    client_headers: list[tuple[Raw, Raw]] = []
    for pair in headers:
        name = pair[0]
        field = _cached_classify_field(name) if len(name) < MAX_CACHED_LENGTH else _classify_field(name)
        if field is None:
            client_headers.append(pair)
        elif field in fields:
            if field not in gateway_values:
                gateway_values[field] = to_text(pair[1])
            elif field == _FORWARDED_FOR:
                gateway_values[field] += "," + to_text(pair[1])
            else:
                repeated = field
    address = proxies.behind(peer, gateway_values.get(_FORWARDED_FOR))
    if address is None:
        raise InvalidSubrequest(
            f'"{peer[:80]}" is not among the trusted proxies, so it may not speak for a client. '
            "If it is your gateway, add its network to them."
        )
    if repeated is not None:
        raise InvalidSubrequest(_advice_sentence(kind, repeated, "came twice, so one of them may be the client's"))
    for field in fields:
        # A request may have no Host, and then the gateway sends an empty one; the other fields are never empty.
        if not gateway_values.get(field) and (field not in gateway_values or field != fields[1]):
            raise InvalidSubrequest(_advice_sentence(kind, field, "is missing"))
    if kind == "ext_authz":
        target = _escape_path(path) + ("?" + query if query else "")
        client_headers = _split_cookies(client_headers)
    else:
        method, target = gateway_values[fields[2]], gateway_values[fields[3]]
    if not (host := gateway_values[fields[1]]):
        return request(method, target, client_headers, address or None)
    return request(method, target, [*client_headers, ("host", host)], address or None, host=host)


class RelevantFields:
    """Selects the fields of a sub-request that matter under a rulebook.

    These are the gateway's fields, and the client's fields that a rule uses. Two sub-requests with equal relevant
    fields are decided alike.
    """

    __slots__ = ("_field_names", "_rulebook")

    def __init__(self) -> None:
        self._rulebook: Rulebook | None = None
        self._field_names: frozenset[bytes] = frozenset()

    def select(
        self, book: Rulebook, headers: Sequence[tuple[bytes, bytes]]
    ) -> tuple[tuple[bytes, bytes], ...] | None:
        """Returns those fields, as they came; None if they are too long to be cached."""
        if book is not self._rulebook:
            names = {name for rule in book.rules for name in used_attributes(rule)}
            fields = {name[7:] for name in names if name.startswith("header.")}
            if any(name.startswith("cookie.") for name in names):
                fields.add("cookie")
            self._field_names = frozenset(name.encode() for name in (*_ALL_GATEWAY_FIELDS, "host", *fields))
            self._rulebook = book
        wanted = self._field_names
        # To a rule, a name with _ is the same as one with -.
        pairs = tuple([pair for pair in headers if pair[0] in wanted or b"_" in pair[0]])
        return pairs if sum([len(value) for _, value in pairs]) <= MAX_CACHED_REQUEST_BYTES else None


def _classify_field(name: Raw) -> str | None:
    """Returns None for a client's field, the name of a gateway's field that is read, empty for one that is not.

    Many servers treat names with _ like names with -; these are never a gateway's.
    """
    lowered = ascii_lower(to_text(name))
    folded = lowered.replace("_", "-")
    if folded in _PROXY_FIELDS or folded.startswith(_PROXY_PREFIXES):
        return lowered if lowered in _ALL_GATEWAY_FIELDS else ""
    return None


_cookie_separator = re.compile("[;,]")
_cached_classify_field = lru_cache(maxsize=1024)(_classify_field)


def _escape_path(path: str) -> str:
    """Escapes a decoded path, so that decoding it again returns the same."""
    path = path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    return path if path.startswith("/") else "/" + path


def _split_cookies(headers: list[tuple[Raw, Raw]]) -> list[tuple[Raw, Raw]]:
    """Splits cookies that Envoy joined with commas."""
    values = [
        to_text(value) for name, value in headers if len(name) == 6 and ascii_lower(to_text(name)) == "cookie"
    ]
    if not any("," in value for value in values):
        return headers
    cookies: dict[str, str] = {}
    for pair in _cookie_separator.split(";".join(values)):
        name, equals, value = (part.strip(" \t") for part in pair.partition("="))
        if equals and name and cookies.setdefault(name, value) != value:
            raise InvalidSubrequest(
                "Envoy made one line of several cookies with commas, and one of them has two values: it is "
                "unknown which one the client sent first. Send each cookie once, and no comma in it."
            )
    rest = [pair for pair in headers if len(pair[0]) != 6 or ascii_lower(to_text(pair[0])) != "cookie"]
    return [*rest, ("cookie", "; ".join(f"{name}={value}" for name, value in cookies.items()))]


def _advice_sentence(kind: GatewayKind, field: str, fault: str) -> str:
    name, variable = _NGINX_VARIABLES.get(field, (field.title(), ""))
    return f"{name} {fault}. {_ADVICE[kind].format(f'{name} {variable}')}"
