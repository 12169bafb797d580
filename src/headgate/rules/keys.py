"""Keys: the text under which a call is counted.

A rule names dimensions; the key has the value of each for this call:

    user=ada|address=203.0.113.0/24

In a value % is written %25, | is %7C, and a byte that is not UTF-8 is %XX. Without dimensions the key is `all`. An
address is counted by its network: IPv4 by the whole address and IPv6 by /64, because that is what one customer is
given, unless the dimension has other lengths.

Laws: two calls have the same key if and only if they agree in every dimension; and a key can be written as UTF-8,
whatever the client sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from headgate.errors import InvalidRule
from headgate.rules.attributes import parse_attribute_name
from headgate.rules.ip_networks import network_of

ALL = "all"

# Builds a key or a part of it; None: an attribute is missing.
KeyBuilder = Callable[[Mapping[str, str]], str | None]

_address_dimension = re.compile(r"address(?:/([0-9]{1,3}))?(?:/([0-9]{1,3}))?")


class Dimension(NamedTuple):
    """An attribute by which calls are counted separately; for an address, the prefix lengths of IPv4 and IPv6."""

    name: str
    v4: int | None = None
    v6: int | None = None

    @classmethod
    def parse(cls, text: str) -> Dimension:
        """Parses "user", "header.x-api-key", "address", "address/24" or "address/24/56"."""
        match = _address_dimension.fullmatch(text)
        if match is not None:
            v4, v6 = int(match[1] or 32), int(match[2] or 64)
            if 1 <= v4 <= 32 and 1 <= v6 <= 128:
                return cls("address", v4, v6)
        if match is not None or text.startswith("address/"):
            raise InvalidRule(
                f'"{text}" is no way to count addresses: write address, address/24 (bits of IPv4, 1 to 32) or '
                "address/24/56 (bits of IPv4 and of IPv6, 1 to 128)."
            )
        return cls(parse_attribute_name(text))

    def __str__(self) -> str:
        if self.v4 is None or (self.v4, self.v6) == (32, 64):
            return self.name
        return f"{self.name}/{self.v4}" if self.v6 == 64 else f"{self.name}/{self.v4}/{self.v6}"


def key_builder(dimensions: Sequence[Dimension], *, blank: bool) -> KeyBuilder:
    """Returns a function that builds keys of these dimensions.

    A missing attribute leaves its part blank (`blank`), or makes the key None.
    """
    if not dimensions:
        return lambda attributes: ALL
    return reduce(_join, [_part_builder(dimension, blank) for dimension in dimensions])


_escaped_characters = re.compile("[%|\ud800-\udfff]")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"%{code - 0xDC00:02X}"
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _join(first: KeyBuilder, second: KeyBuilder) -> KeyBuilder:
    def build(attributes: Mapping[str, str]) -> str | None:
        first_part, second_part = first(attributes), second(attributes)
        return None if first_part is None or second_part is None else f"{first_part}|{second_part}"

    return build


def _part_builder(dimension: Dimension, blank: bool) -> KeyBuilder:
    name, v4, v6 = dimension
    prefix = name + "="
    when_missing = prefix if blank else None
    if v4 is None or v6 is None:

        def build(attributes: Mapping[str, str]) -> str | None:
            value = attributes.get(name)
            if not value:
                return when_missing
            if value.isascii() and "%" not in value and "|" not in value:
                return prefix + value
            return prefix + _escaped_characters.sub(_escape, value)

        return build

    full_ipv4 = v4 == 32

    def build_address(attributes: Mapping[str, str]) -> str | None:
        address = attributes.get(name)
        if not address:
            return when_missing
        if full_ipv4 and ":" not in address and "%" not in address and "|" not in address:
            return prefix + address
        network = network_of(address, v4, v6)
        if network is not None:
            return prefix + network
        # In recorded traffic an address may be a hostname, which has no network and counts by itself.
        return when_missing if ":" in address else prefix + _escaped_characters.sub(_escape, address)

    return build_address
