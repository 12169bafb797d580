"""Suggests a limit for a log: chooses a point of the frontier, and confirms it on calls that were not used.

It chooses on the first two thirds of the log, and confirms on the last third. The cut is found by counting the
minutes in which each key was active, so a scanner or a flood cannot pull the cut into itself. Of the points that
refuse no ordinary key, each with headroom on the burst, it chooses the one that allows a client that never stops
the fewest calls in five minutes. A rate counts only if its bucket refills within ten minutes (a visitor who
empties it comes back) and within a quarter of the log (which says nothing about slower rates). Where the last
third does not confirm the limit, or is too short to, and no bound was asked for, the whole log chooses again.
docs/explanation/suggest.md has the reasons.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from math import ceil, sqrt
from typing import NamedTuple

from headgate.errors import InvalidLog
from headgate.traffic.call_table import CallTable, KeyedTimes
from headgate.traffic.demand import DayPart, DemandRow, day_and_night, demand_rows
from headgate.traffic.heavy_keys import MIN_GAP, KeyEvidence, describe_heavy_keys, find_heavy_keys
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

HEADROOM, MAX_HEADROOM = 1.5, 3.0
ENOUGH_KEYS = 400  # at least, divided by the square of the headroom
MIN_HEADROOM_UNITS = 4
MAX_REFUSED_SHARE = 0.01  # of the keys of the last third, if the limit is to count as confirmed
CONFIDENCE = 0.95
CHOOSING_SHARE = 2 / 3  # of the minutes in which each key was active
_MIN_SLOTS = 100  # into which a short log is cut instead of minutes
ABUSE_SPAN_US = 5 * MINUTE
MAX_REFILL_US = 10 * MINUTE
REFILL_SHARE = 1 / 4  # of the log, in which a bucket must refill
MIN_KEYS = 20  # ordinary ones in each part of the log, to choose by and to confirm with
MIN_PARALLEL_CALLS = 500_000
# Of the work, when that is done:
_GROUPED, _DEMAND_COUNTED, _FRONTIER_COMPUTED, _CONFIRMED, _CHOSEN_AGAIN = 0.05, 0.2, 0.75, 0.85, 0.95


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

    @property
    def largest_key_share(self) -> float:
        """The largest share of refused keys that these counts do not exclude, with a confidence of 95 %."""
        low, high = self.key_share, 1.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            if _at_most_refused(self.refused_keys, self.keys, middle) > 1 - CONFIDENCE:
                low = middle
            else:
                high = middle
        return high


def _at_most_refused(refused: int, keys: int, share: float) -> float:
    """Returns the chance that of so many keys at most so many are refused, if this share of all keys is."""
    if share >= 1:
        return float(refused >= keys)
    term = total = (1 - share) ** keys
    for number in range(refused):
        term *= (keys - number) / (number + 1) * share / (1 - share)
        total += term
    return total


class Confirmation(NamedTuple):
    """The refusals among the calls that were not used to choose the limit."""

    limit: str  # the one that these calls were to confirm
    choosing_keys: int  # ordinary ones, that chose it
    ordinary: Refusals
    new_heavy_keys: int  # refused, and far above all others
    enough: bool  # whether both parts of the log had enough keys
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
    headroom: float
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
    chosen_again: (
        bool  # by the whole log, because its last third did not confirm what the rest had chosen, or could not
    )
    sampled: int  # of so many light keys one was looked at
    has_costs: bool  # the demand is in units of cost, not in calls

    @property
    def limit(self) -> str:
        """The limit as rulebooks write it."""
        return f"{self.rate} burst {self.burst}"


class _Bursts(NamedTuple):
    """The smallest burst of each key at each rate; keys by their index in `numbers`."""

    numbers: Sequence[int]
    by_rate: dict[Rate, array[int]]


class _Choice(NamedTuple):
    rate: Rate
    needed_burst: int  # before headroom
    burst: int


class _Candidates:
    """The limits that a part of a log allows to choose from: its frontier, without its heavy keys."""

    def __init__(self, bursts: _Bursts, span_us: int) -> None:
        self._bursts, self._span_us = bursts, span_us
        heavy = find_heavy_keys(bursts.by_rate.values())
        ordinary = [index for index in range(len(bursts.numbers)) if index not in heavy]
        self._ordered = {
            rate: array("q", sorted(row[index] for index in ordinary)) for rate, row in bursts.by_rate.items()
        }
        self.keys: int = len(ordinary)
        self.headroom: float = headroom(len(ordinary))
        self.frontier: Sequence[FrontierPoint] = [frontier_point(*each) for each in self._ordered.items()]
        self.heavy_numbers: set[int] = {bursts.numbers[index] for index in heavy}

    def choose(self, refuse_keys: float) -> _Choice:
        """Returns the choice that refuses at most this share of the ordinary keys."""
        needed = {rate: quantile(each, 1 - refuse_keys) for rate, each in self._ordered.items()}
        rate = _choose(needed, self.headroom, self._span_us)
        return _Choice(rate, needed[rate], with_headroom(needed[rate], self.headroom))

    def bursts_at(self, rate: Rate) -> dict[int, int]:
        """Returns the burst that each key needs, by its number."""
        return dict(zip(self._bursts.numbers, self._bursts.by_rate[rate], strict=True))


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
    confirming = whole.since(split_us)
    per_second = demand[0].most
    rates = [rate for rate in RATES if rate.units_in(1_000_000) <= max(per_second, 1)]

    def report_frontier(share: float | None) -> None:
        report(_DEMAND_COUNTED + (_FRONTIER_COMPUTED - _DEMAND_COUNTED) * (share or 0))

    candidates = _Candidates(_key_bursts(whole.before(split_us), rates, report_frontier), split_us - first_us)
    report(_FRONTIER_COMPUTED)
    bounds = [refuse_keys, refuse_keys / 2, refuse_keys / 4, 0.0] if refuse_keys else [0.0]
    attempts = 0
    while True:
        choice = candidates.choose(bounds[attempts])
        attempts += 1
        confirmation, far_above = _confirm(confirming, candidates, choice, attempts)
        holds = confirmation.ordinary.key_share <= (refuse_keys or MAX_REFUSED_SHARE)
        if holds or not confirmation.enough or attempts == len(bounds):
            break
    report(_CONFIRMED)
    confirmed = holds and confirmation.enough
    chosen_again = not refuse_keys and not confirmed
    if chosen_again:
        del candidates  # which hold some bytes for each key and rate
        bursts = _key_bursts(
            whole, rates, lambda share: report(_CONFIRMED + (_CHOSEN_AGAIN - _CONFIRMED) * (share or 0))
        )
        candidates = _Candidates(bursts, last_us - first_us)
        choice, far_above = candidates.choose(0.0), {}
    return Suggestion(
        rate=choice.rate,
        burst=choice.burst,
        needed_burst=choice.needed_burst,
        headroom=candidates.headroom,
        calls=len(table),
        keys=len(table.keys),
        first_us=first_us,
        last_us=last_us,
        demand=demand,
        frontier=candidates.frontier,
        heavy_keys=describe_heavy_keys(
            table, candidates.heavy_numbers | far_above.keys(), candidates.bursts_at(choice.rate) | far_above
        ),
        day_parts=day_and_night(whole, first_us, last_us, zone),
        confirmation=confirmation,
        expected=count_refusals(whole, choice.rate, choice.burst),
        refuse_keys=refuse_keys,
        confirmed=confirmed,
        chosen_again=chosen_again,
        sampled=table.sampled,
        has_costs=table.costs is not None,
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


def headroom(keys: int) -> float:
    """Returns the factor of headroom: more for few keys, among which the busiest may be missing.

    One more key needs more than h times the largest burst of `keys` keys with a chance of about 1/(keys h^2), if
    bursts beyond x become rarer as x^-2. The factor holds that at 1 in ENOUGH_KEYS. A single key has no others.

    >>> headroom(900), headroom(100), headroom(20), headroom(1)
    (1.5, 2.0, 3.0, 1.5)
    """
    return min(MAX_HEADROOM, max(HEADROOM, ceil(10 * sqrt(ENOUGH_KEYS / keys)) / 10)) if keys > 1 else HEADROOM


def with_headroom(burst: int, factor: float = HEADROOM) -> int:
    """Returns a burst with room for somewhat busier keys than the log has.

    >>> with_headroom(16), with_headroom(1)
    (24, 5)
    """
    return max(ceil(burst * factor), burst + MIN_HEADROOM_UNITS)


def _choose(needed: dict[Rate, int], factor: float, span_us: int) -> Rate:
    """Returns the rate that passes the fewest calls in five minutes to a client that never stops."""

    def refill_us(rate: Rate) -> float:
        return with_headroom(needed[rate], factor) * rate.period_us / rate.amount

    observable = [rate for rate in needed if refill_us(rate) <= min(MAX_REFILL_US, span_us * REFILL_SHARE)]
    if not observable:
        return min(needed, key=refill_us)
    return min(
        reversed(observable), key=lambda rate: with_headroom(needed[rate], factor) + rate.units_in(ABUSE_SPAN_US)
    )


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
    keyed: KeyedTimes, candidates: _Candidates, choice: _Choice, attempts: int
) -> tuple[Confirmation, dict[int, int]]:
    """Returns how the choice does on these calls, and the bursts of keys far above all others, left out there."""
    rate, burst, heavy = choice.rate, choice.burst, candidates.heavy_numbers
    ordinary = {
        number: smallest_burst(rate, times_us, costs) for number, times_us, costs in keyed if number not in heavy
    }
    above = find_heavy_keys([list(ordinary.values())])
    far_above = {
        number: needed
        for index, (number, needed) in enumerate(ordinary.items())
        if index in above and needed >= MIN_GAP * burst
    }
    total = Refusals(0, 0, 0, 0)
    for number, times_us, costs in keyed:
        needed = ordinary.get(number)
        if needed is not None and number not in far_above:
            refused = count_refused(rate, burst, times_us, costs) if needed > burst else 0
            total = total.plus(Refusals(len(times_us), refused, 1, int(needed > burst)))
    enough = min(total.keys, candidates.keys) >= MIN_KEYS
    limit = f"{rate} burst {burst}"
    return Confirmation(limit, candidates.keys, total, len(far_above), enough, attempts), far_above


def count_refusals(keyed: KeyedTimes, rate: Rate, burst: int) -> Refusals:
    """Returns what a limit refuses of these calls."""
    total = Refusals(0, 0, 0, 0)
    for _, times_us, costs in keyed:
        refused = count_refused(rate, burst, times_us, costs)
        total = total.plus(Refusals(len(times_us), refused, 1, int(refused > 0)))
    return total
