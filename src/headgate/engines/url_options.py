"""The options of an engine, in its URL or as keywords of open_engine.

    redis://host:6379/0?deadline=50ms&fallback=local&denial_cache=on&prefetch=100ms&prefetch_units=500&nodes=4

    deadline         how long a decision may take: 1s, and 50ms where a fallback is chosen
    fallback         what happens when the engine gives no answer in time: allow, deny, or local
    denial_cache     on: a refusal is answered again here for at most min(retry_after, 1 s)
    prefetch         how long units of hot keys may be held ahead; prefetch_units bounds how many
    nodes            how many processes share the limits when the engine is gone, if that is known beforehand: each
                     has the rate divided by it, and at least one unit

These, in the URL only, choose how a server is reached:

    db                                           the database
    sentinel_username, sentinel_password         of redis+sentinel://: a login at the sentinels
    ssl_ca_certs, ssl_ca_path, ssl_ca_data       of rediss://: who signs the server's certificate
    ssl_cert_reqs, ssl_check_hostname            none: trust any certificate; off: any name in it
    ssl_certfile, ssl_keyfile, ssl_password      the client's certificate
    ssl_min_version, ssl_ciphers                 1.2 or 1.3; OpenSSL's list

nginx reads the same URLs (nginx/lib/resty/headgate/engines/redis/url.lua). Laws
(tests/nginx/engines/redis/test_url.py): an option takes effect or is refused, never ignored; what one of the two
refuses the other refuses as well, unless nginx has the setting elsewhere; no error message contains a part of a
login.

Each layer around an engine states its law in its own file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import parse_qsl, urlencode

from headgate.algorithms.limit import EXACT, HORIZON_US, SECOND, check_microseconds
from headgate.engines.url_schemes import MEMORY, fragment_error, is_tls, kind_of, scheme_of, unreadable_url
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse_span

FallbackMode = Literal["allow", "deny", "local"]
FALLBACKS: tuple[FallbackMode, ...] = get_args(FallbackMode)

DEFAULT_DEADLINE_S = 1.0  # deadline in seconds, where nothing else can answer
FALLBACK_DEADLINE_S = 0.05  # where something else can answer, or the answer is not needed

_SWITCH_WORDS = {
    "on": True,
    "1": True,
    "true": True,
    "yes": True,
    "off": False,
    "0": False,
    "false": False,
    "no": False,
}
_MAX_VALUES = {"nodes": 1_000_000, "prefetch_units": EXACT}
_TLS_VERSIONS = {"1.2": "771", "1.3": "772"}  # as redis-py reads them

_SENTINEL_NAMES = ("sentinel_username", "sentinel_password")
_TLS_NAMES = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_cert_reqs", "ssl_check_hostname"),
    *("ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_min_version", "ssl_ciphers"),
)

# Hints for names that other clients use, and for options that belong elsewhere.
_DEADLINE_HINT = "Write deadline=50ms: it bounds the whole of a decision."
_LOGIN_HINT = "Write them in front of the host: redis://user:password@host:6379/0."
_HINTS = {
    **dict.fromkeys(("timeout", "socket_timeout", "socket_connect_timeout", "connect_timeout"), _DEADLINE_HINT),
    "fail_open": "Write fallback=allow.",
    "fail_closed": "Write fallback=deny.",
    **dict.fromkeys(("cache", "memo"), "Write denial_cache=on."),
    "lease": "Write prefetch=100ms.",
    "lease_units": "Write prefetch_units=500.",
    **dict.fromkeys(("username", "user", "password"), _LOGIN_HINT),
    **dict.fromkeys(("ssl", "tls"), "Write rediss:// in place of redis://."),
}

_digits = re.compile(r"[0-9]{1,16}")


@dataclass(frozen=True)
class EngineOptions:
    """The options of the layers and the deadline. Times in seconds. None: not chosen."""

    deadline: float | None = None
    fallback: FallbackMode | None = None
    denial_cache: bool = False
    prefetch: float | None = None
    prefetch_units: int | None = None
    nodes: int | None = None

    def with_keywords(self, keywords: Mapping[str, Any]) -> EngineOptions:
        """Adds validated values by name; they replace those of the URL, except where they are None."""
        return replace(
            self, **{name: _validate(name, value) for name, value in keywords.items() if value is not None}
        )

    @property
    def hold_us(self) -> int | None:
        """Returns how long units may be held ahead, in microseconds."""
        return None if self.prefetch is None else round(self.prefetch * SECOND)

    @property
    def effective_deadline(self) -> float:
        """The deadline in seconds, chosen or not."""
        return (
            self.deadline
            if self.deadline is not None
            else FALLBACK_DEADLINE_S
            if self.fallback
            else DEFAULT_DEADLINE_S
        )


class EngineUrl(NamedTuple):
    """An engine's URL, parsed."""

    text: str  # as it was written
    server: str | None  # the URL of the server, without our options; None: memory://
    options: EngineOptions


_OPTION_NAMES = tuple(field.name for field in fields(EngineOptions))


