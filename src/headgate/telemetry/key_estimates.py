"""Key estimates of one rule: hot keys of the last minute, and of 25 hours the distinct and the most refused keys.

Counts passes on the keys of its lists, by verdict. Where counts are shared through Redis, what is kept by the hour
is collected for the writer instead (`unshared`), and Redis keeps it.

Above MAX_BATCHES_PER_S batches in a second, one of several batches is looked at for hot keys, and counts for all
of them. Distinct keys are not sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headgate.telemetry.distinct_keys import DistinctKeys
from headgate.telemetry.hot_keys import SLICE_S, HotKey, HotKeySummary, merged, short_keys

CALLS: Final = "calls"
REFUSED: Final = "refused"
SHADOW_REFUSED: Final = "shadow_refused"
CANDIDATE_REFUSED: Final = "candidate_refused"
TRIED: Final = "tried"  # distinct keys that a shadow or a candidate decided

HOT_KINDS: Final[Sequence[str]] = (CALLS, REFUSED, SHADOW_REFUSED, CANDIDATE_REFUSED)
REFUSED_KINDS: Final[Sequence[str]] = (REFUSED, SHADOW_REFUSED, CANDIDATE_REFUSED)
DISTINCT_KINDS: Final[Sequence[str]] = (*REFUSED_KINDS, TRIED)

HOURS_KEPT: Final = 25
MAX_BATCHES_PER_S: Final = 32
MAX_HOURLY: Final = 50  # most refused keys that are kept of an hour
MAX_SHARED: Final = 100  # hot keys of a slice that a process shares
MAX_RECENT: Final = 8192  # distinct keys that are remembered as shared
MAX_UNSHARED: Final = 10_000  # distinct keys that wait to be shared
MAX_UNSHARED_SLICES: Final = 24  # slices of hot keys that wait: the last minute of each kind

# By verdict: the kinds of hot keys, and of distinct keys.
_HOT: Final = {
    "allowed": (CALLS,),
    "refused": (CALLS, REFUSED),
    "shed": (CALLS, REFUSED),
    "shadow_allowed": (CALLS,),
    "shadow_refused": (CALLS, SHADOW_REFUSED),
    "candidate_refused": (CANDIDATE_REFUSED,),
}
_DISTINCT: Final = {
    "refused": (REFUSED,),
    "shed": (REFUSED,),
    "shadow_allowed": (TRIED,),
    "shadow_refused": (TRIED, SHADOW_REFUSED),
    "candidate_allowed": (TRIED,),
    "candidate_refused": (TRIED, CANDIDATE_REFUSED),
}


class UnsharedKeys(NamedTuple):
    """Keys of one rule that are to be written to Redis: bounded, also while Redis is gone."""

    hot: list[tuple[str, int, list[HotKey]]]  # kind, slice, its top keys
    distinct: list[tuple[str, int, list[str]]]  # kind, hour, keys


class KeyEstimates:
    """Estimates over the keys of one rule."""

    __slots__ = ("_batches", "_distinct", "_hot", "_hour", "_most_refused", "_recent", "_stride", "_unshared")

    def __init__(self, shared: bool = False) -> None:
        self._hot: dict[str, HotKeySummary] = {}
        self._distinct: dict[str, dict[int, DistinctKeys]] = {}  # by kind and hour
        self._most_refused: dict[str, dict[int, list[HotKey]]] = {}
        self._batches, self._stride = 0, 1
        self._hour = 0
        self._recent: dict[str, set[str]] = {}
        self._unshared: UnsharedKeys | None = UnsharedKeys([], []) if shared else None

    def add(self, second: int, verdict: str, keys: Sequence[str]) -> None:
        """Adds the keys of calls with this verdict; long ones are shortened, as nginx does."""
        self._batches += 1
        is_sampled = self._batches % self._stride == 0
        if is_sampled or verdict in _DISTINCT:
            keys = short_keys(keys)
        if is_sampled:
            for kind in _HOT.get(verdict, ()):
                self._hot_keys(kind).add(second // SLICE_S, keys, self._stride)
        for kind in _DISTINCT.get(verdict, ()):
            self._add_distinct(kind, second // 3600, set(keys))

    def _hot_keys(self, kind: str) -> HotKeySummary:
        hot = self._hot.get(kind)
        if hot is None:
            hot = self._hot[kind] = HotKeySummary() if kind == CALLS else HotKeySummary(200, 100)
        return hot

    def _add_distinct(self, kind: str, hour: int, keys: set[str]) -> None:
        if hour != self._hour:
            self._recent.clear()
            self._hour = hour
        recent = self._recent.setdefault(kind, set())
        new = keys - recent
        if not new:
            return
        if len(recent) > MAX_RECENT:
            recent.clear()
        recent |= new
        if self._unshared is None:
            by_hour = self._distinct.setdefault(kind, {})
            if hour not in by_hour:
                _drop_old_hours(by_hour, hour)
                by_hour[hour] = DistinctKeys()
            by_hour[hour].add(new)
        elif sum(len(waiting) for _, _, waiting in self._unshared.distinct) < MAX_UNSHARED:
            self._unshared.distinct.append((kind, hour, [*new]))

    def end_second(self, second: int) -> None:
        """Closes the slice that has ended, if one has, and adapts the sampling to the calls of this second."""
        self._stride = max(1, self._batches // MAX_BATCHES_PER_S)
        self._batches = 0
        for kind, hot in self._hot.items():
            if hot.slice_number != second // SLICE_S:
                self._close_slice(kind, hot, second // SLICE_S)

    def _close_slice(self, kind: str, hot: HotKeySummary, next_slice: int) -> None:
        """Files the top keys of a slice: to be shared, or by the hour."""
        ended, top = hot.slice_number, hot.close_slice(next_slice)
        if not top:
            return
        if self._unshared is not None:
            self._unshared.hot.append((kind, ended, top[:MAX_SHARED]))
            del self._unshared.hot[:-MAX_UNSHARED_SLICES]
        elif kind in REFUSED_KINDS:
            by_hour = self._most_refused.setdefault(kind, {})
            hour = ended * SLICE_S // 3600
            _drop_old_hours(by_hour, hour)
            by_hour[hour] = merged([by_hour.get(hour, []), top], MAX_HOURLY)

    def take_unshared(self, at_once: bool) -> UnsharedKeys:
        """Returns the keys that were not yet written to Redis, and forgets them here.

        `at_once`: with those of the slice that has not ended.
        """
        assert self._unshared is not None
        for kind, hot in self._hot.items() if at_once else ():
            self._close_slice(kind, hot, hot.slice_number)
        unshared, self._unshared = self._unshared, UnsharedKeys([], [])
        return unshared

    def hot(self, second: int, kind: str, number: int) -> list[HotKey]:
        """Returns the hottest keys of the minute before `second`."""
        hot = self._hot.get(kind)
        return [] if hot is None else hot.top(second // SLICE_S, number)

    def distinct(self, first_hour: int, last_hour: int, kind: str) -> int:
        """Returns about how many different keys there were in these hours."""
        union = DistinctKeys()
        for hour, keys in self._distinct.get(kind, {}).items():
            if first_hour <= hour <= last_hour:
                union.merge(keys)
        return union.estimate()

    def most_refused(self, first_hour: int, last_hour: int, kind: str, number: int) -> list[HotKey]:
        """Returns the keys that were refused most in these hours."""
        hours = [
            keys for hour, keys in self._most_refused.get(kind, {}).items() if first_hour <= hour <= last_hour
        ]
        hot = self._hot.get(kind)
        if hot is not None and first_hour <= hot.slice_number * SLICE_S // 3600 <= last_hour:
            hours.append(hot.open_top(MAX_HOURLY))
        return merged(hours, number)


def _drop_old_hours(by_hour: dict[int, Any], hour: int) -> None:
    for each in [*by_hour]:
        if not hour - HOURS_KEPT < each <= hour:
            del by_hour[each]
