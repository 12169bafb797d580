"""Whose call is it? The address of the client, behind proxies that may speak for it.

A peer is who holds the other end of the connection; it cannot lie about that. A proxy among the trusted ones
writes its own peer at the right end of X-Forwarded-For, and whatever stands further left was there before:

    X-Forwarded-For: 6.6.6.6, 203.0.113.7, 10.0.0.2          peer 10.0.0.1, and 10.0.0.0/8 is trusted
                     |        |            what 10.0.0.1 saw: a proxy of ours, so go on
                     |        what 10.0.0.2 saw: none of ours, so it is the client
                     what the client says: nobody asks

So the list is read from the right, and the first address that is no trusted proxy is the client. If all are
trusted it is the left-most. What is no address ends the walk at the last good one, and so does the 64th hop.
Several lines of the field are one list: join them with commas, in order.

"unix" among the trusted stands for peers without an address, such as those of a socket file, and for the "unix:"
that nginx writes for them. Ports and zones are left out, and ::ffff:10.0.0.1 is 10.0.0.1.

Laws (tests/http/test_client_ip.py):
  - what an untrusted peer writes into the field changes nothing;
  - behind any chain of trusted proxies that each append what they saw, the answer is the address of the first that
    is not trusted, whatever it sent: nothing that a client writes can make it look like another address;
  - the answer is an address in its one way of writing, or empty if there is none; nothing is ever an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from headgate.errors import InvalidRule, InvalidSetting
from headgate.rules.ip_networks import Networks, canonical

UNIX = "unix"

_HOPS = 64  # read of one list at most, so that nobody keeps a worker busy with commas
_SHORT = 64  # lists and peers that are remembered; so nobody fills memory with long ones
_REMEMBERED = 4096

_with_port = re.compile(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([0-9.]+))(?::[0-9]{1,5})?")


class Proxies:
    """The networks whose word is taken for who the client is.

    >>> Proxies(["10.0.0.0/8"]).client("10.0.0.1", "6.6.6.6, 203.0.113.7, 10.0.0.2")
    '203.0.113.7'
    """

    __slots__ = ("_networks", "_peer", "_short_walk", "_unix")

    def __init__(self, networks: Iterable[str]) -> None:
        texts = [text.strip() for text in networks]
        self._unix = UNIX in texts
        self._networks = Networks([_checked(text) for text in texts if text != UNIX])
        self._peer = lru_cache(_REMEMBERED)(self._read_peer)
        self._short_walk = lru_cache(_REMEMBERED)(self._walk)

    def client(self, peer: str, forwarded_for: str | None) -> str:
        """The address of the client; empty if it has none.

        >>> Proxies(["10.0.0.0/8"]).client("192.0.2.7:4711", "6.6.6.6")
        '192.0.2.7'
        """
        behind = self.behind(peer, forwarded_for)
        return self._peer(_host(peer))[0] if behind is None else behind

    def behind(self, peer: str, forwarded_for: str | None) -> str | None:
        """The address of the client, if the peer is trusted to speak for one; None if it is not.

        >>> proxies = Proxies(["10.0.0.0/8"])
        >>> proxies.behind("10.0.0.1", "203.0.113.7"), proxies.behind("192.0.2.7", "203.0.113.7")
        ('203.0.113.7', None)
        """
        address, trusted = self._peer(_host(peer))
        if not trusted:
            return None
        if not forwarded_for:
            return address
        walk = self._short_walk if len(forwarded_for) <= _SHORT else self._walk
        return walk(forwarded_for) or address

    def _read_peer(self, host: str) -> tuple[str, bool]:
        address = canonical(host)
        return ("", self._unix) if address is None else (address, address in self._networks)

    def _walk(self, forwarded_for: str) -> str:
        """From the right; empty if not even the first is an address."""
        found, end = "", len(forwarded_for)
        for _ in range(_HOPS):
            comma = forwarded_for.rfind(",", 0, end)
            hop = forwarded_for[comma + 1 : end].strip(" \t")
            address = _address(hop)
            if address is not None:
                found = address
                if address not in self._networks:
                    break
            elif hop and not (self._unix and hop in ("unix:", UNIX)):
                break
            if comma < 0:
                break
            end = comma
        return found


def _address(hop: str) -> str | None:
    """A hop without its port, in one way of writing; None if it is no address."""
    found = canonical(hop)
    if found is None and len(hop) <= _SHORT and (parts := _with_port.fullmatch(hop)):
        found = canonical(parts[1] or parts[2])
    return found


def _host(peer: str) -> str:
    """A peer without its port, which is another one for every connection. Anything long is no peer."""
    if len(peer) > _SHORT:
        return ""
    if peer[:1] == "[":
        return peer[1:].partition("]")[0]
    host, _, port = peer.rpartition(":")
    return host if port.isdecimal() and host and ":" not in host else peer


_MEANT = {
    "": '10.0.0.0/8, ::1, or "unix"',
    "*": "0.0.0.0/0 and ::/0, if anybody at all may say who the client is",
    "localhost": "127.0.0.0/8 and ::1",
    "private": "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 and fc00::/7",
    "unix:": UNIX,
    UNIX: UNIX,
}


def _checked(text: str) -> str:
    try:
        Networks([text])
    except InvalidRule as error:
        meant = _MEANT.get(text.lower()) or _address(text)
        reason = f'"{text}" is no network: write {meant}.' if meant else str(error)
        raise InvalidSetting(f"Of the trusted proxies: {reason}") from None
    return text
