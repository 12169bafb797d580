"""Finds the client's IP address behind trusted proxies, from the peer and X-Forwarded-For.

The peer is the other end of the connection; it cannot lie about its address. A trusted proxy appends its own peer
at the right end of X-Forwarded-For, and whatever is further left was there before:

    X-Forwarded-For: 6.6.6.6, 203.0.113.7, 10.0.0.2          peer 10.0.0.1, and 10.0.0.0/8 is trusted
                     |        |            what 10.0.0.1 saw: a proxy of ours, so go on
                     |        what 10.0.0.2 saw: none of ours, so it is the client
                     what the client claims: never used

So the list is read from the right, and the first address that is not a trusted proxy is the client. If all are
trusted, it is the left-most. A hop that is not an address ends the walk at the last good one, and so does the 64th
hop. Several lines of the field are one list: join them with commas, in order.

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

from headgate.errors import InvalidRule, InvalidSetting
from headgate.rules.ip_networks import Networks, canonical

UNIX = "unix"

_MAX_HOPS = 64  # of one list; so no client keeps a worker busy with commas
_MAX_CACHED_CHARS = 64  # longer lists and peers are not cached, so no client fills memory with them
_CACHE_SIZE = 4096

_address_with_port = re.compile(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([0-9.]+))(?::[0-9]{1,5})?")


class Proxies:
    """The networks that are trusted to name the client.

    >>> Proxies(["10.0.0.0/8"]).client("10.0.0.1", "6.6.6.6, 203.0.113.7, 10.0.0.2")
    '203.0.113.7'
    """

    __slots__ = ("_cached_peer", "_cached_walk", "_networks", "_trusts_unix")

    def __init__(self, networks: Iterable[str]) -> None:
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
        behind = self.behind(peer, forwarded_for)
        return self._cached_peer(_host(peer))[0] if behind is None else behind

    def behind(self, peer: str, forwarded_for: str | None) -> str | None:
        """Returns the address of the client if the peer is a trusted proxy, otherwise None.

        >>> proxies = Proxies(["10.0.0.0/8"])
        >>> proxies.behind("10.0.0.1", "203.0.113.7"), proxies.behind("192.0.2.7", "203.0.113.7")
        ('203.0.113.7', None)
        """
        address, trusted = self._cached_peer(_host(peer))
        if not trusted:
            return None
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
            address = _address(hop)
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
    "*": "0.0.0.0/0 and ::/0, if every peer is to be trusted",
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
        raise InvalidSetting(f"The trusted proxies: {reason}") from None
    return text
