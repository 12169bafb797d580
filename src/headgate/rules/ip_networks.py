"""Addresses of callers: read once, written in one way, and grouped by networks.

    ::ffff:192.0.2.7     is 192.0.2.7: the same caller, seen through a socket of both kinds
    fe80::1%eth0         is fe80::1: a zone is the host's own affair
    unix:, 10.0.0.1:80   are no addresses, and None

Law: two texts of the same address read the same, and what cannot be read is never an error: it is absent.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from headgate.errors import InvalidRule

V4, V6 = 32, 128  # bits of an address, and which kind it is
MAX_ADDRESS_LENGTH = 64  # an address with its zone; so nobody fills the caches with long texts

_mapped = ipaddress.IPv6Network("::ffff:0:0/96")


@lru_cache(maxsize=8192)
def parse_address(text: str) -> tuple[int, int] | None:
    """How many bits the address has, and their value."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.max_prefixlen, int(address)


def canonical(text: str) -> str | None:
    """The address as everybody writes it; None if it is none."""
    return _canonical(text) if len(text) <= MAX_ADDRESS_LENGTH else None


@lru_cache(maxsize=8192)
def _canonical(text: str) -> str | None:
    found = parse_address(text)
    return None if found is None else _written(*found)


@lru_cache(maxsize=8192)
def network_of(text: str, v4: int, v6: int) -> str | None:
    """The network of that many bits around the address; the address itself if it is counted whole."""
    found = parse_address(text)
    if found is None:
        return None
    bits, value = found
    length = v4 if bits == V4 else v6
    if length == bits:
        return _written(bits, value)
    return f"{_written(bits, value >> bits - length << bits - length)}/{length}"


class Networks:
    """Some networks; an address is in them or not."""

    __slots__ = ("_masks",)

    def __init__(self, texts: Sequence[str]) -> None:
        self._masks = {V4: [_mask(net) for net in map(_network, texts) if net.max_prefixlen == V4]}
        self._masks[V6] = [_mask(net) for net in map(_network, texts) if net.max_prefixlen == V6]

    def __contains__(self, text: str) -> bool:
        found = parse_address(text)
        if found is None:
            return False
        bits, value = found
        return any(value & mask == network for network, mask in self._masks[bits])


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(text: str) -> Network:
    address, _, length = text.partition("/")
    try:
        if "%" in text or ("/" in text and not length.isdecimal()):
            raise ValueError
        found: Network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidRule(f'"{text}" is no network: write 10.0.0.0/8, 192.0.2.7 or fd00::/8.') from None
    if parse_address(address) != parse_address(str(found.network_address)):
        raise InvalidRule(f'"{text}" has bits beyond its /{length}: write {found} for the network.')
    if isinstance(found, ipaddress.IPv6Network) and found.subnet_of(_mapped):
        inside = found.network_address.ipv4_mapped
        return ipaddress.ip_network(f"{inside}/{found.prefixlen - 96}")
    return found


def _mask(network: Network) -> tuple[int, int]:
    return int(network.network_address), int(network.netmask)


def _written(bits: int, value: int) -> str:
    return str(ipaddress.IPv4Address(value) if bits == V4 else ipaddress.IPv6Address(value))
