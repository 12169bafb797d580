"""Finds clients that are counted as one: behind a proxy that is not trusted, all have its address.

The evidence is calls by rule and key, from a decision log or from shared counts. A proxy is in a private network
as a rule, and has few addresses; so a rule that counts by address is suspicious if

    nearly all of 100 calls or more come from one private address, or
    all of 1000 calls or more come from at most 4 addresses.

A rule that counts by something else, such as a user, is suspicious if 1000 calls or more have one key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple

from headgate.operations.finding import ERROR, OK, WARNING, Finding
from headgate.rules.rule import Rulebook

MIN_PRIVATE_CALLS: Final = 100
PRIVATE_SHARE: Final = 0.9
MIN_CALLS: Final = 1000
MAX_ADDRESSES: Final = 4  # a proxy may have several nodes

CallsByKey = Mapping[str, int]

_address = re.compile(r"(?:^|\|)address=([^|]*)")
_PRIVATE = [
    ip_network(text)
    for text in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"),
        *("::1/128", "fc00::/7", "fe80::/10"),
    )
]


class CallsOfRules(NamedTuple):
    """The calls of each rule by key, and where they were seen: "log.jsonl", for instance."""

    by_rule: Mapping[str, CallsByKey]
    seen_in: str
    hashed: bool = False  # keys are hashed, so addresses cannot be read


def shared_key_findings(calls: CallsOfRules, setting: str, book: Rulebook | None = None) -> list[Finding]:
    """Returns a finding for each rule whose calls share a key; `setting` is where proxies are named."""
    if not calls.by_rule:
        return []
    findings = [
        finding
        for rule, by_key in sorted(calls.by_rule.items())
        if (finding := _judge(rule, by_key, calls, setting, book)) is not None
    ]
    total = sum(sum(by_key.values()) for by_key in calls.by_rule.values())
    message = f"No rule counts all clients as one, by {total:,} calls of {calls.seen_in}."
    return findings or [Finding("shared keys", OK, message, where=calls.seen_in)]


def _judge(
    rule: str, by_key: CallsByKey, calls: CallsOfRules, setting: str, book: Rulebook | None
) -> Finding | None:
    total, addresses = sum(by_key.values()), _by_address(by_key)
    if not addresses or calls.hashed:
        return _judge_other_key(rule, by_key, total, calls.seen_in, book)
    most, most_calls = max(addresses.items(), key=lambda each: each[1])
    behind_private = total >= MIN_PRIVATE_CALLS and _is_private(most) and most_calls >= PRIVATE_SHARE * total
    few = total >= MIN_CALLS and len(addresses) <= MAX_ADDRESSES
    if not (behind_private or few):
        return None
    listed = sorted(addresses) if few else [most]
    what = "the one address" if len(listed) == 1 else f"{len(listed)} addresses:"
    message = (
        f'The rule "{rule}" counts {sum(addresses[each] for each in listed):,} of {total:,} calls of '
        f"{calls.seen_in} under {what} {', '.join(listed)}. If that is your proxy, all clients "
        "behind it share one limit."
    )
    change = setting.replace("PROXIES", ", ".join(f'"{each}"' for each in listed))
    return Finding(
        "shared key", ERROR if behind_private else WARNING, message, change, "where the limits are set up"
    )


def _judge_other_key(
    rule: str, by_key: CallsByKey, total: int, seen_in: str, book: Rulebook | None
) -> Finding | None:
    found = None if book is None else book.rule(rule)
    if len(by_key) > 1 or total < MIN_CALLS or "all" in by_key or (found is not None and not found.key):
        return None
    [key] = by_key
    line = f"{book.source}:{found.line}" if book is not None and found is not None and found.line else None
    message = f'The rule "{rule}" counts all of {total:,} calls of {seen_in} under one key, {key}.'
    change = f"key: {', '.join(map(str, found.key))}" if found is not None else "key: address"
    return Finding("shared key", WARNING, message, change, line)


def _by_address(by_key: CallsByKey) -> dict[str, int]:
    """Returns the calls by address; empty if the rule does not count by address."""
    addresses: dict[str, int] = {}
    for key, calls in by_key.items():
        if match := _address.search(key):
            addresses[match[1]] = addresses.get(match[1], 0) + calls
    return addresses


def _is_private(text: str) -> bool:
    try:
        address = ip_address(text.partition("/")[0])
    except ValueError:
        return text in ("", "unix")
    return any(address in network for network in _PRIVATE)
