"""The token bucket: a steady rate that forgives short bursts.

Picture a bucket with a small hole. Every unit of cost pours water in, and the hole drains it at the limit's
rate; a charge is allowed if it does not overflow. Seen from above it is a bucket of tokens that starts full;
seen from the clock it is GCRA, which remembers only the instant at which the bucket will have run dry. This
file is the one place where the three names meet.

Measure. Water is counted in grains. One unit of cost is `period_us` grains and one microsecond drains `amount`
grains (both divided by what they share), so nothing is ever rounded: at 700,000/s a unit drains in 10/7 of a
microsecond, and whole microseconds alone would be wrong by a third. The state is the instant of running dry
in whole microseconds and the grains beyond it, which are none where the amount divides the period.

"100/s burst 200": a bucket of 200 units. 200 pass at once, the next one 10 ms later, and so on each 10 ms.

Pace. Time until dry says nothing about units by itself: a minute of water is a bucketful at 10/minute, and a
sixth of a unit at 10/hour. So where a limit may change under its name, the pace that a state was written at is
kept with it: the time of one unit to within a sixteenth, in three digits behind the instant. A limit of another
pace counts the units instead of the time: in whole ones, rounded up. One of a rate so near that the pace is the
same keeps the time, which is the units to within a sixteenth. (Counts that are named after their limit need no
pace, for another limit has another name.)

Debt. A reservation may pour more than the bucket holds; it is served when the overflow has drained. Only then
does the state also remember when it was stamped.

The clock. A state proves an instant: it was written no earlier than a full bucket before it runs dry, and a debt
not before its stamp. If the clock reads up to MAX_CLOCK_SWING_US less, it swings (two processes never read the
same time), and a charge or refund is decided as of that instant: the water is what it is, and the wait includes
the difference. If it reads less than that, the clock was set back or the burst was lowered. Then the bucket is
full of water from now on, and even a refusal writes down since when (`note`); the instant of running dry and its
pace stay as they were, so a limit that is changed back finds all that was used. The note says whose it is, by the
limit's numbers: to every other limit it is as if there were none. There is at most one, that of the last limit
that needed one; an admitted charge drops it, and so does a debt that moves back with the clock.

Refunds. Water drains oldest first. When a charge is given back, all water above its own moves down by as much,
so what lay above holds less time than its receipt says. So the state remembers refunds (`returns`): how much, and
from where. They are numbered, and each charge takes the last number along in its mark; when it is itself given
back, what was given back since, from below it, is subtracted. The last MAX_RETURNS refunds are known one by one,
earlier ones as one from the lowest place of them all, which is to the safe side. What nothing lies above is taken
off the top and need not be remembered. All this is kept until no charge from before the last refund can hold any
water (`claims_us`).

Laws (tests/algorithms/test_token_bucket.py, test_token_bucket_laws.py, test_clock_laws.py, test_refund_laws.py):
  - taking 3 is the same as taking 1 three times at the same instant;
  - a denied charge leaves no trace (but the note above) and passes exactly retry_after later;
  - over any span of t at most  burst + amount * t / period  units pass, not counting those that passed within the
    span and were given back themselves;
  - a clock that swings mints nothing; one that is set back mints at most what drains in the length of the step,
    and nobody waits longer than MAX_CLOCK_SWING_US beyond the limit's own wait;
  - a refund gives back what the charge still holds: the part of its own water that lies ahead of now, and, where
    reservations lie ahead, ahead of the last of them; nothing from a state of another limit or time;
  - a cancelled reservation gives back what later reservations did not build on, and nothing once served;
  - a changed limit keeps what was used, at most a full bucket of the new one: of another burst the water, of
    another pace the units, rounded up by at most a sixteenth and one. So nobody gets a fresh burst by a change. A
    refused charge gives nothing back, however the limit is changed, and changes no answer of any other limit; an
    admitted one forgives what was more than its own bucket holds.
"""

from __future__ import annotations

from math import ceil, frexp, gcd
from typing import NamedTuple

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import EXACT, HORIZON_US, MAX_CLOCK_SWING_US, YEAR, Limit, microseconds, span, whole
from headgate.errors import InvalidRule


class Return(NamedTuple):
    """A refund from below other charges, or several as one.

    after       the number of the last refund before the charge that was given back
    end_us      where that charge's water had ended
    number      its own number, counted from 1
    us, grains  how much was given back
    """

    after: int
    end_us: int
    number: int
    us: int
    grains: int


class Note(NamedTuple):
    """Since when a state counts as at most a full bucket, and for which limit: its numbers, in lowest terms."""

    since_us: int
    amount: int
    period_us: int
    burst: int


