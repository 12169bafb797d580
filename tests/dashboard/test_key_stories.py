"""Stories of keys read no more recent records than they need."""

import time
from typing import Any

from headgate.service.dashboard.key_stories import SLICE_S, key_story, recent_stories, stories
from headgate.telemetry.decision_record import Record


def record(key: str, now_us: int, ago_s: float, *, allowed: bool = False, trial: bool = False) -> Record:
    verdict = {"rule": "buy", "key": key, "allowed": allowed}
    found: dict[str, Any] = {"at_us": now_us - int(ago_s * 1e6), "attributes": {"path": "/buy"}, "shadow": []}
    return found | {"verdicts": [] if trial else [verdict], "candidate": [verdict] if trial else []}


class Records:
    """Recent records, newest first, that count how many were read."""

    def __init__(self, *seconds_ago: float) -> None:
        self.now_us, self.read_count = int(time.time() * 1e6), 0
        self._records = [record("user=bob", self.now_us, each) for each in seconds_ago]

    def read(self, *, seconds: int, skip_seconds: int) -> list[Record]:
        newest = self.now_us - skip_seconds * 1_000_000
        found = [each for each in self._records if newest - seconds * 1_000_000 < each["at_us"] <= newest]
        self.read_count += len(found)
        return found


def test_a_story_goes_back_to_a_minute_without_refusals() -> None:
    records = Records(1, 30, 85, 200, 300)
    story = key_story(records.read, "buy", "user=bob", 900)
    assert (story.refused_since_us, story.calls, story.is_cut) == (records.now_us - 85_000_000, ("/buy",), False)
    assert records.read_count == 3


def test_a_busy_service_is_read_no_further_than_the_bound() -> None:
    records = Records(*(index / 10 for index in range(9000)))
    story = key_story(records.read, "buy", "user=bob", 900, max_records=1000)
    assert records.read_count <= 1000 + 10 * SLICE_S
    assert story.is_cut
    read = Records(*(index / 10 for index in range(9000)))
    assert recent_stories(read.read, "buy", 60, 200)["user=bob"].records <= 200 + 10 * SLICE_S


def test_what_a_trial_would_refuse_is_no_refusal() -> None:
    now_us = int(time.time() * 1e6)
    found = stories([record("user=bob", now_us, 1, trial=True), record("user=eve", now_us, 1)], "buy")
    assert found["user=bob"].refused_since_us is None
    assert found["user=bob"].calls == ("/buy",)
    assert found["user=eve"].refused_since_us == now_us - 1_000_000
