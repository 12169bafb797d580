"""The sliding log: exactly so many units within any period, because every unit is remembered.

Picture a roll of paper on which each unit writes the instant at which it is served, oldest first. A charge of
`cost` units may pass if the roll holds at most `amount - cost` instants of the last period; one that is exactly
a period old has left. That takes no counting: as the roll is in order, it is enough to look at a single entry,
the one that must have left before the charge can be served. That is the (amount - cost + 1)-th newest. No other
unit decides, and none older than the `amount` newest is needed, so the roll is a ring, and a decision costs the
same at 10/s and at 1000000/day.

"3/minute log" with units at 0, 10 and 50 s: one more passes at 60 s, when the first has left, and not before;
two more pass at 70 s. A token bucket would let the fourth pass at 20 s; a window that starts on the minute
would let three pass at 59 s and three more at 60 s.

Remaining is the free part of the ring. The ring stores its tail, the oldest unit that was in the window at the
last write, and gallops on from there (1, 2, 4 ... units ahead, then by halves): mostly few have left since.

The log's own time. Instants are written in a time that never steps back. It is the clock, until the clock is
set back by more than MAX_CLOCK_SWING_US; from then on it is `ahead_us` ahead of the clock, so every unit keeps the
age it had. A clock that reads up to that much less than at the last write only swings: the charge is decided as of
the last write. A log whose last unit has left the window, or was given back, starts with the clock again; if the
clock swings, with the instant of the last write.

Reservations. A charge is served at the latest of now, the newest unit (first come, first served) and one
period after the unit that must have left. It writes that instant at once, even if it lies ahead; while the
newest unit lies ahead nothing remains and nothing can be taken.

Refunds. The mark of a charge is the instant that its units carry. Units that carry the same instant are
alike, so giving back a charge erases so many units of its instant, wherever in the ring they are. So while
reservations lie ahead, the ring also holds what the `amount` newest units would push out, as long as it is in its
window: up to MAX_UNITS_BEFORE of them. If it had to push out more, `ahead_us` records that (PUSHED_OUT is added to
it), whatever the limit is by then. All of those were served no later than the oldest unit in the ring, so they are
written in again at that instant, one for each unit erased: the next booking is then no earlier than the law
allows, and no later than without the refund.

Surcharges. Units that a call used beyond what it was charged are written at the instant at which they are
settled, or at the newest one if that lies ahead: the roll stays in order. So it may hold more than `amount` units
of the last period, and nothing passes until enough of them have left. At most `amount` + MAX_UNITS_BEFORE are
kept: those before them would be needed only if more than MAX_UNITS_BEFORE were given back.

Laws (tests/algorithms/test_sliding_log.py, and test_sliding_log_laws.py, test_clock_laws.py,
test_clock_swing_refund_laws.py, test_changed_limit_laws.py beside it):
  - over any span of one period at most `amount` units are served, reserved ones too, refunds and all;
  - without refunds it answers as a log would that never forgets a unit and counts them all;
  - taking 3 is the same as taking 1 three times at the same instant;
  - a denied charge leaves no trace (unless the clock was set back), and passes exactly retry_after later and not a
    microsecond before;
  - a clock that swings mints nothing, whatever is given back, and one that is set back nothing either; nobody
    waits longer for it than MAX_CLOCK_SWING_US;
  - a refund erases units of its own charge's instant that are still in the window; those that left, or that
    were pushed out by later reservations, give nothing back;
  - a cancelled reservation does the same, unless it was served before now; later ones keep their instants.
    Reservations that are all cancelled, in any order, leave nothing behind (test_cancellation_laws.py), if at most
    MAX_UNITS_BEFORE units were reserved at a time;
  - a surcharge of n units is as if a charge of n had been written then: they count for one period from that
    instant, and not longer, however many they are (test_surcharge_laws.py);
  - a changed limit judges the same units by its own numbers: at most its `amount` newest, by its own period. A
    refused charge gives nothing back, however the limit is changed; an admitted one forgives those older than its
    period, and all but its `amount` newest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import groupby

from headgate.algorithms.decision import AT_US, RESET_AFTER_US, Outcome, Receipt
from headgate.algorithms.durations import after_any, format_period, in_words
from headgate.algorithms.limit import (
    EXACT,
    HORIZON_US,
    MAX_CLOCK_SWING_US,
    REFUSAL_TEXT,
    SECOND,
    YEAR,
    Description,
    WindowLimit,
    check_microseconds,
    check_whole,
    lengthened,
)
from headgate.errors import InvalidRule

# head and tail: units are numbered in the order of writing, the log holds tail <= number < head;
# newest_us; stamp_us, the log's time at the last write; ahead_us, by how much it is ahead of the clock, and
# PUSHED_OUT more if units were pushed out that a refund would bring back (the fast path never sees those);
# the ring, in which a unit's slot is its number modulo the slots; and how many of the last units, all of
# them served at newest_us, are still to be written into it: write_pending() does that, when the state is saved.
State = tuple[int, int, int, int, int, "array[int]", int]

_MAX_UNITS = 1_000_000
_MAX_PERIOD_US = 100 * YEAR
_MIN_SLOTS = 8
MAX_UNITS_BEFORE = 10_000  # the `amount` newest, kept while reservations lie ahead
PUSHED_OUT = 2**52  # us, more than any log is ahead of the clock
_NO_RING = array("q")
_NEVER_US = -EXACT  # the newest unit of a log that was erased: out of any window


class SlidingLog(WindowLimit):
    """Exactly `amount` units within any `per` seconds.

    >>> SlidingLog(5, per=60)
    <SlidingLog 5/minute log>
    """

    __slots__ = ("period_us",)
    algorithm = "sliding_log"
    refunds_newest_first = True

    def __init__(self, amount: int, per: float = 1) -> None:
        self.amount: int = check_whole("The amount of a sliding log", amount)
        self.period_us: int = check_microseconds("The period of a sliding log", per)
        self.text: str = f"{amount}/{format_period(self.period_us)} log"
        if amount > _MAX_UNITS:
            raise InvalidRule(
                f'"{self.text}" is too much to remember: a sliding log keeps every unit, at most 1000000 of them. '
                f'"{amount}/{format_period(self.period_us)} sliding" keeps two counts instead.'
            )
        if self.period_us > _MAX_PERIOD_US:
            raise InvalidRule(f'"{self.text}" is too long: a sliding log looks back at most 100 years.')
        self.args: tuple[int | float, ...] = (self.amount, self.period_us)

    @property
    def window_us(self) -> int:
        return self.period_us

    def receipt_of_newest(self, outcome: Outcome, units: int) -> Receipt | None:
        newest_us = outcome[AT_US] + outcome[RESET_AFTER_US] - self.period_us
        return Receipt(units, newest_us, 0, 0, newest_us) if outcome[RESET_AFTER_US] > 0 else None

    def _share(self, units: int, sharers: int) -> SlidingLog:
        return SlidingLog(units, lengthened(self.period_us, self.amount, sharers) / SECOND)

    def explain(self) -> Description:
        period = after_any(self.period_us)
        yield "algorithm", "sliding log: every unit is remembered until it is a period old"
        yield "passes", f"{self.amount:,} in the last {period}"
        yield "at most", f"{self.amount:,} in any {period}, whenever it starts"
        yield "exact", "to the microsecond"
        yield "memory", f"7 bytes a unit in Redis: {self.amount * 7 + 39:,} bytes when full"
        yield "idle keys", f"are forgotten {in_words(self.period_us)} after the last unit"
        yield "refused", f"{REFUSAL_TEXT}; a cost above {self.amount:,} never passes"


def decide(
    limit: SlidingLog, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Outcome, State | None]:
    """Decides one charge. Pure: same arguments, same result. With patience, a wait of at most that is allowed."""
    if state is not None and 0 < cost <= limit.amount:
        head, tail, newest_us, stamp_us, ahead_us, ring, _ = state
        time_us = now_us + ahead_us
        cutoff_us = time_us - limit.period_us
        if cutoff_us < newest_us <= time_us >= stamp_us:
            head += cost
            first = head - limit.amount
            slots = len(ring)
            if first > tail:
                last_us = ring[(first - 1) % slots]
                if last_us > cutoff_us:
                    if cost > 1 or patience_us is not None:
                        return _decide_general(limit, state, now_us, cost, patience_us)
                    return (False, 0, last_us - cutoff_us, newest_us - cutoff_us, 0, now_us, 0), state
                tail = first
            if ring[tail % slots] <= cutoff_us:
                tail = _first_after(cutoff_us, ring, tail + 1, head - cost)
            return (
                (True, tail - first, 0, limit.period_us, 0, now_us, time_us),
                (head, tail, time_us, time_us, ahead_us, ring, cost),
            )
    return _decide_general(limit, state, now_us, cost, patience_us)


def _decide_general(
    limit: SlidingLog, state: State | None, now_us: int, cost: int, patience_us: int | None
) -> tuple[Outcome, State | None]:
    """Decides every case: also the first charge, a peek, a refusal, a reservation, a clock that was set back."""
    amount, period_us = limit.amount, limit.period_us
    head, tail, newest_us, time_us, ahead_us, pushed_out, ring = _current_log(limit, state, now_us)
    due_us = max(time_us, newest_us)
    last = head - amount + (cost or 1) - 1
    if tail <= last < head:
        leaves_us = ring[last % len(ring)] + period_us
        due_us = max(due_us, leaves_us)
        tail = last + 1 if leaves_us <= time_us else tail
    wait_us = due_us - now_us - ahead_us if due_us > time_us else 0
    passes = 0 < cost <= amount and (
        not wait_us or (patience_us is not None and wait_us <= min(patience_us, HORIZON_US))
    )
    remaining = 0
    if passes or newest_us <= time_us:
        tail = _first_after(time_us - period_us, ring, tail, head)
        remaining = 0 if wait_us and passes else max(0, amount - (head - tail))
    if passes:
        head += cost
        first = head - amount - MAX_UNITS_BEFORE
        if due_us > time_us and first > tail:
            tail, pushed_out = first, PUSHED_OUT
        pushed_out = pushed_out if wait_us else 0
        reset_us = due_us + period_us - now_us - ahead_us
        outcome = (True, max(0, remaining - cost), 0, reset_us, wait_us, now_us, due_us)
        return outcome, (head, tail, due_us, time_us, ahead_us + pushed_out, ring, cost)
    retry_us = wait_us if cost <= amount else None
    reset_us = newest_us + period_us - now_us - ahead_us if head else 0
    refusal = not cost and not wait_us, remaining, retry_us, reset_us, 0, now_us, 0
    if state is None or not head or ahead_us + pushed_out == state[4]:
        return refusal, state
    # The clock was set back behind the log: from here on its time goes on. It forgets no unit, for another limit
    # may count it.
    return refusal, (head, state[1], newest_us, time_us, ahead_us + pushed_out, ring, 0)


def _current_log(
    limit: SlidingLog, state: State | None, now_us: int
) -> tuple[int, int, int, int, int, int, array[int]]:
    """Returns the log as of now: head, tail, newest_us, its time, how far that is ahead, PUSHED_OUT or 0, and the
    ring; empty once the last unit has left."""
    start_us = now_us
    if state is not None:
        head, tail, newest_us, stamp_us, ahead_us, ring, _ = state
        pushed_out = PUSHED_OUT if ahead_us >= PUSHED_OUT else 0
        ahead_us -= pushed_out
        time_us = max(now_us + ahead_us, stamp_us)
        if newest_us + limit.period_us > time_us:
            if time_us - now_us - ahead_us > MAX_CLOCK_SWING_US:
                ahead_us = time_us - now_us
            return head, tail, newest_us, time_us, ahead_us, pushed_out, ring
        if time_us - now_us - ahead_us <= MAX_CLOCK_SWING_US:
            start_us = time_us - ahead_us
    return 0, 0, 0, start_us, 0, 0, _NO_RING


def _first_after(instant_us: int, ring: array[int], low: int, high: int) -> int:
    """Returns the first of the units low <= number < high that is later than the instant; high if none is."""
    slots, probe, step = len(ring), low, 1
    while probe < high and ring[probe % slots] <= instant_us:
        low = probe + 1
        probe += step
        step += step
    high = min(probe, high)
    while low < high:
        middle = (low + high) // 2
        if ring[middle % slots] <= instant_us:
            low = middle + 1
        else:
            high = middle
    return low


def write_pending(limit: SlidingLog, state: State) -> State:
    """Returns the state to save of one that decide() returned: writes its new units into the ring, in place.

    A new ring has space for twice its units, but for no more than the limit's amount unless it holds more: a log
    that is hardly used stays small, and growing costs nothing in the long run.
    """
    head, tail, newest_us, stamp_us, ahead_us, ring, count = state
    if not count:
        return state
    unit_count = head - tail
    slots = len(ring)
    if unit_count > slots or slots > max(limit.amount, 2 * unit_count) or unit_count * 8 < slots:
        slots = 2 * unit_count if unit_count > limit.amount else min(limit.amount, max(_MIN_SLOTS, 2 * unit_count))
        units_in_row = _unrolled(ring, tail, head - count)
        ring = units_in_row + array("q", [0]) * (slots - len(units_in_row))
        head, tail = unit_count, 0
    if count == 1:
        ring[(head - 1) % slots] = newest_us
    else:
        start = (head - count) % slots
        before_wrap = min(count, slots - start)
        ring[start : start + before_wrap] = array("q", [newest_us]) * before_wrap
        ring[: count - before_wrap] = array("q", [newest_us]) * (count - before_wrap)
    return head, tail, newest_us, stamp_us, ahead_us, ring, 0


def _unrolled(ring: array[int], low: int, high: int) -> array[int]:
    """Returns the units low <= number < high, in a row."""
    if low >= high:
        return array("q")
    start, stop = low % len(ring), (high - 1) % len(ring) + 1
    return ring[start:stop] if start < stop else ring[start:] + ring[:stop]


def refund(
    limit: SlidingLog, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    """Returns the state with up to `units` of the receipt's charge erased; None if it holds none any more."""
    head, tail, newest_us, time_us, ahead_us, pushed_out, ring = _current_log(limit, state, now_us)
    if receipt.mark + limit.period_us <= time_us or (cancel and receipt.mark < time_us):
        return None
    # A log is never less ahead of the clock than it was, but for a swing: this charge was written in an earlier
    # log.
    if receipt.mark - receipt.served_us > ahead_us + MAX_CLOCK_SWING_US:
        return None
    log = _unrolled(ring, tail, head)
    stop = bisect_right(log, receipt.mark)
    units = min(units, receipt.cost - receipt.refunded_units, stop - bisect_left(log, receipt.mark))
    if units <= 0:
        return None
    del log[stop - units : stop]
    if pushed_out and newest_us > time_us:
        log = array("q", log[:1] or [max(0, newest_us - limit.period_us)]) * units + log
    newest_us = log[-1] if log else _NEVER_US
    pushed_out = pushed_out if newest_us > time_us else 0
    return len(log), 0, newest_us, time_us, ahead_us + pushed_out, log, 0


