"""Replaces keys, and the attributes that they are made of, by hashes.

A hash is the first 16 hexadecimal digits of an HMAC-SHA-256 with the salt, behind `h-`. Equal values have equal
hashes under one salt, so counts by key, and a replay, stay what they are. An address is hashed by the network that
rules count it by (the narrowest, if rules differ): IPv6 by /64 unless a rule says otherwise.

Whoever has the salt can find out an address by trying all of them: keep it as a secret.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from headgate.rules.keys import Dimension, key_builder
from headgate.rules.rule import Rule

HASH_PREFIX = "h-"
HASH_DIGITS = 16
_CACHED_VALUES = 4096


class KeyHasher:
    """Hashes values of attributes with a salt: equal values get equal hashes."""

    def __init__(self, salt: str) -> None:
        self._salt = salt.encode()
        self.hash: Callable[[str], str] = lru_cache(maxsize=_CACHED_VALUES)(self._hash)

    def _hash(self, value: str) -> str:
        digest = hmac.digest(self._salt, value.encode("utf-8", "surrogatepass"), "sha256")
        return HASH_PREFIX + digest.hex()[:HASH_DIGITS]

    def rule_key(self, key: str) -> str:
        """Hashes the value of each dimension of a rule's key; `all` stays what it is."""
        parts = [part.partition("=") for part in key.split("|")]
        return "|".join(name + equals + (self.hash(value) if value else "") for name, equals, value in parts)

    def attributes(self, attributes: Mapping[str, str], hashed: Mapping[str, Dimension]) -> dict[str, str]:
        """Hashes the attributes that rules count by."""
        return {
            name: self.hash(counted_value(hashed[name], value)) if name in hashed and value else value
            for name, value in attributes.items()
        }


def counted_value(dimension: Dimension, value: str) -> str:
    """Returns a value as keys have it: an address as its network, any other escaped.

    >>> counted_value(Dimension.parse("address"), "2001:db8::1")
    '2001:db8::/64'
    """
    return (key_builder((dimension,), blank=True)({dimension.name: value}) or "").partition("=")[2]


def counted_dimensions(rules: Iterable[Rule]) -> dict[str, Dimension]:
    """Returns the dimensions of all keys of the rules, by name.

    If rules group addresses by networks of different sizes, the dimension has the smallest network.
    """
    dimensions: dict[str, Dimension] = {}
    for rule in rules:
        for dimension in rule.key:
            previous = dimensions.get(dimension.name)
            if previous is None or previous.v4 is None or dimension.v4 is None or previous.v6 is None:
                dimensions[dimension.name] = dimension
            else:
                dimensions[dimension.name] = Dimension(
                    dimension.name, max(previous.v4, dimension.v4), max(previous.v6, dimension.v6 or 0)
                )
    return dimensions
