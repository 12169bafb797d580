"""The story of a key: since when a rule refuses it, and what it calls; from the recent records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from headgate.telemetry.decision_record import Record

SHOWN_CALLS = 3
_GAP_US = 60_000_000  # a key that is not refused for so long has recovered


class KeyStory(NamedTuple):
    """A sample of the calls of a key, from recent records; it has no numbers."""

    refused_since_us: int | None  # None: it is not refused now
    calls: tuple[str, ...]  # what it calls most
    records: int


def stories(records: Iterable[Record], rule: str) -> dict[str, KeyStory]:
    """Returns the story of each key that a rule has decided; records come newest first."""
    calls: dict[str, Counter[str]] = {}
    refused: dict[str, list[int]] = {}
    for record in records:
        for verdict in (*record["verdicts"], *record["shadow"], *record["candidate"]):
            if verdict["rule"] == rule:
                calls.setdefault(verdict["key"], Counter())[call_text(record)] += 1
                if not verdict["allowed"]:
                    refused.setdefault(verdict["key"], []).append(record["at_us"])
    return {
        key: KeyStory(
            _since(refused.get(key, [])),
            tuple(text for text, _ in counted.most_common(SHOWN_CALLS)),
            counted.total(),
        )
        for key, counted in calls.items()
    }


def call_text(record: Record) -> str:
    """Returns what a call was, in a few words.

    >>> call_text({"attributes": {"method": "POST", "path": "/buy", "user": "ann"}})
    'POST /buy'
    """
    attributes = record["attributes"]
    words = [attributes[name] for name in ("method", "host", "path") if attributes.get(name)]
    return " ".join(words) or ", ".join(f"{name}={value}" for name, value in sorted(attributes.items())[:2])


def _since(times_us: list[int]) -> int | None:
    """Returns when refusals began that go on without a gap; times come newest first."""
    since: int | None = None
    if not times_us or time.time() * 1e6 - times_us[0] > _GAP_US:
        return None
    for at_us in times_us:
        if since is not None and since - at_us > _GAP_US:
            break
        since = at_us
    return since