def surcharge(limit: SlidingLog, state: State | None, now_us: int, units: int, receipt: Receipt) -> State | None:
    """Returns the state with so many units more of a charge, whether they fit or not; None if that changes
    nothing."""
    head, tail, newest_us, time_us, ahead_us, pushed_out, ring = _current_log(limit, state, now_us)
    due_us, most = max(time_us, newest_us), limit.amount + MAX_UNITS_BEFORE
    tail = _first_after(time_us - limit.period_us, ring, tail, head)
    units = min(units, most)
    head += units
    if head - most > tail:
        tail, pushed_out = head - most, PUSHED_OUT
    return head, tail, due_us, time_us, ahead_us + (pushed_out if due_us > time_us else 0), ring, units


def dead_at_us(limit: SlidingLog, state: State) -> int:
    """Returns the instant from which on the state means the same as None."""
    _, _, newest_us, stamp_us, ahead_us, *_ = state
    return max(newest_us + limit.period_us, stamp_us) - ahead_us % PUSHED_OUT + MAX_CLOCK_SWING_US


def pack(state: State) -> str:
    """Returns stamp:ahead:newest: and the units in the ring, as instant*count. Not for a state with pending
    units."""
    head, tail, newest_us, stamp_us, ahead_us, ring, _ = state
    runs = (f"{instant_us}*{len(list(run))}" for instant_us, run in groupby(_unrolled(ring, tail, head)))
    return f"{stamp_us}:{ahead_us}:{newest_us}:" + ",".join(runs)


def unpack(text: str) -> State:
    stamp_us, ahead_us, newest_us, runs = text.split(":")
    ring = array("q")
    for run in runs.split(",") if runs else ():
        instant_us, count = run.split("*")
        ring.extend([int(instant_us)] * int(count))
    return len(ring), 0, int(newest_us), int(stamp_us), int(ahead_us), ring, 0
