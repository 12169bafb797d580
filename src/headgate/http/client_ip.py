"""Finds the client's IP address behind trusted proxies, from the peer and X-Forwarded-For or Forwarded.

The peer is the other end of the connection; it cannot lie about its address. A trusted proxy appends its own peer
at the right end of X-Forwarded-For, and whatever is further left was there before:

    X-Forwarded-For: 6.6.6.6, 203.0.113.7, 10.0.0.2          peer 10.0.0.1, and 10.0.0.0/8 is trusted
                     |        |            what 10.0.0.1 saw: a proxy of ours, so go on
                     |        what 10.0.0.2 saw: none of ours, so it is the client
                     what the client claims: never used

So the list is read from the right, and the first address that is not a trusted proxy is the client. If all are
trusted, it is the left-most. A hop that is not an address ends the walk at the last good one, and so does the 64th
hop. Several lines of the field are one list: join them with commas, in order.

Forwarded (RFC 7239) is the same list in another form: for=203.0.113.7;proto=https, for="[2001:db8::1]:4711". A
proxy writes one of the two fields and passes the other on as the client sent it, so only the one that `field`
names is read. An element without `for`, or one that is hidden ("unknown", "_name") or malformed, ends the walk as
above. A quoted comma separates elements, too: no address has one, and so nothing that a client quotes can swallow
what a proxy adds.

"unix" in the list of trusted proxies means peers without an address, such as those of a socket file, and the
"unix:" that nginx writes for them. Ports and zones are dropped, and ::ffff:10.0.0.1 is 10.0.0.1.

Laws (tests/http/test_client_ip.py):
  - what an untrusted peer writes into the field changes nothing;
  - behind any chain of trusted proxies that each append their peer, the answer is the address of the first peer
    that is not trusted, whatever it sent: no client can make itself look like another address;
  - the answer is an address in canonical form, or empty if there is none; no input raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from headgate.errors import InvalidRule, InvalidSetting
from headgate.rules.ip_networks import Networks, canonical

UNIX = "unix"

_MAX_HOPS = 64  # of one list; so no client keeps a worker busy with commas
_MAX_CACHED_CHARS = 64  # longer lists and peers are not cached, so no client fills memory with them
_CACHE_SIZE = 4096

ForwardingField = Literal["x-forwarded-for", "forwarded"]
X_FORWARDED_FOR: ForwardingField = "x-forwarded-for"
FORWARDED: ForwardingField = "forwarded"

_address_with_port = re.compile(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([0-9.]+))(?::[0-9]{1,5})?")


_MAX_ELEMENT_CHARS = 512
_token = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_pair = rf'({_token})=(?:({_token})|"([^"\\]*)")'
_forwarded_pair = re.compile(_pair)
_forwarded_element = re.compile(rf"{_pair}(?:[ \t]*;[ \t]*{_pair})*;?")


class Proxies:
    """The networks that are trusted to name the client, and the field in which they do.

    >>> Proxies(["10.0.0.0/8"]).client("10.0.0.1", "6.6.6.6, 203.0.113.7, 10.0.0.2")
    '203.0.113.7'
    >>> Proxies(["10.0.0.0/8"], "forwarded").client("10.0.0.1", "for=6.6.6.6, for=203.0.113.7;proto=https")
    '203.0.113.7'
    """

    __slots__ = ("_address_of", "_cached_peer", "_cached_walk", "_networks", "_trusts_unix", "field")

    def __init__(self, networks: Iterable[str], field: ForwardingField = X_FORWARDED_FOR) -> None:
        if isinstance(networks, str):
            raise InvalidSetting(f'Trusted proxies are a list of networks, such as ["{networks}"]; not a text.')
        if field not in (X_FORWARDED_FOR, FORWARDED):
            raise InvalidSetting(
                f'"{field}" is no field that names clients: write "{X_FORWARDED_FOR}" or "{FORWARDED}".'
            )
        self.field: ForwardingField = field
        self._address_of = _address if field == X_FORWARDED_FOR else _forwarded_address
        texts = [text.strip() for text in networks]
        self._trusts_unix = UNIX in texts
        self._networks = Networks([_check_network(text) for text in texts if text != UNIX])
        self._cached_peer = lru_cache(_CACHE_SIZE)(self._parse_peer)
        self._cached_walk = lru_cache(_CACHE_SIZE)(self._walk)

    def client(self, peer: str, forwarded_for: str | None) -> str:
        """Returns the address of the client; empty if it has none.

        >>> Proxies(["10.0.0.0/8"]).client("192.0.2.7:4711", "6.6.6.6")
        '192.0.2.7'
        """
        address, trusted = self._cached_peer(_host(peer))
        return self._behind(address, forwarded_for) if trusted else address

    def behind(self, peer: str, forwarded_for: str | None) -> str | None:
        """Returns the address of the client if the peer is a trusted proxy, otherwise None.

        >>> proxies = Proxies(["10.0.0.0/8"])
        >>> proxies.behind("10.0.0.1", "203.0.113.7"), proxies.behind("192.0.2.7", "203.0.113.7")
        ('203.0.113.7', None)
        """
        address, trusted = self._cached_peer(_host(peer))
        return self._behind(address, forwarded_for) if trusted else None

    def _behind(self, address: str, forwarded_for: str | None) -> str:
        if not forwarded_for:
            return address
        walk = self._cached_walk if len(forwarded_for) <= _MAX_CACHED_CHARS else self._walk
        return walk(forwarded_for) or address

    def _parse_peer(self, host: str) -> tuple[str, bool]:
        address = canonical(host)
        return ("", self._trusts_unix) if address is None else (address, address in self._networks)

    def _walk(self, forwarded_for: str) -> str:
        """Walks the list from the right; returns empty if not even the first hop is an address."""
        client, end = "", len(forwarded_for)
        for _ in range(_MAX_HOPS):
            comma = forwarded_for.rfind(",", 0, end)
            hop = forwarded_for[comma + 1 : end].strip(" \t")
            address = self._address_of(hop)
            if address is not None:
                client = address
                if address not in self._networks:
                    break
            elif hop and not (self._trusts_unix and hop in ("unix:", UNIX)):
                break
            if comma < 0:
                break
            end = comma
        return client


def _address(hop: str) -> str | None:
    """Returns a hop without its port, in canonical form; None if it is not an address."""
    address = canonical(hop)
    if address is None and len(hop) <= _MAX_CACHED_CHARS and (match := _address_with_port.fullmatch(hop)):
        address = canonical(match[1] or match[2])
    return address


def _forwarded_address(element: str) -> str | None:
    """Returns the address in the `for` of an element of Forwarded; None if it has none, or two."""
    if len(element) > _MAX_ELEMENT_CHARS or not _forwarded_element.fullmatch(element):
        return None
    values = [bare or quoted for name, bare, quoted in _forwarded_pair.findall(element) if name.lower() == "for"]
    return _address(values[0]) if len(values) == 1 else None


def _host(peer: str) -> str:
    """Returns a peer without its port, which differs for every connection; empty if it is too long."""
    if len(peer) > _MAX_CACHED_CHARS:
        return ""
    if peer[:1] == "[":
        return peer[1:].partition("]")[0]
    host, _, port = peer.rpartition(":")
    return host if port.isdecimal() and host and ":" not in host else peer


_SUGGESTIONS = {
    "": '10.0.0.0/8, ::1, or "unix"',
    "*": "0.0.0.0/0 and ::/0, if anybody at all may say who the client is",
    "localhost": "127.0.0.0/8 and ::1",
    "private": "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 and fc00::/7",
    "unix:": UNIX,
    UNIX: UNIX,
}


def _check_network(text: str) -> str:
    try:
        Networks([text])
    except InvalidRule as error:
        suggestion = _SUGGESTIONS.get(text.lower()) or _address(text)
        reason = f'"{text}" is no network: write {suggestion}.' if suggestion else str(error)
        raise InvalidSetting(f"Of the trusted proxies: {reason}") from None
    return text
