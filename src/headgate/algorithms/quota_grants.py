"""Quota grants: one limit, shared by holders that decide by themselves and report their demand.

Picture a loaf and guests who eat in their own rooms. Now and then each sends word how hungry it is, and gets an
answer: how much of the loaf is its own from now on, and until when. Nobody confirms the answer. So the host writes
down all that he granted, assumes that every guest eats the largest part that it may still believe to have, and
promises nobody what another may be eating.

Measure. The loaf is WHOLE grant units, whatever the limit: a ledger knows fractions of the limit, and converts
them to the limit's own units only in its replies (divisible_limit.py). So a limit may change while grants are
open, and nothing need be converted. A grant made at `now` counts until now + ttl + grace: the holder gets the ttl,
and the grace is for the reply's way to it and for what the holder does once its grant has ended. A grant ends by
itself; a later one replaces it for a holder that received the reply. So a holder that gets less blocks what it had
until that ends.

Demand. A reported demand is stored with an eighth more, as head-room, and stays while reports lie between three
quarters of it and all of it: a demand that trembles changes nobody's grant. (It matters: an Envoy that gets more
has more in its bucket at once.) A holder that cannot know its demand counts as wanting an equal part.

Targets. First every holder is owed its demand, but none more than the level at which the limit is used up: a
holder that wants less than that gets all it wants, the others get equal parts (max-min fairness). The rest is
shared equally by all, those that want nothing as well, and one more: that is head-room for a busy holder, the
standby of an idle one, and something for the next that comes. Units that do not divide go to the first in rank,
which is the order of arrival. A grant below `least` would let nothing pass; so where there are more holders than
grants of that size, the first in rank get one, busy ones before idle ones, and the others none.

"100/s", two holders: A wants 20, B wants 200. Demand: 22.5 and all. A is owed 22.5, B 77.5, and there is no rest.
A stops reporting: it gets nothing more, its grant ends, and B's next report brings it 100. Had A reported that it
wants nothing, it would have got 0 at once, as long as B wants all; if B wanted only 60 (demand: 67.5), the rest
would be 32.5, and A would keep a third of that.

Listening. Where a ledger begins, grants may be open that are not in it: of a process that was restarted, of a
server that was emptied. The caller passes until when that may be (`unknown_until_us`); until then the ledger
stores demands and grants nothing.

Laws (tests/algorithms/test_quota_grant_laws.py):
  - at no instant do the largest grants that holders may be using add up to more than the limit, by the ledger's
    clock. After the limit was lowered: than the largest one that any of these grants was made under;
  - reports every r, ttl + grace at most 2r (`spans`): within 2r of the report of a change every holder has at
    least
    what it is owed; so the others have what is no longer wanted. Within 3r every holder has its target, and after
    many changes at once within 3r of the last. (What is owed takes 3r, too, where more holders want any than can
    have some: WHOLE // least.) Owed is at least min(demand, an equal part of the limit);
  - when demands are steady, all is granted but the part for one more: nothing, if the limit is used up;
  - a grant that is not renewed returns to the others ttl + grace after it was made; that of an idle holder, as any
    that is lowered, with its report. Its standby is the rest that the busy leave;
  - a holder is deleted with its last grant, and a ledger with its last holder. At most MAX_HOLDERS are stored; one
    that comes when it is full gets 0. For each, at most MAX_GRANTS_PER_HOLDER grants are stored: two older ones
    are merged into one, as large as the larger, which ends as late as the later;
  - listening ends by itself, and nothing is granted before;
  - a clock that swings by up to MAX_CLOCK_SWING_US ends no grant earlier; one that is set back leaves every grant
    the time that it had left at the last report, and mints nothing. One that steps forward ends grants early, here
    as everywhere: at most the limit once more is out then, for at most ttl + grace.

Cost: one look at each holder and about four at each busy one (at most 50: see `_level`). In Redis that is about a
quarter of a millisecond for 100 holders, and two to three for 1,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.algorithms.divisible_limit import ALL_GRANT_UNITS, QuotaUnits
from headgate.algorithms.limit import MAX_CLOCK_SWING_US, SECOND
from headgate.errors import InvalidRule

MAX_HOLDERS = 1000
MAX_GRANTS_PER_HOLDER = 4

DEPARTED = -1  # the demand of a holder that has left

# Grant units, and until when they may be in use. A holder's are in order: each is smaller than the one before, and
# ends no earlier.
OpenGrant = tuple[int, int]


class Holder(NamedTuple):
    """A holder in the ledger: its demand, and the grants that it may be using."""

    name: str
    demand: int
    grants: tuple[OpenGrant, ...]


class State(NamedTuple):
    """A ledger: when it was written, until when it grants nothing, and its holders in their rank."""

    stamp_us: int
    listening_until_us: int
    holders: tuple[Holder, ...]


class QuotaGrant(NamedTuple):
    """The grant of one holder: units per period, and units at once; 0 of both is nothing at all."""

    units: int
    period_us: int
    burst: int
    ttl_us: int
    grains: int


def ttl_and_grace(report_us: int) -> tuple[int, int]:
    """Returns ttl and grace for holders that report so often: a ttl of about one and a half intervals, in whole
    seconds, and both together two intervals; but two seconds and three, where they report more often than each
    1.5 s."""
    if report_us < SECOND:
        raise InvalidRule(f"Holders report at most once a second, not every {report_us} microseconds.")
    ttl_us = max(2 * SECOND, report_us * 3 // 2 // SECOND * SECOND)
    return ttl_us, max(SECOND, 2 * report_us - ttl_us)


def grant(
    division: QuotaUnits,
    state: State | None,
    now_us: int,
    holder: str,
    wants: int | None,
    ttl_us: int,
    grace_us: int,
    unknown_until_us: int = 0,
) -> tuple[QuotaGrant | None, State]:
    """Stores the demand of a holder, in grant units (`division.grains`; None: it cannot know), and returns its
    grant; None while the ledger listens."""
    grant_units, after = report_demand(
        division.least, state, now_us, holder, wants, ttl_us + grace_us, unknown_until_us
    )
    return grant_in_units(division, grant_units, ttl_us), after


def grant_in_units(division: QuotaUnits, grant_units: int | None, ttl_us: int) -> QuotaGrant | None:
    """Converts grant units to the units of the limit."""
    if grant_units is None:
        return None
    units, burst = (
        division.amount * grant_units // ALL_GRANT_UNITS,
        division.burst * grant_units // ALL_GRANT_UNITS,
    )
    return QuotaGrant(units, division.period_us, burst, ttl_us, grant_units)


def report_demand(
    least: int,
    state: State | None,
    now_us: int,
    name: str,
    wants: int | None,
    live_us: int,
    unknown_until_us: int = 0,
) -> tuple[int | None, State]:
    """Stores a demand and returns the grant, both in grant units. `live_us`: how long the grant counts, ttl and
    grace together."""
    if state is None:
        state = State(now_us, min(unknown_until_us, now_us + live_us) if unknown_until_us > now_us else 0, ())
    now_us = _as_at(state, now_us)
    listening_until_us, holders = _active_holders(state, now_us)
    rank = next((rank for rank, holder in enumerate(holders) if holder.name == name), len(holders))
    if rank == len(holders):
        if rank >= MAX_HOLDERS:
            return (None if now_us < listening_until_us else 0), State(now_us, listening_until_us, tuple(holders))
        holders.append(Holder(name, DEPARTED, ()))
    demands = [holder.demand for holder in holders]
    if wants is not None:
        demands[rank] = damped_demand(demands[rank], wants)
    elif demands[rank] == DEPARTED:
        demands[rank] = ALL_GRANT_UNITS // (len(demands) - demands.count(DEPARTED) + 1)
    grant_units = 0
    if now_us >= listening_until_us:
        free = ALL_GRANT_UNITS - sum(holder.grants[0][0] for other, holder in enumerate(holders) if other != rank)
        grant_units = min(target(least, demands, rank), free)
        if grant_units < least:
            grant_units = 0
    holders[rank] = Holder(name, demands[rank], _with_grant(holders[rank].grants, (grant_units, now_us + live_us)))
    return (None if now_us < listening_until_us else grant_units), State(
        now_us, listening_until_us, tuple(holders)
    )


def remove_holder(state: State | None, now_us: int, name: str) -> State | None:
    """Removes a holder: it gets no grant any more, not even a standby. Its open grants still end by themselves."""
    if state is None:
        return None
    now_us = _as_at(state, now_us)
    listening_until_us, holders = _active_holders(state, now_us)
    remaining = (holder._replace(demand=DEPARTED) if holder.name == name else holder for holder in holders)
    return State(now_us, listening_until_us, tuple(remaining))


def damped_demand(before: int, wants: int) -> int:
    """Returns the demand to store for a holder that reports this."""
    if before - before // 4 <= wants <= before:
        return before
    return min(ALL_GRANT_UNITS, wants + (wants + 7) // 8)


def target(least: int, demands: Sequence[int], rank: int) -> int:
    """Returns what the holder of this rank should have, by the demands of all."""
    holder_demand = demands[rank]
    if holder_demand == DEPARTED:
        return 0
    max_seats = ALL_GRANT_UNITS // least
    needs = [max(least, each) for each in demands if each > 0][:max_seats]
    before = sum(each > 0 for each in demands[:rank])
    level, extra_count, unused = _level(needs)
    if holder_demand > 0:
        if before >= max_seats:
            return 0
        need, position = max(least, holder_demand), before
        if need > level >= 0:
            ahead = sum(each > level for each in needs[:before])
            return level + (ahead < extra_count)
    else:
        need, position = 0, len(needs) + sum(each == 0 for each in demands[:rank])
    idle = sum(each == 0 for each in demands)
    sharers = len(needs) + max(0, min(idle + 1, unused // least - len(needs)))
    return need if position >= sharers else need + unused // sharers + (position < unused % sharers)


def _level(needs: list[int]) -> tuple[int, int, int]:
    """Returns the level above which no need is met, how many of those get one unit more, and the rest. -1: all are
    met.

    Each round meets all needs below an equal part of what remains. In each, either the unmet or what they lack
    becomes half as many, so there are at most log2(1000) + log2(WHOLE) of them; mostly three.
    """
    unused = ALL_GRANT_UNITS
    while needs:
        level = unused // len(needs)
        unmet = [each for each in needs if each > level]
        if len(unmet) == len(needs):
            return level, unused % len(needs), 0
        unused -= sum(needs) - sum(unmet)
        needs = unmet
    return -1, 0, unused


def dead_at_us(state: State) -> int:
    """Returns the instant from which on the state means the same as None."""
    return max([state.listening_until_us, *(holder.grants[-1][1] for holder in state.holders)])


def _as_at(state: State, now_us: int) -> int:
    """Returns the instant that a ledger is decided as of: now, or that of its last writing if the clock swings."""
    return state.stamp_us if now_us < state.stamp_us <= now_us + MAX_CLOCK_SWING_US else now_us


def _active_holders(state: State, now_us: int) -> tuple[int, list[Holder]]:
    """Returns until when the ledger listens, and the grants that still count, also after the clock was set
    back."""
    stamp_us, listening_until_us, holders = state
    back_us = max(0, stamp_us - now_us)
    active = []
    for name, demand, grants in holders:
        if back_us or grants[0][1] <= now_us:
            grants = tuple((grant_units, end - back_us) for grant_units, end in grants if end - back_us > now_us)
        if grants:
            active.append(Holder(name, demand, grants))
    return max(0, listening_until_us - back_us), active


def _with_grant(grants: tuple[OpenGrant, ...], new: OpenGrant) -> tuple[OpenGrant, ...]:
    """Returns the grants with one more. It covers those that are no larger, because it ends no earlier: if the ttl
    became shorter, it counts as long as they did."""
    grant_units, end_us = new
    larger = [part for part in grants if part[0] > grant_units]
    if len(larger) >= MAX_GRANTS_PER_HOLDER:
        larger[-2:] = [(larger[-2][0], larger[-1][1])]
    return (*larger, (grant_units, max(end_us, grants[-1][1]) if grants else end_us))


def pack(state: State) -> str:
    """Returns the stored form. A holder's name must contain neither a space nor a newline."""
    text_lines = [f"{state.stamp_us} {state.listening_until_us}"]
    for name, demand, grants in state.holders:
        text_lines.append(
            f"{name} {demand} " + " ".join(f"{grant_units} {end_us}" for grant_units, end_us in grants)
        )
    return "\n".join([*text_lines, ""])


def unpack(text: str) -> State:
    first, *text_lines = text.split("\n")[:-1]
    stamp_us, listening_until_us = map(int, first.split(" "))
    holders = []
    for text_line in text_lines:
        name, demand, *numbers = text_line.split(" ")
        grants = tuple(zip(map(int, numbers[::2]), map(int, numbers[1::2]), strict=True))
        holders.append(Holder(name, int(demand), grants))
    return State(stamp_us, listening_until_us, tuple(holders))
