"""The lockout: a caller that is refused too often is refused for longer.

Picture a doorkeeper with a slate. He turns somebody away, makes a mark, and turns the hourglass with the first
mark of the slate. If the sand has run out, the slate is wiped. If the marks reach `after` before that, he wipes
it too, bolts the door and looks at nothing until `for` has passed; a caller that knocks meanwhile learns how long
it still is, and is not marked. Then everything begins anew.

Measure. A state is two whole numbers, and means one of two things:

    until:refusals      refusals counted, and when their span ends
    until:0             locked, and until when

Only the end is stored, because it shows by itself, under whatever numbers, when the state has lost its meaning.

"after 5, within 10m, for 1h": the fifth refusal of ten minutes locks for an hour, and itself reports the lock.

Laws (tests/algorithms/test_lockout.py):
  - the `after`-th refusal within `within` of the first locks for `for` from that instant, and no earlier one does;
  - a span begins with its first refusal, and ends without a trace: marks do not slide;
  - while locked nothing is counted and the end does not move; exactly at the end all begins anew;
  - a clock that steps back locks nobody for longer than `for`, and lets no span last longer than `within`: an end
    that lies further ahead is moved to just there. So do shorter numbers, at once.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.algorithms.limit import YEAR, check_whole
from headgate.errors import InvalidRule

# An end, and the refusals counted until then; 0: locked until then.
State = tuple[int, int]

_MAX_SPAN_US = 100 * YEAR
_MAX_REFUSALS = 10**15


class _LockoutFields(NamedTuple):
    after: int
    within_us: int
    for_us: int


class Lockout(_LockoutFields):
    """After `after` refusals within one span, calls are refused for another span."""

    __slots__ = ()

    def __new__(cls, after: int, within_us: int, for_us: int) -> Lockout:
        if check_whole('A lockout\'s "after", its number of refusals,', after) > _MAX_REFUSALS:
            raise InvalidRule(f'A lockout\'s "after" may be at most 10^15 refusals, not {after}.')
        for name, span_us in (("within", within_us), ("for", for_us)):
            if check_whole(f'A lockout\'s "{name}", in microseconds,', span_us) > _MAX_SPAN_US:
                raise InvalidRule(f'A lockout\'s "{name}" may be at most 100 years, not {span_us} microseconds.')
        return super().__new__(cls, after, within_us, for_us)


def current_state(lockout: Lockout, state: State | None, now_us: int) -> State | None:
    """Returns the state as it counts now: None once it is over, else the same object unless its end had to
    move."""
    if state is None or state[0] <= now_us:
        return None
    until_us, refusals = state
    furthest_us = now_us + (lockout.within_us if refusals else lockout.for_us)
    return state if until_us <= furthest_us else (furthest_us, refusals)


def left_us(state: State | None, now_us: int) -> int:
    """Returns how long a current state still locks; 0: it does not."""
    return 0 if state is None or state[1] else state[0] - now_us


def count_refusal(lockout: Lockout, state: State | None, now_us: int) -> State:
    """Returns the state after one more refusal, of a current state that does not lock."""
    until_us, refusals = (now_us + lockout.within_us, 0) if state is None else state
    if refusals + 1 >= lockout.after:
        return now_us + lockout.for_us, 0
    return until_us, refusals + 1


def dead_at_us(state: State) -> int:
    """Returns the instant from which on the state means the same as None."""
    return state[0]


def pack(state: State) -> str:
    until_us, refusals = state
    return f"{until_us}:{refusals}"


def unpack(text: str) -> State:
    until_us, refusals = text.split(":")
    return int(until_us), int(refusals)
