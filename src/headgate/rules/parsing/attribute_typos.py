"""Finds attributes that look misspelled: no gateway sets them, but one sets a similar name.

    when: {methods: POST, pth: /login}     method, path
    key: ip                                address
    path: /items/{sku}, key: skuu          sku: captured by the rule's path

Such a rule is valid and limits nothing. An application may pass attributes of any name, so it is a warning, and
only for a name that is an alias of a well-known one or a typing error away from it: one letter too many, too few,
another, or two in the wrong order. The first letter must be right: cost is not a misspelled host.

A book that lists its `attributes` needs no warnings: there, one that is not listed is an error (consistency.py).
Rules on Envoy's descriptors get none either: their attributes have the names of the descriptors' entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

from headgate.rules.attributes import PREFIXES, ROUTE_PREFIX, STANDARD_ATTRIBUTES
from headgate.rules.parsing.document_tree import Fault, quote
from headgate.rules.parsing.parse_rule import RuleField

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
_INTENDED = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
_MIN_LENGTH = 4  # shorter names are all similar to each other
_MAX_LENGTH = 64  # longer names are not compared
_TWO_TYPOS_LENGTH = 7  # letters; from this length on two typing errors are assumed
_DESCRIPTOR = "descriptor"  # the attribute that every rule on Envoy's descriptors tests


def find_typos(rule_fields: dict[str, RuleField], captured: Collection[str]) -> Iterator[tuple[str, Fault]]:
    """Yields every use of an attribute that looks misspelled, with a message."""
    uses = [use for field in rule_fields.values() for use in field.uses]
    if any(name == _DESCRIPTOR for name, _ in uses):
        return
    for name, position in uses:
        if (
            name not in STANDARD_ATTRIBUTES
            and name not in captured
            and not name.startswith((*PREFIXES, ROUTE_PREFIX))
        ):
            intended = intended_name(name, frozenset(captured))
            if intended is not None:
                yield (
                    name,
                    Fault(
                        position,
                        f"no gateway sets the attribute {quote(name)}: did you mean {intended}? If your "
                        "application passes it, list it in the rulebook's attributes.",
                    ),
                )


@lru_cache(maxsize=1024)
def intended_name(name: str, captured: frozenset[str]) -> str | None:
    """Returns the attribute that was probably intended; None if the name looks like an application's attribute."""
    if name in _INTENDED:
        return _INTENDED[name]
    for candidate in (*sorted(captured), *STANDARD_ATTRIBUTES):
        if _is_typo_of(name, candidate):
            return candidate
    return None


def _is_typo_of(name: str, candidate: str) -> bool:
    shorter, longer = sorted((len(name), len(candidate)))
    allowed = 2 if shorter >= _TWO_TYPOS_LENGTH else 1
    if name[0] != candidate[0] or longer - shorter > allowed or not _MIN_LENGTH <= longer <= _MAX_LENGTH:
        return False
    return _distance(name, candidate) <= allowed


def _distance(first: str, second: str) -> int:
    """Counts the letters to add, remove, replace or swap with a neighbour (Damerau-Levenshtein)."""
    previous: list[int] = []
    current = list(range(len(second) + 1))
    for i, first_letter in enumerate(first, 1):
        before_previous, previous, current = previous, current, [i]
        for j, second_letter in enumerate(second, 1):
            best = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (first_letter != second_letter))
            if i > 1 and j > 1 and first_letter == second[j - 2] and first[i - 2] == second_letter:
                best = min(best, before_previous[j - 2] + 1)
            current.append(best)
    return current[-1]
