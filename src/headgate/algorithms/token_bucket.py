"""The token bucket: a steady rate that forgives short bursts.

The file is long for one reason: the story and the laws are above the code that keeps them.

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
does the state also remember when it was stamped. A surcharge pours without asking: units that a call used beyond
what it was charged. It too may leave a debt, of at most HORIZON_US; of more than 2^53 / amount units at once, the
rest is forgiven.

The clock. A state proves an instant: it was written no earlier than a full bucket before it runs dry, and a debt
not before its stamp. If the clock reads up to MAX_CLOCK_SWING_US less, it swings (two processes never read the
same time), and a charge or refund is decided as of that instant: the water is what it is, and the wait includes
the difference. If it reads less than that, the clock was set back or the burst was lowered. Then the bucket is
full of water from now on, and even a refusal stores since when (`note`); the instant of running dry and its pace
stay as they were, so a limit that is changed back finds all that was used. The note contains the limit's numbers:
for every other limit it is as if there were none. There is at most one, that of the last limit that needed one; an
admitted charge drops it, and so does a debt that moves back with the clock.

Refunds. Water drains oldest first. When a charge is given back, all water above its own moves down by as much,
so what lay above holds less time than its receipt says. So the state remembers refunds (`refunds`): how much, and
from where. They are numbered, and each charge takes the last number along in its mark; when it is itself given
back, what was given back since, from below it, is subtracted. The last MAX_REFUNDS refunds are stored one by one,
earlier ones as one from the lowest of their levels, which is on the safe side. A refund off the top, with nothing
above it, need not be remembered. All this is kept until no charge from before the last refund can hold any water
(`claims_us`).

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
  - a surcharge of n units is as if a charge of n had been reserved then, and delays what follows as that would. So
    over any span the law above holds but for the units surcharged (test_surcharge_laws.py);
  - a changed limit keeps what was used, at most a full bucket of the new one: of another burst the water, of
    another pace the units, rounded up by at most a sixteenth and one. So nobody gets a fresh burst by a change. A
    refused charge gives nothing back, however the limit is changed, and changes no answer of any other limit; an
    admitted one forgives what was more than its own bucket holds.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, frexp, gcd
from typing import NamedTuple

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.durations import format_period, in_words
from headgate.algorithms.limit import (
    EXACT,
    HORIZON_US,
    MAX_CLOCK_SWING_US,
    REFUSAL_TEXT,
    SECOND,
    YEAR,
    Description,
    Limit,
    check_microseconds,
    check_whole,
)
from headgate.errors import InvalidRule


class RefundRecord(NamedTuple):
    """A refund from below other charges, or several as one.

    after       the number of the last refund before the charge that was given back
    end_us      where that charge's water had ended
    number      its number, counted from 1
    us, grains  how much was given back
    """

    after: int
    end_us: int
    number: int
    us: int
    grains: int


class FullNote(NamedTuple):
    """Since when a state counts as at most a full bucket, and for which limit: its numbers, in lowest terms."""

    since_us: int
    amount: int
    period_us: int
    burst: int


class DetailedState(NamedTuple):
    """A state that is more than the instant of running dry.

    tat_us      the instant of running dry, in whole microseconds
    grains      what there is beyond it
    stamp_us    when it was written, if in debt
    note        of a limit that refused because the clock was set back, or because of units of another limit
    refunds     from below other charges, the oldest first
    claims_us   until when charges from before the last refund may hold water
    pace        at which it was written, if that is not the pace of the limit that decides
    """

    tat_us: int
    grains: int = 0
    stamp_us: int | None = None
    note: FullNote | None = None
    refunds: tuple[RefundRecord, ...] = ()
    claims_us: int = 0
    pace: int | None = None

    @property
    def last_refund(self) -> int:
        """The number of the last refund from below other charges; 0: there was none."""
        return self.refunds[-1].number if self.refunds else 0


# The instant of running dry, where that is all, as it mostly is.
State = int | DetailedState

MAX_REFUNDS = 8

_MAX_FILL_US = 100 * YEAR


class TokenBucket(Limit):
    """Passes `amount` units per `per` seconds, and up to `burst` at once (as many as the amount, unless given).

    >>> TokenBucket(100, burst=200)
    <TokenBucket 100/s burst 200>
    """

    __slots__ = ("amount", "burst", "capacity", "measure", "pace", "period_us")
    algorithm = "token_bucket"
    prefetchable = True
    refill = "exact bucket"

    def __init__(self, amount: int, per: float = 1, burst: int | None = None) -> None:
        check_whole("The amount of a token bucket", amount)
        check_whole("The burst of a token bucket", amount if burst is None else burst)
        period_us = check_microseconds("The period of a token bucket", per)
        self.text: str = f"{amount}/{format_period(period_us)}" + (
            "" if burst in (None, amount) else f" burst {burst}"
        )
        shared = gcd(amount, period_us)
        self.burst: int = amount if burst is None else burst
        self.amount: int = amount // shared
        self.period_us: int = period_us // shared
        self.capacity: int = self.burst * self.period_us
        if self.burst * self.amount > EXACT or self.capacity > _MAX_FILL_US * self.amount:
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

    @property
    def window_seconds(self) -> int:
        return -(-self.capacity // (self.amount * SECOND))

    @property
    def units_per_second(self) -> Fraction:
        return Fraction(self.amount * SECOND, self.period_us)

    @property
    def unit_drain(self) -> tuple[int, int]:
        return self.period_us, self.amount

    def as_bucket(self) -> tuple[int, int, int]:
        return self.amount, self.period_us, self.burst

    def _share(self, units: int, sharers: int) -> TokenBucket:
        # The period is multiplied, not the amount divided: that is exact. If the last unit of a burst makes a
        # bucket too slow to fill, it is left out; if the period gets too long to express, the amount is rounded
        # down.
        less = max(1, units - 1)
        for burst in (units, less):
            try:
                return TokenBucket(self.amount, self.period_us * sharers / SECOND, burst)
            except InvalidRule:
                continue
        return TokenBucket(self.amount // sharers, self.period_us / SECOND, less)

    def explain(self) -> Description:
        unit_us, fill_us = self.period_us / self.amount, self.capacity / self.amount
        yield "algorithm", "token bucket (GCRA): a steady rate that forgives short bursts"
        yield "passes", f"{self.burst:,} at once from a full bucket, then one every {in_words(unit_us)}"
        yield "at most", f"{self.burst:,} in any span of time, and what comes back within it"
        if self.amount == 1:
            yield "exact", f"to the microsecond: one unit is {self.period_us:,} us"
        else:
            yield (
                "exact",
                f"nothing is rounded: {self.amount:,} units are {self.period_us:,} us, the rest is remembered",
            )
        yield "idle keys", f"are forgotten when their bucket is full again: after {in_words(fill_us)} at most"
        yield "refused", f"{REFUSAL_TEXT}; a cost above {self.burst:,} never passes"


def decide(
    limit: TokenBucket, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Outcome, State | None]:
    """Decides one charge. Pure: same arguments, same result. With patience, a wait of at most that is allowed."""
    amount, period_us, capacity = limit.measure
    if amount == 1 and (state is None or state.__class__ is int):
        after_us = cost * period_us
        if state is not None and state > now_us:
            after_us += state - now_us
        free = capacity - after_us
        if free >= 0 and cost:
            return (True, free // period_us, 0, after_us, 0, now_us, 0), now_us + after_us
        level_us = after_us - cost * period_us
        if cost and patience_us is None and level_us <= capacity and cost <= limit.burst:
            return (False, (capacity - level_us) // period_us, -free, level_us, 0, now_us, 0), state
    return _decide_exactly(limit, state, now_us, cost, patience_us)


def _decide_exactly(
    limit: TokenBucket, state: State | None, now_us: int, cost: int, patience_us: int | None
) -> tuple[Outcome, State | None]:
    """Decides all that is not simply allowed in whole microseconds: grains, a peek, a refusal, a reservation."""
    amount, period_us, capacity = limit.measure
    details = DetailedState(now_us) if state is None else _follow_clock(_details(state), now_us)
    level = _level(limit, details, now_us)
    after = level + (cost or 1) * period_us
    wait_us = max(0, -((capacity - after) // amount))
    patience_us = 0 if patience_us is None else min(patience_us, HORIZON_US)
    details = _without_old_refunds(details, now_us)
    if 0 < cost <= limit.burst and wait_us <= patience_us:
        us, grains = divmod(after, amount)
        remaining = max(0, (capacity - after) // period_us)
        outcome = True, remaining, 0, us + (grains > 0), wait_us, now_us, details.last_refund * amount + grains
        return outcome, _poured(limit, details, now_us, level, after)
    us, grains = divmod(level, amount)
    remaining = max(0, (capacity - level) // period_us)
    retry_us = wait_us if cost <= limit.burst else None
    mark = details.last_refund * amount + grains
    refusal = not cost and not wait_us, remaining, retry_us, us + (grains > 0), 0, now_us, mark
    return refusal, state if state is None else _note_refusal(limit, state, now_us, cost)


def _poured(limit: TokenBucket, details: DetailedState, now_us: int, level: int, after: int) -> State:
    """Returns the state whose water rose from `level` to `after`."""
    us, grains = divmod(after, limit.amount)
    stamp_us = _proven_us(limit, details, level, now_us) if after > limit.capacity else None
    # The mark of this charge has the number of the last refund: so that is kept as long as the charge holds water.
    claims_us = max(details.claims_us, now_us + us + 1) if details.refunds else 0
    return _state(DetailedState(now_us + us, grains, stamp_us, None, details.refunds, claims_us))


def _note_refusal(limit: TokenBucket, state: State, now_us: int, cost: int) -> State:
    """Returns the state after a refusal: the same, or one that notes since when the bucket counts as full."""
    details = _details(state)
    followed = _follow_clock(details, now_us)
    needs_note = cost > 0
    if followed.pace is None:
        used = _grains(limit, followed.tat_us - now_us, followed.grains)
        needs_note = followed.stamp_us is None and used > limit.capacity + MAX_CLOCK_SWING_US * limit.amount
    if needs_note and _noted_since_us(limit, followed, now_us) is None:
        followed = followed._replace(note=FullNote(now_us, limit.amount, limit.period_us, limit.burst))
    return state if followed is details else followed


def _without_old_refunds(details: DetailedState, now_us: int) -> DetailedState:
    """Returns the state without refunds that concern no charge any more."""
    if not details.refunds or details.claims_us > now_us:
        return details
    return details._replace(refunds=(), claims_us=0)


def _state(details: DetailedState) -> State:
    return details.tat_us if details[1:] == _DEFAULT_FIELDS else details


_DEFAULT_FIELDS = DetailedState(0)[1:]


def _details(state: State) -> DetailedState:
    return DetailedState(state) if isinstance(state, int) else state


def _follow_clock(details: DetailedState, now_us: int) -> DetailedState:
    """Returns the state; a debt moved to now if the clock was set back behind its stamp."""
    if details.stamp_us is None or details.stamp_us - now_us <= MAX_CLOCK_SWING_US:
        return details
    return details._replace(tat_us=details.tat_us - (details.stamp_us - now_us), stamp_us=now_us, note=None)


def _noted_since_us(limit: TokenBucket, details: DetailedState, now_us: int) -> int | None:
    """Returns since when the bucket counts as at most full; None if there is no note that applies to this limit
    now."""
    note = details.note
    applies = note is not None and note[1:] == (limit.amount, limit.period_us, limit.burst)
    return note.since_us if note and applies and note.since_us - now_us <= MAX_CLOCK_SWING_US else None


def _level(limit: TokenBucket, details: DetailedState, now_us: int) -> int:
    """Returns the water now, also of a state in debt, after the clock was set back, or of another limit."""
    details = _follow_clock(details, now_us)
    noted_us = _noted_since_us(limit, details, now_us)
    since_us = now_us if noted_us is None else noted_us
    used = _grains(limit, details.tat_us - since_us, details.grains)
    if details.pace is not None:
        units = ceil(max(0, details.tat_us - since_us + (details.grains > 0)) / _unit_us(details.pace))
        used = min(limit.burst, units) * limit.period_us
    elif details.stamp_us is None:
        ahead = 0 if noted_us is not None else MAX_CLOCK_SWING_US * limit.amount
        used = used if used <= limit.capacity + ahead else limit.capacity
    return max(0, used - (now_us - since_us) * limit.amount)


def _proven_us(limit: TokenBucket, details: DetailedState, level: int, now_us: int) -> int:
    """Returns the instant that a charge is decided as of: now, or later if the state proves that and the clock
    swings."""
    return max(now_us, details.stamp_us or now_us - (limit.capacity - level) // limit.amount)


def _grains(limit: TokenBucket, us: int, grains: int) -> int:
    """Returns a length of time in grains; rounds up the grains of a limit that was finer than this one."""
    return us * limit.amount + grains if grains < limit.amount else (us + 1) * limit.amount


def refund(
    limit: TokenBucket, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    """Returns the state with up to `units` of the receipt's charge given back; None if it holds none any more."""
    details = DetailedState(now_us) if state is None else _follow_clock(_details(state), now_us)
    after, grains = divmod(receipt.mark, limit.amount)
    if (
        details.pace is not None
        or _noted_since_us(limit, details, now_us) is not None
        or after > details.last_refund
    ):
        return None
    used = _grains(limit, details.tat_us - now_us, details.grains)
    if details.stamp_us is None and used > limit.capacity + MAX_CLOCK_SWING_US * limit.amount:
        return None  # more was used than this limit sees, and a refund would lose that
    now_us = _proven_us(limit, details, _level(limit, details, now_us), now_us)
    level = _level(limit, details, now_us)
    outstanding = (receipt.cost - receipt.refunded_units) * limit.period_us
    refunded = min(units * limit.period_us, outstanding)
    # Where the charge's own water ended; and where it ends as of now, lower by what was given back since.
    end_us = receipt.at_us + receipt.reset_after_us - (grains > 0)
    charged_end = _grains(limit, end_us - now_us, grains)
    later_returns = (each for each in details.refunds if each.number > after and each[:2] <= (after, end_us))
    below = sum(_grains(limit, each.us, each.grains) for each in later_returns)
    end = charged_end - max(below, receipt.refunded_units * limit.period_us)
    # No reservation was promised for later than a bucketful below the highest water that there was.
    claims = (details.claims_us - now_us) * limit.amount
    highest = max(level, claims) if claims - limit.amount >= limit.capacity else level
    ahead = max(0, highest - limit.capacity)
    # Whatever was given back, no more can have drained of it than drained in all since it was charged.
    undrained = max(end, outstanding - max(0, now_us - receipt.at_us) * limit.amount)
    if not cancel:
        refunded = min(refunded, undrained - ahead)
    elif max((receipt.at_us - now_us) * limit.amount, charged_end - limit.capacity) < 0:
        return None  # it was served
    elif end != level:
        refunded = min(refunded, outstanding - max(0, ahead - max(0, undrained - limit.capacity)))
    refunded = min(refunded, level)
    if refunded <= 0:
        return None
    refunds, claims_us = details.refunds, details.claims_us
    is_partial = receipt.refunded_units + units < receipt.cost
    # Something remains above the gap, or of the charge.
    if end != level or is_partial or refunded < min(outstanding, end):
        number = details.last_refund + 1
        if (number + 1) * limit.amount > EXACT:
            return None
        added = RefundRecord(after, end_us, number, *divmod(refunded, limit.amount))
        refunds = _with_refund(limit, refunds, added)
        claims_us = max(claims_us, now_us - (-level // limit.amount))
    us, grains = divmod(level - refunded, limit.amount)
    stamp_us = now_us if level - refunded > limit.capacity else None
    return _state(DetailedState(now_us + us, grains, stamp_us, details.note, refunds, claims_us))


def surcharge(limit: TokenBucket, state: State | None, now_us: int, units: int, receipt: Receipt) -> State | None:
    """Returns the state with so many units more of a charge, whether they fit or not; None if that changes
    nothing."""
    details = DetailedState(now_us) if state is None else _follow_clock(_details(state), now_us)
    level = _level(limit, details, now_us)
    poured = min(units, EXACT // limit.amount) * limit.period_us
    deepest = limit.capacity + HORIZON_US * limit.amount
    after = max(level, min(level + poured, deepest))
    return _poured(limit, _without_old_refunds(details, now_us), now_us, level, after)


def _with_refund(
    limit: TokenBucket, refunds: tuple[RefundRecord, ...], added: RefundRecord
) -> tuple[RefundRecord, ...]:
    """Returns the refunds with one more; merges the two oldest if they are too many."""
    if len(refunds) == MAX_REFUNDS:
        first, second, *rest = refunds
        after, end_us = min(first[:2], second[:2])
        merged = sum(_grains(limit, each.us, each.grains) for each in (first, second))
        refunds = (RefundRecord(after, end_us, second.number, *divmod(merged, limit.amount)), *rest)
    return (*refunds, added)


def dead_at_us(limit: TokenBucket, state: State) -> int:
    """Returns the instant from which on the state means the same as None."""
    details = _details(state)
    dry_us = details.tat_us + (details.grains > 0)
    if details.note is not None and _noted_since_us(limit, details, details.note.since_us) is not None:
        since_us = details.note.since_us
        dry_us = max(dry_us, since_us - (-_level(limit, details, since_us) // limit.amount))
    return max(dry_us, details.claims_us) + MAX_CLOCK_SWING_US


def convert_pace(limit: TokenBucket, state: State, pace: int) -> State:
    """Converts a state that was written at another pace to this limit: what was used stays used."""
    details = _details(state)
    written_pace = pace if details.pace is None else details.pace
    return _state(details._replace(pace=None if written_pace == limit.pace else written_pace))


# Sixteen paces for each doubling of the time that a unit takes, from a sixteenth of a microsecond on.
_PACES_PER_OCTAVE, _FIRST_PACE, _LAST_PACE = 16, 100, 999


def _pace(unit_us: float) -> int:
    mantissa, exponent = frexp(unit_us)  # mantissa from a half to below one
    steps = (exponent + 3) * _PACES_PER_OCTAVE + int(mantissa * 2 * _PACES_PER_OCTAVE) - _PACES_PER_OCTAVE
    return max(_FIRST_PACE, min(_LAST_PACE, _FIRST_PACE + steps))


def _unit_us(pace: int) -> float:
    """Returns the least time that a unit takes at this pace."""
    octave, step = divmod(pace - _FIRST_PACE, _PACES_PER_OCTAVE)
    return (_PACES_PER_OCTAVE + step) * 2.0 ** (octave - 8)


def pack(state: State, pace: str = "") -> str:
    """Returns the stored form of a state, with the pace that it was written at, if that is to be kept."""
    details = _details(state)
    refunds = ",".join("+".join(map(str, each)) for each in details.refunds)
    note = details.note and "+".join(map(str, details.note))
    fields = [details.grains, details.stamp_us, note, details.claims_us or None, refunds]
    while fields and not fields[-1]:
        fields.pop()
    tat = f"{details.tat_us}{pace[:3] if details.pace is None else details.pace}"
    return ":".join([tat, *("" if field is None else str(field) for field in fields)])


def unpack(text: str, limit: TokenBucket | None = None, pace: str = "") -> State:
    """Returns the state from its stored form, as one of the limit. `pace` is the limit's, followed by that of the
    limit which the counts are named after, if there is one; without it, the state is not converted."""
    tat, grains, stamp_us, note, claims_us, refunds = (text + ":::::").split(":")[:6]
    limit_pace, written_pace = pace[:3], pace[3:]
    if len(tat) > 16:  # an instant has sixteen digits, from 2001 to 2286
        tat, written_pace = tat[:-3], tat[-3:]
    details = DetailedState(
        int(tat),
        int(grains or 0),
        int(stamp_us) if stamp_us else None,
        FullNote(*map(int, note.split("+"))) if note else None,
        tuple(RefundRecord(*map(int, each.split("+"))) for each in refunds.split(",") if each),
        int(claims_us or 0),
    )
    applies = limit and limit_pace and written_pace not in ("", limit_pace)
    return convert_pace(limit, details, int(written_pace)) if limit and applies else _state(details)
