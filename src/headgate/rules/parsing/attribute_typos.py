"""Finds attributes that look misspelled: those that no gateway sets, but nearly.

    when: {methods: POST, pth: /login}     method, path
    key: ip                                address
    path: /items/{sku}, key: skuu          sku: what the rule's own path captures

Such a rule is valid and limits nobody. An application may pass attributes of any name, so it is a warning, and
only where a name is a well-known one's alias or a slip of the keyboard away from it: a letter too many, too few,
another, or two in the wrong order. The first letter must be right: cost is not a misspelled host.

A book that lists its `attributes` needs no warnings: there, one that is not listed is an error (consistent.py).
Rules on Envoy's descriptors get none either: their attributes are called what the descriptors' entries are called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

from headgate.rules.attributes import PREFIXES, WELL_KNOWN
from headgate.rules.parsing.document_tree import Fault, quote
from headgate.rules.parsing.parse_rule import Field

_ALIASES = {
    "address": (
        "ip", "ips", "addr", "ip_address", "ip_addr", "ipaddress", "client_ip", "clientip", "client_addr",
        "client_address", "remote_ip", "remote_addr", "binary_remote_addr", "source_ip", "src_ip", "real_ip",
        "user_ip", "peer_ip", "x_forwarded_for", "x_real_ip", "forwarded_for",
    ),
    "method": ("verb", "http_method", "http_verb", "request_method"),
    "path": (
        "uri", "url", "request_uri", "request_url", "request_path", "url_path", "uri_path", "http_path",
        "document_uri", "pathname",
    ),
    "host": ("hostname", "host_name", "http_host", "server_name", "vhost"),
    "header.user-agent": ("user_agent", "useragent", "http_user_agent"),
    "header.referer": ("referer", "referrer", "http_referer"),
}  # fmt: skip
_MEANT = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
_MIN_LENGTH = 4  # shorter names are all near each other
_MAX_LENGTH = 64  # longer names are not compared
_LONG = 7  # letters from which on two slips are believed
_DESCRIPTOR = "descriptor"  # what every rule on Envoy's descriptors tests


def find_typos(found: dict[str, Field], captured: Collection[str]) -> Iterator[tuple[str, Fault]]:
    """Every attribute of a rule that looks misspelled, with a sentence; each use by itself."""
    uses = [use for field in found.values() for use in field.uses]
    if any(name == _DESCRIPTOR for name, _ in uses):
        return
    for name, place in uses:
        if name not in WELL_KNOWN and name not in captured and not name.startswith(PREFIXES):
            meant = intended_name(name, frozenset(captured))
            if meant is not None:
                yield (
                    name,
                    Fault(
                        place,
                        f"no gateway sets the attribute {quote(name)}: did you mean {meant}? If your application "
                        "passes it, list it in the book's attributes.",
                    ),
                )


@lru_cache(maxsize=1024)
def intended_name(name: str, captured: frozenset[str]) -> str | None:
    """The attribute that a name is probably meant to be; None if it may well be an application's own."""
    if name in _MEANT:
        return _MEANT[name]
    for known in (*sorted(captured), *WELL_KNOWN):
        if _near(name, known):
            return known
    return None


def _near(name: str, known: str) -> bool:
    shorter, longer = sorted((len(name), len(known)))
    slips = 2 if shorter >= _LONG else 1
    if name[0] != known[0] or longer - shorter > slips or not _MIN_LENGTH <= longer <= _MAX_LENGTH:
        return False
    return _distance(name, known) <= slips


def _distance(one: str, other: str) -> int:
    """How many letters must be added, left out, replaced or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                best = min(best, older[j - 2] + 1)
            row.append(best)
    return row[-1]
