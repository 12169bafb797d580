"""Demand: how much keys call, in their busiest second, minute and hour; and by day against night."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from headgate.algorithms.limit import SECOND
from headgate.traffic.call_table import KeyedTimes
from headgate.traffic.heavy_keys import peak
from headgate.traffic.rate_burst_frontier import HOUR, MINUTE, quantile

WINDOWS = (("second", SECOND), ("minute", MINUTE), ("hour", HOUR))
MIN_SPAN_US = 12 * HOUR  # of a log in which day and night can be told apart
_NIGHT_HOURS = 8


class DemandRow(NamedTuple):
    """The most that a key spends in a window, in calls or in units of cost, as quantiles over keys."""

    window: str
    p50: int
    p90: int
    p99: int
    p999: int
    most: int


class DayPart(NamedTuple):
    """The calls of the day or of the night."""

    name: str
    hours: str  # such as 22:00 to 06:00 UTC
    calls: int
    keys: int
    p99_per_minute: int
    most_per_minute: int


def demand_rows(keyed: KeyedTimes) -> list[DemandRow]:
    """Returns the demand of all keys, per second, minute and hour."""
    peaks: list[list[int]] = [[] for _ in WINDOWS]
    for _, times_us, costs in keyed:
        if len(times_us) == 1:
            for each in peaks:
                each.append(1 if costs is None else costs[0])
            continue
        for each, (_, window_us) in zip(peaks, WINDOWS, strict=True):
            each.append(peak(times_us, window_us, costs))
    return [DemandRow(name, *_quantiles(sorted(each))) for (name, _), each in zip(WINDOWS, peaks, strict=True)]


def _quantiles(ordered: Sequence[int]) -> list[int]:
    return [quantile(ordered, share) for share in (0.5, 0.9, 0.99, 0.999, 1)]


def day_and_night(keyed: KeyedTimes, first_us: int, last_us: int, zone: tzinfo = UTC) -> list[DayPart]:
    """Compares the quietest eight hours of the day with the rest; empty if the log is too short for that."""
    if last_us - first_us < MIN_SPAN_US:
        return []
    hour_of = _HourOfDay(zone)
    by_hour = [0] * 24
    for _, times_us, _ in keyed:
        for time_us in times_us:
            by_hour[hour_of(time_us)] += 1
    covered = {hour_of(time_us) for time_us in range(first_us, last_us, HOUR // 2)}
    nights = [[(start + hour) % 24 for hour in range(_NIGHT_HOURS)] for start in range(24)]
    night = min(
        (hours for hours in nights if covered.issuperset(hours)),
        key=lambda hours: sum(by_hour[hour] for hour in hours),
    )
    start, end = night[0], (night[-1] + 1) % 24
    peaks: tuple[list[int], list[int]] = [], []  # of each key, by day and by night
    for _, times_us, _ in keyed:
        for part, times_in_part in zip(peaks, _split(times_us, set(night), hour_of), strict=True):
            if times_in_part:
                part.append(peak(times_in_part, MINUTE))
    calls_at_night = sum(by_hour[hour] for hour in night)
    return [
        _part("day", f"{end:02}:00 to {start:02}:00 {zone}", sum(by_hour) - calls_at_night, peaks[0]),
        _part("night", f"{start:02}:00 to {end:02}:00 {zone}", calls_at_night, peaks[1]),
    ]


def _split(times_us: Sequence[int], night: set[int], hour_of: _HourOfDay) -> tuple[list[int], list[int]]:
    parts: tuple[list[int], list[int]] = [], []
    for time_us in times_us:
        parts[hour_of(time_us) in night].append(time_us)
    return parts


def _part(name: str, hours: str, calls: int, peaks: list[int]) -> DayPart:
    ordered = sorted(peaks) or [0]
    return DayPart(name, hours, calls, len(peaks), quantile(ordered, 0.99), ordered[-1])


class _HourOfDay:
    """Returns the hour of the day of an instant; computed once for each hour."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._hours: dict[int, int] = {}

    def __call__(self, time_us: int) -> int:
        quarter = time_us // (HOUR // 4)  # zones begin at quarters of an hour
        hour = self._hours.get(quarter)
        if hour is None:
            hour = self._hours[quarter] = datetime.fromtimestamp(time_us // SECOND, self._zone).hour
        return hour
