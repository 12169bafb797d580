"""A gateway asks about its client's request: the sub-request becomes the Attributes of that request.

    auth_request   nginx     X-Original-Method, X-Original-URI, X-Original-Host, X-Forwarded-For
    forward_auth   Traefik   X-Forwarded-Method, X-Forwarded-Uri, X-Forwarded-Host, X-Forwarded-For
                   Caddy     the same
    ext_authz      Envoy     the request itself, behind our prefix, with its Host; X-Forwarded-For

All other fields are the client's own and come along, but for those that proxies say to each other: X-Original-*,
X-Forwarded-*, X-Envoy-*, X-Real-IP, Via, Content-Length and what belongs to a connection. These are nobody's
attributes. Gateways add little beside: Traefik a User-Agent where the client has none, and it and Caddy an
Accept-Encoding; Envoy sends only the fields that its allowed_headers name.

Whose word it is. A gateway passes on what its client sent, unless it writes that field itself. So a field that is
read here if it happens to be there could be the client's: whoever sends X-Real-IP through a gateway that does not
set it would choose whose key is counted. Hence every field that is read is needed, and none has a second choice: a
gateway that does not write one fails at its first honest request, with a sentence that says what to set, and not
silently at the first dishonest one. X-Real-IP, x-envoy-external-address and x-envoy-original-path are not read:
Caddy passes the first on as it came, and Envoy the others, unless it is at the edge.

Who writes what, and what an operator must set:
    nginx     nothing by itself. In the location of the sub-request:
                  proxy_set_header X-Original-Method $request_method;
                  proxy_set_header X-Original-URI    $request_uri;
                  proxy_set_header X-Original-Host   $host;
                  proxy_set_header X-Forwarded-For   $proxy_add_x_forwarded_for;
    Traefik   all four, always, over the client's. With trustForwardHeader it takes them from whoever the entry
              point's forwardedHeaders.trustedIPs trust: list proxies of yours there, and never set `insecure`.
              Its X-Forwarded-Uri has dots and double slashes taken out of the path
    Caddy     all four, always, over the client's; those of its trusted_proxies it keeps
    Envoy     X-Forwarded-For, if use_remote_address is true; otherwise it is the client's. And it sends the field
              here only if allowed_headers names it. For a client on loopback Envoy writes its own address

Envoy makes one line of fields that came in several, with commas: of two Cookie lines sid=1 and n=2 it says
sid=1,n=2, and a second line would make another session of the first. So a comma in Envoy's Cookie ends a cookie:
of a value that has one, only what stands before it is looked at; and a cookie that then has two values is refused.

The peer must be among the trusted proxies, or nothing that it says of others is believed.

Bytes. Fields come as they were sent. Of the path granian has read the escapes, with U+FFFD for what is not UTF-8:
of Envoy's clients, paths that differ only in bytes which are not UTF-8 are one path.

Laws (tests/service/test_forward_auth.py):
  - for any request, the attributes made of the sub-request are those of the request with the same address, but
    for the fields above;
  - no field that a client sends changes method, path, host or address behind a gateway that writes its own;
  - what cannot be believed or understood is NotForwarded, a sentence to the operator; nothing else is ever raised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from headgate.errors import InvalidCharge
from headgate.http.client_ip import Proxies
from headgate.rules.attributes import SHORT, Attributes, Raw, lower, request, text
from headgate.rules.matching.used_attributes import used
from headgate.rules.rule import Rulebook
from headgate.service.request_cache import LONG

Kind = Literal["auth_request", "forward_auth", "ext_authz"]


class NotForwarded(InvalidCharge):
    """A sub-request that does not say, or may not say, which request it is about. For the gateway's operator."""


_FOR = "x-forwarded-for"
_KINDS: dict[
    Kind, tuple[str, ...]
] = {  # who, which host, which method, which target; Envoy says the last two itself
    "auth_request": (_FOR, "x-original-host", "x-original-method", "x-original-uri"),
    "forward_auth": (_FOR, "x-forwarded-host", "x-forwarded-method", "x-forwarded-uri"),
    "ext_authz": (_FOR, "host"),
}
_READ = frozenset(field for fields in _KINDS.values() for field in fields)
_BETWEEN_PROXIES = frozenset(
    ("host", "x-real-ip", "via", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "connection")
)
_PREFIXES = ("x-original-", "x-forwarded-", "x-envoy-", "keep-alive", "proxy-connection")

_ADVICE: dict[Kind, str] = {
    "auth_request": "Where nginx asks, set proxy_set_header {};",
    "forward_auth": "Traefik's forwardAuth and Caddy's forward_auth write it: ask through one of these.",
    "ext_authz": "In Envoy, set use_remote_address: true, and allow ext_authz x-forwarded-for in allowed_headers.",
}
_SPELLED = {
    "x-original-method": ("X-Original-Method", "$request_method"),
    "x-original-uri": ("X-Original-URI", "$request_uri"),
    "x-original-host": ("X-Original-Host", "$host"),
    _FOR: ("X-Forwarded-For", "$proxy_add_x_forwarded_for"),
}


