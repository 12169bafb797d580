"""The story of a key: since when a rule refuses it, and what it calls; from the recent records.

A busy service keeps up to 180,000 recent records. They are read back from now, a slice at a time, until the story
is told or MAX_RECORDS were read (0.2 s of a core): a page never holds more of them than one slice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from headgate.telemetry.decision_record import Record

SHOWN_CALLS: Final = 3
SLICE_S: Final = 10
MAX_RECORDS: Final = 20_000
_GAP_US: Final = 60_000_000  # a key that is not refused for so long has recovered

Reader = Callable[..., list[Record]]  # RecentRecordsReader.records


class KeyStory(NamedTuple):
    """A sample of the calls of a key, from recent records; it has no numbers."""

    refused_since_us: int | None  # None: it is not refused now
    calls: tuple[str, ...]  # what it calls most
    records: int
    is_cut: bool = False  # its refusals may have begun earlier: the records before were not read


NO_STORY: Final = KeyStory(None, (), 0)


def read_back(read: Reader, span_s: int, max_records: int) -> Iterator[list[Record]]:
    """Yields the records of the last `span_s` a slice at a time, the newest first; ends when enough were read."""
    total = 0
    for skipped_s in range(0, span_s, SLICE_S):
        records = read(seconds=min(SLICE_S, span_s - skipped_s), skip_seconds=skipped_s)
        yield records
        total += len(records)
        if total >= max_records:
            return


def recent_stories(read: Reader, rule: str, span_s: int, max_records: int) -> dict[str, KeyStory]:
    """Returns the story of each key that a rule has decided lately."""
    return stories(chain.from_iterable(read_back(read, span_s, max_records)), rule)


def key_story(read: Reader, rule: str, key: str, span_s: int, max_records: int = MAX_RECORDS) -> KeyStory:
    """Returns the story of one key: back to a minute in which the rule did not refuse it."""
    calls: Counter[str] = Counter()
    refused: list[int] = []
    now_us = int(time.time() * 1e6)
    total = 0
    for index, records in enumerate(read_back(read, span_s, max_records), 1):
        total += len(records)
        for call, at_us in _calls_of(records, rule, key):
            calls[call] += 1
            if at_us is not None:
                refused.append(at_us)
        if (refused[-1] if refused else now_us) - (now_us - index * SLICE_S * 1_000_000) > _GAP_US:
            return _story(calls, refused)
    return _story(calls, refused)._replace(is_cut=bool(refused) and total >= max_records)


def _calls_of(records: list[Record], rule: str, key: str) -> Iterator[tuple[str, int | None]]:
    """Yields what a key called, and when that was refused."""
    for record in records:
        for decided, is_refused in _keys_of(record, rule):
            if decided == key:
                yield call_text(record), record["at_us"] if is_refused else None


def stories(records: Iterable[Record], rule: str) -> dict[str, KeyStory]:
    """Returns the story of each key that a rule has decided; records come newest first."""
    calls: dict[str, Counter[str]] = {}
    refused: dict[str, list[int]] = {}
    for record in records:
        for key, is_refused in _keys_of(record, rule):
            calls.setdefault(key, Counter())[call_text(record)] += 1
            if is_refused:
                refused.setdefault(key, []).append(record["at_us"])
    return {key: _story(counted, refused.get(key, [])) for key, counted in calls.items()}


def _keys_of(record: Record, rule: str) -> Iterator[tuple[str, bool]]:
    """Yields each key that the rule, its shadow or its candidate has decided, and whether the rule refused it."""
    refusals = {each["key"]: not each["allowed"] for each in record["verdicts"] if each["rule"] == rule}
    trials = (each["key"] for each in (*record["shadow"], *record["candidate"]) if each["rule"] == rule)
    yield from (dict.fromkeys(trials, False) | refusals).items()


def _story(calls: Counter[str], refused: list[int]) -> KeyStory:
    return KeyStory(_since(refused), tuple(text for text, _ in calls.most_common(SHOWN_CALLS)), calls.total())


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
