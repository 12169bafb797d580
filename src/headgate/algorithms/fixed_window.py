"""The fixed window: so many units in each minute of the clock, or in each day of a calendar.

Picture a wall of boxes, one for every window, each holding `amount` units. Time walks along the wall. A
charge goes into the box that time has reached; when that is full, it waits for the next one. It is the limit
people mean when they say "1000 a day", and the cheapest there is; its price is that 2 * amount may pass within
moments, half of them just before a boundary and half just after it (sliding_window.py is the remedy).

Measure. Windows of seconds are cut on the epoch: a window starts where now - now % period does. Windows of
the calendar are days, weeks from Monday, months and years of a time zone, and not all of one length. A pure
model has no time zones, so the caller brings six boundaries in a row (calendar.resolve): the start of the
window before the current one, of the current one, and of the four that follow. Six, because the two clocks
may disagree by up to a whole window either way, and from each of those three windows the two that follow
must be known. Outside of them `decide` raises OutsideCalendar (in Lua it returns -2 and the time), and the caller
decides again with the boundaries around that time.

Reservations. What does not fit into the current box goes into the following ones, first come, first served:
never before an earlier reservation, and never split. A reservation that does not fit into the rest of the
tail, the last box in use, starts the next box and leaves that rest empty. So the tail is all there is to
remember:

    until:used:stamp          the tail's end, the units in it, and when it was last written
    until:used:stamp:served   and from when on its units are served, if the tail lay ahead of the clock

The end shows by itself, under whatever limit, when the state has lost its meaning. No reservation lies further
ahead than HORIZON_US, nor further than two windows of a calendar.

Surcharges. Units that a call used beyond what it was charged go into the current box, beyond its amount if need be
(below 10^15); those of a reservation that lies ahead into its own. Boxes before the tail count as full, so nothing
is written there. Nothing is carried over: when the box is left behind, so are they.

Another limit. A limit with other windows counts the units in that window of its own in which the last of them was
served, and no longer than the old window lasts. A refusal writes nothing, so a limit that is changed back finds
all of them.

The clock. The stamp distinguishes a clock that was set back from another limit. If it lies up to
MAX_CLOCK_SWING_US ahead, the clock swings, and the charge is decided as of the stamp. If it lies further ahead,
the clock was set back: the tail moves along with it, and even a refusal stores that.

"1000/day fixed": 1000 may pass until midnight UTC. 990 are used; a reservation of 20 is served at midnight,
and from then on 980 are left. A take of 5 in the meantime is refused until midnight as well.

Laws (tests/algorithms/test_fixed_window.py, test_clock_laws.py, test_changed_limit_laws.py):
  - taking 3 is the same as taking 1 three times at the same instant;
  - a denied charge leaves no trace (unless the clock was set back) and passes exactly retry_after later;
  - at most `amount` units are served in any window, reservations and refunds included;
  - nobody is served before an earlier reservation;
  - a clock that swings frees nothing; one that is set back frees at most `amount` once, and nobody waits longer
    for it than MAX_CLOCK_SWING_US;
  - a refund gives back what the charge put into the tail, and nothing once that window has ended, or once
    later reservations lie in a window after it; a cancelled reservation gives nothing once served. If a future
    window is emptied, the tail goes back, and the windows before it count as full, under any limit, because how
    full they were is not stored;
  - a surcharge of n units is as if a charge of n had fit into the window, and the next window is as it would have
    been (test_surcharge_laws.py);
  - a changed limit counts the units of a window that has not ended yet, at most `amount`, in the window of its own
    in which the last of them was served, or a reservation of them will be: a raised limit adds room, a lowered
    one bites at once. A refused charge gives nothing back, however the limit is changed; an admitted one
    forgives, when its window ends, what was used in the old one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from headgate.algorithms.decision import AT_US, MARK, RESET_AFTER_US, Outcome, Receipt
from headgate.algorithms.durations import format_period, in_words
from headgate.algorithms.limit import (
    DAY,
    HORIZON_US,
    HOUR,
    MAX_CLOCK_SWING_US,
    REFUSAL_TEXT,
    SECOND,
    WEEK,
    YEAR,
    Boundaries,
    Description,
    Limit,
    WindowLimit,
    check_microseconds,
    check_whole,
    lengthened,
)
from headgate.errors import InvalidRule

# The tail: its end, the units in it, when it was written, and from when on the last of them are served.
State = tuple[int, int, int, int]

_MAX_CALENDAR_US = {"day": DAY, "week": WEEK, "month": 31 * DAY, "year": 366 * DAY}
CALENDAR_UNITS = tuple(_MAX_CALENDAR_US)
BOUNDARIES = 6
MAX_WINDOWS_AHEAD = 2  # windows of a calendar that can be booked beyond the current one

_MAX_AMOUNT = 10**15
_MAX_PERIOD_US = 100 * YEAR
_NO_BOUNDARIES = (0,) * BOUNDARIES


class OutsideCalendar(Exception):
    """The limit carries no boundaries around `now_us`: decide again with calendar.resolve(limit, now_us)."""

    def __init__(self, now_us: int) -> None:
        super().__init__(f"The limit carries no calendar boundaries around {now_us}.")
        self.now_us = now_us


class FixedWindow(WindowLimit):
    """Passes `amount` units in every window of `per` seconds, or of a "day", "week", "month" or "year" of a zone.

    unit, zone      the calendar's; None for windows of seconds
    boundaries_us   around now, set by calendar.resolve; equality ignores them
    resolved        the last result of calendar.resolve

    >>> FixedWindow(1000, per="day", zone="Asia/Shanghai")
    <FixedWindow 1000/day fixed in Asia/Shanghai>
    """

    __slots__ = ("boundaries_us", "period_us", "resolved", "unit", "zone")
    algorithm = "fixed_window"
    has_edges = True
    refill = "window"

    amount: int
    period_us: int
    unit: str | None
    zone: str | None
    boundaries_us: tuple[int, ...]
    resolved: FixedWindow | None

    def __init__(self, amount: int, per: float | str = 1, zone: str | None = None) -> None:
        if check_whole("The amount of a fixed window", amount) > _MAX_AMOUNT:
            raise InvalidRule(f"The amount of a fixed window may be at most 10^15, not {amount}.")
        if isinstance(per, str):
            period_us, unit, calendar_zone = _checked_calendar(per, "UTC" if zone is None else zone)
        else:
            period_us, unit, calendar_zone = _checked_period_us(per, zone), None, None
        self.amount, self.period_us, self.unit, self.zone = amount, period_us, unit, calendar_zone
        self.boundaries_us, self.resolved = _NO_BOUNDARIES, None
        suffix = "" if calendar_zone in (None, "UTC") else f" in {calendar_zone}"
        self.text: str = f"{amount}/{unit or format_period(period_us)} fixed{suffix}"
        self.args: tuple[int | float, ...] = (amount, period_us, *_NO_BOUNDARIES)

    @property
    def window_us(self) -> int:
        return self.period_us if self.unit is None else _MAX_CALENDAR_US[self.unit]

    @property
    def longest_window_us(self) -> int:
        return self.window_us if self.unit is None else self.window_us + HOUR  # the end of summer time

    @property
    def is_calendar(self) -> bool:
        return self.unit is not None

    def per_unit(self) -> tuple[int, str | None]:
        return super().per_unit() if self.unit is None else (self.amount, self.unit)

    def reset_after_us(self, outcome: Outcome) -> int:
        return outcome[RESET_AFTER_US] or max(0, outcome[MARK] - outcome[AT_US])

    def _share(self, units: int, sharers: int) -> FixedWindow:
        if self.unit is not None:
            return FixedWindow(units, self.unit, self.zone)
        return FixedWindow(units, lengthened(self.period_us, self.amount, sharers) / SECOND)

    def explain(self) -> Description:
        window = f"window of {in_words(self.period_us)}, cut on the epoch"
        yield "algorithm", "fixed window: a count that starts again at every edge"
        yield "passes", f"{self.amount:,} in each {f'{self.unit} in {self.zone}' if self.unit else window}"
        yield (
            "at most",
            f"{2 * self.amount:,} around an edge, half before it and half after; sliding and log avoid that",
        )
        yield "exact", "to the unit; reservations go into the following windows"
        yield "idle keys", "are forgotten when their window ends"
        yield "refused", f"{REFUSAL_TEXT}: at the next edge; a cost above {self.amount:,} never passes"

    def gateway_fields(self) -> Iterator[tuple[str, object]]:
        if self.unit is not None:
            yield "calendar", {"unit": self.unit, "zone": self.zone}

    def resolve(self, now_us: int, boundaries: Boundaries) -> FixedWindow:
        if self.unit is None or self.zone is None:
            return self
        resolved = self.resolved
        if resolved is None or not resolved.boundaries_us[1] <= now_us < resolved.boundaries_us[2]:
            # One reference, replaced at once: threads that race here only do the same work twice.
            resolved = self.resolved = self.at(boundaries(self.unit, self.zone, now_us))
        return resolved

    def with_override(self, override: Limit) -> Limit | None:
        """Returns the limit that decides: a calendar keeps its edges, and no other window becomes one."""
        if not isinstance(override, FixedWindow) or override.unit is None:
            return super().with_override(override)
        if self.unit is None:
            return None
        same = (override.unit, override.zone) == (self.unit, self.zone)
        return override if same else FixedWindow(override.amount, self.unit, self.zone)

    @property
    def override_args(self) -> str:
        return super().override_args if self.unit is None else f"calendar {self.amount}"

    def at(self, boundaries_us: tuple[int, ...]) -> FixedWindow:
        """Returns a limit equal to this one, with the boundaries between which it can be decided."""
        if len(boundaries_us) != BOUNDARIES:
            raise ValueError(f"A calendar window takes {BOUNDARIES} boundaries, not {len(boundaries_us)}.")
        limit = FixedWindow.__new__(FixedWindow)
        limit.amount, limit.period_us = self.amount, self.period_us
        limit.unit, limit.zone, limit.text = self.unit, self.zone, self.text
        limit.boundaries_us, limit.resolved = boundaries_us, None
        limit.args = (self.amount, self.period_us, *boundaries_us)
        return limit

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedWindow) and other.text == self.text

    def __hash__(self) -> int:
        return hash((self.algorithm, self.text))


def _checked_period_us(per: float, zone: str | None) -> int:
    period_us = check_microseconds("The period of a fixed window", per)
    if period_us > _MAX_PERIOD_US:
        raise InvalidRule(f"The period of a fixed window may be at most 100 years, not {per!r} seconds.")
    if zone is not None:
        raise InvalidRule(
            f"A window of seconds has no time zone, but {zone!r} was given. "
            'Give the period as "day", "week", "month" or "year", or leave the zone out.'
        )
    return period_us


def _checked_calendar(unit: str, zone: str) -> tuple[int, str | None, str | None]:
    if unit not in CALENDAR_UNITS:
        raise InvalidRule(
            'The period of a fixed window is a number of seconds, or "day", "week", "month" or "year", '
            f"not {unit!r}."
        )
    if not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", zone):
        raise InvalidRule(f'A time zone is a name such as "Asia/Shanghai", not {zone!r}.')
    # Days of UTC are windows of the epoch, and need no boundaries.
    return (DAY, None, None) if (unit, zone) == ("day", "UTC") else (0, unit, zone)


def decide(
    limit: FixedWindow, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Outcome, State | None]:
    """Decides one charge. Pure: same arguments, same result. With patience, a wait of at most that is allowed."""
    period_us, at_us = limit.period_us, now_us
    if state is not None and now_us < state[2] <= now_us + MAX_CLOCK_SWING_US:
        at_us = state[2]
    start_us = at_us - at_us % period_us if period_us else limit.boundaries_us[_current_index(limit, at_us)]
    end_us = start_us + period_us if period_us else _end_us(limit, at_us, 0)
    if state is None or state[0] <= at_us:
        remaining = limit.amount - cost
    elif state[0] == end_us and start_us <= state[3] <= at_us:
        remaining = limit.amount - state[1] - cost
    else:
        remaining = -1
    if remaining >= 0 and cost:
        outcome = True, remaining, 0, end_us - now_us, 0, now_us, end_us
        return outcome, (end_us, limit.amount - remaining, at_us, at_us)
    return _decide_general(limit, state, now_us, at_us, cost, patience_us)


def _decide_general(
    limit: FixedWindow, state: State | None, now_us: int, at_us: int, cost: int, patience_us: int | None
) -> tuple[Outcome, State | None]:
    """Decides all that is not simply allowed: a peek, a refusal, a reservation, a tail in another window."""
    amount = limit.amount
    state = _follow_clock(limit, state, at_us)
    window, used, served_us, expires_us = _tail(limit, state, at_us)
    remaining = 0 if served_us > at_us else amount - used
    after = used + (cost or 1)
    if after > amount:
        # The next window, or the rest of this one if the units are another limit's, whose window ends in it.
        window, after, served_us = window + (expires_us == _end_us(limit, at_us, window)), cost, expires_us
    wait_us = served_us - now_us if served_us > at_us else 0
    if (
        0 < cost <= amount
        and (not wait_us or wait_us <= (-1 if patience_us is None else min(patience_us, HORIZON_US)))
        and (limit.period_us or window <= MAX_WINDOWS_AHEAD)
    ):
        end_us = _end_us(limit, at_us, window)
        remaining = 0 if wait_us else amount - after
        outcome = True, remaining, 0, end_us - now_us, wait_us, now_us, end_us
        return outcome, (end_us, after, at_us, served_us)
    retry_us = wait_us if cost <= amount else None
    reset_us = expires_us - now_us if used else 0
    return (not cost and not wait_us, remaining, retry_us, reset_us, 0, now_us, expires_us), state


def _current_index(limit: FixedWindow, now_us: int) -> int:
    """Returns the index of the boundary that the current window of a calendar starts at."""
    previous, current, following, after_that, *_ = limit.boundaries_us
    if current <= now_us < following:
        return 1
    if previous <= now_us < current:
        return 0
    if following <= now_us < after_that:
        return 2
    raise OutsideCalendar(now_us)


def _end_us(limit: FixedWindow, at_us: int, ahead: int) -> int:
    """Returns the end of the window that lies so many windows ahead of the current one; -1: of the one before
    it."""
    period_us = limit.period_us
    if period_us:
        return at_us - at_us % period_us + (ahead + 1) * period_us
    return limit.boundaries_us[_current_index(limit, at_us) + 1 + ahead]


def _follow_clock(limit: FixedWindow, state: State | None, at_us: int) -> State | None:
    """Returns the state, moved along with a clock that was set back: into the window that is as far ahead as it
    was."""
    if state is None or state[2] <= at_us:
        return state
    _, used, stamp_us, served_us = state
    # Of a calendar only the windows around now are known: so it was in the next one, or in a later one.
    period_us = limit.period_us
    ahead = served_us // period_us - stamp_us // period_us if period_us else int(served_us > stamp_us)
    served_us = _end_us(limit, at_us, ahead - 1) if ahead else at_us
    return _end_us(limit, at_us, ahead), used, at_us, served_us


def _tail(limit: FixedWindow, state: State | None, at_us: int) -> tuple[int, int, int, int]:
    """Returns the tail among this limit's windows, also of a state of another limit: how many windows ahead it is,
    its units, when the last of them are served, and when they stop counting."""
    if state is None or state[0] <= at_us or state[3] < _end_us(limit, at_us, -1):
        return 0, 0, at_us, _end_us(limit, at_us, 0)
    until_us, used, _, served_us = state
    ahead = 0
    if limit.period_us:
        ahead = served_us // limit.period_us - at_us // limit.period_us
    else:
        while ahead < MAX_WINDOWS_AHEAD and _end_us(limit, at_us, ahead) <= served_us:
            ahead += 1
    return ahead, min(used, limit.amount), max(at_us, served_us), min(until_us, _end_us(limit, at_us, ahead))


def refund(
    limit: FixedWindow, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    """Returns the state with up to `units` of the receipt's charge given back; None if it holds none any more."""
    refunded = min(units, receipt.cost - receipt.refunded_units)
    if state is None or refunded <= 0 or receipt.mark != state[0] or receipt.mark <= now_us:
        return None
    if cancel and receipt.served_us < now_us:
        return None
    at_us = state[2] if now_us < state[2] <= now_us + MAX_CLOCK_SWING_US else now_us
    followed = _follow_clock(limit, state, at_us) or state
    ahead, *_ = _tail(limit, followed, at_us)
    # Another limit's window may end with this one, but a charge of it was served before this one began.
    if receipt.served_us + MAX_CLOCK_SWING_US < _end_us(limit, at_us, ahead - 1):
        return None
    until_us, used, stamp_us, served_us = followed
    # The stored count, not what this limit sees of it: units beyond a lowered limit are given back first.
    # (But of a window that counts as full, what this limit sees.)
    used = (limit.amount if used == _MAX_AMOUNT else used) - refunded
    if used <= 0 and ahead:
        start_us = _end_us(limit, at_us, ahead - 1)
        if served_us > start_us:  # A window of another limit: the part of this one before it counts as full.
            return served_us, _MAX_AMOUNT, at_us, start_us
        served_us = _end_us(limit, at_us, ahead - 2) if ahead > 1 else at_us
        return start_us, _MAX_AMOUNT, at_us, served_us
    return until_us, max(0, used), stamp_us, served_us


