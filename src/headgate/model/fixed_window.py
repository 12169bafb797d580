"""The fixed window: so many units in each minute of the clock, or in each day of somebody's calendar.

Picture a wall of boxes, one for every window, each holding `amount` units. Time walks along the wall. A
charge goes into the box before which time stands; when that is full, it waits for the next one. It is the
limit people mean when they say "1000 a day", and the cheapest there is; its price is that 2 * amount may
pass within moments, half of them just before a boundary and half just after it (sliding_window.py is the
remedy).

Measure. Windows of seconds are cut on the epoch: a window starts where now - now % period does. Windows of
the calendar are days, weeks from Monday, months and years of a time zone, and not all of one length. A pure
model has no time zones, so the caller brings six boundaries in a row (calendar.resolve): the start of the
window before the current one, of the current one, and of the four that follow. Six, because the two clocks
may disagree by up to a whole window either way, and from each of those three windows the two that follow
must be known. Outside of them the answer is OutsideCalendar (in Lua a reply of -2 and the time), and the
caller asks again from there.

Reservations. What does not fit into the current box goes into the following ones, first come, first served:
never before an earlier reservation, and never split. A reservation that does not fit into the rest of the
tail, the last box in use, starts the next box and leaves that rest empty. So the tail is all there is to
remember:

    until:used          the tail's end, and the units in it
    until:used:ahead    and how many windows it lay ahead of the clock when it was written, if any

The end, not the start, because it answers by itself, under whatever limit, when the state has lost its
meaning. No reservation lies further ahead than HORIZON_US, nor further than two windows of a calendar.

"1000/day fixed": 1000 may pass until midnight UTC. 990 are used; a reservation of 20 is served at midnight,
and from then on 980 are left. A take of 5 in the meantime is refused until midnight as well.

Laws (tests/model/test_fixed_window.py):
  - taking 3 is the same as taking 1 three times at the same instant;
  - a denied charge leaves no trace, and passes exactly retry_after later;
  - at most `amount` units are served in any window, reservations and refunds included;
  - nobody is served before an earlier reservation;
  - a clock that steps back frees nothing: a tail further ahead than it was ever put is taken to be that far
    ahead of the current window, with the units in it;
  - a refund gives back what the charge put into the tail, and nothing once that window has ended, or once
    later reservations lie in a window after it; a cancelled reservation gives nothing once served. A future
    window that was emptied is left, and the one before it counts as full, for it is no longer known how
    full it was;
  - a changed limit counts the units of a window that has not ended yet in the window of its own that holds
    that end, if not earlier, at most `amount`: a raised limit adds room, a lowered one bites at once.
"""

from __future__ import annotations

import re

from headgate.errors import InvalidRule
from headgate.model.decision import Facts, Receipt
from headgate.model.limit import DAY, HORIZON_US, YEAR, Limit, microseconds, span, whole

# The tail: its end, the units in it, and how many windows it lay ahead of the clock.
State = tuple[int, int, int]

UNITS = ("day", "week", "month", "year")
BOUNDARIES = 6
AHEAD = 2  # windows of a calendar that can be booked beyond the current one

_MOST = 10**15
_LONGEST_US = 100 * YEAR
_UNKNOWN = (0,) * BOUNDARIES


class OutsideCalendar(Exception):
    """The limit carries no boundaries around `now_us`: ask again with calendar.resolve(limit, now_us)."""

    def __init__(self, now_us: int) -> None:
        super().__init__(f"The limit carries no calendar boundaries around {now_us}.")
        self.now_us = now_us


