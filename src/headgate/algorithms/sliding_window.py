"""The sliding window: at most so many units in the last minute, whichever minute that is, to within a cell.

(The reason for its length: the explanation and the laws stand above the code that keeps them.)

Picture a strip of cells along the clock, each a tenth of the period long, and a frame ten cells wide that
ends with the current one. A charge is written into the current cell and is allowed if what the frame shows
does not exceed the amount. The frame moves one cell at a time, so nothing piles up around a boundary as it
does with fixed windows. This is Sentinel's LeapArray, decision for decision.

Measure. Cells are aligned to the epoch and counted by number: the current one is now // cell_us. A unit comes
back when its cell leaves the frame, between nine and ten tenths of the period after it was charged. More cells
cost more memory and are more accurate; sliding_log.py is exact. A limit's length and number of cells are its cut.

"600/minute sliding": ten cells of 6 s. 400 units at 0:05 and 200 at 0:20 fill the frame. The 400 lie in the
first cell, which leaves the frame at 1:00; from then on 400 more may pass, and the rest from 1:18 on.

Reservations. A reservation that does not fit now is written into the first later cell with room. That cell is
never before the tail, the last cell in use, so reservations are served in the order of arrival. So the frame that
ends with the tail is all that a charge needs, however far ahead the tail lies:

    cell_us:cells:tail:c,c,c          the limit's cut, the tail's number, the counts up to it, oldest first
    cell_us:cells:tail:c,c,c:ahead    and how many cells it lay ahead of the clock when written, if any

While the tail lies ahead, the counts begin with the frame of the clock, so that the tail can go back where it came
from if its reservations are cancelled. At most MAX_CELLS_BEFORE are stored before the tail's own frame; earlier
counts are dropped, so the tail never moves back to a cell whose frame would need them.

The clock. A stored state shows when it was written: in the cell `ahead` cells before its tail. If that cell is
ahead of the clock by at most MAX_CLOCK_SWING_US, the clock swings, and the charge is decided as in that cell. If
it is further ahead, the clock was set back. Then the frame moves back with it, and even a refusal stores that.

Surcharges. If a call used more than it was charged, the extra units go into the current cell; those of a
reservation that lies ahead go into its own cell. They may exceed the amount (a cell holds at most 10^13). They
leave the frame with that cell, and nothing is carried over.

A changed limit. Counts of another cut stay as they are until a charge passes. Each of them expires under the old
limit or under the new one, whichever comes first. Under the old limit it expires with its old cell. Under the new
one it expires with the new cell that contains the old cell's end (for a reservation, its start). Both instants are
fixed, so the wait is known: until enough counts have expired to leave room, and not before the tail begins.
A charge that passes moves those counts into cells of its own limit, none later than the charge's. A reservation is
served at that very instant, and written into the first cell that begins then or later, so that nobody passes
before it.

Laws (tests/algorithms/test_sliding_window.py, and test_clock_laws.py, test_clock_swing_refund_laws.py,
test_changed_limit_laws.py beside it):
  - taking 3 is the same as taking 1 three times at the same instant;
  - a denied charge leaves no trace (unless the clock was set back) and passes exactly retry_after later;
  - at most `amount` units are served in any run of `cells` cells, reservations and refunds included;
  - nobody is served before an earlier reservation;
  - a clock that swings frees nothing, whatever is given back. One that is set back frees at most `amount`, once,
    and delays nobody by more than MAX_CLOCK_SWING_US: a tail that lies further ahead than it was written moves to
    its stored distance from the current cell, and the counts before it move along;
  - a refund lowers the count of the charge's cell while that cell is in both the stored frame and the current
    one; later it has no effect. Cancelling a reservation that was served has no effect. A tail that lies ahead
    and is emptied goes back to the last cell in use, as far as all cells of the frame there are known;
  - reservations that are all cancelled, in any order, leave nothing behind (test_cancellation_laws.py), if they
    lay at most MAX_CELLS_BEFORE cells ahead;
  - a surcharge of n units is as if a charge of n had fit into the cell, and they leave with it
    (test_surcharge_laws.py);
  - a changed limit still counts every unit that the old limit's frame holds, in the new cell that contains the
    end of the unit's old cell. So every unit keeps its age, to within a cell: a raised limit adds
    room, a lowered one bites at once. A charge that it refuses passes exactly retry_after later and not a
    microsecond before, and gives nothing back, however the limit is changed; an admitted one forgives what is
    older than its own period.
"""

