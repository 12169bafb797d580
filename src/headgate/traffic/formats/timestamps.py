"""Parses the times of logs: with a zone, as epoch numbers, or without a year.

    10/Oct/2000:13:55:36 -0700              nginx, Apache
    2024-12-10T00:00:02.123Z                ISO 8601; a blank in place of T; with or without a zone
    1733763602, 1733763602.123              epoch seconds; milli-, micro- and nanoseconds by their size
    Tue, 10 Dec 2024 00:00:02 GMT           HTTP, also as ctime writes it: Tue Dec 10 00:00:02 2024
    Dec 10 06:55:46                         syslog, without a year

A time without a zone is read in the parser's zone. In the hour that is there twice, when summer time ends, it is
the second one if the first would lie far before the last line. A time without a year gets the parser's year, and
the next one where December is followed by January.
"""

from __future__ import annotations

import re
from calendar import isleap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
MAX_STEP_BACK_US = 300 * SECOND_US  # more than lines are usually out of order
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_clf = re.compile(r"\[?(\d\d)/(\w{3})/(\d{4}):(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?: ?([+-]\d\d):?(\d\d))?\]?")
_epoch = re.compile(r"(\d{1,19})(?:\.(\d{1,9})\d*)?")
_slashed = re.compile(r"(\d{4})/(\d\d)/(\d\d)[T ](.*)")
_utc = re.compile(r"(.*\d) ?(?:UTC|GMT)")
_http = re.compile(
    r"(?:\w{3},? )?(\d{1,2})[ -](\w{3})[ -](\d{4}) (\d\d:\d\d:\d\d(?:\.\d+)?)(?: ?([+-]\d\d:?\d\d))?"
)
_ctime = re.compile(r"\w{3} (\w{3}) +(\d{1,2}) (\d\d:\d\d:\d\d(?:\.\d+)?)( \w+)? (\d{4})")
_syslog = re.compile(r"(\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")

# An epoch number from this on has this many units in a second: 1e11 seconds is the year 5138.
MAX_TIME_US = 1 << 53  # in the year 2255: as far as an engine's time is exact
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
        self._kinds: list[TimeReader] = [
            *(self._clf_us, _epoch_us, self._iso_us, self._syslog_us, self._rare_us),
        ]
        self._days_us: dict[str, int] = {}  # midnight of a date and zone, as CLF writes them
        self._last_text: str | None = None
        self._last_us = 0

    def __call__(self, text: str) -> int:
        """Returns microseconds since 1970. Raises ValueError if the text is no time."""
        if text == self._last_text:
            return self._last_us
        for index, kind in enumerate(self._kinds):
            time_us = kind(text)
            if time_us is not None and 0 <= time_us < MAX_TIME_US:
                if index:
                    self._kinds.insert(0, self._kinds.pop(index))
                self._last_text, self._last_us = text, time_us
                return time_us
        raise ValueError(f"{text[:60]!r} is no time")

    def _clf_us(self, text: str) -> int | None:
        midnight_us = self._days_us.get(text[:11] + text[20:]) if len(text) == 26 else None
        if midnight_us is not None:
            try:
                hour, minute, second = int(text[12:14]), int(text[15:17]), int(text[18:20])
            except ValueError:
                return None
            if hour > 23 or minute > 59 or second > 60:
                return None
            return midnight_us + (hour * 3600 + minute * 60 + second) * SECOND_US
        match = _clf.fullmatch(text)
        if match is None or match[2] not in _MONTHS:
            return None
        day, month, year, hours, minutes, seconds, fraction, zone_hours, zone_minutes = match.groups()
        zone = _offset(zone_hours, zone_minutes)
        date = int(year), _MONTHS[month], int(day)
        if zone is not None and len(text) == 26 and text[0] != "[":
            if len(self._days_us) > 1000:
                self._days_us.clear()
            midnight_us = self._instant_us(*date, zone=zone)
            if midnight_us is not None:
                self._days_us[text[:11] + text[20:]] = midnight_us
        return self._instant_us(*date, int(hours), int(minutes), int(seconds), _fraction_us(fraction), zone)

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
        day, hour, minute, second = int(match[2]), int(match[3]), int(match[4]), int(match[5])
        moment = month, day, hour, minute, second, _fraction_us(match[6])
        time_us = self._instant_us(self.year, *moment)
        if not self.assumed_year and self._written_us is not None:
            while (month, day) == (2, 29) and not isleap(self.year):
                self.year -= 1
            time_us = self._instant_us(self.year, *moment)
            if time_us is not None and time_us > self._written_us + DAY_US:
                self.year -= 1
                time_us = self._instant_us(self.year, *moment)
        elif (self._last_month, month) == (12, 1):
            self.year += 1
            time_us = self._instant_us(self.year, *moment)
        self.assumed_year = True
        self._last_month = month
        return time_us

    def _rare_us(self, text: str) -> int | None:
        """Parses times with UTC or GMT behind them, with slashes, and as HTTP and ctime write them."""
        text = text.strip("[]")
        zone = "Z" if (in_utc := _utc.fullmatch(text)) else ""
        text = in_utc[1] if in_utc else text
        if match := _slashed.fullmatch(text):
            return self._iso_us(f"{match[1]}-{match[2]}-{match[3]} {match[4]}{zone}")
        if match := _http.fullmatch(text):
            day, month, year, clock, zone = *match.groups()[:4], match[5] or zone
        elif match := _ctime.fullmatch(text):
            month, day, clock, name, year = match.groups()
            zone = "Z" if name in (" UTC", " GMT") else ""
        else:
            return self._iso_us(f"{text}{zone}") if zone else None
        if month not in _MONTHS:
            return None
        return self._iso_us(f"{year}-{_MONTHS[month]:02}-{int(day):02} {clock}{zone}")

    def _instant_us(
        self,
        year: int,
        month: int,
        day: int,
        hour: int = 0,
        minute: int = 0,
        second: int = 0,
        microsecond: int = 0,
        zone: tzinfo | None = None,
    ) -> int | None:
        leap_us = SECOND_US if second == 60 else 0
        second = 59 if leap_us else second
        try:
            moment = datetime(year, month, day, hour, minute, second, microsecond, zone)
        except ValueError:
            return None
        return self._moment_us(moment) + leap_us

    def _moment_us(self, moment: datetime) -> int:
        if moment.tzinfo is not None:
            return _since_epoch_us(moment)
        self.assumed_zone = True
        time_us = _since_epoch_us(moment.replace(tzinfo=self.zone))
        if self.zone is UTC or self._last_text is None:
            return time_us
        again_us = _since_epoch_us(moment.replace(tzinfo=self.zone, fold=1))
        is_second = again_us > time_us and self._last_us - time_us > MAX_STEP_BACK_US
        return again_us if is_second else time_us


def _since_epoch_us(moment: datetime) -> int:
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
