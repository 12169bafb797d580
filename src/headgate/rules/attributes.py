"""Attributes: what is known of a call, as texts under names, in one normal form.

    method, path, host, address, user, plan, server       the well-known ones
    header.x-plan, argument.q, cookie.sid                 parts of an HTTP request
    sku, tenant, ...                                      whatever else the caller knows

`request` makes them from what came over the wire; what it makes is known to be normal and is not looked at again.
Any other mapping is read by a `Reading`, which makes normal what a book uses. Bytes are read as UTF-8, and those
that are not UTF-8 are kept (as lone surrogates, which keys.py writes %XX). Case is folded in ASCII only, as every
proxy does.

Laws: two spellings of one request that a server must treat alike have the same attributes; nothing a client sends
is an error; and what was sent twice cannot hide what was sent first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Self
from urllib.parse import unquote_to_bytes

from headgate.errors import InvalidCharge, InvalidRule
from headgate.rules.ip_networks import canonical

WELL_KNOWN = ("method", "path", "host", "address", "user", "plan", "server")
PREFIXES = ("header.", "argument.", "cookie.")
SHORT = 128  # names and hosts that are remembered; so nobody fills memory with long ones

Raw = str | bytes
Headers = Mapping[Any, Any] | Iterable[tuple[Raw, Raw]]

_absolute = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?]*)")
_plain_name = re.compile(r"[a-z][a-z0-9_]*")
_part_name = re.compile(r"[^\s|%=\x00-\x1f\x7f]+")
_to_upper = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_to_lower = {code - 32: code for code in _to_upper}


class Attributes(dict[str, str]):
    """Attributes that are normal. What is set on them becomes so: None is left out, a number becomes text."""

    __slots__ = ()

    def __init__(self, *others: Any, **named: Any) -> None:
        super().__init__()
        self.update(*others, **named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        words = normal(name, value)
        if words or value == "":
            super().__setitem__(folded(name), words)
        else:
            self.pop(folded(name), None)

    def update(self, *others: Any, **named: Any) -> None:
        for name, value in dict(*others, **named).items():
            self[name] = value

    def __ior__(self, others: Any) -> Self:  # type: ignore[override, misc]
        self.update(others)
        return self

    def setdefault(self, name: str, value: Any = None) -> str:
        if folded(name) not in self:
            self[name] = value
        return self.get(folded(name), "")


class AttributeReader:
    """What some rules use of a mapping that anybody made, in normal form."""

    __slots__ = ("_how",)

    def __init__(self, names: Iterable[str]) -> None:
        self._how = {name: _SPECIAL.get(name) for name in names}

    def __call__(self, given: Mapping[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        how = self._how
        try:
            for name, value in given.items():
                if value is None:
                    continue
                if name in how:
                    words = value if type(value) is str else text(value)
                    special = how[name]
                    found[name] = words if special is None else special(words)
                elif "header." <= name < "header/":  # begins with header., and is text: nothing else compares
                    spelled = folded(name)
                    if spelled in how:
                        found.setdefault(spelled, text(value))
        except TypeError:
            for name in given:
                _check_name(name)
            raise
        return found


def request(
    method: Raw, target: Raw, headers: Headers = (), address: str | None = None, **others: Any
) -> Attributes:
    """The attributes of an HTTP request. Other names are the caller's: user="ada", plan="pro".

    A target that is a whole URL names the host, whatever the Host field says (RFC 9112, 3.2.2)."""
    found = Attributes.__new__(Attributes)
    authority, path, query = _split(text(target))
    put = super(Attributes, found).__setitem__  # all of this is normal already
    first = super(Attributes, found).setdefault
    put("method", upper(text(method)))
    put("path", normalize_path(_decoded(path)))
    host = ""
    for raw_name, raw_value in headers.items() if isinstance(headers, Mapping) else headers:
        name = _short_header(raw_name) if len(raw_name) < SHORT else _header(raw_name)
        value = text(raw_value).strip(" \t")
        if name == "header.host":
            host = host or value
        elif name == "header.cookie":
            _cookies(first, value)
        before = found.get(name)
        put(name, value if before is None else f"{before}, {value}")
    for pair in query.split("&") if query else ():
        name, _, value = pair.partition("=")
        if name:
            first("argument." + _argument(name), _argument(value))
    if host := authority.rpartition("@")[2] or host:
        found["host"] = host
    found["address"] = address
    if others:
        found.update(others)
    return found


def normal(name: str, value: Any) -> str:
    """A value of this name in normal form; empty if there is none."""
    words = "" if value is None else text(value)
    special = _SPECIAL.get(name)
    return words if special is None else special(words)


def text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value).lower() if isinstance(value, bool) else str(value)


def folded(name: str) -> str:
    """The name of an attribute as it is compared: header names in small letters, with - for _."""
    return _header(name[7:]) if name.startswith("header.") else name


def named(name: str) -> str:
    """The same for a name in a rulebook; InvalidRule if no attribute can be called so."""
    for prefix in PREFIXES:
        if name.startswith(prefix) and _part_name.fullmatch(name, len(prefix)):
            return folded(name)
    if not _plain_name.fullmatch(name):
        raise InvalidRule(
            f'"{name}" is no attribute: write {", ".join(WELL_KNOWN)}, header.NAME, argument.NAME, cookie.NAME, '
            "or a name of your own in small letters, such as tenant_id."
        )
    return name


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidCharge(f'The names of attributes are text, such as "user"; not {name!r}.')


def normalize_path(words: str) -> str:
    """A decoded path without empty segments and dots, however it was given."""
    if "/." not in words and "//" not in words and words[:1] == "/" and words[-1:] != "/":
        return words
    kept: list[str] = []
    for segment in words.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment and segment != ".":
            kept.append(segment)
    return "/" + "/".join(kept)


def segments(path: str) -> list[str]:
    """A path's segments; empty ones do not count."""
    return [segment for segment in path.split("/") if segment]


