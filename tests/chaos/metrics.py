"""Computes what callers saw from the records of their calls. Pure.

**Longest stall.** How long a call took, less the most that the control timer of its own loop was late meanwhile:
what is left is ours and not the machine's.

**Over-admitted.** For each key, over all processes. A fixed window is counted window by window. A bucket of burst
B and rate R admits at most B + R*T in any span of T; that is taken over all spans in quiet, and where there is
trouble over those of up to a second. All as parts of the limit: 1.0 means twice the limit. A window is troubled if
an outage begins or is partial in it: both Redis and the fallback decided, or the story says that something
happened to the counts. Of the others, those that Redis alone decided are quiet, and the rest are cut off.

**Recovered.** From the instant at which the server was back until the first after which, for a whole second, Redis
decides everything in every process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import groupby
from typing import NamedTuple

from tests.chaos.call_record import AMOUNT, FIXED, CallRecord, ProcessRecord, TimerTick

SECOND = 1_000_000
HOUR = 3_600 * SECOND
PEACE = 1.0  # seconds without the fallback, to call it recovered


class WindowState(Enum):
    """Of a key's window."""

    QUIET = "quiet"
    TROUBLED = "troubled"
    CUT_OFF = "cut off"


class OverAdmission(NamedTuple):
    """The most that was admitted beyond the limit, as a part of it, in windows of each state."""

    quiet: float = 0.0
    troubled: float = 0.0
    cut_off: float = 0.0


def longest_stall(calls: Iterable[CallRecord], ticks: Sequence[TimerTick]) -> float:
    """Seconds, of one process."""
    woke = [tick.woke for tick in ticks]
    longest = 0.0
    for call in calls:
        took = call.end - call.start
        if took > longest:
            longest = max(longest, took - _lateness(ticks, bisect_left(woke, call.start), call.end))
    return longest


def _lateness(ticks: Sequence[TimerTick], first: int, until: float) -> float:
    late = 0.0
    for due, woke in ticks[first:]:
        if due > until:
            break
        late = max(late, woke - due)
    return late


def worst_tick(ticks: Iterable[TimerTick]) -> float:
    return max((tick.woke - tick.due for tick in ticks), default=0.0)


def recovery_seconds(calls: Sequence[CallRecord], back: float, ended: float) -> float | None:
    """Seconds after `back`; None if that was never seen."""
    at = back
    for end in sorted(call.end for call in calls if (call.degraded or call.error) and call.end > back):
        if end - at > PEACE:
            break
        at = end
    return at - back if ended - at >= PEACE else None


def over_admitted(seen: Sequence[ProcessRecord], epoch: float, disturbed_us: Sequence[int]) -> OverAdmission:
    """`epoch` leads from the monotonic clock's seconds to the wall clock's."""
    decided = sorted(
        ((each.layout, call.limit, call.key), _at_us(call, epoch), call)
        for each in seen
        for call in each.calls
        if call.limit in AMOUNT and not call.error
    )
    events = {at_us // SECOND for at_us in disturbed_us}
    worst: dict[WindowState, float] = dict.fromkeys(WindowState, 0.0)
    for (_, limit, _), group in groupby(decided, key=lambda each: each[0]):
        history = [(at_us, call) for _, at_us, call in group]
        states = _states(history, events)
        excess = _windows if limit == FIXED else _spans
        for state, units in excess(history, states, AMOUNT[limit]):
            worst[state] = max(worst[state], units / AMOUNT[limit])
    return OverAdmission(worst[WindowState.QUIET], worst[WindowState.TROUBLED], worst[WindowState.CUT_OFF])


History = Sequence[tuple[int, CallRecord]]


def _at_us(call: CallRecord, epoch: float) -> int:
    """Returns when it was decided. A server whose clock was turned by hours is taken back to the hour of the
    others.
    """
    off_us = call.at_us - round((call.end + epoch) * SECOND)
    return call.at_us - round(off_us / HOUR) * HOUR


def _states(history: History, events: set[int]) -> dict[int, WindowState]:
    """Of each window of a second, what it was."""
    states: dict[int, set[bool]] = {}
    for at_us, call in history:
        states.setdefault(at_us // SECOND, set()).add(call.degraded)
    return {
        window: WindowState.TROUBLED
        if len(kinds) > 1 or window in events
        else WindowState.CUT_OFF
        if True in kinds
        else WindowState.QUIET
        for window, kinds in states.items()
    }


def _windows(history: History, states: dict[int, WindowState], limit: int) -> Iterable[tuple[WindowState, float]]:
    admitted: dict[int, int] = {}
    for at_us, call in history:
        admitted[at_us // SECOND] = admitted.get(at_us // SECOND, 0) + call.allowed
    return [(states[window], count - limit) for window, count in admitted.items()]


def _spans(history: History, states: dict[int, WindowState], limit: int) -> Iterable[tuple[WindowState, float]]:
    spans: list[tuple[WindowState, float]] = [
        (state, _excess([at_us for at_us, call in stretch if call.allowed], limit))
        for state, stretch in groupby(history, key=lambda each: states[each[0] // SECOND])
        if state is not WindowState.TROUBLED
    ]
    if WindowState.TROUBLED in states.values():
        admitted_us = [at_us for at_us, call in history if call.allowed]
        spans.append((WindowState.TROUBLED, _ratio(admitted_us, limit) * limit))
    return spans


def _ratio(admitted_us: Sequence[int], limit: int) -> float:
    """By which part any span of up to a second holds more than burst and rate allow."""
    worst = 0.0
    for first, began_us in enumerate(admitted_us):
        for units, at_us in enumerate(admitted_us[first:], 1):
            if at_us - began_us > SECOND:
                break
            worst = max(worst, units / (limit + limit * (at_us - began_us) / SECOND) - 1)
    return worst


def _excess(admitted_us: Sequence[int], limit: int) -> float:
    """The most by which any span holds more than burst and rate allow. One bucket, filled by all, finds it."""
    level, worst, before_us = 0, 0, admitted_us[0] if admitted_us else 0
    for at_us in admitted_us:  # the level is in millionths: a microsecond drains `limit` of them
        level = max(0, level - (at_us - before_us) * limit) + SECOND
        before_us = at_us
        worst = max(worst, level - limit * SECOND)
    return worst / SECOND
