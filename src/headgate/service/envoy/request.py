"""A request of Envoy's as asks: what its descriptors mean here.

Every descriptor is one ask. Its entries are attributes, named as the translation of the reference service's files
names them, and so is the domain; so these files and rules of our own are served alike:

    domain: edge                                  domain = edge
    entries: [{remote_address, 192.0.2.7},        remote_address = address = 192.0.2.7
              {:path, /a%20b?c=1},                descriptor_path = /a%20b?c=1, path = /a b
              {generic_key, buy}, {generic_key, sell}]      generic_key = buy, generic_key_2 = sell
                                                  descriptor = remote_address/:path/generic_key/generic_key

An entry that is plainly the call's path, method, host or address is that as well, in our normal form; what another
entry says in so many words is not replaced. To the reference service entries are steps on a way, so a key may come
twice and both count. Attributes have a name once: the second is called key_2, and nothing is lost. What the names
of attributes do not keep (the order of entries, the case of their keys) is in `descriptor`.

How much. A descriptor's own hits, or the request's, or 1. No hits at all are a peek, and a peek asks whether
anything is left. Negative hits give back, as far as something is counted, and always pass.

A limit that comes along decides in place of the rules, in windows as the reference service cuts them (a month is
30 days), under a count of these entries in this domain and this unit. Of no requests per unit none ever pass:
whatever is asked costs two where one may pass.

Whoever asks too much is told in a sentence (InvalidCharge), and nobody is charged.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import EXACT
from headgate.enforcement.check_together import Ask
from headgate.errors import InvalidCharge
from headgate.rules.attributes import SHORT, request
from headgate.rules.imports.envoy_ratelimit import attribute, attribute_names, joined_keys
from headgate.rules.imports.rulebook_draft import attribute_name

MAX_DESCRIPTORS = 100
MAX_ENTRIES = 100
MAX_TEXT_CHARS = 8192  # letters of a key, a value, a domain

DAY_S = 24 * 60 * 60
# By Envoy's numbers: the word and its seconds, as the reference service counts them.
UNITS = {
    1: ("second", 1),
    2: ("minute", 60),
    3: ("hour", 60 * 60),
    4: ("day", DAY_S),
    5: ("month", 30 * DAY_S),
    6: ("year", 365 * DAY_S),
    7: ("week", 7 * DAY_S),
}
# What an entry is beside its own name, and whether it says so plainly.
_PLAINLY = {name: (name, True) for name in ("method", "path", "host", "address")}
_ALSO = {**_PLAINLY, "remote_address": ("address", False), "authority": ("host", False)}


class Entry(NamedTuple):
    """A key and its value, as in a descriptor."""

    key: str
    value: str


class DescriptorCheck(NamedTuple):
    """One descriptor: what is asked, and how the answer is to be told."""

    ask: Ask
    hits: int
    back: bool = False  # units come back
    override: tuple[int, int] | None = None  # requests per unit, and Envoy's number of the unit


def parse_descriptors(asked: Any) -> list[DescriptorCheck]:
    """What a RateLimitRequest asks, descriptor by descriptor."""
    domain, descriptors = asked.domain, asked.descriptors
    if not domain or len(domain) > MAX_TEXT_CHARS:
        raise InvalidCharge(
            f"The domain is longer than {MAX_TEXT_CHARS} letters: shorten it."
            if domain
            else "The domain is empty: set `domain` in Envoy's rate limit filter."
        )
    if not 0 < len(descriptors) <= MAX_DESCRIPTORS:
        raise InvalidCharge(f"A request has 1 to {MAX_DESCRIPTORS} descriptors, not {len(descriptors)}.")
    usual = asked.hits_addend or 1
    return [_question(domain, descriptor, usual) for descriptor in descriptors]


def _question(domain: str, descriptor: Any, usual: int) -> DescriptorCheck:
    hits = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else usual
    if hits > EXACT:
        raise InvalidCharge(f"hits_addend may be at most 2^53, not {hits}.")
    back = descriptor.is_negative_hits
    attributes = attributes_of(domain, descriptor.entries)
    if not descriptor.HasField("limit"):
        return DescriptorCheck(Ask(attributes, hits), hits, back)
    amount, unit = descriptor.limit.requests_per_unit, descriptor.limit.unit
    if unit not in UNITS:
        raise InvalidCharge(f"A limit of a descriptor's own has a unit from 1 (SECOND) to 7 (WEEK), not {unit}.")
    # A rule's name has no slash, so this count is nobody else's.
    name = f"override/{UNITS[unit][0]}"
    cost = hits if amount else 2
    ask = Ask(attributes, cost, _window(amount or 1, unit), name, _key(domain, descriptor.entries))
    return DescriptorCheck(ask, hits, back, (amount, unit))


_MOST_SHAPES = 1024
_shapes: dict[tuple[str, ...], _Shape] = {}


class _Shape(NamedTuple):
    """What the keys of a descriptor say, whatever their values are."""

    descriptor: str
    names: list[str]  # of the attributes that the entries become
    also: list[tuple[str, int]]  # what else an entry is, and which one


def attributes_of(domain: str, entries: Any) -> dict[str, str]:
    """What the entries of a descriptor, or a bucket's keys and values, say of a call."""
    if len(entries) > MAX_ENTRIES:
        raise InvalidCharge(f"A descriptor has at most {MAX_ENTRIES} entries, not {len(entries)}.")
    pairs = [(entry.key, entry.value) for entry in entries]
    for key, value in pairs:
        if len(key) > MAX_TEXT_CHARS or len(value) > MAX_TEXT_CHARS:
            raise InvalidCharge(f"The keys and values of entries have at most {MAX_TEXT_CHARS} letters.")
    keys = tuple([key for key, _ in pairs])
    joined, names, also = _shapes.get(keys) or _shape(keys)
    found = {"domain": domain, "descriptor": joined}
    for name, (_, value) in zip(names, pairs):  # noqa: B905 (strict costs as much as the rest)
        found[name] = value
    for name, place in also:
        value = pairs[place][1]
        if name == "path":
            value = _short_path(value) if len(value) < SHORT else _path(value)
        found[name] = value
    return found


def _shape(keys: tuple[str, ...]) -> _Shape:
    names = attribute_names(keys)
    also: dict[str, tuple[bool, int]] = {}
    for place, key in enumerate(keys):
        name, plainly = _ALSO.get(attribute_name(key, "key"), (None, False))
        if name is None or names[place] != attribute(key):  # a second one replaces nothing
            continue
        if name not in also or (plainly and not also[name][0]):
            also[name] = plainly, place
    shape = _Shape(joined_keys(keys), names, [(name, place) for name, (_, place) in also.items()])
    if sum(map(len, keys)) < SHORT:
        if len(_shapes) >= _MOST_SHAPES:
            _shapes.clear()
        _shapes[keys] = shape
    return shape


def _path(target: str) -> str:
    return request("", target)["path"]


_short_path = lru_cache(maxsize=1024)(_path)


@lru_cache(maxsize=1024)
def _window(amount: int, unit: int) -> FixedWindow:
    return FixedWindow(amount, UNITS[unit][1])


def _key(domain: str, entries: Any) -> str:
    """No two descriptors have the same."""
    return "|".join([_plain(domain), *(f"{_plain(entry.key)}={_plain(entry.value)}" for entry in entries)])


def _plain(words: str) -> str:
    return words.replace("%", "%25").replace("|", "%7C").replace("=", "%3D")