def normalize_host(words: str) -> str:
    """A host in small letters, without port and closing dots."""
    words = lower(words.strip(" \t"))
    if words.startswith("["):
        return words.partition("]")[0] + "]"
    return words.partition(":")[0].rstrip(". \t")


def upper(words: str) -> str:
    return words.upper() if words.isascii() else words.translate(_to_upper)


def lower(words: str) -> str:
    return words.lower() if words.isascii() else words.translate(_to_lower)


def _header(name: Raw) -> str:
    return "header." + lower(text(name)).replace("_", "-")


_short_header = lru_cache(maxsize=1024)(_header)


def _split(target: str) -> tuple[str, str, str]:
    """Authority, path and query of a target."""
    target = target.partition("#")[0]
    authority = ""
    if not target.startswith("/") and (found := _absolute.match(target)):
        authority, target = found[1], target[found.end() :]
    path, _, query = target.partition("?")
    return authority, path, query


def _decoded(words: str) -> str:
    """Percent-decoded once. What is no escape stays as it is."""
    if "%" not in words:
        return words
    try:
        raw = words.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = words.encode("utf-8", "surrogatepass")
    return unquote_to_bytes(raw).decode("utf-8", "surrogateescape")


def _argument(words: str) -> str:
    return _decoded(words.replace("+", " "))


def _cookies(first: Callable[[str, str], str], header: str) -> None:
    for pair in header.split(";"):
        name, equals, value = pair.partition("=")
        if equals and name.strip(" \t"):
            first("cookie." + name.strip(" \t"), value.strip(" \t"))


_short_host = lru_cache(maxsize=1024)(normalize_host)
_METHODS = {name: name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}
_SPECIAL: dict[str, Callable[[str], str]] = {
    "method": lambda words: _METHODS.get(words) or upper(words),
    "path": lambda words: normalize_path(words) if words else "",
    "host": lambda words: _short_host(words) if len(words) < SHORT else normalize_host(words),
    "address": lambda words: canonical(words) or "",
}