def surcharge(limit: FixedWindow, state: State | None, now_us: int, units: int, receipt: Receipt) -> State | None:
    """Returns the state with so many units more of a charge, whether they fit or not; None if that changes
    nothing."""
    at_us = state[2] if state is not None and now_us < state[2] <= now_us + MAX_CLOCK_SWING_US else now_us
    state = _follow_clock(limit, state, at_us)
    ahead, used, served_us, _ = _tail(limit, state, at_us)
    if ahead and max(at_us, receipt.served_us) < _end_us(limit, at_us, ahead - 1):
        return None  # Reservations lie ahead, so this window counts as full already.
    if state is not None and used:
        used = state[1]  # all of them, also those beyond the amount
    if used < _MAX_AMOUNT:
        used = min(used + units, _MAX_AMOUNT - 1)
    return _end_us(limit, at_us, ahead), used, at_us, served_us


def dead_at_us(limit: FixedWindow, state: State) -> int:
    """Returns the instant from which on the state means the same as None."""
    return state[0] + MAX_CLOCK_SWING_US


def pack(state: State) -> str:
    until_us, used, stamp_us, served_us = state
    text = f"{until_us}:{used}:{stamp_us}"
    return text if served_us == stamp_us else f"{text}:{served_us}"


def unpack(text: str) -> State:
    until_us, used, stamp_us, *served_us = map(int, text.split(":"))
    return until_us, used, stamp_us, served_us[0] if served_us else stamp_us