class FixedWindow(Limit):
    """`amount` units in every window of `per` seconds, or of a "day", "week", "month" or "year" of a zone.

    unit, zone      the calendar's; None for windows of seconds
    boundaries_us   around now, once calendar.resolve has brought them; equality does not look at them
    nearest         the memo of calendar.resolve
    """

    __slots__ = ("amount", "boundaries_us", "nearest", "period_us", "unit", "zone")
    algorithm = "fixed_window"

    amount: int
    period_us: int
    unit: str | None
    zone: str | None
    boundaries_us: tuple[int, ...]
    nearest: FixedWindow | None

    def __init__(self, amount: int, per: float | str = 1, zone: str | None = None) -> None:
        if whole("The amount of a fixed window", amount) > _MOST:
            raise InvalidRule(f"The amount of a fixed window may be at most 10^15, not {amount}.")
        if isinstance(per, str):
            period_us, unit, place = _of_calendar(per, "UTC" if zone is None else zone)
        else:
            period_us, unit, place = _of_seconds(per, zone), None, None
        self.amount, self.period_us, self.unit, self.zone = amount, period_us, unit, place
        self.boundaries_us, self.nearest = _UNKNOWN, None
        where = "" if place in (None, "UTC") else f" in {place}"
        self.text = f"{amount}/{unit or span(period_us)} fixed{where}"
        self.args = (amount, period_us, *_UNKNOWN)

    def at(self, boundaries_us: tuple[int, ...]) -> FixedWindow:
        """The same limit, equal to this one, with the boundaries between which it can be decided."""
        if len(boundaries_us) != BOUNDARIES:
            raise ValueError(f"A calendar window takes {BOUNDARIES} boundaries, not {len(boundaries_us)}.")
        limit = FixedWindow.__new__(FixedWindow)
        limit.amount, limit.period_us = self.amount, self.period_us
        limit.unit, limit.zone, limit.text = self.unit, self.zone, self.text
        limit.boundaries_us, limit.nearest = boundaries_us, None
        limit.args = (self.amount, self.period_us, *boundaries_us)
        return limit

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedWindow) and other.text == self.text

    def __hash__(self) -> int:
        return hash((self.algorithm, self.text))


def _of_seconds(per: float, zone: str | None) -> int:
    period_us = microseconds("The period of a fixed window", per)
    if period_us > _LONGEST_US:
        raise InvalidRule(f"The period of a fixed window may be at most 100 years, not {per!r} seconds.")
    if zone is not None:
        raise InvalidRule(
            f"A window of seconds has no time zone, but {zone!r} was given. "
            'Give the period as "day", "week", "month" or "year", or leave the zone out.'
        )
    return period_us


def _of_calendar(unit: str, zone: str) -> tuple[int, str | None, str | None]:
    if unit not in UNITS:
        raise InvalidRule(
            'The period of a fixed window is a number of seconds, or "day", "week", "month" or "year", '
            f"not {unit!r}."
        )
    if not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", zone):
        raise InvalidRule(f'A time zone is a name such as "Asia/Shanghai", not {zone!r}.')
    # Days of UTC are windows of the epoch, and need nobody to bring their boundaries.
    return (DAY, None, None) if (unit, zone) == ("day", "UTC") else (0, unit, zone)


def decide(
    limit: FixedWindow, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Facts, State | None]:
    """Judge one charge. Pure: same arguments, same answer. With patience, a wait of up to it is allowed."""
    period_us = limit.period_us
    end_us = now_us - now_us % period_us + period_us if period_us else _current_end_us(limit, now_us)
    if state is None or state[0] <= now_us:
        room = limit.amount - cost
    elif state[0] == end_us:
        room = limit.amount - state[1] - cost
    else:
        room = -1
    if room >= 0 and cost:
        return (True, room, 0, end_us - now_us, 0, now_us, end_us), (end_us, limit.amount - room, 0)
    return _wait(limit, state, now_us, cost, patience_us, end_us)


