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
kept with it: the time of one unit to within a sixteenth, in three digits behind the instant. Who finds another
pace than its own carries the units over instead of the time: in whole ones, rounded up. (Counts that are named
after their limit need no pace, for another limit has another name.)

Debt. A reservation may pour more than the bucket holds; it is served when the overflow has drained. Only
then does the state also remember when it was stamped: without a stamp, more water than the bucket holds can
only mean that the clock stepped back or the limit shrank, and then the bucket is simply full of water.

Laws (tests/model/test_token_bucket.py):
  - taking 3 is the same as taking 1 three times at the same instant;
  - a denied charge leaves no trace, and passes exactly retry_after later;
  - over any span of t at most  burst + amount * t / period  units pass;
  - a clock that steps back drains nothing, mints nothing and locks nobody out for the length of the step;
  - a refund gives back what the charge still holds: water drains oldest first, so a charge holds the part of
    its own water that lies ahead of now, and nothing once the bucket has drained past it;
  - a cancelled reservation gives back what later reservations did not build on, and nothing once served;
  - a changed limit keeps what was used, at most a full bucket of the new one: of another burst the water, of
    another pace the units, rounded up by at most a sixteenth and one. So nobody gets a fresh burst by a change.
"""

from __future__ import annotations

from math import ceil, frexp, gcd

from headgate.errors import InvalidRule
from headgate.model.decision import Facts, Receipt
from headgate.model.limit import EXACT, HORIZON_US, YEAR, Limit, microseconds, span, whole

# The instant of running dry in whole microseconds, where that says it all, as it mostly does; otherwise
# followed by the grains beyond it and the stamp, if in debt.
State = int | tuple[int, int, "int | None"]

_LONGEST_FILL_US = 100 * YEAR


class TokenBucket(Limit):
    """`amount` units per `per` seconds, and up to `burst` at once (as many as the amount, unless given)."""

    __slots__ = ("amount", "burst", "capacity", "measure", "pace", "period_us")
    algorithm = "token_bucket"

    def __init__(self, amount: int, per: float = 1, burst: int | None = None) -> None:
        whole("The amount of a token bucket", amount)
        whole("The burst of a token bucket", amount if burst is None else burst)
        period_us = microseconds("The period of a token bucket", per)
        self.text = f"{amount}/{span(period_us)}" + ("" if burst in (None, amount) else f" burst {burst}")
        shared = gcd(amount, period_us)
        self.burst = amount if burst is None else burst
        self.amount = amount // shared
        self.period_us = period_us // shared
        self.capacity = self.burst * self.period_us
        if self.burst * self.amount > EXACT or self.capacity > _LONGEST_FILL_US * self.amount:
            raise InvalidRule(
                f'"{self.text}" cannot be exact: a bucket must fill within 100 years, and its burst times its '
                f"rate in lowest terms ({self.amount} per {self.period_us} us) may be at most 2^53. "
                "Lower the burst, or round the amount."
            )
        self.measure = (self.amount, self.period_us, self.capacity)
        self.pace = _pace(self.period_us / self.amount)
        self.args = (self.amount, self.period_us, self.burst, self.pace)


def decide(
    limit: TokenBucket, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Facts, State | None]:
    """Judge one charge. Pure: same arguments, same answer. With patience, a wait of at most that is allowed."""
    amount, period_us, capacity = limit.measure
    if amount == 1 and (state is None or state.__class__ is int):
        after_us = cost * period_us
        if state is not None and state > now_us:
            after_us += state - now_us
        room = capacity - after_us
        if room >= 0 and cost:
            return (True, room // period_us, 0, after_us, 0, now_us, 0), now_us + after_us
    return _decide_exactly(limit, state, now_us, cost, patience_us)


def _decide_exactly(
    limit: TokenBucket, state: State | None, now_us: int, cost: int, patience_us: int | None
) -> tuple[Facts, State | None]:
    """What is not simply allowed in whole microseconds: grains, a peek, a refusal, a reservation."""
    amount, period_us, capacity = limit.measure
    level = _level(limit, state, now_us)
    after = level + (cost or 1) * period_us
    wait_us = max(0, -((capacity - after) // amount))
    patience_us = 0 if patience_us is None else min(patience_us, HORIZON_US)
    if 0 < cost <= limit.burst and wait_us <= patience_us:
        us, grains = divmod(after, amount)
        remaining = max(0, (capacity - after) // period_us)
        facts = True, remaining, 0, us + (grains > 0), wait_us, now_us, grains
        return facts, _state(now_us + us, grains, now_us if wait_us else None)
    us, grains = divmod(level, amount)
    remaining = max(0, (capacity - level) // period_us)
    retry_us = wait_us if cost <= limit.burst else None
    refused = not cost and not wait_us, remaining, retry_us, us + (grains > 0), 0, now_us, grains
    if state is None:
        return refused, None
    tat_us, beyond, _ = _parts(state)
    if _grains(limit, tat_us - now_us, beyond) <= level:
        return refused, state
    # The clock stepped back behind the state, or the limit shrank: it starts to drain from here.
    return refused, _state(now_us + us, grains, None if level <= capacity else now_us)


def _state(tat_us: int, grains: int, stamp_us: int | None) -> State:
    return (tat_us, grains, stamp_us) if grains or stamp_us is not None else tat_us


def _parts(state: State) -> tuple[int, int, int | None]:
    return (state, 0, None) if isinstance(state, int) else state


def _level(limit: TokenBucket, state: State | None, now_us: int) -> int:
    """The water now, also of a state in debt, one the clock stepped back behind, or one of another limit."""
    if state is None:
        return 0
    tat_us, grains, stamp_us = _parts(state)
    if stamp_us is not None and stamp_us > now_us:
        tat_us -= stamp_us - now_us
    level = _grains(limit, tat_us - now_us, grains)
    return max(0, level if stamp_us is not None else min(level, limit.capacity))


def _grains(limit: TokenBucket, us: int, grains: int) -> int:
    """A length of time in grains; grains of a limit that was finer than this one are rounded up."""
    return us * limit.amount + grains if grains < limit.amount else (us + 1) * limit.amount


def refund(
    limit: TokenBucket, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    """The state with up to `units` of the receipt's charge given back; None if it holds nothing any more."""
    level = _level(limit, state, now_us)
    # Where the charge's own water ends, seen from now.
    until_us = receipt.at_us + receipt.reset_after_us - (receipt.mark > 0) - now_us
    until = _grains(limit, until_us, receipt.mark) - receipt.returned * limit.period_us
    given = min(units, receipt.cost - receipt.returned) * limit.period_us
    if cancel:
        served = max((receipt.at_us - now_us) * limit.amount, until - limit.capacity)
        if served < 0:
            return None
        built_on = max(0, max(0, level - limit.capacity) - served)
        given = min(given, (receipt.cost - receipt.returned) * limit.period_us - built_on)
    else:
        given = min(given, until)
    given = min(given, level)
    if given <= 0:
        return None
    us, grains = divmod(level - given, limit.amount)
    return _state(now_us + us, grains, now_us if level - given > limit.capacity else None)


