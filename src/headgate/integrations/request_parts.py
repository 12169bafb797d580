"""Reads the attributes that some rules use from a request of any framework.

A framework's file describes a request by RequestParts; a PartsReader computes those attributes that its rules use
and no others, so that a limit by address costs no parsing of cookies.

Law (tests/integrations/test_request_parts.py): what it reads is what headgate.rules.attributes.request reads,
restricted to the names in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from headgate.http.client_ip import FORWARDED, X_FORWARDED_FOR, Proxies
from headgate.integrations.shared_address import SharedAddressAlarm
from headgate.rules.attributes import (
    MAX_CACHED_LENGTH,
    PREFIXES,
    ROUTE_PREFIX,
    Attributes,
    Raw,
    normalize_name,
    request,
    to_text,
)

KEY_ATTRIBUTE = "key"  # what the key function of a limit in code returned
EMPTY: Mapping[str, Any] = {}
_OF_REQUEST = ("method", "path", "host", "address", "route", KEY_ATTRIBUTE)
_set = dict.__setitem__
_FORWARDING_FIELDS = {f"header.{X_FORWARDED_FOR}", f"header.{FORWARDED}"}
_FORWARDING_LENGTHS = {len(X_FORWARDED_FOR), len(FORWARDED)}  # most fields are told apart by that


class RequestParts:
    """A request, as a framework's file describes it.

    method, path, query   as they were sent: the path and the query still percent-encoded
    headers               pairs of names and values, texts or bytes
    peer                  the address of the other end of the connection; None if it has none
    native                the framework's own request, which functions of the application receive
    route, params         the route's template and path parameters; None and {} where they are not known yet
    root_path             the part of the path that led to the application, if it is mounted in another one
    """

    __slots__ = ("headers", "method", "native", "params", "path", "peer", "query", "root_path", "route")

    def __init__(
        self,
        method: str,
        path: Raw,
        query: Raw,
        headers: Iterable[tuple[Raw, Raw]],
        peer: str | None,
        native: Any,
        route: str | None = None,
        params: Mapping[str, Any] = EMPTY,
        root_path: str = "",
    ) -> None:
        self.method: str = method
        self.path: Raw = path
        self.query: Raw = query
        self.headers: Iterable[tuple[Raw, Raw]] = headers
        self.peer: str | None = peer
        self.native: Any = native
        self.route: str | None = route
        self.params: Mapping[str, Any] = params
        self.root_path: str = root_path

    def header(self, name: str) -> str | None:
        """Returns a header field, several lines joined by commas; None if there is none."""
        attribute = normalize_name(f"header.{name}")
        values = [
            to_text(value).strip(" \t") for raw, value in self.headers if _header_attribute(raw) == attribute
        ]
        return ", ".join(values) if values else None


def uses_route(names: Iterable[str]) -> bool:
    """Returns whether some of these attributes are known only once the route is: its template or parameters."""
    return any(name == "route" or name.startswith(ROUTE_PREFIX) for name in names)


class PartsReader:
    """Reads the attributes of these names from requests."""

    __slots__ = ("_address", "_alarm", "_fields", "_params", "_proxies", "_simple", "names", "unknown")

    def __init__(self, names: Iterable[str], proxies: Proxies, alarm: SharedAddressAlarm) -> None:
        self.names: frozenset[str] = frozenset(names)
        self.unknown: list[str] = [name for name in self.names if is_unknown(name)]
        self._proxies, self._alarm = proxies, alarm
        self._address = "address" in self.names
        self._params = [name for name in self.names if name.startswith(ROUTE_PREFIX)]
        # Anything else of the request needs its target or cookies taken apart, which attributes.request does.
        self._simple = not any(
            name in ("path", "host") or name.startswith(("argument.", "cookie.")) for name in self.names
        )
        self._fields = {name for name in self.names if name.startswith("header.")}

    def __call__(self, parts: RequestParts) -> Attributes:
        names, headers = self.names, parts.headers
        if self._simple:
            values = Attributes.__new__(Attributes)
            if "method" in names:
                values["method"] = parts.method
            if self._fields:
                for raw, value in headers:
                    name = _header_attribute(raw)
                    if name in self._fields:
                        text, first = to_text(value).strip(" \t"), values.get(name)
                        _set(values, name, text if first is None else f"{first}, {text}")
        else:
            target = to_text(parts.path) + (f"?{to_text(parts.query)}" if parts.query else "")
            values = request(parts.method, target, headers)
        if self._address:
            _set(values, "address", self.client(parts))
        if parts.route is not None and "route" in names:
            _set(values, "route", parts.route)
        for name in self._params:
            parameter = parts.params.get(name.removeprefix(ROUTE_PREFIX))
            if parameter is not None:
                values[name] = parameter
        return values

    def is_forwarded(self, parts: RequestParts) -> bool:
        """Returns whether a request has a field in which proxies name clients."""
        for raw, _ in parts.headers:
            if len(raw) in _FORWARDING_LENGTHS and _header_attribute(raw) in _FORWARDING_FIELDS:
                return True
        return False

    def client(self, parts: RequestParts) -> str:
        """Returns the address of the client, and notes a proxy that is not trusted."""
        client, untrusted = self.find_client(parts)
        if untrusted:
            self.note_untrusted(client)
        return client

    def note_untrusted(self, proxy: str) -> None:
        """Notes a request that names another client than the address that it is counted under."""
        self._alarm.note(proxy)

    def find_client(self, parts: RequestParts) -> tuple[str, bool]:
        """Returns the address of the client, and whether it may be a proxy that is not trusted."""
        wanted, line, forwarded = f"header.{self._proxies.field}", None, False
        for raw, value in parts.headers:
            if len(raw) in _FORWARDING_LENGTHS and (name := _header_attribute(raw)) in _FORWARDING_FIELDS:
                forwarded = True
                if name == wanted and "_" not in to_text(raw):  # x_forwarded_for is nobody's field but a client's
                    text = to_text(value)
                    line = text if line is None else f"{line}, {text}"
        peer = parts.peer or ""
        if not forwarded:
            return self._proxies.client(peer, None), False
        client = self._proxies.behind(peer, line)
        if client is not None:
            return client, False
        client = self._proxies.client(peer, None)
        return client, line is None or client not in line  # if it is there, the server itself has read the field


def is_unknown(attribute: str) -> bool:
    """Returns whether no request has this attribute: the application must supply it."""
    return attribute not in _OF_REQUEST and not attribute.startswith((*PREFIXES, ROUTE_PREFIX))


def _fold_header_name(raw: Raw) -> str:
    return normalize_name("header." + to_text(raw))


_cached_header_attribute = lru_cache(maxsize=1024)(_fold_header_name)


def _header_attribute(raw: Raw) -> str:
    return _cached_header_attribute(raw) if len(raw) < MAX_CACHED_LENGTH else _fold_header_name(raw)