from __future__ import annotations

from headgate.algorithms.decision import AT_US, RESET_AFTER_US, Outcome, Receipt
from headgate.algorithms.durations import after_any, format_duration, format_period, in_words
from headgate.algorithms.limit import (
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

# The cut (cell_us, cells), the tail's number, the counts up to it, and how far it lay ahead of the clock.
State = tuple[tuple[int, int], int, tuple[int, ...], int]

# A count of another cut: when it leaves, its cell under this limit (none later than now if it was served), and the
# count itself.
_Entry = tuple[int, int, int]

CELLS = 10
MAX_CELLS_BEFORE = 1000  # the tail's own frame, kept while it lies ahead

_MAX_AMOUNT = 10**13
_MAX_CELLS = 1000
_MAX_PERIOD_US = 100 * YEAR


class SlidingWindow(WindowLimit):
    """Passes `amount` units in any `per` seconds, counted in `cells` cells.

    >>> SlidingWindow(600, per=60)
    <SlidingWindow 600/minute sliding>
    """

    __slots__ = ("cell_us", "cells", "cut")
    algorithm = "sliding_window"
    refunds_newest_first = True

    def __init__(self, amount: int, per: float = 1, cells: int = CELLS) -> None:
        if check_whole("The amount of a sliding window", amount) > _MAX_AMOUNT:
            raise InvalidRule(f"The amount of a sliding window may be at most 10^13, not {amount}.")
        period_us = check_microseconds("The period of a sliding window", per)
        if period_us > _MAX_PERIOD_US:
            raise InvalidRule(f"The period of a sliding window may be at most 100 years, not {per!r} seconds.")
        if check_whole("The number of cells of a sliding window", cells) > _MAX_CELLS:
            raise InvalidRule(f"A sliding window may have at most {_MAX_CELLS} cells, not {cells}.")
        if period_us % cells:
            raise InvalidRule(
                f"{cells} cells do not divide {format_duration(period_us)} into whole microseconds. "
                f"Use {_nearest_divisor(period_us, cells)} cells."
            )
        self.amount = amount
        self.cells: int = cells
        self.cell_us: int = period_us // cells
        self.cut: tuple[int, int] = (self.cell_us, cells)
        self.text: str = f"{amount}/{format_period(period_us)} sliding" + (
            "" if cells == CELLS else f" cells {cells}"
        )
        self.args: tuple[int | float, ...] = (amount, self.cell_us, cells)

    @property
    def window_us(self) -> int:
        return self.cell_us * self.cells

    def receipt_of_newest(self, outcome: Outcome, units: int) -> Receipt | None:
        cell = (outcome[AT_US] + outcome[RESET_AFTER_US]) // self.cell_us - self.cells
        return Receipt(units, cell * self.cell_us, 0, 0, cell) if outcome[RESET_AFTER_US] > 0 else None

    def _share(self, units: int, sharers: int) -> SlidingWindow:
        cell_us = lengthened(self.cell_us, self.amount, sharers)
        return SlidingWindow(units, cell_us * self.cells / SECOND, self.cells)

    def explain(self) -> Description:
        cell, window = in_words(self.cell_us), in_words(self.window_us)
        yield "algorithm", f"sliding window of {self.cells} cells, {cell} each (Sentinel's LeapArray)"
        yield "passes", f"{self.amount:,} in the last {after_any(self.window_us)}, counted in whole cells"
        yield "at most", f"{self.amount:,} in any run of {self.cells} cells; nothing doubles at an edge"
        first = in_words(self.window_us - self.cell_us)
        yield "exact", f"to the cell: a unit comes back {first} to {window} after it passed"
        yield "idle keys", f"are forgotten after {window} at most"
        yield "refused", f"{REFUSAL_TEXT}; a cost above {self.amount:,} never passes"


def _nearest_divisor(period_us: int, cells: int) -> int:
    divisors = (count for count in range(1, _MAX_CELLS + 1) if period_us % count == 0)
    return min(divisors, key=lambda count: abs(count - cells))


def decide(
    limit: SlidingWindow, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Outcome, State | None]:
    """Decides one charge. Pure: same arguments, same result. With patience, a wait of at most that is allowed."""
    cut = limit.cut
    cell_us, cells = cut
    current = now_us // cell_us
    if state is None:
        counts: tuple[int, ...] = (0,)
    elif state[0] != cut:
        return _decide_changed(limit, state, now_us, cost, patience_us)
    elif state[1] > current:
        current = _as_at(state, now_us) // cell_us
        tail, counts = min(state[1], current + state[3]), state[2]
        if tail > current:
            return _decide_general(limit, state, tail, counts, now_us, current, cost, patience_us)
    elif state[1] == current:
        counts = state[2]
    else:
        counts = _slide(cells, state[1], state[2], current)
    if len(counts) > cells:
        counts = _slide(cells, current, counts, current)
    free = limit.amount - sum(counts) - cost
    if free >= 0 and cost:
        return (
            (True, free, 0, (current + cells) * cell_us - now_us, 0, now_us, current),
            (cut, current, (*counts[:-1], counts[-1] + cost), 0),
        )
    return _decide_general(limit, state, current, counts, now_us, current, cost, patience_us)


def _decide_general(
    limit: SlidingWindow,
    state: State | None,
    tail: int,
    counts: tuple[int, ...],
    now_us: int,
    current: int,
    cost: int,
    patience_us: int | None,
) -> tuple[Outcome, State | None]:
    """Decides all that is not simply allowed: a peek, a refusal, a reservation."""
    cell_us, cells = limit.cut
    cell = _first_fitting_cell(limit, tail, counts[-cells:], cost or 1)
    wait_us = cell * cell_us - now_us if cell > current else 0
    if 0 < cost <= limit.amount and patience_us is not None and wait_us <= min(patience_us, HORIZON_US):
        counts = _put_ahead(cells, tail, counts, cell, current)
        reset_us = (cell + cells) * cell_us - now_us
        return (True, 0, 0, reset_us, wait_us, now_us, cell), (
            limit.cut,
            cell,
            (*counts[:-1], counts[-1] + cost),
            cell - current,
        )
    remaining = max(0, limit.amount - sum(counts)) if tail == current else 0
    retry_us = wait_us if cost <= limit.amount else None
    reset_us = max(0, _end_cell(cells, tail, counts) * cell_us - now_us)
    outcome = (not cost and not wait_us, remaining, retry_us, reset_us, 0, now_us, tail)
    return outcome, state if state is None or not reset_us else _after_refusal(state, now_us)


def _after_refusal(state: State, now_us: int) -> State:
    """Returns the same state, unless the clock was set back behind it: then it moves along with the clock."""
    if _as_at(state, now_us) >= _stamp_us(state):
        return state
    cut, _, counts, ahead = state
    return cut, now_us // cut[0] + ahead, counts, ahead


def _decide_changed(
    limit: SlidingWindow, state: State, now_us: int, cost: int, patience_us: int | None
) -> tuple[Outcome, State | None]:
    """Decides every case for a state of another cut."""
    cell_us, cells = limit.cut
    at_us = _as_at(state, now_us)
    current = at_us // cell_us
    entries, tail_us = _changed_entries(limit, state, at_us)
    empty_us = max([tail_us, *(leaves_us for leaves_us, _, _ in entries)])
    due_us = max(at_us, tail_us)
    free = limit.amount - sum(count for leaves_us, _, count in entries if leaves_us > due_us)
    remaining = max(0, free) if due_us == at_us else 0
    for leaves_us, _, count in entries:
        if free >= (cost or 1):
            break
        if leaves_us > due_us:
            free, due_us = free + count, leaves_us
    wait_us = due_us - now_us if due_us > at_us else 0

    if 0 < cost <= limit.amount and (
        not wait_us or (patience_us is not None and wait_us <= min(patience_us, HORIZON_US))
    ):
        target = -(-due_us // cell_us) if wait_us else current
        frame = _moved_counts(limit, entries, target, current)
        frame = (*frame[:-1], frame[-1] + cost)
        reset_us = (target + cells) * cell_us - now_us
        return (True, max(0, remaining - cost), 0, reset_us, wait_us, now_us, target), (
            limit.cut,
            target,
            frame if target > current else _slide(cells, target, frame, target),
            target - current,
        )
    retry_us = wait_us if cost <= limit.amount else None
    reset_us = empty_us - now_us if empty_us > at_us else 0
    outcome = (not cost and not wait_us, remaining, retry_us, reset_us, 0, now_us, current)
    return outcome, _after_refusal(state, now_us) if reset_us else state


def _changed_entries(limit: SlidingWindow, state: State, at_us: int) -> tuple[list[_Entry], int]:
    """Returns the counts of a state of another cut that have not left, and when its tail starts."""
    (old_us, old_cells), tail, counts, ahead = state
    cell_us, cells = limit.cut
    tail = min(tail, at_us // old_us + ahead)
    entries: list[_Entry] = []
    for old, count in enumerate(counts, tail - len(counts) + 1):
        # Served by the end of its old cell; a count after the last write is a reservation, served at its start.
        served = old <= tail - ahead
        cell = ((old + 1) * old_us - 1 if served else old * old_us) // cell_us
        leaves_us = min((old + old_cells) * old_us, (cell + cells) * cell_us)
        if count and leaves_us > at_us:
            entries.append((leaves_us, min(cell, at_us // cell_us) if served else cell, count))
    return entries, tail * old_us


def _moved_counts(limit: SlidingWindow, entries: list[_Entry], target: int, current: int) -> tuple[int, ...]:
    """Returns counts of another cut as those of this limit, up to the cell `target`."""
    # As in _put_ahead(): counts that leave before `target` go before its frame, and no earlier than they did.
    cell_us, cells = limit.cut
    frame = [0] * (cells + min(MAX_CELLS_BEFORE, target - current))
    for leaves_us, cell, count in entries:
        index = min(cell, target if leaves_us > target * cell_us else -(-leaves_us // cell_us) - cells)
        if target - index < len(frame):
            frame[index - target - 1] += count
    return tuple(frame)


def _stamp_us(state: State) -> int:
    """Returns the latest instant that the state proves."""
    return (state[1] - state[3]) * state[0][0]


def _as_at(state: State, now_us: int) -> int:
    """Returns the instant that a charge is decided as of: now, or what the state proves if the clock swings."""
    stamp_us = _stamp_us(state)
    return stamp_us if now_us < stamp_us <= now_us + MAX_CLOCK_SWING_US else now_us


def _first_fitting_cell(limit: SlidingWindow, tail: int, counts: tuple[int, ...], cost: int) -> int:
    """Returns the first cell, not before the tail, whose frame has room for the cost."""
    excess = sum(counts) + cost - limit.amount
    cell = tail
    for leaving, count in enumerate(counts, tail - len(counts) + 1 + limit.cells):
        if excess <= 0:
            break
        excess -= count
        cell = leaving
    return cell


def _slide(cells: int, tail: int, counts: tuple[int, ...], target: int) -> tuple[int, ...]:
    """Returns the counts of the frame that ends with `target`, the tail or later, from the first one in use."""
    shift = target - tail
    for first in range(max(0, len(counts) + shift - cells), len(counts)):
        if counts[first]:
            return counts[first:] + (0,) * shift
    return (0,)


def _put_ahead(cells: int, tail: int, counts: tuple[int, ...], target: int, current: int) -> tuple[int, ...]:
    """Returns the counts of the frame that ends with `target`, and before it those of all stored cells from the
    current frame on."""
    padded = (0,) * (cells - len(counts)) + counts + (0,) * (target - tail)
    if target == current or len(padded) <= cells:
        return _slide(cells, tail, counts, target)
    return padded[-cells - min(MAX_CELLS_BEFORE, target - current) :]


def _end_cell(cells: int, tail: int, counts: tuple[int, ...]) -> int:
    """Returns the cell from which on nothing counts any more, not even the tail's place in the queue."""
    for back, count in enumerate(reversed(counts)):
        if count:
            return tail - back + cells
    return tail


def refund(
    limit: SlidingWindow, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    """Returns the state with up to `units` of the receipt's charge given back; None if it holds none any more."""
    refunded = min(units, receipt.cost - receipt.refunded_units)
    if state is None or refunded <= 0 or (cancel and receipt.served_us < now_us):
        return None
    (cell_us, cells), tail, counts, ahead = state
    mark, index = receipt.mark, receipt.mark - tail + len(counts) - 1
    # A mark is a number of a cell; under another cut the same number is another time. (A charge that was decided
    # as of a later instant carries a later cell, and so does a reservation that found a state of another cut.)
    if not (mark - 1) * cell_us - MAX_CLOCK_SWING_US <= receipt.served_us < (mark + 1) * cell_us:
        return None
    if mark + cells <= now_us // cell_us:
        return None
    if not 0 <= index < len(counts) or not counts[index]:
        return None
    after = (*counts[:index], max(0, counts[index] - refunded), *counts[index + 1 :])
    max_back = max(0, min(ahead, len(after) - cells))  # cells that the tail can go back
    back = next((back for back in range(max_back) if after[-1 - back]), max_back)
    after = after[: len(after) - back]
    if len(after) <= cells:
        after = _slide(cells, tail, after, tail)
    return state[0], tail - back, after, ahead - back


def surcharge(
    limit: SlidingWindow, state: State | None, now_us: int, units: int, receipt: Receipt
) -> State | None:
    """Returns the state with so many units more of a charge, whether they fit or not; None if that changes
    nothing."""
    cell_us, cells = limit.cut
    at_us = now_us if state is None else _as_at(state, now_us)
    current = at_us // cell_us
    tail = current
    counts: tuple[int, ...] = (0,)
    if state is not None and state[0] != limit.cut:
        entries, tail_us = _changed_entries(limit, state, at_us)
        tail = -(-tail_us // cell_us) if tail_us > at_us else current
        counts = _moved_counts(limit, entries, tail, current)
    elif state is not None:
        tail = max(current, min(state[1], current + state[3]))
        counts = state[2] if state[1] >= tail else _slide(cells, state[1], state[2], tail)
    if tail == current:
        counts = _slide(cells, tail, counts, tail)
    cell = min(tail, max(current, receipt.served_us // cell_us))
    counts = (0,) * (min(cells, tail - cell + 1) - len(counts)) + counts
    index = cell - tail + len(counts) - 1
    if index < 0:
        return None  # Reservations lie so far ahead that this cell is not stored any more.
    after = max(counts[index], min(counts[index] + units, _MAX_AMOUNT))
    return limit.cut, tail, (*counts[:index], after, *counts[index + 1 :]), tail - current


def dead_at_us(limit: SlidingWindow, state: State) -> int:
    """Returns the instant from which on the state means the same as None."""
    (cell_us, cells), tail, counts, _ = state
    return _end_cell(cells, tail, counts) * cell_us + MAX_CLOCK_SWING_US


def pack(state: State) -> str:
    (cell_us, cells), tail, counts, ahead = state
    text = f"{cell_us}:{cells}:{tail}:{','.join(map(str, counts))}"
    return f"{text}:{ahead}" if ahead else text


def unpack(text: str) -> State:
    cell_us, cells, tail, counts, ahead, *_ = (*text.split(":"), "0")
    return (int(cell_us), int(cells)), int(tail), tuple(map(int, counts.split(","))), int(ahead)
