"""Parses the times of logs: with a zone, as epoch numbers, or without a year.

    10/Oct/2000:13:55:36 -0700              nginx, Apache
    2024-12-10T00:00:02.123Z                ISO 8601; a blank in place of T; with or without a zone
    1733763602, 1733763602.123              epoch seconds; milli-, micro- and nanoseconds by their size
    Dec 10 06:55:46                         syslog, without a year

A time without a zone is read in the parser's zone. A time without a year gets the parser's year, and the next one
where December is followed by January.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo

SECOND_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_clf = re.compile(r"\[?(\d\d)/(\w{3})/(\d{4}):(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?: ?([+-]\d\d):?(\d\d))?\]?")
_epoch = re.compile(r"(\d{1,19})(?:\.(\d{1,9})\d*)?")
_syslog = re.compile(r"(\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")

# An epoch number from this on has this many units in a second: 1e11 seconds is the year 5138.
_UNITS = ((10**17, 10**9), (10**14, 10**6), (10**11, 10**3), (0, 1))

TimeReader = Callable[[str], "int | None"]


class TimeParser:
    """Parses times to microseconds since 1970. It tries the kind of time first that it met last."""

    def __init__(self, zone: tzinfo = UTC, year: int | None = None, written_us: int | None = None) -> None:
        self.zone = zone
        self.year = year  # of times without one
        self._written_us = written_us  # when the log ended: its first year is the last that fits
        self.assumed_zone: bool = False
        self.assumed_year: bool = False
        self._last_month = 0
        self._kinds: list[TimeReader] = [self._clf_us, _epoch_us, self._iso_us, self._syslog_us]
        self._days_us: dict[str, int] = {}  # midnight of a date and zone, as CLF writes them
        self._last_text: str | None = None
        self._last_us = 0

    def __call__(self, text: str) -> int:
        """Returns microseconds since 1970. Raises ValueError if the text is no time."""
        if text == self._last_text:
            return self._last_us
        for index, kind in enumerate(self._kinds):
            time_us = kind(text)
            if time_us is not None:
                if index:
                    self._kinds.insert(0, self._kinds.pop(index))
                self._last_text, self._last_us = text, time_us
                return time_us
        raise ValueError(f"{text[:60]!r} is no time")

    def _clf_us(self, text: str) -> int | None:
        midnight_us = self._days_us.get(text[:11] + text[20:]) if len(text) == 26 else None
        if midnight_us is not None:
            try:
                return (
                    midnight_us + (int(text[12:14]) * 3600 + int(text[15:17]) * 60 + int(text[18:20])) * SECOND_US
                )
            except ValueError:
                return None
        match = _clf.fullmatch(text)
        if match is None or match[2] not in _MONTHS:
            return None
        day, month, year, hour, minute, second, fraction, zone_hours, zone_minutes = match.groups()
        time_us = self._instant_us(int(year), _MONTHS[month], int(day), zone=_offset(zone_hours, zone_minutes))
        if time_us is None:
            return None
        if len(text) == 26 and text[0] != "[":
            if len(self._days_us) > 1000:
                self._days_us.clear()
            self._days_us[text[:11] + text[20:]] = time_us
        return time_us + (int(hour) * 3600 + int(minute) * 60 + int(second)) * SECOND_US + _fraction_us(fraction)

    def _iso_us(self, text: str) -> int | None:
        try:
            moment = datetime.fromisoformat(text.strip("[]"))
        except ValueError:
            return None
        if len(text) < 16:  # a date alone is not the time of a call
            return None
        return self._moment_us(moment)

    def _syslog_us(self, text: str) -> int | None:
        match = _syslog.fullmatch(text)
        if match is None or match[1] not in _MONTHS or self.year is None:
            return None
        month = _MONTHS[match[1]]
        midnight_us = self._instant_us(self.year, month, int(match[2]))
        if not self.assumed_year and self._written_us is not None and (midnight_us or 0) > self._written_us:
            self.year -= 1
            midnight_us = self._instant_us(self.year, month, int(match[2]))
        elif (self._last_month, month) == (12, 1):
            self.year += 1
            midnight_us = self._instant_us(self.year, month, int(match[2]))
        self.assumed_year = True
        self._last_month = month
        if midnight_us is None:
            return None
        seconds = int(match[3]) * 3600 + int(match[4]) * 60 + int(match[5])
        return midnight_us + seconds * SECOND_US + _fraction_us(match[6])

    def _instant_us(self, year: int, month: int, day: int, zone: tzinfo | None = None) -> int | None:
        try:
            return self._moment_us(datetime(year, month, day, tzinfo=zone))
        except ValueError:
            return None

    def _moment_us(self, moment: datetime) -> int:
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=self.zone)
            self.assumed_zone = True
        return (moment - _EPOCH) // timedelta(microseconds=1)


def _epoch_us(text: str) -> int | None:
    match = _epoch.fullmatch(text)
    if match is None:
        return None
    number = int(match[1])
    per_second = next(units for least, units in _UNITS if number >= least)
    if per_second >= SECOND_US:
        return number * SECOND_US // per_second
    return number * (SECOND_US // per_second) + _fraction_us(match[2]) // per_second


def _fraction_us(digits: str | None) -> int:
    return int(digits[:6].ljust(6, "0")) if digits else 0


def _offset(hours: str | None, minutes: str | None) -> tzinfo | None:
    if hours is None or minutes is None:
        return None
    sign = -1 if hours[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(hours[1:]), minutes=int(minutes)))
