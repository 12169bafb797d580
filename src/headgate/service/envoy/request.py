"""Parses a RateLimitRequest: the attributes, hits and limit of each of its descriptors.

Every descriptor is one check. Its entries become attributes, named as the importer of the reference service's
files names them, and so does the domain; so these files and rules of our own are served alike:

    domain: edge                                  domain = edge
    entries: [{remote_address, 192.0.2.7},        remote_address = address = 192.0.2.7
              {:path, /a%20b?c=1},                descriptor_path = /a%20b?c=1, path = /a b
              {generic_key, buy}, {generic_key, sell}]      generic_key = buy, generic_key_2 = sell
                                                  descriptor = remote_address/:path/generic_key/generic_key

An entry that is clearly the call's path, method, host or address becomes that attribute as well, in our normal
form; an entry that names it explicitly takes precedence. To the reference service entries are steps on a way, so a
key may come twice and both count. Attributes have a name once: the second is called key_2, and nothing is lost.
What the names of attributes do not keep (the order of entries, the case of their keys) is in `descriptor`.

Hits. A descriptor's own hits, or the request's, or 1. No hits at all are a peek, which passes if anything is left.
Negative hits give back, as far as something is counted, and always pass.

A limit in the descriptor decides instead of the rules, in windows like those of the reference service (a month is
30 days), under a counter of these entries in this domain and this unit. With 0 requests per unit none ever pass:
each call costs two where one may pass.

A request that is too large raises InvalidCharge with a sentence, and nothing is charged.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import EXACT
from headgate.enforcement.check_together import BatchedCall
from headgate.errors import InvalidCharge
from headgate.rules.attributes import MAX_CACHED_LENGTH, request
from headgate.rules.imports.envoy_ratelimit import attribute_names, descriptor_attribute, joined_keys
from headgate.rules.imports.rulebook_draft import attribute_name

MAX_DESCRIPTORS = 100
MAX_ENTRIES = 100
MAX_TEXT_CHARS = 8192  # of a key, a value, a domain

DAY_S = 24 * 60 * 60
# By Envoy's numbers: the name and its seconds, as in the reference service.
UNITS = {
    1: ("second", 1),
    2: ("minute", 60),
    3: ("hour", 60 * 60),
    4: ("day", DAY_S),
    5: ("month", 30 * DAY_S),
    6: ("year", 365 * DAY_S),
    7: ("week", 7 * DAY_S),
}
# The attribute of the call that an entry is as well, and whether it names it explicitly.
_EXPLICIT = {name: (name, True) for name in ("method", "path", "host", "address")}
_CALL_ATTRIBUTES = {**_EXPLICIT, "remote_address": ("address", False), "authority": ("host", False)}


class Entry(NamedTuple):
    """A key and its value, as in a descriptor."""

    key: str
    value: str


class DescriptorCheck(NamedTuple):
    """One descriptor: the check that it asks for, and how its status is written."""

    call: BatchedCall
    hits: int
    is_refund: bool = False  # negative hits
    override: tuple[int, int] | None = None  # requests per unit, and Envoy's number of the unit


def parse_descriptors(request: Any) -> list[DescriptorCheck]:
    """Returns the checks of a RateLimitRequest, descriptor by descriptor."""
    domain, descriptors = request.domain, request.descriptors
    if not domain or len(domain) > MAX_TEXT_CHARS:
        raise InvalidCharge(
            f"The domain is longer than {MAX_TEXT_CHARS} letters: shorten it."
            if domain
            else "The domain is empty: set `domain` in Envoy's rate limit filter."
        )
    if not 0 < len(descriptors) <= MAX_DESCRIPTORS:
        raise InvalidCharge(f"A request has 1 to {MAX_DESCRIPTORS} descriptors, not {len(descriptors)}.")
    default_hits = request.hits_addend or 1
    return [_parse_descriptor(domain, descriptor, default_hits) for descriptor in descriptors]


def _parse_descriptor(domain: str, descriptor: Any, default_hits: int) -> DescriptorCheck:
    hits = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else default_hits
    if hits > EXACT:
        raise InvalidCharge(f"hits_addend may be at most 2^53, not {hits}.")
    is_refund = descriptor.is_negative_hits
    attributes = attributes_of(domain, descriptor.entries)
    if not descriptor.HasField("limit"):
        return DescriptorCheck(BatchedCall(attributes, hits), hits, is_refund)
    amount, unit = descriptor.limit.requests_per_unit, descriptor.limit.unit
    if unit not in UNITS:
        raise InvalidCharge(f"A limit of a descriptor's own has a unit from 1 (SECOND) to 7 (WEEK), not {unit}.")
    # A rule's name has no slash, so no rule uses this counter.
    name = f"override/{UNITS[unit][0]}"
    cost = hits if amount else 2
    call = BatchedCall(
        attributes, cost, _override_window(amount or 1, unit), name, _override_key(domain, descriptor.entries)
    )
    return DescriptorCheck(call, hits, is_refund, (amount, unit))


_MAX_CACHED_SHAPES = 1024
_cached_shapes: dict[tuple[str, ...], _DescriptorShape] = {}


class _DescriptorShape(NamedTuple):
    """The attributes and options that follow from the keys of a descriptor, whatever their values are."""

    descriptor: str
    names: list[str]  # of the attributes that the entries become
    call_attributes: list[tuple[str, int]]  # with the index of their entry


def attributes_of(domain: str, entries: Any) -> dict[str, str]:
    """Returns the attributes of a descriptor's entries, or of a bucket's keys and values."""
    if len(entries) > MAX_ENTRIES:
        raise InvalidCharge(f"A descriptor has at most {MAX_ENTRIES} entries, not {len(entries)}.")
    pairs = [(entry.key, entry.value) for entry in entries]
    for key, value in pairs:
        if len(key) > MAX_TEXT_CHARS or len(value) > MAX_TEXT_CHARS:
            raise InvalidCharge(f"The keys and values of entries have at most {MAX_TEXT_CHARS} letters.")
    keys = tuple([key for key, _ in pairs])
    descriptor, names, call_attributes = _cached_shapes.get(keys) or _make_shape(keys)
    attributes = {"domain": domain, "descriptor": descriptor}
    for name, (_, value) in zip(names, pairs):  # noqa: B905 (strict costs as much as the rest)
        attributes[name] = value
    for name, index in call_attributes:
        value = pairs[index][1]
        if name == "path":
            value = _cached_path(value) if len(value) < MAX_CACHED_LENGTH else _path(value)
        attributes[name] = value
    return attributes


def _make_shape(keys: tuple[str, ...]) -> _DescriptorShape:
    names = attribute_names(keys)
    call_attributes: dict[str, tuple[bool, int]] = {}
    for index, key in enumerate(keys):
        name, explicit = _CALL_ATTRIBUTES.get(attribute_name(key, "key"), (None, False))
        if name is None or names[index] != descriptor_attribute(key):  # a second one replaces nothing
            continue
        if name not in call_attributes or (explicit and not call_attributes[name][0]):
            call_attributes[name] = explicit, index
    shape = _DescriptorShape(
        joined_keys(keys), names, [(name, index) for name, (_, index) in call_attributes.items()]
    )
    if sum(map(len, keys)) < MAX_CACHED_LENGTH:
        if len(_cached_shapes) >= _MAX_CACHED_SHAPES:
            _cached_shapes.clear()
        _cached_shapes[keys] = shape
    return shape


def _path(target: str) -> str:
    return request("", target)["path"]


_cached_path = lru_cache(maxsize=1024)(_path)


@lru_cache(maxsize=1024)
def _override_window(amount: int, unit: int) -> FixedWindow:
    return FixedWindow(amount, UNITS[unit][1])


def _override_key(domain: str, entries: Any) -> str:
    """Returns a key that no two descriptors share."""
    return "|".join([_escape(domain), *(f"{_escape(entry.key)}={_escape(entry.value)}" for entry in entries)])


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("|", "%7C").replace("=", "%3D")
