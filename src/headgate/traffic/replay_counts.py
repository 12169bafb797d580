"""Counts of a replay: per rule, in total, and over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.traffic.key_counts import KeyCounts

SECOND_US = 1_000_000
MINUTE_SECONDS = 60
MAX_SECONDS = 3_600  # that are counted one by one, for the picture of a short log

PASSED, DELAYED, REFUSED = range(3)


class RuleCounts:
    """The verdicts of one rule: live, or as a shadow or candidate."""

    def __init__(self, rule: str, shadow_kind: str | None) -> None:
        self.rule: str = rule
        self.shadow_kind: str | None = shadow_kind
        self.offered: int = 0
        self.delayed: int = 0
        self.refused: int = 0
        self.keys: KeyCounts = KeyCounts()

    @property
    def passed(self) -> int:
        return self.offered - self.refused


class Bars(NamedTuple):
    """Counts over time in a few bars: [passed, delayed, refused] of each, and when they begin and end."""

    counts: list[list[int]]
    first_us: int
    last_us: int


@dataclass
class Timeline:
    """Calls over time: the peaks of a second and a minute, and the counts of each minute.

    The counts of the first MAX_SECONDS seconds are kept, too: minutes show nothing of a log that lasts a few.
    """

    peak_second: int = 0
    peak_second_at_us: int = 0
    peak_minute: int = 0
    peak_minute_at_us: int = 0
    passed_peak_second: int = 0
    passed_peak_minute: int = 0
    minutes: dict[int, list[int]] = field(default_factory=dict)  # [passed, delayed, refused], by minute
    seconds: dict[int, list[int]] = field(default_factory=dict)  # likewise, by second
    _second: int = -(1 << 62)
    _in_second: list[int] = field(default_factory=lambda: [0, 0, 0])

    @property
    def second(self) -> int:
        """The second that is counted now."""
        return self._second

    def count(self, second: int, answer: int) -> None:
        """Counts a call; seconds come in order."""
        if second != self._second:
            self._end_second()
            self._second = second
        self._in_second[answer] += 1

    def _end_second(self) -> None:
        passed, delayed, refused = self._in_second
        offered = passed + delayed + refused
        if not offered:
            return
        if offered > self.peak_second:
            self.peak_second, self.peak_second_at_us = offered, self._second * SECOND_US
        self.passed_peak_second = max(self.passed_peak_second, passed + delayed)
        minute = self.minutes.setdefault(self._second // MINUTE_SECONDS, [0, 0, 0])
        for answer, calls in enumerate(self._in_second):
            minute[answer] += calls
        if len(self.seconds) <= MAX_SECONDS:
            self.seconds[self._second] = self._in_second
        self._in_second = [0, 0, 0]

    def finish(self) -> None:
        """Counts the last second, and finds the busiest minute."""
        self._end_second()
        for minute, counts in self.minutes.items():
            if sum(counts) > self.peak_minute:
                self.peak_minute, self.peak_minute_at_us = sum(counts), minute * MINUTE_SECONDS * SECOND_US
            self.passed_peak_minute = max(self.passed_peak_minute, counts[PASSED] + counts[DELAYED])

    def bars(self, most: int) -> Bars:
        """Returns the calls in at most so many bars, however far apart the first and the last are.

        A bar is some minutes; of a log with fewer minutes than bars, some seconds.
        """
        slots, slot_us = self.minutes, MINUTE_SECONDS * SECOND_US
        if max(slots) - min(slots) < most and len(self.seconds) <= MAX_SECONDS:
            slots, slot_us = self.seconds, SECOND_US
        first, end = min(slots), max(slots) + 1
        step = -(-(end - first) // most)
        bars = [[0, 0, 0] for _ in range(-(-(end - first) // step))]
        for slot, counts in slots.items():
            bar = bars[(slot - first) // step]
            for answer, calls in enumerate(counts):
                bar[answer] += calls
        return Bars(bars, first * slot_us, end * slot_us)
