"""Writes lengths of time: in a limit's text form, and in words for people."""

from __future__ import annotations

import re

from headgate.algorithms.limit import DAY, HOUR, MINUTE, SECOND


def format_period(us: int) -> str:
    """Returns a period in its shortest text form, as after a slash: 1000000 is "s", 90000000 is "90s"."""
    for length, unit in ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute"), (SECOND, "s")):
        if us == length:
            return unit
    return format_duration(us)


def format_duration(us: int) -> str:
    """Returns a length of time with its number: 1000000 is "1s", 90000000 is "90s", 0 is "0s"."""
    if not us:
        return "0s"
    for length, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s"), (1000, "ms")):
        if us % length == 0:
            return f"{us // length}{unit}"
    return f"{us}us"


def in_words(us: float) -> str:
    """Returns a length of time for people: 90 s, 10 ms, 1.43 us."""
    for length, unit in ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")):
        if us >= 2 * length or us == length:
            count = round(us / length, 2)
            return f"{count:g} {unit}{'' if count == 1 else 's'}"
    for length, unit in ((SECOND, "s"), (1000, "ms")):
        if us >= length:
            return f"{us / length:.4g} {unit}"
    return f"{us:.3g} us"


def after_any(us: float) -> str:
    """Returns a length of time in words as it follows "in any": minute, not 1 minute."""
    return re.sub(r"^1 (?=[dhm]\w\w)", "", in_words(us))