def _wait(
    limit: FixedWindow, state: State | None, now_us: int, cost: int, patience_us: int | None, end_us: int
) -> tuple[Facts, State | None]:
    """What is not simply allowed: a peek, a refusal, a reservation, a tail that is not the current window."""
    amount = limit.amount
    until_us, used, ahead = tail = _settled(limit, state, now_us, end_us)
    window, after = ahead, used + (cost or 1)
    if after > amount:
        window, after = ahead + 1, cost
    wait_us = _end_us(limit, now_us, end_us, window - 1) - now_us if window else 0
    if (
        0 < cost <= amount
        and wait_us <= (0 if patience_us is None else min(patience_us, HORIZON_US))
        and (limit.period_us or window <= AHEAD)
    ):
        end_us = _end_us(limit, now_us, end_us, window)
        remaining = 0 if window else amount - after
        return (True, remaining, 0, end_us - now_us, wait_us, now_us, end_us), (end_us, after, window)
    remaining = 0 if ahead else amount - used
    retry_us = wait_us if cost <= amount else None
    reset_us = until_us - now_us if used else 0
    facts = (not cost and not wait_us, remaining, retry_us, reset_us, 0, now_us, until_us)
    # The state as it came, unless the clock stepped back behind it.
    return facts, tail if state is not None and state[0] > until_us else state


def _place(limit: FixedWindow, now_us: int) -> int:
    """Which of a calendar's boundaries the current window starts at."""
    previous, current, following, after_that, *_ = limit.boundaries_us
    if current <= now_us < following:
        return 1
    if previous <= now_us < current:
        return 0
    if following <= now_us < after_that:
        return 2
    raise OutsideCalendar(now_us)


def _current_end_us(limit: FixedWindow, now_us: int) -> int:
    if limit.period_us:
        return now_us - now_us % limit.period_us + limit.period_us
    return limit.boundaries_us[_place(limit, now_us) + 1]


def _end_us(limit: FixedWindow, now_us: int, end_us: int, ahead: int) -> int:
    """The end of the window that lies so many windows ahead of the current one, which ends at `end_us`."""
    if not ahead or limit.period_us:
        return end_us + ahead * limit.period_us
    return limit.boundaries_us[_place(limit, now_us) + 1 + ahead]


def _settled(limit: FixedWindow, state: State | None, now_us: int, end_us: int) -> State:
    """The tail among this limit's windows: also of a state ahead of the clock, or of another limit."""
    if state is None or state[0] <= now_us:
        return end_us, 0, 0
    until_us, used, furthest = state
    ahead = 0
    if until_us > end_us and limit.period_us:
        ahead = min(furthest, -((end_us - until_us) // limit.period_us))
    elif until_us > end_us:
        while ahead < min(furthest, AHEAD) and _end_us(limit, now_us, end_us, ahead) < until_us:
            ahead += 1
    return _end_us(limit, now_us, end_us, ahead), min(used, limit.amount), ahead


def refund(
    limit: FixedWindow, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    """The state with up to `units` of the receipt's charge given back; None if it holds nothing any more."""
    end_us = _current_end_us(limit, now_us)
    given = min(units, receipt.cost - receipt.returned)
    if state is None or given <= 0 or receipt.mark != state[0] or receipt.mark <= now_us:
        return None
    if cancel and receipt.served_us < now_us:
        return None
    until_us, _, ahead = _settled(limit, state, now_us, end_us)
    # Not the settled count: what a lowered limit does not see is still there to be given back first.
    used = state[1] - given
    if used <= 0 and ahead:
        return _end_us(limit, now_us, end_us, ahead - 1), limit.amount, ahead - 1
    return until_us, max(0, used), ahead


def dead_at_us(limit: FixedWindow, state: State) -> int:
    """From when on the state says no more than None does."""
    return state[0] if state[1] else 0


def pack(state: State) -> str:
    until_us, used, ahead = state
    return f"{until_us}:{used}:{ahead}" if ahead else f"{until_us}:{used}"


def unpack(text: str) -> State:
    until_us, used, ahead, *_ = (*text.split(":"), "0")
    return int(until_us), int(used), int(ahead)
