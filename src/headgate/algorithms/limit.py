"""Limit, the base of all limits: an algorithm with its numbers. It knows no key, no rule and no clock."""

from __future__ import annotations

from typing import ClassVar

from headgate.errors import InvalidRule

# Whole numbers are exact in a double up to here; every product a model forms in Lua stays below it.
EXACT = 2**53

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY
YEAR = 365 * DAY

# No reservation lies further ahead than this: debt is bounded, and so is every key's life.
HORIZON_US = 366 * DAY

# Clocks that are read by several processes, or corrected while they run, swing by this much. A clock that reads
# further behind what a state proves was set back.
MAX_CLOCK_SWING_US = 100_000


class Limit:
    """One algorithm with its numbers: immutable, comparable, printable in the text form that made it.

    algorithm   the name of its model file, in Python and in Lua alike
    args        its numbers in the order in which the Lua twin reads them
    text        its shortest text form; parse(limit.text) == limit

    >>> limit = parse("10/minute")
    >>> limit.text, limit.max_cost, limit == parse("10/60s")
    ('10/minute', 10, True)
    """

    __slots__ = ("args", "text")

    algorithm: ClassVar[str]
    args: tuple[int | float, ...]
    text: str

    @property
    def max_cost(self) -> int:
        """The greatest cost that can ever pass at once: a larger one is refused for good."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.args == self.args

    def __hash__(self) -> int:
        return hash((self.algorithm, self.args))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text}>"


class Unlimited(Limit):
    """The limit of a call that no rule limits. No engine decides it."""

    __slots__ = ()

    algorithm = "unlimited"

    def __init__(self) -> None:
        self.args: tuple[int | float, ...] = ()
        self.text: str = "unlimited"

    @property
    def max_cost(self) -> int:
        return EXACT

    def __reduce__(self) -> str:
        return "UNLIMITED"  # there is only one, and code compares its identity


UNLIMITED = Unlimited()


def check_whole(what: str, value: object, *, least: int = 1) -> int:
    """Returns `value` if it is a whole number of at least `least`; raises InvalidRule otherwise."""
    if type(value) is not int or value < least:
        raise InvalidRule(f"{what} must be a whole number of at least {least}, not {value!r}.")
    return value


def check_microseconds(what: str, seconds: object) -> int:
    """Returns a length of time in whole microseconds; raises InvalidRule if `seconds` is not one."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidRule(f"{what} must be a number of seconds, not {seconds!r}.")
    us = round(seconds * SECOND) if seconds == seconds and abs(seconds) < EXACT / SECOND else 0
    if us <= 0:
        raise InvalidRule(f"{what} must be between one microsecond and 285 years, not {seconds!r} seconds.")
    return us


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