def split_url_options(url: str) -> tuple[str, EngineOptions]:
    """Splits an engine's URL into the URL of the server and our options. InvalidRule if an option is unknown, is
    given twice, has no effect with this scheme, or has an invalid value."""
    scheme = scheme_of(url)
    server_url, _, query = url.partition("?")
    if scheme == MEMORY:
        if query:
            raise InvalidRule(
                "memory:// takes no options: it counts in this process, and answers at once. Write memory://."
            )
        if server_url != f"{MEMORY}://":
            raise InvalidRule("memory:// has nothing behind it: it counts in this process. Write memory://.")
        return server_url, EngineOptions()
    fragment_text = url.partition("#")[2]
    if "@" in fragment_text or "@" in query:  # an unescaped password: show no part of it
        raise unreadable_url(scheme)
    if "#" in url:
        raise fragment_error(scheme)
    options: dict[str, Any] = {}
    server_options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        _check_name(name, scheme)
        if name in options or name in server_options:
            raise InvalidRule(f"The engine's URL has {name} twice. Write it once.")
        if name in _OPTION_NAMES:
            options[name] = _validate(name, value)
        else:
            server_options[name] = _server_value(name, value)
    if ("ssl_certfile" in server_options) != ("ssl_keyfile" in server_options):
        raise InvalidRule("A certificate needs its key: write rediss://…?ssl_certfile=…&ssl_keyfile=…")
    if server_options.get("sentinel_username") and not server_options.get("sentinel_password"):
        raise InvalidRule("sentinel_username has no effect without sentinel_password. Write both.")
    return f"{server_url}?{urlencode(server_options)}" if server_options else server_url, EngineOptions(**options)


def split_rulebook_url(url: str) -> tuple[str, EngineOptions]:
    """Splits the URL of a limiter that follows a rulebook, where each rule chooses its own prefetch."""
    server_url, options = split_url_options(url)
    for name in ("prefetch", "prefetch_units"):
        if getattr(options, name) is not None:
            raise InvalidRule(
                f"The engine's URL has {name}, which a rulebook says rule by rule. Write prefetch: 100ms into the "
                "rule, or into defaults."
            )
    return server_url, options


def _check_name(name: str, scheme: str) -> None:
    kind = kind_of(scheme)
    allowed = (
        *_OPTION_NAMES,
        "db",
        *(_SENTINEL_NAMES if kind == "sentinel" else ()),
        *(_TLS_NAMES if is_tls(scheme) else ()),
    )
    if name in allowed:
        return
    for names, scheme_form in ((_SENTINEL_NAMES, "redis+sentinel://"), (_TLS_NAMES, "rediss://")):
        if name in names:
            raise InvalidRule(f'The engine\'s URL has "{name}", which belongs to {scheme_form}.')
    raise InvalidRule(
        f'The engine\'s URL has "{name[:40]}", which is no option. {_HINTS.get(name) or _suggest(name, allowed)}'
    )


def _suggest(name: str, allowed: tuple[str, ...]) -> str:
    close = get_close_matches(name.lower(), allowed, 1, 0.7)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(allowed)}."


def _validate(name: str, value: Any) -> Any:
    match name:
        case "deadline" | "prefetch":
            return _seconds(name, value)
        case "prefetch_units" | "nodes":
            return _integer(name, value)
        case "denial_cache":
            return _switch(name, value)
    if value not in FALLBACKS:
        raise InvalidRule(f"fallback is allow, deny or local, not {value!r}.")
    return value


def _seconds(name: str, value: Any) -> float:
    try:
        us = parse_span(value) if isinstance(value, str) else check_microseconds("A length of time", value)
    except InvalidRule as error:
        raise InvalidRule(f"{name}: {error}") from None
    if us > HORIZON_US:
        raise InvalidRule(f"{name} is longer than 366 days.")
    return us / SECOND


def _integer(name: str, value: Any) -> int:
    number = int(value) if not isinstance(value, bool) and _digits.fullmatch(str(value)) else 0
    if not 1 <= number <= _MAX_VALUES[name]:
        upper = "2^53" if _MAX_VALUES[name] == EXACT else f"{_MAX_VALUES[name]:,}"
        raise InvalidRule(f"{name} is a whole number from 1 to {upper}, not {value!r}.")
    return number


def _switch(name: str, value: Any) -> bool:
    enabled = value if isinstance(value, bool) else _SWITCH_WORDS.get(str(value).lower())
    if enabled is None:
        raise InvalidRule(f"{name} is on or off, not {value!r}.")
    return enabled


def _server_value(name: str, value: str) -> str:
    """Validates an option of the server's client, and returns it in the client's form."""
    match name:
        case "db":
            if not _digits.fullmatch(value):
                raise InvalidRule(f"db is the number of a database, not {value!r}. Write redis://host:6379/0.")
        case "ssl_cert_reqs":
            if value not in ("required", "none"):
                raise InvalidRule(
                    "ssl_cert_reqs is required or none. Write rediss://…?ssl_cert_reqs=none only where nobody can "
                    "listen."
                )
        case "ssl_check_hostname":
            return str(_switch(name, value))
        case "ssl_min_version":
            if value not in _TLS_VERSIONS:
                raise InvalidRule(
                    f"ssl_min_version is 1.2 or 1.3, not {value!r}. Write rediss://…?ssl_min_version=1.2"
                )
            return _TLS_VERSIONS[value]
    return value
