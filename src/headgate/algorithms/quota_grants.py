"""Assignments: one limit, divided among holders who decide by themselves and report what they would use.

Picture a loaf and guests who eat in their own rooms. Now and then each sends word how hungry it is, and is told
how much of the loaf is its own from now on, and until when. Nobody answers that it has heard. So the host writes
down all that he said, takes every guest to be eating the largest part that it may still believe to have, and
promises nobody what another may be eating.

Measure. The loaf is WHOLE grains, whatever the limit: a ledger knows fractions of the limit, and units come into
it only when somebody is told (division.py). So a limit may change while parts of it are out, and nothing need be
carried over. A part told at `now` is counted until now + ttl + grace: ttl is what the holder is told, grace is for
the word's way to it and for what the holder does once its part has run out. A part ends by itself; another one,
told later, replaces it for whoever has heard of it. So a holder that is told less blocks what it had until that
ends.

Demand. What a holder reports is noted with an eighth more, as head-room, and stays noted while reports lie between
three quarters of it and all of it: a demand that trembles changes nobody's part. (It matters: an Envoy that is
told more has more in its bucket at once.) A holder that cannot know what it wants is taken to want an equal part.

Targets. First everybody is owed what is noted, but nobody more than the level at which the limit is used up: who
wants less than that gets all it wants, the others get equal parts (max-min fairness). What is left over then is
divided equally among all, those that want nothing as well, and one more: that is a busy holder's room to rise, the
standby of an idle one, and something for the next who comes. Grains that do not divide go to the first in rank,
which is the order of arrival. A part below `least` would let nothing pass; so where there are more holders than
parts of that size, the first in rank get one, busy ones before idle ones, and the others none.

"100/s", two holders: A wants 20, B wants 200. Noted: 22.5 and all. A is owed 22.5, B 77.5, nothing is left over.
A falls silent: it is told nothing more, its part ends, and B's next report brings it 100. Had A reported that it
wants nothing, it would have been told 0 at once, as long as B wants all; if B wanted only 60 (noted: 67.5), 32.5
would be left over, and A would keep a third of that.

Listening. Where a ledger begins, parts may be out that nobody remembers: of a process that was restarted, of a
server that was emptied. Whoever asks says until when that may be (`unknown_until_us`); until then the ledger notes
demands and tells nothing.

Laws (tests/algorithms/test_quota_grant_laws.py):
  - at no instant do the largest parts that holders may be using add up to more than the limit, by the ledger's
    clock. After the limit was lowered: than the largest one that any of these parts was told under;
  - reports every r, ttl + grace at most 2r (`spans`): within 2r of the report that told a change everybody has at
    least what it is owed; so the others have what is no longer wanted. Within 3r everybody has its target, and
    after many changes at once within 3r of the last. (3r it is for what is owed, too, where more want any than
    can have some: WHOLE // least.) Owed is at least min(demand, an equal part of the limit);
  - when demands are steady, all is told but what is left for one more: nothing, if the limit is used up;
  - a part that is not renewed returns to the others ttl + grace after it was told; that of an idle holder, as any
    that is lowered, when the report has said so. What is left over by the busy is its standby;
  - a holder is forgotten with its last part, and a ledger with its last holder. At most HOLDERS are noted; who
    comes when it is full is told 0. For each, at most PARTS parts are kept: two older ones are merged into one, as
    large as the larger, which ends as late as the later;
  - listening ends by itself, and nothing is told before;
  - a clock that swings by up to MAX_CLOCK_SWING_US ends no part earlier; one that is set back leaves every part
    the time that it had left when a report was last noted, and mints nothing. One that steps forward ends parts
    early, here as everywhere: at most the limit once more is out then,
    for at most ttl + grace.

Cost: one look at each holder and about four at each busy one (at most 50: see `_level`). In Redis that is about a
quarter of a millisecond for 100 holders, and two to three for 1,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.algorithms.limit import MAX_CLOCK_SWING_US, SECOND
from headgate.algorithms.quota_units import WHOLE, Division
from headgate.errors import InvalidRule

HOLDERS = 1000
PARTS = 4

LEFT = -1  # the demand of a holder that has said goodbye

# Grains, and until when they may be in use. A holder's are in order: each is smaller than the one before, and ends
# no earlier.
Part = tuple[int, int]


class Holder(NamedTuple):
    name: str
    noted: int
    parts: tuple[Part, ...]


class State(NamedTuple):
    """Holders in their rank, when it was written, and until when nothing is told."""

    stamp_us: int
    listens_us: int
    holders: tuple[Holder, ...]


class Assignment(NamedTuple):
    """What one holder may use by itself: units per period, and units at once; 0 of both is nothing at all."""

    units: int
    period_us: int
    burst: int
    ttl_us: int
    grains: int


def spans(report_us: int) -> tuple[int, int]:
    """ttl and grace for holders that report so often: about one and a half intervals of ttl, in whole seconds, and
    both together two intervals; but two seconds and three, where they report more often than each 1.5 s."""
    if report_us < SECOND:
        raise InvalidRule(f"Holders report at most once a second, not every {report_us} microseconds.")
    ttl_us = max(2 * SECOND, report_us * 3 // 2 // SECOND * SECOND)
    return ttl_us, max(SECOND, 2 * report_us - ttl_us)


def assign(
    division: Division,
    state: State | None,
    now_us: int,
    holder: str,
    wants: int | None,
    ttl_us: int,
    grace_us: int,
    unknown_until_us: int = 0,
) -> tuple[Assignment | None, State]:
    """Note what a holder wants, in grains (`division.grains`; None: it cannot know), and tell it its part. The
    answer is None while the ledger listens."""
    grains, after = tell(division.least, state, now_us, holder, wants, ttl_us + grace_us, unknown_until_us)
    return told(division, grains, ttl_us), after


def told(division: Division, grains: int | None, ttl_us: int) -> Assignment | None:
    """So many grains of the limit, in its units."""
    if grains is None:
        return None
    units, burst = division.amount * grains // WHOLE, division.burst * grains // WHOLE
    return Assignment(units, division.period_us, burst, ttl_us, grains)


def tell(
    least: int,
    state: State | None,
    now_us: int,
    name: str,
    wants: int | None,
    live_us: int,
    unknown_until_us: int = 0,
) -> tuple[int | None, State]:
    """The same in grains: `live_us` is how long the part counts, ttl and grace together."""
    if state is None:
        state = State(now_us, min(unknown_until_us, now_us + live_us) if unknown_until_us > now_us else 0, ())
    now_us = _as_at(state, now_us)
    listens_us, holders = _settled(state, now_us)
    rank = next((rank for rank, holder in enumerate(holders) if holder.name == name), len(holders))
    if rank == len(holders):
        if rank >= HOLDERS:
            return (None if now_us < listens_us else 0), State(now_us, listens_us, tuple(holders))
        holders.append(Holder(name, LEFT, ()))
    noted = [holder.noted for holder in holders]
    if wants is not None:
        noted[rank] = note(noted[rank], wants)
    elif noted[rank] == LEFT:
        noted[rank] = WHOLE // (len(noted) - noted.count(LEFT) + 1)
    grains = 0
    if now_us >= listens_us:
        free = WHOLE - sum(holder.parts[0][0] for other, holder in enumerate(holders) if other != rank)
        grains = min(target(least, noted, rank), free)
        if grains < least:
            grains = 0
    holders[rank] = Holder(name, noted[rank], _with(holders[rank].parts, (grains, now_us + live_us)))
    return (None if now_us < listens_us else grains), State(now_us, listens_us, tuple(holders))


def leave(state: State | None, now_us: int, name: str) -> State | None:
    """A holder says goodbye: it wants no part, not even a standby. What it may be using still ends by itself."""
    if state is None:
        return None
    now_us = _as_at(state, now_us)
    listens_us, holders = _settled(state, now_us)
    gone = (holder._replace(noted=LEFT) if holder.name == name else holder for holder in holders)
    return State(now_us, listens_us, tuple(gone))


def note(before: int, wants: int) -> int:
    """What is noted of one who reports this."""
    if before - before // 4 <= wants <= before:
        return before
    return min(WHOLE, wants + (wants + 7) // 8)


def target(least: int, noted: Sequence[int], rank: int) -> int:
    """What the holder of this rank should have, by what is noted of all."""
    mine = noted[rank]
    if mine == LEFT:
        return 0
    seats = WHOLE // least
    needs = [max(least, each) for each in noted if each > 0][:seats]
    before = sum(each > 0 for each in noted[:rank])
    level, over, left = _level(needs)
    if mine > 0:
        if before >= seats:
            return 0
        need, place = max(least, mine), before
        if need > level >= 0:
            ahead = sum(each > level for each in needs[:before])
            return level + (ahead < over)
    else:
        need, place = 0, len(needs) + sum(each == 0 for each in noted[:rank])
    idle = sum(each == 0 for each in noted)
    sharers = len(needs) + max(0, min(idle + 1, left // least - len(needs)))
    return need if place >= sharers else need + left // sharers + (place < left % sharers)


def _level(needs: list[int]) -> tuple[int, int, int]:
    """The level above which no need is met, how many of those get a grain more, and what is left over. -1: all are
    met.

    Each round meets all needs below an equal part of what remains. In each, either the unmet or what they lack
    becomes half as many, so there are at most log2(1000) + log2(WHOLE) of them; mostly three.
    """
    left = WHOLE
    while needs:
        level = left // len(needs)
        unmet = [each for each in needs if each > level]
        if len(unmet) == len(needs):
            return level, left % len(needs), 0
        left -= sum(needs) - sum(unmet)
        needs = unmet
    return -1, 0, left


def dead_at_us(state: State) -> int:
    """Returns the instant from which on the state means the same as None."""
    return max([state.listens_us, *(holder.parts[-1][1] for holder in state.holders)])


def _as_at(state: State, now_us: int) -> int:
    """Returns the instant that a ledger is decided as of: now, or that of its last writing if the clock swings."""
    return state.stamp_us if now_us < state.stamp_us <= now_us + MAX_CLOCK_SWING_US else now_us


def _settled(state: State, now_us: int) -> tuple[int, list[Holder]]:
    """The parts that still count, also after the clock was set back."""
    stamp_us, listens_us, holders = state
    back_us = max(0, stamp_us - now_us)
    found = []
    for name, noted, parts in holders:
        if back_us or parts[0][1] <= now_us:
            parts = tuple((grains, end - back_us) for grains, end in parts if end - back_us > now_us)
        if parts:
            found.append(Holder(name, noted, parts))
    return max(0, listens_us - back_us), found


def _with(parts: tuple[Part, ...], new: Part) -> tuple[Part, ...]:
    """The parts with one more. Those that are no larger are covered by it, because it ends no earlier: if the ttl
    became shorter, it is counted as long as they were."""
    grains, end_us = new
    kept = [part for part in parts if part[0] > grains]
    if len(kept) >= PARTS:
        kept[-2:] = [(kept[-2][0], kept[-1][1])]
    return (*kept, (grains, max(end_us, parts[-1][1]) if parts else end_us))


def pack(state: State) -> str:
    """As it is stored. A holder's name must hold neither a space nor a line's end."""
    lines = [f"{state.stamp_us} {state.listens_us}"]
    for name, noted, parts in state.holders:
        lines.append(f"{name} {noted} " + " ".join(f"{grains} {end_us}" for grains, end_us in parts))
    return "\n".join([*lines, ""])


def unpack(text: str) -> State:
    first, *lines = text.split("\n")[:-1]
    stamp_us, listens_us = map(int, first.split(" "))
    holders = []
    for line in lines:
        name, noted, *numbers = line.split(" ")
        parts = tuple(zip(map(int, numbers[::2]), map(int, numbers[1::2]), strict=True))
        holders.append(Holder(name, int(noted), parts))
    return State(stamp_us, listens_us, tuple(holders))