class Full(NamedTuple):
    """A state that is more than the instant of running dry.

    tat_us      the instant of running dry, in whole microseconds
    grains      what there is beyond it
    stamp_us    when it was written, if in debt
    note        of a limit that refused because the clock was set back, or for what was used under another limit
    returns     refunds from below other charges, the oldest first
    claims_us   until when charges from before the last refund may hold water
    pace        at which it was written, if that is not the pace of the limit that judges it
    """

    tat_us: int
    grains: int = 0
    stamp_us: int | None = None
    note: Note | None = None
    returns: tuple[Return, ...] = ()
    claims_us: int = 0
    pace: int | None = None

    @property
    def last_return(self) -> int:
        """The number of the last refund from below other charges; 0: there was none."""
        return self.returns[-1].number if self.returns else 0


# The instant of running dry, where that says it all, as it mostly does.
State = int | Full

MAX_RETURNS = 8

_LONGEST_FILL_US = 100 * YEAR


class TokenBucket(Limit):
    """Passes `amount` units per `per` seconds, and up to `burst` at once (as many as the amount, unless given).

    >>> TokenBucket(100, burst=200)
    <TokenBucket 100/s burst 200>
    """

    __slots__ = ("amount", "burst", "capacity", "measure", "pace", "period_us")
    algorithm = "token_bucket"

    def __init__(self, amount: int, per: float = 1, burst: int | None = None) -> None:
        whole("The amount of a token bucket", amount)
        whole("The burst of a token bucket", amount if burst is None else burst)
        period_us = microseconds("The period of a token bucket", per)
        self.text: str = f"{amount}/{span(period_us)}" + ("" if burst in (None, amount) else f" burst {burst}")
        shared = gcd(amount, period_us)
        self.burst: int = amount if burst is None else burst
        self.amount: int = amount // shared
        self.period_us: int = period_us // shared
        self.capacity: int = self.burst * self.period_us
        if self.burst * self.amount > EXACT or self.capacity > _LONGEST_FILL_US * self.amount:
            raise InvalidRule(
                f'"{self.text}" cannot be exact: a bucket must fill within 100 years, and its burst times its '
                f"rate in lowest terms ({self.amount} per {self.period_us} us) may be at most 2^53. "
                "Lower the burst, or round the amount."
            )
        self.measure: tuple[int, int, int] = (self.amount, self.period_us, self.capacity)
        self.pace: int = _pace(self.period_us / self.amount)
        self.args: tuple[int | float, ...] = (self.amount, self.period_us, self.burst, self.pace)

    @property
    def max_cost(self) -> int:
        return self.burst


