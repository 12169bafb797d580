"""Limit, the base of all limits: an algorithm with its numbers. It knows no key, no rule and no clock.

All that headers, shares, explanations and protocols need to know of a limit are methods here, which the file of
its algorithm overrides: no other file asks which algorithm a limit has. Slots are the exception, because they are
held and not charged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import ClassVar

from headgate.algorithms.decision import REMAINING, RESET_AFTER_US, Outcome, Receipt
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


# Units of time in which a rate can be stated, ascending, and their seconds.
RATE_UNITS = {"second": 1, "minute": 60, "hour": 60 * 60, "day": 24 * 60 * 60}

_WINDOW_UNITS = {seconds * SECOND: unit for unit, seconds in RATE_UNITS.items()} | {
    WEEK: "week",
    30 * DAY: "month",
    YEAR: "year",
}

# Labels and texts, in the order in which people look for them.
Description = Iterator[tuple[str, str]]

# Returns six starts of a calendar's windows in a row, of a unit, a zone and an instant in the second of them.
Boundaries = Callable[[str, str, int], tuple[int, ...]]

REFUSAL_TEXT = "is not counted; it passes exactly retry_after later, if nothing else comes"


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

    # Separates states of one name that have different meanings: then it is the last of `args`. 0: a state is
    # complete by itself.
    pace: int = 0
    zone: str | None = None  # the time zone of its calendar, if it has one
    prefetchable: ClassVar[bool] = False  # whether units may be fetched ahead: not if the limit paces its calls
    refunds_newest_first: ClassVar[bool] = False  # whether a count can only name its newest unit
    is_held: ClassVar[bool] = False  # whether a call holds it until it ends, and is not charged
    is_advertised: ClassVar[bool] = True  # whether header fields tell clients what is left of it
    has_edges: ClassVar[bool] = False  # whether its counts start again at edges that are the same for all keys
    # How units come back: one by one ("bucket"; "exact bucket" if that is all), at the end of a window ("window"),
    # or as earlier ones expire ("sliding").
    refill: ClassVar[str] = ""
    no_bucket: ClassVar[str] = "it has no rate"  # why as_bucket returns None

    @property
    def max_cost(self) -> int:
        """The greatest cost that can ever pass at once: a larger one is refused for good."""
        raise NotImplementedError

    @property
    def units_at_once(self) -> int:
        """Returns how many units pass at once on a key that was never used."""
        return self.max_cost

    @property
    def quota(self) -> int:
        """The most units that a key can have left."""
        return self.units_at_once

    @property
    def window_seconds(self) -> int | None:
        """The seconds in which the quota comes back, rounded up; None if it comes back by being released."""
        return None

    @property
    def units_per_second(self) -> Fraction | None:
        """The rate; None if there is none, or if it differs from one window to the next."""
        return None

    @property
    def is_calendar(self) -> bool:
        """Returns whether its windows are those of a calendar."""
        return False

    @property
    def unit_drain(self) -> tuple[int, int]:
        """In how many microseconds so many units of one charge end, one by one; (0, 1): all end together."""
        return 0, 1

    def per_unit(self) -> tuple[int, str | None]:
        """Returns a whole number of units and a unit of time: 100, "second".

        For protocols that have no fractions. Returns the quota and None if no unit of time gives a whole number.
        """
        rate = self.units_per_second
        for unit, seconds in RATE_UNITS.items():
            if rate is not None and (rate * seconds).denominator == 1:
                return int(rate * seconds), unit
        return self.quota, None

    def resolve(self, now_us: int, boundaries: Boundaries) -> Limit:
        """Returns the limit as it is decided now: of a calendar, with the boundaries around this instant."""
        return self

    def with_override(self, override: Limit) -> Limit | None:
        """Returns the limit that decides for a key with this override; None: this one."""
        return override if override.algorithm == self.algorithm else None

    @property
    def override_args(self) -> str:
        """Returns the limit as scripts read it in place of another."""
        return " ".join([self.algorithm, *map(str, self.args)])

    def explain(self) -> Description:
        """Yields labels and texts that explain what the limit does to a caller."""
        raise NotImplementedError

    def gateway_fields(self) -> Iterator[tuple[str, object]]:
        """Yields the fields that a gateway needs for this algorithm only, in addition to those of all limits."""
        yield from ()

    def divide(self, count: int, units: int, sharers: int) -> Limit | None:
        """Returns the share of one of `count` processes: so many units, and the rate divided by the number of
        `sharers`, those that have a share at all. None if there is none, or if it is too slow to be expressed."""
        if not units:
            return None
        try:
            return self._share(units, sharers)
        except InvalidRule:
            return None

    def _share(self, units: int, sharers: int) -> Limit:
        """Does the same for one unit or more; raises InvalidRule if that is too slow."""
        raise NotImplementedError

    def units_in_use(self, outcome: Outcome) -> int:
        """Returns how many units the count still holds, from the outcome of a peek; rounded up."""
        return max(0, self.units_at_once - outcome[REMAINING])

    def reset_after_us(self, outcome: Outcome) -> int:
        """Returns when the count will be as if never used; of a window that is not used, when it ends."""
        return outcome[RESET_AFTER_US]

    def as_bucket(self) -> tuple[int, int, int] | None:
        """Returns a token bucket that admits no more: units, per how many microseconds, burst; None if there is
        none."""
        return None

    def receipt_of_newest(self, outcome: Outcome, units: int) -> Receipt | None:
        """Returns a receipt for the newest units of a peeked count, as if one charge had taken them; None if there
        are none."""
        return Receipt.from_outcome(outcome, units)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.args == self.args

    def __hash__(self) -> int:
        return hash(self.args)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text}>"


class WindowLimit(Limit):
    """A limit of so many units in a window: the base of the fixed and the sliding windows and of the log."""

    __slots__ = ("amount",)

    amount: int
    prefetchable = True
    refill = "sliding"

    @property
    def window_us(self) -> int:
        """The length of the window; of a calendar's windows, the longest but for summer time."""
        raise NotImplementedError

    @property
    def longest_window_us(self) -> int:
        """The length of the longest window."""
        return self.window_us

    @property
    def max_cost(self) -> int:
        return self.amount

    @property
    def window_seconds(self) -> int | None:
        return ceil_seconds(self.window_us)

    @property
    def units_per_second(self) -> Fraction | None:
        return None if self.is_calendar else Fraction(self.amount * SECOND, self.window_us)

    def per_unit(self) -> tuple[int, str | None]:
        return self.amount, _WINDOW_UNITS.get(self.window_us)

    def as_bucket(self) -> tuple[int, int, int] | None:
        """Returns a bucket with a tenth of the units as its burst, rounded up, and the others as its rate: a
        bucket of n units that gets n per period would let 2n pass in a period."""
        burst = -(-self.amount // 10)
        return self.amount - burst, self.longest_window_us, burst


def lengthened(us: int, amount: int, sharers: int) -> int:
    """Returns the time in which each sharer may have one unit, rounded up; unchanged if the amount suffices for
    all."""
    return us if amount >= sharers else -(-us * sharers // amount)


def ceil_seconds(us: int) -> int:
    """Returns whole seconds, rounded up."""
    return -(-us // SECOND)


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
