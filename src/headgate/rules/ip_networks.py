"""Client addresses: parsed once, written in canonical form, and grouped by networks.

    ::ffff:192.0.2.7     is 192.0.2.7: the same client, through a dual-stack socket
    fe80::1%eth0         is fe80::1: a zone has a meaning on one host only
    unix:, 10.0.0.1:80   are no addresses: None

Law: two texts of the same address parse to the same value; an invalid address is never an error, it is absent.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from headgate.errors import InvalidRule

V4, V6 = 32, 128  # bits of an address; they also identify the IP version
MAX_ADDRESS_LENGTH = 64  # characters, with the zone; keeps long texts out of the caches

_IPV4_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


@lru_cache(maxsize=8192)
def parse_address(text: str) -> tuple[int, int] | None:
    """Returns the number of bits of the address, and their value; None if the text is no address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.max_prefixlen, int(address)


def canonical(text: str) -> str | None:
    """Returns the address in canonical form; None if the text is no address."""
    return _canonical(text) if len(text) <= MAX_ADDRESS_LENGTH else None


@lru_cache(maxsize=8192)
def _canonical(text: str) -> str | None:
    address = parse_address(text)
    return None if address is None else _format_address(*address)


@lru_cache(maxsize=8192)
def network_of(text: str, v4: int, v6: int) -> str | None:
    """Returns the network of that many bits that holds the address; the address itself if all bits count."""
    address = parse_address(text)
    if address is None:
        return None
    bits, value = address
    length = v4 if bits == V4 else v6
    if length == bits:
        return _format_address(bits, value)
    return f"{_format_address(bits, value >> bits - length << bits - length)}/{length}"


class Networks:
    """A set of networks: `address in networks`."""

    __slots__ = ("_masks",)

    def __init__(self, texts: Sequence[str]) -> None:
        self._masks = {
            V4: [_network_and_mask(net) for net in map(_parse_network, texts) if net.max_prefixlen == V4]
        }
        self._masks[V6] = [_network_and_mask(net) for net in map(_parse_network, texts) if net.max_prefixlen == V6]

    def __contains__(self, text: str) -> bool:
        address = parse_address(text)
        if address is None:
            return False
        bits, value = address
        return any(value & mask == network for network, mask in self._masks[bits])


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _parse_network(text: str) -> Network:
    address, _, length = text.partition("/")
    try:
        if "%" in text or ("/" in text and not length.isdecimal()):
            raise ValueError
        network: Network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidRule(f'"{text}" is no network: write 10.0.0.0/8, 192.0.2.7 or fd00::/8.') from None
    if parse_address(address) != parse_address(str(network.network_address)):
        raise InvalidRule(f'"{text}" has bits beyond its /{length}: write {network} for the network.')
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_IPV4_MAPPED):
        ipv4_address = network.network_address.ipv4_mapped
        return ipaddress.ip_network(f"{ipv4_address}/{network.prefixlen - 96}")
    return network


def _network_and_mask(network: Network) -> tuple[int, int]:
    return int(network.network_address), int(network.netmask)


def _format_address(bits: int, value: int) -> str:
    return str(ipaddress.IPv4Address(value) if bits == V4 else ipaddress.IPv6Address(value))