def decide(
    limit: TokenBucket, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Outcome, State | None]:
    """Decides one charge. Pure: same arguments, same result. With patience, a wait of at most that is allowed."""
    amount, period_us, capacity = limit.measure
    if amount == 1 and (state is None or state.__class__ is int):
        after_us = cost * period_us
        if state is not None and state > now_us:
            after_us += state - now_us
        room = capacity - after_us
        if room >= 0 and cost:
            return (True, room // period_us, 0, after_us, 0, now_us, 0), now_us + after_us
        level_us = after_us - cost * period_us
        if cost and patience_us is None and level_us <= capacity and cost <= limit.burst:
            return (False, (capacity - level_us) // period_us, -room, level_us, 0, now_us, 0), state
    return _decide_exactly(limit, state, now_us, cost, patience_us)


def _decide_exactly(
    limit: TokenBucket, state: State | None, now_us: int, cost: int, patience_us: int | None
) -> tuple[Outcome, State | None]:
    """What is not simply allowed in whole microseconds: grains, a peek, a refusal, a reservation."""
    amount, period_us, capacity = limit.measure
    full = Full(now_us) if state is None else _moved(_full(state), now_us)
    level = _level(limit, full, now_us)
    after = level + (cost or 1) * period_us
    wait_us = max(0, -((capacity - after) // amount))
    patience_us = 0 if patience_us is None else min(patience_us, HORIZON_US)
    if full.returns and full.claims_us <= now_us:
        full = full._replace(returns=(), claims_us=0)
    if 0 < cost <= limit.burst and wait_us <= patience_us:
        us, grains = divmod(after, amount)
        remaining = max(0, (capacity - after) // period_us)
        facts = True, remaining, 0, us + (grains > 0), wait_us, now_us, full.last_return * amount + grains
        stamp_us = _proven_us(limit, full, level, now_us) if wait_us else None
        # This charge knows the last refund by its number: so that is kept as long as the charge holds water.
        claims_us = max(full.claims_us, now_us + us + 1) if full.returns else 0
        return facts, _state(Full(now_us + us, grains, stamp_us, None, full.returns, claims_us))
    us, grains = divmod(level, amount)
    remaining = max(0, (capacity - level) // period_us)
    retry_us = wait_us if cost <= limit.burst else None
    mark = full.last_return * amount + grains
    refused = not cost and not wait_us, remaining, retry_us, us + (grains > 0), 0, now_us, mark
    return refused, state if state is None else _noted(limit, state, now_us, cost)


def _noted(limit: TokenBucket, state: State, now_us: int, cost: int) -> State:
    """The state after a refusal: the very one, or one that says since when the bucket counts as full."""
    full = _full(state)
    moved = _moved(full, now_us)
    needed = cost > 0
    if moved.pace is None:
        used = _grains(limit, moved.tat_us - now_us, moved.grains)
        needed = moved.stamp_us is None and used > limit.capacity + MAX_CLOCK_SWING_US * limit.amount
    if needed and _since_us(limit, moved, now_us) is None:
        moved = moved._replace(note=Note(now_us, limit.amount, limit.period_us, limit.burst))
    return state if moved is full else moved


def _state(full: Full) -> State:
    return full.tat_us if full[1:] == _NOTHING else full


_NOTHING = Full(0)[1:]


def _full(state: State) -> Full:
    return Full(state) if isinstance(state, int) else state


def _moved(full: Full, now_us: int) -> Full:
    """The state; a debt moved to now if the clock was set back behind its stamp."""
    if full.stamp_us is None or full.stamp_us - now_us <= MAX_CLOCK_SWING_US:
        return full
    return full._replace(tat_us=full.tat_us - (full.stamp_us - now_us), stamp_us=now_us, note=None)


def _since_us(limit: TokenBucket, full: Full, now_us: int) -> int | None:
    """Since when the bucket counts as at most full; None if the state says nothing of that to this limit, now."""
    note = full.note
    known = note is not None and note[1:] == (limit.amount, limit.period_us, limit.burst)
    return note.since_us if note and known and note.since_us - now_us <= MAX_CLOCK_SWING_US else None


def _level(limit: TokenBucket, full: Full, now_us: int) -> int:
    """The water now, also of a state in debt, one that the clock was set back behind, or one of another limit."""
    full = _moved(full, now_us)
    noted_us = _since_us(limit, full, now_us)
    since_us = now_us if noted_us is None else noted_us
    used = _grains(limit, full.tat_us - since_us, full.grains)
    if full.pace is not None:
        units = ceil(max(0, full.tat_us - since_us + (full.grains > 0)) / _unit_us(full.pace))
        used = min(limit.burst, units) * limit.period_us
    elif full.stamp_us is None:
        ahead = 0 if noted_us is not None else MAX_CLOCK_SWING_US * limit.amount
        used = used if used <= limit.capacity + ahead else limit.capacity
    return max(0, used - (now_us - since_us) * limit.amount)


def _proven_us(limit: TokenBucket, full: Full, level: int, now_us: int) -> int:
    """Returns the instant that a charge is decided as of: now, or later if the state proves that and the clock
    swings."""
    return max(now_us, full.stamp_us or now_us - (limit.capacity - level) // limit.amount)


def _grains(limit: TokenBucket, us: int, grains: int) -> int:
    """A length of time in grains; grains of a limit that was finer than this one are rounded up."""
    return us * limit.amount + grains if grains < limit.amount else (us + 1) * limit.amount


def refund(
    limit: TokenBucket, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    """Returns the state with up to `units` of the receipt's charge given back; None if it holds none any more."""
    full = Full(now_us) if state is None else _moved(_full(state), now_us)
    after, grains = divmod(receipt.mark, limit.amount)
    if full.pace is not None or _since_us(limit, full, now_us) is not None or after > full.last_return:
        return None
    used = _grains(limit, full.tat_us - now_us, full.grains)
    if full.stamp_us is None and used > limit.capacity + MAX_CLOCK_SWING_US * limit.amount:
        return None  # more was used than this limit sees: what it does not see is not to be forgotten
    now_us = _proven_us(limit, full, _level(limit, full, now_us), now_us)
    level = _level(limit, full, now_us)
    held = (receipt.cost - receipt.returned) * limit.period_us
    back = min(units * limit.period_us, held)
    # Where the charge's own water ended; and where it ends, seen from now, lower by what was given back since.
    end_us = receipt.at_us + receipt.reset_after_us - (grains > 0)
    ended = _grains(limit, end_us - now_us, grains)
    since = (each for each in full.returns if each.number > after and each[:2] <= (after, end_us))
    below = sum(_grains(limit, each.us, each.grains) for each in since)
    end = ended - max(below, receipt.returned * limit.period_us)
    # No reservation was promised for later than a bucketful below the highest water that there was.
    claims = (full.claims_us - now_us) * limit.amount
    highest = max(level, claims) if claims - limit.amount >= limit.capacity else level
    ahead = max(0, highest - limit.capacity)
    # Whatever was given back, no more can have drained of it than drained in all since it was charged.
    holds = max(end, held - max(0, now_us - receipt.at_us) * limit.amount)
    if not cancel:
        back = min(back, holds - ahead)
    elif max((receipt.at_us - now_us) * limit.amount, ended - limit.capacity) < 0:
        return None  # it was served
    elif end != level:
        back = min(back, held - max(0, ahead - max(0, holds - limit.capacity)))
    back = min(back, level)
    if back <= 0:
        return None
    returns, claims_us = full.returns, full.claims_us
    in_part = receipt.returned + units < receipt.cost
    if end != level or in_part or back < min(held, end):  # Something is left above the gap, or of the charge.
        number = full.last_return + 1
        if (number + 1) * limit.amount > EXACT:
            return None
        new = Return(after, end_us, number, *divmod(back, limit.amount))
        returns = _with_return(limit, returns, new)
        claims_us = max(claims_us, now_us - (-level // limit.amount))
    us, grains = divmod(level - back, limit.amount)
    stamp_us = now_us if level - back > limit.capacity else None
    return _state(Full(now_us + us, grains, stamp_us, full.note, returns, claims_us))


def _with_return(limit: TokenBucket, returns: tuple[Return, ...], new: Return) -> tuple[Return, ...]:
    """The refunds with one more; the two oldest as one if they are too many."""
    if len(returns) == MAX_RETURNS:
        first, second, *rest = returns
        after, end_us = min(first[:2], second[:2])
        given = sum(_grains(limit, each.us, each.grains) for each in (first, second))
        returns = (Return(after, end_us, second.number, *divmod(given, limit.amount)), *rest)
    return (*returns, new)


def dead_at_us(limit: TokenBucket, state: State) -> int:
    """Returns the instant from which on the state means the same as None."""
    full = _full(state)
    dry_us = full.tat_us + (full.grains > 0)
    if full.note is not None and _since_us(limit, full, full.note.since_us) is not None:
        since_us = full.note.since_us
        dry_us = max(dry_us, since_us - (-_level(limit, full, since_us) // limit.amount))
    return max(dry_us, full.claims_us) + MAX_CLOCK_SWING_US


def carried(limit: TokenBucket, state: State, pace: int) -> State:
    """A state that was written at another pace, as one of this limit: what was used stays used."""
    full = _full(state)
    written = pace if full.pace is None else full.pace
    return _state(full._replace(pace=None if written == limit.pace else written))


# Sixteen paces for each doubling of the time that a unit takes, from a sixteenth of a microsecond on.
_PACES, _FIRST, _LAST = 16, 100, 999


def _pace(unit_us: float) -> int:
    part, exponent = frexp(unit_us)  # part from a half to below one
    return max(_FIRST, min(_LAST, _FIRST + (exponent + 3) * _PACES + int(part * 2 * _PACES) - _PACES))


def _unit_us(pace: int) -> float:
    """The least time that a unit takes at this pace."""
    octave, step = divmod(pace - _FIRST, _PACES)
    return (_PACES + step) * 2.0 ** (octave - 8)


def pack(state: State, pace: str = "") -> str:
    """The state, with the pace that it was written at, if that is to be kept."""
    full = _full(state)
    returns = ",".join("+".join(map(str, each)) for each in full.returns)
    note = full.note and "+".join(map(str, full.note))
    fields = [full.grains, full.stamp_us, note, full.claims_us or None, returns]
    while fields and not fields[-1]:
        fields.pop()
    tat = f"{full.tat_us}{pace[:3] if full.pace is None else full.pace}"
    return ":".join([tat, *("" if field is None else str(field) for field in fields)])


def unpack(text: str, limit: TokenBucket | None = None, pace: str = "") -> State:
    """What was packed, as a state of the limit. `pace` is the limit's own, and that of the limit which the counts
    are named after, if there is one; none: the state as it is."""
    tat, grains, stamp_us, note, claims_us, returns = (text + ":::::").split(":")[:6]
    own, written = pace[:3], pace[3:]
    if len(tat) > 16:  # an instant has sixteen digits, from 2001 to 2286
        tat, written = tat[:-3], tat[-3:]
    full = Full(
        int(tat),
        int(grains or 0),
        int(stamp_us) if stamp_us else None,
        Note(*map(int, note.split("+"))) if note else None,
        tuple(Return(*map(int, each.split("+"))) for each in returns.split(",") if each),
        int(claims_us or 0),
    )
    known = limit and own and written not in ("", own)
    return carried(limit, full, int(written)) if limit and known else _state(full)
