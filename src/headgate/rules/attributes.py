"""Attributes: what is known about a call, as texts under names, in one normal form.

    method, path, host, address, user, plan, server       the well-known ones
    header.x-plan, argument.q, cookie.sid                 parts of an HTTP request
    route, param.id                                       in an application: the route's template and parameters
    sku, tenant, ...                                      any others that the caller passes

`request` makes them from an HTTP request; its result is in normal form and is not normalized again. For any other
mapping an `AttributeReader` normalizes the attributes that a book uses. Bytes are decoded as UTF-8, and bytes that
are not UTF-8 are kept (as lone surrogates, which keys.py writes as %XX). Case is folded in ASCII only, as proxies
do.

Laws: two spellings of one request that a server must treat alike have the same attributes; nothing that a client
sends is an error; and what was sent twice cannot hide what was sent first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Self
from urllib.parse import unquote_to_bytes

from headgate.errors import InvalidCharge, InvalidRule
from headgate.rules.ip_networks import canonical

STANDARD_ATTRIBUTES = ("method", "path", "host", "address", "user", "plan", "server")
PREFIXES = ("header.", "argument.", "cookie.")
ROUTE_PREFIX = "param."  # path parameters, which only an application knows
MAX_CACHED_LENGTH = 128  # longer names and hosts are not cached, so that clients cannot fill the memory

Raw = str | bytes
Headers = Mapping[Any, Any] | Iterable[tuple[Raw, Raw]]

_absolute_url = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?]*)")
_attribute_name = re.compile(r"[a-z][a-z0-9_]*")
_prefixed_name = re.compile(r"[^\s|%=\x00-\x1f\x7f]+")
_UPPER_TABLE = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_LOWER_TABLE = {code - 32: code for code in _UPPER_TABLE}


class Attributes(dict[str, str]):
    """Attributes in normal form. Setting a value normalizes it: None is left out, a number becomes text."""

    __slots__ = ()

    def __init__(self, *others: Any, **values: Any) -> None:
        super().__init__()
        self.update(*others, **values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        normalized = normalize_value(name, value)
        if normalized or value == "":
            super().__setitem__(normalize_name(name), normalized)
        else:
            self.pop(normalize_name(name), None)

    def update(self, *others: Any, **values: Any) -> None:
        for name, value in dict(*others, **values).items():
            self[name] = value

    def __ior__(self, others: Any) -> Self:  # type: ignore[override, misc]
        self.update(others)
        return self

    def setdefault(self, name: str, value: Any = None) -> str:
        if normalize_name(name) not in self:
            self[name] = value
        return self.get(normalize_name(name), "")


class AttributeReader:
    """Normalizes the attributes that some rules use, from any mapping."""

    __slots__ = ("_normalizers",)

    def __init__(self, names: Iterable[str]) -> None:
        self._normalizers = {name: _NORMALIZERS.get(name) for name in names}

    def __call__(self, attributes: Mapping[str, Any]) -> dict[str, str]:
        if not isinstance(attributes, Mapping):
            raise InvalidCharge(f'Attributes are a mapping such as {{"user": "ann"}}, not {attributes!r}.')
        normalized: dict[str, str] = {}
        normalizers = self._normalizers
        try:
            for name, value in attributes.items():
                if value is None:
                    continue
                if name in normalizers:
                    value_text = value if type(value) is str else to_text(value)
                    normalize = normalizers[name]
                    normalized[name] = value_text if normalize is None else normalize(value_text) or ""
                elif "header." <= name < "header/":  # starts with "header."; TypeError if it is no text
                    folded_name = normalize_name(name)
                    if folded_name in normalizers:
                        normalized.setdefault(folded_name, to_text(value))
        except TypeError:
            for name in attributes:
                _check_name(name)
            raise
        return normalized


def request(
    method: Raw, target: Raw, headers: Headers = (), address: str | None = None, **extra: Any
) -> Attributes:
    """Returns the attributes of an HTTP request. The caller adds others by name: user="ada", plan="pro".

    The host of an absolute URL takes precedence over the Host field (RFC 9112, 3.2.2).
    """
    attributes = Attributes.__new__(Attributes)
    authority, path, query = _split_target(to_text(target))
    put = super(Attributes, attributes).__setitem__  # the values below are in normal form already
    put_first = super(Attributes, attributes).setdefault
    put("method", ascii_upper(to_text(method)))
    put("path", normalize_path(_percent_decode(path)))
    host = ""
    for raw_name, raw_value in headers.items() if isinstance(headers, Mapping) else headers:
        name = (
            _cached_header_attribute(raw_name)
            if len(raw_name) < MAX_CACHED_LENGTH
            else _header_attribute(raw_name)
        )
        value = to_text(raw_value).strip(" \t")
        if name == "header.host":
            host = host or value
        elif name == "header.cookie":
            _add_cookies(put_first, value)
        existing = attributes.get(name)
        put(name, value if existing is None else f"{existing}, {value}")
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        if name:
            put_first("argument." + _decode_argument(name), _decode_argument(value))
    if host := authority.rpartition("@")[2] or host:
        attributes["host"] = host
    attributes["address"] = address
    if extra:
        attributes.update(extra)
    return attributes


def normalize_value(name: str, value: Any) -> str:
    """Returns a value of this name in normal form; an empty text if there is none."""
    value_text = "" if value is None else to_text(value)
    normalize = _NORMALIZERS.get(name)
    return value_text if normalize is None else normalize(value_text) or ""


def to_text(value: Any) -> str:
    """Returns a value as text: bytes decoded, booleans in lower case."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value).lower() if isinstance(value, bool) else str(value)


