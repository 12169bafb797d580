"""Calendar windows: where days, weeks, months and years begin and end in a time zone.

The models are pure and the scripts have no time zones, so a limit on days, weeks, months or years gets the
boundaries around now before it is decided. A day starts at the first instant at which its zone's date is that day
or a later one. Mostly that is midnight; where the clocks jump over midnight it is the jump. A day that a zone
skipped (Samoa's 30 December 2011) is no window, and a day is as long as it is: 23, 24 or 25 hours, or whatever its
government decided.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING

from headgate.algorithms.fixed_window import BOUNDARIES
from headgate.algorithms.limit import SECOND, Limit
from headgate.errors import InvalidRule

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def resolve(limit: Limit, now_us: int) -> Limit:
    """Returns the limit with the boundaries around `now_us`; a limit that has no calendar, as it is."""
    return limit.resolve(now_us, boundaries)


def boundaries(unit: str, zone: str, now_us: int) -> tuple[int, ...]:
    """Returns six starts of windows in a row; the second is that of the window which holds `now_us`."""
    now = _EPOCH + timedelta(seconds=now_us // SECOND)
    starts = _starts(unit, zone, _first_day(unit, now.astimezone(time_zone(zone)).date(), 0))
    current = bisect_right(starts, now_us) - 1
    return starts[current - 1 : current - 1 + BOUNDARIES]


@lru_cache(maxsize=256)
def time_zone(name: str) -> ZoneInfo:
    """Returns the time zone of that name; raises InvalidRule if there is none."""
    # Imported here, for it reads this machine's configuration, and most limits need no zone.
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidRule(f'"{name}" is not a time zone. {_advice(name)}') from error


def _advice(name: str) -> str:
    """Returns what to write instead of a time zone that does not exist."""
    from zoneinfo import available_timezones

    zones = {zone.lower(): zone for zone in available_timezones()}
    if not zones:
        return "This machine has no time zone database: install the package tzdata."
    cities = {zone.rpartition("/")[2]: zone for zone in zones}
    lower_name = name.lower()
    matches = get_close_matches(lower_name, zones, 3) or [
        cities[city] for city in get_close_matches(lower_name.rpartition("/")[2], cities, 3)
    ]
    if not matches:
        return 'Write a name of the IANA database, such as "Asia/Shanghai".'
    return f"Did you mean {' or '.join(zones[match] for match in matches)}?"


@lru_cache(maxsize=256)
def _starts(unit: str, zone: str, first: date) -> tuple[int, ...]:
    """Returns the starts of the windows around the one whose first day is `first`: more than needed, because the
    date may turn back at midnight, and days may be missing."""
    tz = time_zone(zone)
    return tuple(sorted({_start_us(tz, _first_day(unit, first, step)) for step in range(-3, BOUNDARIES + 2)}))


def _first_day(unit: str, day: date, step: int) -> date:
    """Returns the first day of the window that lies so many windows after the one that holds `day`."""
    if unit == "day":
        return day + timedelta(days=step)
    if unit == "week":
        return day + timedelta(days=7 * step - day.weekday())
    if unit == "month":
        years, month = divmod(day.month - 1 + step, 12)
        return date(day.year + years, month + 1, 1)
    return date(day.year + step, 1, 1)


def _start_us(tz: ZoneInfo, day: date) -> int:
    """Returns the first instant at which the zone's date is `day` or later."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=tz)
    start, earlier = _seconds(midnight), _seconds(midnight.replace(fold=1))
    # Two midnights: `start` is the first. None: the clocks jumped over it, between `earlier` and `start`.
    while earlier < start:
        middle = (earlier + start) // 2
        if (_EPOCH + timedelta(seconds=middle)).astimezone(tz).date() >= day:
            start = middle
        else:
            earlier = middle + 1
    return start * SECOND


def _seconds(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(seconds=1)
