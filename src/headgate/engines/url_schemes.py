"""The schemes of engine URLs, and the errors for URLs that cannot be read.

Law (tests/engines/redis/test_topology.py): no error message contains a part of a login.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Literal

from headgate.errors import InvalidRule

Kind = Literal["memory", "one", "unix", "cluster", "sentinel"]

MEMORY = "memory"
_ONE = ("redis", "rediss", "valkey", "valkeys")
_UNIX = ("unix", "redis+unix", "valkey+unix")
_KINDS: dict[str, Kind] = {
    MEMORY: "memory",
    **dict.fromkeys(_ONE, "one"),
    **dict.fromkeys(_UNIX, "unix"),
    **{f"{scheme}+cluster": "cluster" for scheme in _ONE},
    **{f"{scheme}+sentinel": "sentinel" for scheme in _ONE},
}
URL_EXAMPLES: dict[Kind, str] = {
    "one": "user:password@host:6379/0",
    "unix": "user:password@/path/to.sock?db=0",
    "cluster": "user:password@host:6379,host:6380",
    "sentinel": "user:password@host:26379,host:26379/name-of-the-master/0",
}

_scheme_chars = re.compile(r"[A-Za-z0-9+.-]*")
_host = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]]*)(?::(?P<port>[^:\[\]]*))?")
_digits = re.compile(r"[0-9]+")
_port = re.compile(r"0*[0-9]{1,5}")
_host_port = re.compile(r"[A-Za-z0-9._-]+:[0-9]+(?:/[0-9]+)?")


def scheme_of(url: object) -> str:
    """Returns the scheme of an engine's URL; InvalidRule shows what a URL looks like."""
    if not isinstance(url, str):
        raise InvalidRule(f"An engine's URL is a text such as redis://host:6379/0, not a {type(url).__name__}.")
    scheme, colon, _ = url.partition("://")
    if not colon or not _scheme_chars.fullmatch(scheme):
        address = url.rpartition("@")[2].partition("?")[0]
        form = f"redis://{address}" if _host_port.fullmatch(address) else "redis://host:6379/0"
        raise InvalidRule(f'"{address[:80]}" is not an engine URL. Write {form}, or memory://.')
    if scheme not in _KINDS:
        close = get_close_matches(scheme, _KINDS, 1)
        hint = f"Did you mean {close[0]}://?" if close else f"Known: {', '.join(_KINDS)}."
        raise InvalidRule(f"{scheme}://… is not an engine URL. Write redis://host:6379/0, or memory://. {hint}")
    return scheme


def kind_of(scheme: str) -> Kind:
    """Returns what kind of engine a scheme leads to."""
    return _KINDS[scheme]


def is_tls(scheme: str) -> bool:
    """Returns whether connections are encrypted."""
    return scheme.partition("+")[0] in ("rediss", "valkeys")


def unreadable_url(scheme: str, why: str = "") -> InvalidRule:
    """Returns the error for a URL that cannot be split into its parts. `why` must not contain a part of the
    URL."""
    return InvalidRule(
        f"The engine's URL {scheme}://… cannot be read{why}. Write {scheme}://{URL_EXAMPLES[kind_of(scheme)]}, "
        "with / and other special characters of the password as %2F and so on."
    )


def check_hosts_and_path(url: str) -> None:
    """Refuses a URL whose hosts or path cannot be read. The error names the part and shows none of it."""
    scheme = scheme_of(url)
    kind = kind_of(scheme)
    rest = url.partition("://")[2]
    end = authority_end(rest)
    path = rest[end:].partition("?")[0].partition("#")[0]
    if "@" in path:
        raise unreadable_url(scheme)
    authority = rest[:end].rpartition("@")[2]
    if kind == "unix":
        if authority or not path:
            raise _refusal(scheme, "The engine's URL {} needs the path of a socket, which begins with /.")
        return
    hosts = authority.split(",")
    if kind == "one" and len(hosts) > 1:
        raise InvalidRule(
            f"{scheme}:// is one server, and this URL has several hosts. "
            f"Write {scheme}+cluster://{URL_EXAMPLES['cluster']} or {scheme}+sentinel://{URL_EXAMPLES['sentinel']}."
        )
    for host in hosts:
        _check_host(scheme, host)
    database = path.strip("/") or "0"
    if kind == "one" and not _digits.fullmatch(database):
        raise _refusal(scheme, "The path of the engine's URL {} is not the number of a database.")
    if kind == "cluster" and database.strip("0"):
        raise cluster_database_error(scheme)


def cluster_database_error(scheme: str) -> InvalidRule:
    """Returns the error for a cluster's URL that names a database."""
    return InvalidRule(f"A cluster has no database but 0: write {scheme}://host:6379 without a number.")


def fragment_error(scheme: str) -> InvalidRule:
    """Returns the error for a URL that goes on after a #."""
    return InvalidRule(
        f"The engine's URL {scheme}://… has a # and something behind it. Leave it out, or write # in a password "
        f"as %23: {scheme}://{URL_EXAMPLES[kind_of(scheme)]}."
    )


def authority_end(rest: str) -> int:
    """Returns where the hosts end. urlsplit refuses several hosts of which one is in brackets, since Python
    3.11.12."""
    return min((rest.index(mark) for mark in "/?#" if mark in rest), default=len(rest))


def _check_host(scheme: str, host: str) -> None:
    match = _host.fullmatch(host)
    if not match:
        raise _refusal(
            scheme, "The host in the engine's URL {} cannot be read.", ", an IPv6 address in brackets: [::1]"
        )
    if not match["host"] and kind_of(scheme) != "one":
        raise _refusal(scheme, "The engine's URL {} lacks a host.")
    port = match["port"] or "6379"
    if not _port.fullmatch(port) or not 0 < int(port) < 65_536:
        raise _refusal(scheme, "The port in the engine's URL {} is not a number from 1 to 65535.")


def _refusal(scheme: str, sentence: str, suffix: str = "") -> InvalidRule:
    return InvalidRule(
        f"{sentence.format(f'{scheme}://…')} Write {scheme}://{URL_EXAMPLES[kind_of(scheme)]}{suffix}."
    )