def forwarded(
    kind: Kind,
    method: str,
    path: str,
    query: str,
    headers: Sequence[tuple[Raw, Raw]],
    peer: str,
    proxies: Proxies,
) -> Attributes:
    """The attributes of the request that a gateway asks about. ``path``: without its escapes, and what follows our
    prefix; ``query``: as it came."""
    fields = _KINDS[kind]
    said: dict[str, str] = {}
    twice: str | None = None
    own: list[tuple[Raw, Raw]] = []
    for pair in headers:
        name = pair[0]
        field = _short_field(name) if len(name) < SHORT else _field(name)
        if field is None:
            own.append(pair)
        elif field in fields:
            if field not in said:
                said[field] = text(pair[1])
            elif field == _FOR:
                said[field] += "," + text(pair[1])
            else:
                twice = field
    address = proxies.behind(peer, said.get(_FOR))
    if address is None:
        raise NotForwarded(
            f'"{peer[:80]}" is not among the trusted proxies, so what it says of a client is not believed. '
            "If it is your gateway, add its network to them."
        )
    if twice is not None:
        raise NotForwarded(_sentence(kind, twice, "came twice, so one of them may be the client's"))
    for field in fields:
        # A request may lack a Host, and then the gateway's word for it is empty; the others never are.
        if not said.get(field) and (field not in said or field != fields[1]):
            raise NotForwarded(_sentence(kind, field, "is missing"))
    if kind == "ext_authz":
        target = _escaped(path) + ("?" + query if query else "")
        own = _cookies_apart(own)
    else:
        method, target = said[fields[2]], said[fields[3]]
    if not (host := said[fields[1]]):
        return request(method, target, own, address or None)
    return request(method, target, [*own, ("host", host)], address or None, host=host)


class Wanted:
    """Which fields of a sub-request matter under a rulebook: what is said of the client's request, and the
    client's own fields that a rule looks at. Two sub-requests that agree in these ask the same."""

    __slots__ = ("_book", "_names")

    def __init__(self) -> None:
        self._book: Rulebook | None = None
        self._names: frozenset[bytes] = frozenset()

    def words(
        self, book: Rulebook, headers: Sequence[tuple[bytes, bytes]]
    ) -> tuple[tuple[bytes, bytes], ...] | None:
        """Those fields, as they came; None if they are too long to be compared."""
        if book is not self._book:
            names = {name for rule in book.rules for name in used(rule)}
            own = {name[7:] for name in names if name.startswith("header.")}
            if any(name.startswith("cookie.") for name in names):
                own.add("cookie")
            self._names = frozenset(name.encode() for name in (*_READ, "host", *own))
            self._book = book
        wanted = self._names
        # A name with _ for - is as good as the other to a rule.
        found = tuple([pair for pair in headers if pair[0] in wanted or b"_" in pair[0]])
        return found if sum([len(value) for _, value in found]) <= LONG else None


def _field(name: Raw) -> str | None:
    """None if the field is the client's own; its name if a gateway may say something by it; otherwise empty.
    Names with _ for - are as good as the others to many servers, and are never a gateway's."""
    spelled = lower(text(name))
    folded = spelled.replace("_", "-")
    if folded in _BETWEEN_PROXIES or folded.startswith(_PREFIXES):
        return spelled if spelled in _READ else ""
    return None


_cookie_ends = re.compile("[;,]")
_short_field = lru_cache(maxsize=1024)(_field)


def _escaped(path: str) -> str:
    """A path that is read again, and then is what it was."""
    path = path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    return path if path.startswith("/") else "/" + path


def _cookies_apart(own: list[tuple[Raw, Raw]]) -> list[tuple[Raw, Raw]]:
    """The fields, with cookies told apart that Envoy ran together."""
    lines = [text(value) for name, value in own if len(name) == 6 and lower(text(name)) == "cookie"]
    if not any("," in line for line in lines):
        return own
    found: dict[str, str] = {}
    for pair in _cookie_ends.split(";".join(lines)):
        name, equals, value = (part.strip(" \t") for part in pair.partition("="))
        if equals and name and found.setdefault(name, value) != value:
            raise NotForwarded(
                "Envoy made one line of several cookies with commas, and one of them has two values: it cannot be "
                "told which the client sent first. Send each cookie once, and no comma in it."
            )
    rest = [pair for pair in own if len(pair[0]) != 6 or lower(text(pair[0])) != "cookie"]
    return [*rest, ("cookie", "; ".join(f"{name}={value}" for name, value in found.items()))]


def _sentence(kind: Kind, field: str, fault: str) -> str:
    name, variable = _SPELLED.get(field, (field.title(), ""))
    return f"{name} {fault}. {_ADVICE[kind].format(f'{name} {variable}')}"
