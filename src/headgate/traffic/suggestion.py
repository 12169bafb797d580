"""Suggests a limit for a log: chooses a point of the frontier, and confirms it on calls that were not used.

It chooses on the first two thirds of the log, and confirms on the last third. The cut is found by counting the
minutes in which each key was active, so a scanner or a flood cannot pull the cut into itself. Of the points that
refuse no ordinary key, each with headroom on the burst, it chooses the one that allows a client that never stops
the fewest calls in five minutes. A rate counts only if its bucket refills within ten minutes (a visitor who
empties it comes back) and within a quarter of the log (which says nothing about slower rates).
docs/explanation/suggest.md has the reasons.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from math import ceil
from typing import NamedTuple

from headgate.errors import InvalidLog
from headgate.traffic.call_table import CallTable, KeyedTimes
from headgate.traffic.demand import DayPart, DemandRow, day_and_night, demand_rows
from headgate.traffic.heavy_keys import MAX_HEAVY_SHARE, MIN_GAP, KeyEvidence, describe_heavy_keys, find_heavy_keys
from headgate.traffic.rate_burst_frontier import (
    MINUTE,
    RATES,
    FrontierPoint,
    Rate,
    count_refused,
    frontier_point,
    quantile,
    smallest_burst,
)
from headgate.traffic.run_in_parallel import run_both

HEADROOM = 1.5
MIN_HEADROOM_UNITS = 4
CHOOSING_SHARE = 2 / 3  # of the minutes in which each key was active
_MIN_SLOTS = 100  # into which a short log is cut instead of minutes
ABUSE_SPAN_US = 5 * MINUTE
MAX_REFILL_US = 10 * MINUTE
REFILL_SHARE = 1 / 4  # of the log, in which a bucket must refill
MIN_CONFIRMING_KEYS = 20
MIN_PARALLEL_CALLS = 500_000
_GROUPED, _DEMAND_COUNTED, _FRONTIER_COMPUTED, _CONFIRMED = 0.05, 0.2, 0.75, 0.85  # of the work, when that is done


class Refusals(NamedTuple):
    """The calls and keys that a limit refuses, of how many."""

    calls: int
    refused_calls: int
    keys: int
    refused_keys: int

    def plus(self, other: Refusals) -> Refusals:
        """Returns the sum of both."""
        return Refusals(*(one + another for one, another in zip(self, other, strict=True)))

    @property
    def key_share(self) -> float:
        return self.refused_keys / self.keys if self.keys else 0.0


class Confirmation(NamedTuple):
    """The refusals among the calls that were not used to choose the limit."""

    ordinary: Refusals
    new_heavy_keys: int  # refused, and as heavy as those that were set apart
    enough: bool  # whether there were enough keys to confirm anything
    attempts: int


@dataclass(frozen=True)
class Suggestion:
    """A suggested limit, and everything that it was chosen by.

    >>> suggestion = suggest_from_logs(["access.log"])
    >>> suggestion.keys, suggestion.calls, suggestion.confirmed
    (20, 60, True)
    """

    rate: Rate
    burst: int
    needed_burst: int  # the burst that refuses nobody, or the bound's share, before headroom
    calls: int
    keys: int
    first_us: int
    last_us: int
    demand: Sequence[DemandRow]
    frontier: Sequence[FrontierPoint]
    heavy_keys: Sequence[KeyEvidence]
    day_parts: Sequence[DayPart]
    confirmation: Confirmation
    expected: Refusals  # on the whole log, heavy keys included
    refuse_keys: float  # the bound; 0: nobody
    confirmed: bool
    sampled: int  # of so many light keys one was looked at

    @property
    def limit(self) -> str:
        """The limit as rulebooks write it."""
        return f"{self.rate} burst {self.burst}"


class _Bursts(NamedTuple):
    """The smallest burst of each key at each rate; keys by their index in `numbers`."""

    numbers: Sequence[int]
    by_rate: dict[Rate, array[int]]


def suggest_limit(
    table: CallTable,
    refuse_keys: float = 0.0,
    zone: tzinfo = UTC,
    on_progress: Callable[[float | None], None] | None = None,
) -> Suggestion:
    """Returns the limit that fits the calls of a table. Raises InvalidLog if there are none."""
    if not len(table):
        raise InvalidLog("No call is left to suggest a limit from.")
    report = on_progress or (lambda share: None)
    first_us, last_us = table.times_us[0], table.times_us[-1]
    whole = table.by_key()
    report(_GROUPED)
    demand = demand_rows(whole)
    report(_DEMAND_COUNTED)
    split_us = split_time_us(table)
    choosing, confirming = whole.before(split_us), whole.since(split_us)
    per_second = demand[0].most
    rates = [rate for rate in RATES if rate.units_in(1_000_000) <= max(per_second, 1)]
    bursts = _key_bursts(
        choosing,
        rates,
        lambda share: report(_DEMAND_COUNTED + (_FRONTIER_COMPUTED - _DEMAND_COUNTED) * (share or 0)),
    )
    report(_FRONTIER_COMPUTED)
    heavy = find_heavy_keys(bursts.by_rate.values())
    ordinary = [index for index in range(len(bursts.numbers)) if index not in heavy]
    frontier = [frontier_point(rate, (row[index] for index in ordinary)) for rate, row in bursts.by_rate.items()]
    heavy_numbers = {bursts.numbers[index] for index in heavy}
    span_us = split_us - first_us
    least_heavy = {rate: min((row[index] for index in heavy), default=0) for rate, row in bursts.by_rate.items()}
    bounds = [refuse_keys, refuse_keys / 2, refuse_keys / 4, 0.0] if refuse_keys else [0.0]
    attempts = 0
    while True:
        bound = bounds[attempts]
        attempts += 1
        ordered = {rate: sorted(row[index] for index in ordinary) for rate, row in bursts.by_rate.items()}
        needed = {rate: quantile(each, 1 - bound) for rate, each in ordered.items()}
        rate = _choose(needed, span_us)
        burst = with_headroom(needed[rate])
        confirmation, far_above = _confirm(confirming, rate, burst, heavy_numbers, least_heavy[rate], attempts)
        confirmed = not confirmation.enough or confirmation.ordinary.key_share <= refuse_keys
        if attempts == len(bounds) or confirmed:
            break
    report(_CONFIRMED)
    chosen = dict(zip(bursts.numbers, bursts.by_rate[rate], strict=True)) | far_above
    return Suggestion(
        rate=rate,
        burst=burst,
        needed_burst=needed[rate],
        calls=len(table),
        keys=len(table.keys),
        first_us=first_us,
        last_us=last_us,
        demand=demand,
        frontier=frontier,
        heavy_keys=describe_heavy_keys(table, heavy_numbers | far_above.keys(), chosen),
        day_parts=day_and_night(whole, first_us, last_us, zone),
        confirmation=confirmation,
        expected=count_refusals(whole, rate, burst),
        refuse_keys=refuse_keys,
        confirmed=confirmed and confirmation.enough,
        sampled=table.sampled,
    )


def split_time_us(table: CallTable) -> int:
    """Returns the instant that parts the calls to choose by from those to confirm with.

    Each key counts once a minute. By the number of calls, a log that begins with a flood would be cut within it.
    """
    first_us, last_us = table.times_us[0], table.times_us[-1]
    slot_us = max(1, min(MINUTE, (last_us - first_us) // _MIN_SLOTS))
    last_slots = array("q", [-1]) * len(table.keys)
    active: dict[int, int] = {}  # keys in each slot
    for time_us, number in zip(table.times_us, table.numbers, strict=True):
        slot = (time_us - first_us) // slot_us
        if last_slots[number] != slot:
            last_slots[number] = slot
            active[slot] = active.get(slot, 0) + 1
    enough = sum(active.values()) * CHOOSING_SHARE
    for slot, count in active.items():
        enough -= count
        if enough <= 0:
            return max(first_us + 1, min(first_us + (slot + 1) * slot_us, last_us))
    return max(first_us + 1, last_us)


def with_headroom(burst: int) -> int:
    """Returns a burst with room for somewhat busier keys than the log has.

    >>> with_headroom(16), with_headroom(1)
    (24, 5)
    """
    return max(ceil(burst * HEADROOM), burst + MIN_HEADROOM_UNITS)


def _choose(needed: dict[Rate, int], span_us: int) -> Rate:
    """Returns the rate that passes the fewest calls in five minutes to a client that never stops."""

    def refill_us(rate: Rate) -> float:
        return with_headroom(needed[rate]) * rate.period_us / rate.amount

    observable = [rate for rate in needed if refill_us(rate) <= min(MAX_REFILL_US, span_us * REFILL_SHARE)]
    if not observable:
        return min(needed, key=refill_us)
    return min(reversed(observable), key=lambda rate: with_headroom(needed[rate]) + rate.units_in(ABUSE_SPAN_US))


def _key_bursts(
    keyed: KeyedTimes, rates: Sequence[Rate], on_progress: Callable[[float | None], None] | None
) -> _Bursts:
    """Returns the bursts of all keys; of long logs on two cores, each for a part of the rates."""
    if keyed.call_count < MIN_PARALLEL_CALLS:
        return _key_bursts_at(keyed, rates, on_progress)
    first, second = run_both(
        lambda: _key_bursts_at(keyed, rates[::2], on_progress), lambda: _key_bursts_at(keyed, rates[1::2], None)
    )
    by_rate = first.by_rate | second.by_rate
    return _Bursts(first.numbers, {rate: by_rate[rate] for rate in rates})


def _key_bursts_at(
    keyed: KeyedTimes, rates: Sequence[Rate], on_progress: Callable[[float | None], None] | None
) -> _Bursts:
    numbers: list[int] = []
    rows = {rate: array("q") for rate in rates}
    for number, times_us, costs in keyed:
        if len(times_us) == 1:
            cost = 1 if costs is None else costs[0]
            for row in rows.values():
                row.append(cost)
        else:
            for rate, row in rows.items():
                row.append(smallest_burst(rate, times_us, costs))
        numbers.append(number)
        if on_progress is not None and len(numbers) % 256 == 0:
            on_progress(len(numbers) / keyed.key_count)
    return _Bursts(numbers, rows)


def _confirm(
    keyed: KeyedTimes, rate: Rate, burst: int, heavy: Collection[int], least_heavy: int, attempts: int
) -> tuple[Confirmation, dict[int, int]]:
    """Returns how the limit does on these calls, and the bursts of keys far above it, if they are few."""
    ordinary, far_above = Refusals(0, 0, 0, 0), Refusals(0, 0, 0, 0)
    bursts_far_above: dict[int, int] = {}
    for number, times_us, costs in keyed:
        if number in heavy:
            continue
        refused = count_refused(rate, burst, times_us, costs)
        of_key = Refusals(len(times_us), refused, 1, int(refused > 0))
        needed = smallest_burst(rate, times_us, costs) if refused else 0
        if refused and needed >= max(least_heavy, MIN_GAP * burst):
            far_above = far_above.plus(of_key)
            bursts_far_above[number] = needed
        else:
            ordinary = ordinary.plus(of_key)
    if far_above.keys > MAX_HEAVY_SHARE * ordinary.keys:  # not few, so they are no exceptions
        ordinary, bursts_far_above = ordinary.plus(far_above), {}
    enough = ordinary.keys >= MIN_CONFIRMING_KEYS
    return Confirmation(ordinary, len(bursts_far_above), enough, attempts), bursts_far_above


def count_refusals(keyed: KeyedTimes, rate: Rate, burst: int) -> Refusals:
    """Returns what a limit refuses of these calls."""
    total = Refusals(0, 0, 0, 0)
    for _, times_us, costs in keyed:
        refused = count_refused(rate, burst, times_us, costs)
        total = total.plus(Refusals(len(times_us), refused, 1, int(refused > 0)))
    return total
