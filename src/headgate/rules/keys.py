"""Keys: the text that a call is counted under.

A rule names dimensions; the key says what each of them is for this call:

    user=ada|address=203.0.113.0/24

In a value % is written %25, | is %7C, and a byte that is not UTF-8 is %XX. Without dimensions the key is `all`. An
address is counted by its network: IPv4 whole and IPv6 by /64, because that is what one customer is given, unless
the dimension says otherwise.

Laws: two calls have the same key if and only if they agree in every dimension; and a key can be written as UTF-8,
whatever the client sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headgate.errors import InvalidRule
from headgate.rules.attributes import named
from headgate.rules.ip_networks import network_of

ALL = "all"

KeyBuilder = Callable[[Mapping[str, str]], str | None]  # the key, or its part; None: something is missing

_address = re.compile(r"address(?:/([0-9]{1,3}))?(?:/([0-9]{1,3}))?")


class Dimension(NamedTuple):
    """An attribute that tells counts apart; for an address, by how many bits of IPv4 and of IPv6."""

    name: str
    v4: int | None = None
    v6: int | None = None

    @classmethod
    def parse(cls, text: str) -> Dimension:
        """ "user", "header.x-api-key", "address", "address/24", "address/24/56"."""
        found = _address.fullmatch(text)
        if found is not None:
            v4, v6 = int(found[1] or 32), int(found[2] or 64)
            if 1 <= v4 <= 32 and 1 <= v6 <= 128:
                return cls("address", v4, v6)
        if found is not None or text.startswith("address/"):
            raise InvalidRule(
                f'"{text}" is no way to count addresses: write address, address/24 (bits of IPv4, 1 to 32) or '
                "address/24/56 (bits of IPv4 and of IPv6, 1 to 128)."
            )
        return cls(named(text))

    def __str__(self) -> str:
        if self.v4 is None or (self.v4, self.v6) == (32, 64):
            return self.name
        return f"{self.name}/{self.v4}" if self.v6 == 64 else f"{self.name}/{self.v4}/{self.v6}"


def key_builder(dimensions: Sequence[Dimension], *, blank: bool) -> KeyBuilder:
    """Forms the keys of these dimensions. What is missing is left blank, or leaves no key at all."""
    parts = [_part(dimension, blank) for dimension in dimensions]
    if not parts:
        return lambda attributes: ALL
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        return _pair(*parts)

    def form(attributes: Mapping[str, str]) -> str | None:
        formed = [part(attributes) for part in parts]
        return None if None in formed else "|".join(formed)  # type: ignore[arg-type]

    return form


_specials = re.compile("[%|\ud800-\udfff]")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"%{code - 0xDC00:02X}"
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _pair(first: KeyBuilder, second: KeyBuilder) -> KeyBuilder:
    def form(attributes: Mapping[str, str]) -> str | None:
        one, two = first(attributes), second(attributes)
        return None if one is None or two is None else f"{one}|{two}"

    return form


def _part(dimension: Dimension, blank: bool) -> KeyBuilder:
    name, v4, v6 = dimension
    head = name + "="
    nothing = head if blank else None
    if v4 is None or v6 is None:

        def form(attributes: Mapping[str, str]) -> str | None:
            value = attributes.get(name)
            if not value:
                return nothing
            if value.isascii() and "%" not in value and "|" not in value:
                return head + value
            return head + _specials.sub(_escape, value)

        return form

    whole = v4 == 32

    def form_address(attributes: Mapping[str, str]) -> str | None:
        address = attributes.get(name)
        if not address:
            return nothing
        if whole and ":" not in address:
            return head + address
        network = network_of(address, v4, v6)
        return nothing if network is None else head + network

    return form_address
