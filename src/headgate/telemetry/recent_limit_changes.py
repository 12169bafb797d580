"""Recent changes of adaptive limits: which limit moved, when, in which process, and why.

In Redis they are members of a sorted set for each ten minutes, with the second of the change as score: the newest
200 stay. A member is a JSON list: at_us, process, name, key, before, after, reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from headgate.observer import LimitChange

SLICE_S: Final = 600  # whose changes are in one sorted set
TTL_S: Final = 2 * SLICE_S
MAX_SHARED: Final = 20  # changes of a process in one write: the newest


class RecentLimitChange(NamedTuple):
    """A change of an adaptive limit: its time in microseconds since 1970, the process, and what moved."""

    at_us: int
    process: str
    change: LimitChange


def changes_key(slice_number: int) -> str:
    """Returns the suffix of the key of ten minutes."""
    return f"l:{slice_number}"


def written(recent: RecentLimitChange) -> str:
    """Returns a change as text.

    >>> written(RecentLimitChange(1_000_000, "web1:17", LimitChange("api", "all", 20, 16, "dropped")))
    '[1000000,"web1:17","api","all",20,16,"dropped"]'
    """
    return json.dumps([recent.at_us, recent.process, *recent.change], separators=(",", ":"))


def newest(texts: Iterable[str], number: int) -> list[RecentLimitChange]:
    """Returns the newest changes, the latest first. Text that is no change is left out: others may write there.

    >>> [latest] = newest(['[5,"a","api","all",20,16,"dropped"]', '[9,"b","api","all",16,17,"full"]', "[]"], 1)
    >>> latest.process, latest.change.after
    ('b', 17)
    """
    changes = []
    for text in texts:
        try:
            fields = json.loads(text)
        except ValueError:
            continue
        if isinstance(fields, list) and list(map(type, fields)) == [int, str, str, str, int, int, str]:
            changes.append(RecentLimitChange(fields[0], fields[1], LimitChange(*fields[2:])))
    return sorted(changes, key=lambda each: each.at_us, reverse=True)[:number]