def dead_at_us(limit: TokenBucket, state: State) -> int:
    """From when on the state says no more than None does."""
    tat_us, grains, _ = _parts(state)
    return tat_us + (grains > 0)


def carried(limit: TokenBucket, state: State, pace: int, now_us: int) -> State:
    """A state that was written at another pace, as one of this limit: what was used stays used."""
    tat_us, grains, stamp_us = _parts(state)
    if stamp_us is not None and stamp_us > now_us:
        tat_us -= stamp_us - now_us
    used_us = tat_us - now_us + (grains > 0)
    if used_us <= 0:
        return now_us
    units = min(limit.burst, ceil(used_us / _unit_us(pace)))
    us, grains = divmod(units * limit.period_us, limit.amount)
    return _state(now_us + us, grains, None)


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
    tat_us, grains, stamp_us = _parts(state)
    tat = f"{tat_us}{pace[:3]}"
    if stamp_us is not None:
        return f"{tat}:{grains}:{stamp_us}"
    return f"{tat}:{grains}" if grains else tat


def unpack(text: str, limit: TokenBucket | None = None, pace: str = "", now_us: int = 0) -> State:
    """What was packed, as a state of the limit. `pace` is the limit's own, and that of the limit which the counts
    are named after, if there is one; none: the state as it is."""
    tat, grains, stamp_us = (text + "::").split(":")[:3]
    own, written = pace[:3], pace[3:]
    if len(tat) > 16:  # an instant has sixteen digits, from 2001 to 2286
        tat, written = tat[:-3], tat[-3:]
    state = _state(int(tat), int(grains or 0), int(stamp_us) if stamp_us else None)
    return carried(limit, state, int(written), now_us) if limit and own and written not in ("", own) else state
