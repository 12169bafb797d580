"""The options of an engine, in its URL or as keywords of open_engine:

    redis://host:6379/0?deadline=50ms&fallback=local&denial_cache=on&prefetch=100ms&prefetch_units=500&nodes=4

    deadline         how long a decision may take: 1s, and 50ms where a fallback is chosen
    fallback         what is done when the engine gives no answer in time: allow, deny, or local
    denial_cache     on: a refusal is answered again here for at most min(retry_after, 1 s)
    prefetch         how long units of hot keys may be held ahead; prefetch_units bounds how many
    nodes            how many processes share the limits when the engine is gone, if that is known beforehand: each
                     has the rate divided by it, and at least one unit

and those that say how a server is reached, in the URL only:

    db                                           the database
    sentinel_username, sentinel_password         of redis+sentinel://: a login at the sentinels
    ssl_ca_certs, ssl_ca_path, ssl_ca_data       of rediss://: who signs the server's certificate
    ssl_cert_reqs, ssl_check_hostname            none: trust any certificate; off: any name in it
    ssl_certfile, ssl_keyfile, ssl_password      a certificate of our own
    ssl_min_version, ssl_ciphers                 1.2 or 1.3; OpenSSL's list

nginx reads the same URLs (nginx/lib/resty/headgate/engines/redis/url.lua). Laws
(tests/nginx/engines/redis/test_url.py): an option is in force or refused, never ignored; what one of the two
refuses the other refuses as well, unless nginx has the setting elsewhere; no sentence holds a part of a login.

Each engine around the engine states its law in its own file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, urlencode

from headgate.algorithms.limit import EXACT, HORIZON_US, SECOND, microseconds
from headgate.engines.url_schemes import MEMORY, fragment, is_tls, kind_of, scheme_of, unreadable
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse_span

Instead = Literal["allow", "deny", "local"]
FALLBACKS: tuple[Instead, ...] = get_args(Instead)

PATIENT = 1.0  # seconds that an answer is waited for
PROMPT = 0.05  # where something else can answer, or nobody needs it

_SWITCH = {"on": True, "1": True, "true": True, "yes": True, "off": False, "0": False, "false": False, "no": False}
_MOST = {"nodes": 1_000_000, "prefetch_units": EXACT}
_TLS_VERSIONS = {"1.2": "771", "1.3": "772"}  # as redis-py reads them

_SENTINEL = ("sentinel_username", "sentinel_password")
_TLS = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_cert_reqs", "ssl_check_hostname"),
    *("ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_min_version", "ssl_ciphers"),
)

# Hints for names that other clients use, and for options that are written elsewhere.
_DEADLINE = "Write deadline=50ms: it bounds the whole of a decision."
_LOGIN = "Write them in front of the host: redis://user:password@host:6379/0."
_INSTEAD = {
    **dict.fromkeys(("timeout", "socket_timeout", "socket_connect_timeout", "connect_timeout"), _DEADLINE),
    "fail_open": "Write fallback=allow.",
    "fail_closed": "Write fallback=deny.",
    **dict.fromkeys(("cache", "memo"), "Write denial_cache=on."),
    "lease": "Write prefetch=100ms.",
    "lease_units": "Write prefetch_units=500.",
    **dict.fromkeys(("username", "user", "password"), _LOGIN),
    **dict.fromkeys(("ssl", "tls"), "Write rediss:// in place of redis://."),
}

_digits = re.compile(r"[0-9]{1,16}")


@dataclass(frozen=True)
class Options:
    """Times in seconds. None: not chosen."""

    deadline: float | None = None
    fallback: Instead | None = None
    denial_cache: bool = False
    prefetch: float | None = None
    prefetch_units: int | None = None
    nodes: int | None = None

    def with_given(self, given: Mapping[str, Any]) -> Options:
        """Add values by name, checked; they replace what the URL said, and None does not."""
        return replace(self, **{name: _checked(name, value) for name, value in given.items() if value is not None})

    @property
    def hold_us(self) -> int | None:
        """How long units may be held ahead."""
        return None if self.prefetch is None else round(self.prefetch * SECOND)

    @property
    def patience(self) -> float:
        """The deadline, chosen or not."""
        return self.deadline if self.deadline is not None else PROMPT if self.fallback else PATIENT


_NAMES = tuple(field.name for field in fields(Options))


def split(url: str) -> tuple[str, Options]:
    """Take our options out of an engine's URL: the URL of the server, and them. InvalidRule if one is not known,
    is given twice, has no effect with this scheme, or cannot be what it says."""
    scheme = scheme_of(url)
    plain, _, query = url.partition("?")
    if scheme == MEMORY:
        if query:
            raise InvalidRule(
                "memory:// takes no options: it counts in this process, and answers at once. Write memory://."
            )
        if plain != f"{MEMORY}://":
            raise InvalidRule("memory:// has nothing behind it: it counts in this process. Write memory://.")
        return plain, Options()
    behind = url.partition("#")[2]
    if "@" in behind or "@" in query:  # a password whose special characters are not escaped: name no part of it
        raise unreadable(scheme)
    if "#" in url:
        raise fragment(scheme)
    ours: dict[str, Any] = {}
    rest: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        _check_name(name, scheme)
        if name in ours or name in rest:
            raise InvalidRule(f"The engine's URL has {name} twice. Write it once.")
        if name in _NAMES:
            ours[name] = _checked(name, value)
        else:
            rest[name] = _server_value(name, value)
    if ("ssl_certfile" in rest) != ("ssl_keyfile" in rest):
        raise InvalidRule("A certificate needs its key: write rediss://…?ssl_certfile=…&ssl_keyfile=…")
    if rest.get("sentinel_username") and not rest.get("sentinel_password"):
        raise InvalidRule("sentinel_username has no effect without sentinel_password. Write both.")
    return f"{plain}?{urlencode(rest)}" if rest else plain, Options(**ours)


def split_for_rulebook(url: str) -> tuple[str, Options]:
    """The same for a limiter that follows a rulebook, where each rule says whether its units are fetched ahead."""
    plain, chosen = split(url)
    for name in ("prefetch", "prefetch_units"):
        if getattr(chosen, name) is not None:
            raise InvalidRule(
                f"The engine's URL has {name}, which a rulebook says rule by rule. Write prefetch: 100ms into the "
                "rule, or into defaults."
            )
    return plain, chosen


def _check_name(name: str, scheme: str) -> None:
    kind = kind_of(scheme)
    known = (*_NAMES, "db", *(_SENTINEL if kind == "sentinel" else ()), *(_TLS if is_tls(scheme) else ()))
    if name in known:
        return
    for others, where in ((_SENTINEL, "redis+sentinel://"), (_TLS, "rediss://")):
        if name in others:
            raise InvalidRule(f'The engine\'s URL has "{name}", which belongs to {where}.')
    raise InvalidRule(
        f'The engine\'s URL has "{name[:40]}", which is no option. {_INSTEAD.get(name) or _nearest(name, known)}'
    )


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(name.lower(), known, 1, 0.7)
    return f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."


def _checked(name: str, value: Any) -> Any:
    match name:
        case "deadline" | "prefetch":
            return _seconds(name, value)
        case "prefetch_units" | "nodes":
            return _whole(name, value)
        case "denial_cache":
            return _switch(name, value)
    if value not in FALLBACKS:
        raise InvalidRule(f"fallback is allow, deny or local, not {value!r}.")
    return value


def _seconds(name: str, value: Any) -> float:
    try:
        us = parse_span(value) if isinstance(value, str) else microseconds("A length of time", value)
    except InvalidRule as error:
        raise InvalidRule(f"{name}: {error}") from None
    if us > HORIZON_US:
        raise InvalidRule(f"{name} is longer than 366 days.")
    return us / SECOND


def _whole(name: str, value: Any) -> int:
    found = int(value) if not isinstance(value, bool) and _digits.fullmatch(str(value)) else 0
    if not 1 <= found <= _MOST[name]:
        upper = "2^53" if _MOST[name] == EXACT else f"{_MOST[name]:,}"
        raise InvalidRule(f"{name} is a whole number from 1 to {upper}, not {value!r}.")
    return found


def _switch(name: str, value: Any) -> bool:
    found = value if isinstance(value, bool) else _SWITCH.get(str(value).lower())
    if found is None:
        raise InvalidRule(f"{name} is on or off, not {value!r}.")
    return found


def _server_value(name: str, value: str) -> str:
    """Check what is said to the server's client, and write it as that reads it."""
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