def normalize_name(name: str) -> str:
    """Normalizes the name of an attribute: header names in lower case, with - for _."""
    return _header_attribute(name[7:]) if name.startswith("header.") else name


def parse_attribute_name(name: str) -> str:
    """Checks and normalizes an attribute name of a rulebook; raises InvalidRule if it is invalid."""
    for prefix in (*PREFIXES, ROUTE_PREFIX):
        if name.startswith(prefix) and _prefixed_name.fullmatch(name, len(prefix)):
            return normalize_name(name)
    if not _attribute_name.fullmatch(name):
        raise InvalidRule(
            f'"{name}" is no attribute: write {", ".join(STANDARD_ATTRIBUTES)}, header.NAME, argument.NAME, '
            "cookie.NAME, param.NAME, or a name of your own in small letters, such as tenant_id."
        )
    return name


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidCharge(f'The names of attributes are text, such as "user"; not {name!r}.')


def normalize_path(path: str) -> str:
    """Removes empty segments and resolves dots in a decoded path."""
    if "/." not in path and "//" not in path and path[:1] == "/" and path[-1:] != "/":
        return path
    segments_left: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments_left[-1:]
        elif segment and segment != ".":
            segments_left.append(segment)
    return "/" + "/".join(segments_left)


def segments(path: str) -> list[str]:
    """Splits a path into its segments; empty ones do not count."""
    return [segment for segment in path.split("/") if segment]


def normalize_host(host: str) -> str:
    """Returns a host in lower case, without port and trailing dots."""
    host = ascii_lower(host.strip(" \t"))
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(". \t")


def ascii_upper(value: str) -> str:
    """Returns a text in upper case, ASCII letters only."""
    return value.upper() if value.isascii() else value.translate(_UPPER_TABLE)


def ascii_lower(value: str) -> str:
    """Returns a text in lower case, ASCII letters only."""
    return value.lower() if value.isascii() else value.translate(_LOWER_TABLE)


def _header_attribute(name: Raw) -> str:
    return "header." + ascii_lower(to_text(name)).replace("_", "-")


_cached_header_attribute = lru_cache(maxsize=1024)(_header_attribute)


def _split_target(target: str) -> tuple[str, str, str]:
    """Splits a request target into authority, path and query."""
    target = target.partition("#")[0]
    authority = ""
    if not target.startswith("/") and (scheme_match := _absolute_url.match(target)):
        authority, target = scheme_match[1], target[scheme_match.end() :]
    path, _, query = target.partition("?")
    return authority, path, query


def _percent_decode(encoded: str) -> str:
    """Decodes percent escapes once; invalid escapes stay as they are."""
    if "%" not in encoded:
        return encoded
    try:
        raw = encoded.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = encoded.encode("utf-8", "surrogatepass")
    return unquote_to_bytes(raw).decode("utf-8", "surrogateescape")


def _decode_argument(encoded: str) -> str:
    return _percent_decode(encoded.replace("+", " "))


def _add_cookies(put_first: Callable[[str, str], str], header: str) -> None:
    for pair in header.split(";"):
        name, equals, value = pair.partition("=")
        if equals and name.strip(" \t"):
            put_first("cookie." + name.strip(" \t"), value.strip(" \t"))


_cached_normalize_host = lru_cache(maxsize=1024)(normalize_host)
_METHODS = {name: name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}
_NORMALIZERS: dict[str, Callable[[str], str | None]] = {  # None: the value is no such thing, and is left out
    "method": lambda value: _METHODS.get(value) or ascii_upper(value),
    "path": lambda value: normalize_path(value) if value else "",
    "host": lambda value: (
        _cached_normalize_host(value) if len(value) < MAX_CACHED_LENGTH else normalize_host(value)
    ),
    "address": canonical,
}
