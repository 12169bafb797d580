"""The leaky bucket: nginx's limit_req, to the millisecond.

Picture a queue in front of a gate that lets one unit through at a steady pace. The first unit passes at once;
up to `burst` more may queue, and each learns how long to wait; a unit that finds the queue full is refused. With
a `delay` of n, the first n in the queue are waved through and only those behind them wait; with no delay at all
(None, nginx's nodelay) the queue merely counts.

Measure. Water is counted in thousandths of a unit and time in whole milliseconds, because nginx does. A
millisecond drains rate/1000 thousandths, and the rate is a whole number of thousandths per second, rounded
down: 10/minute is 166, one per 6.024 s. nginx's excess, which it logs and which `mark` reports, is the water
less one unit: its first unit is free. A refused charge reports the excess it would have made; so does a peek,
and a charge of more than the queue can hold, as if it were of one unit.

"6/minute queue 5": six arrive at once. One passes, five wait 10 s, 20 s ... 50 s, a seventh is refused with a
retry_after of 10 s. With nodelay the six pass at once, and the next one 10 s later.

Two habits of nginx are kept, though other limits here do better: an admitted charge rounds down what has drained
since the last one (never in the caller's favour), and a clock that is set back by up to 60 s stops the drain until
it has caught up. If it is set back further, one millisecond counts as passed, and the next admitted charge
restarts the drain. In nginx a refusal never does, so a full queue stays full until the clock has caught up, be it
for an hour; here a refusal restarts the drain too, once the clock is more than 120 s back. So nobody is locked out
for longer than 120 s.

Debt. nginx knows no reservations. Here one may pour more than the queue holds: it is served when there is
room for it, or after nginx's own delay if that is longer, and until then nothing else passes. Debt is at most
366 days or 2^52 thousandths (52 days at 1,000,000/s). A reservation refused for want of patience says in
retry_after how long it would have waited. A surcharge, units that a call used beyond what it was charged, pours
without asking: up to the same debt, and what would be deeper is forgiven.

Refunds work as in token_bucket.py, which tells their story: `refunded_total` counts the thousandths that were
given back from below other charges, `claims_ms` is until when that matters, and a charge takes the count along in
its mark, above the excess. (A reservation of more than a second queue on top of the first has no room there; to be
safe all that was given back counts against it.)

Laws (tests/algorithms/test_leaky_bucket.py, test_clock_laws.py, test_refund_laws.py):
  - taking 3 is the same as taking 1 three times at the same instant;
  - a denied charge leaves no trace (unless the clock is more than 120 s back) and passes exactly at the
    millisecond that retry_after names;
  - over any span of t at most  burst + 1 + rate * t  units pass, not counting those that passed within the span
    and were given back themselves; and never in another order than they came;
  - a clock that is set back drains nothing, and locks nobody out for longer than 120 s;
  - a refund gives back what the charge still holds: the part of its own water that lies ahead of now, and, where
    reservations lie ahead, ahead of the last of them;
  - a cancelled reservation gives back what later reservations did not build on, and nothing once served;
  - a surcharge of n units is as if a charge of n had been reserved then, and delays what follows as that would
    (test_surcharge_laws.py);
  - a changed limit keeps the water, at most the deepest debt of the new one, and drains it at the new rate. A
    refused charge gives nothing back, however the limit is changed; an admitted one forgives what was deeper.
"""

from __future__ import annotations

from fractions import Fraction

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

# Thousandths of a unit, the millisecond up to which they have drained, thousandths given back from below other
# charges, and the millisecond until which those may hold water.
State = tuple[int, int, int, int]

_UNIT = 1000
_MAX_RATE = 10**12
_MAX_QUEUE = 10**12
_MAX_WATER = EXACT // 2
_STEP_BACK_MS = -60_000
_MAX_LOCKOUT_MS = 120_000


class LeakyBucket(Limit):
    """Passes `amount` units per `per` seconds, `burst` more queued, `delay` of those served at once (None: all).

    >>> LeakyBucket(6, per=60, burst=5)
    <LeakyBucket 6/minute queue 5>
    """

    __slots__ = ("burst", "capacity", "delay", "max_water", "rate", "undelayed_water")
    algorithm = "leaky_bucket"
    refill = "bucket"

    def __init__(self, amount: int, per: float = 1, burst: int = 0, delay: int | None = 0) -> None:
        check_whole("The amount of a leaky bucket", amount)
        check_whole("The queue of a leaky bucket", burst, least=0)
        check_whole("The delay of a leaky bucket", 0 if delay is None else delay, least=0)
        period_us = check_microseconds("The period of a leaky bucket", per)
        self.text: str = f"{amount}/{format_period(period_us)} queue {burst}"
        self.text += " nodelay" if delay is None else f" delay {delay}" if delay else ""
        self.burst: int = burst
        self.delay: int | None = delay
        self.rate: int = amount * _UNIT * SECOND // period_us
        if self.rate == 0:
            raise InvalidRule(
                f'"{self.text}" is too slow for a leaky bucket, which like nginx counts in thousandths of a '
                "unit per second: it needs at least one unit per 1000 s. "
                f'Write it as a token bucket: "{amount}/{format_period(period_us)} burst {burst + 1}".'
            )
        self.capacity: int = (burst + 1) * _UNIT
        too_long = self.capacity * SECOND > 100 * YEAR * self.rate
        if self.rate > _MAX_RATE or too_long or burst > _MAX_QUEUE or (delay or 0) > _MAX_QUEUE:
            raise InvalidRule(
                f'"{self.text}" cannot be exact: a leaky bucket drains at most 10^9 units a second, holds '
                "and delays at most 10^12, and must run dry within 100 years. Lower the amount or the queue."
            )
        # Up to the first, water delays nobody; up to the second, a reservation may pour.
        self.undelayed_water: int = EXACT if delay is None else (delay + 1) * _UNIT
        self.max_water: int = min(_MAX_WATER, self.capacity + self.rate * (HORIZON_US // SECOND))
        self.args: tuple[int | float, ...] = (self.rate, burst * _UNIT, -1 if delay is None else delay * _UNIT)

    @property
    def max_cost(self) -> int:
        return self.burst + 1

    @property
    def window_seconds(self) -> int:
        return -(-self.capacity // self.rate)

    @property
    def units_per_second(self) -> Fraction:
        return Fraction(self.rate, _UNIT)

    def as_bucket(self) -> tuple[int, int, int]:
        return self.rate, _UNIT * SECOND, self.burst + 1

    def _share(self, units: int, sharers: int) -> LeakyBucket:
        undelayed = None if self.delay is None else max(0, (min(self.delay, self.burst) + 1) // sharers - 1)
        # The rate is in thousandths per second, so as many units per 1000 s.
        return LeakyBucket(self.rate // sharers, 1000, units - 1, undelayed)

    def explain(self) -> Description:
        unit_us, fits = _UNIT * SECOND / self.rate, f"{self.burst + 1:,}"
        yield (
            "algorithm",
            "leaky bucket, nginx's limit_req: an even pace, and a queue for calls that come too early",
        )
        if self.delay is None:
            yield "passes", f"{fits} at once (the queue only counts), then one every {in_words(unit_us)}"
        else:
            wait = f"up to {self.burst - self.delay:,} more wait in the queue, {in_words(unit_us)} each"
            yield (
                "passes",
                f"{self.delay + 1:,} at once; {wait if self.burst > self.delay else 'none waits'}",
            )
        yield "at most", f"{fits} in any span of time, and what drains within it"
        yield "exact", f"to nginx's millisecond; as nginx rounds it, {self.rate / _UNIT:g} a second"
        yield (
            "idle keys",
            f"are forgotten when they have drained: after {in_words((self.burst + 1) * unit_us)} at most",
        )
        yield "delay", "an allowed call carries the delay to serve before going on"
        yield "refused", f"{REFUSAL_TEXT}; a cost above {fits} never passes"


def decide(
    limit: LeakyBucket, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Outcome, State | None]:
    """Decides one charge. Pure: same arguments, same result. With patience, a wait of at most that is allowed."""
    rate = limit.rate
    water, last_ms, refunded_total, claims_ms = _current(limit, state, now_us)
    after = water + cost * _UNIT
    if after > limit.capacity or patience_us is not None or not cost:
        return _decide_general(
            limit, state, (water, last_ms, refunded_total, claims_ms), now_us, cost, patience_us
        )
    reset_us = (last_ms - (-after * 1000 // rate)) * 1000 - now_us
    delay_us = (after - limit.undelayed_water) * 1000 // rate * 1000 if after > limit.undelayed_water else 0
    remaining = (limit.capacity - after) // _UNIT
    if not refunded_total:
        return (True, remaining, 0, reset_us, delay_us, now_us, after - _UNIT), (after, last_ms, 0, 0)
    # The mark of this charge refers to what was given back before: so that is kept as long as the charge holds
    # water.
    claims_ms = max(claims_ms, (now_us + reset_us) // 1000 + 1)
    mark = _pack_mark(limit, after - _UNIT, refunded_total)
    return (True, remaining, 0, reset_us, delay_us, now_us, mark), (after, last_ms, refunded_total, claims_ms)


def _current(limit: LeakyBucket, state: State | None, now_us: int) -> State:
    """Returns the state as of now: what has drained is gone."""
    now_ms = now_us // 1000
    water, last_ms, refunded_total, claims_ms = state or (0, now_ms, 0, 0)
    if water > limit.max_water:
        water = limit.max_water
    ms = now_ms - last_ms
    if ms > 0:
        water -= limit.rate * ms // 1000
        last_ms = now_ms
    elif ms < _STEP_BACK_MS:
        water -= limit.rate // 1000
        last_ms = now_ms
    if water < 0:
        water = 0
    if claims_ms <= now_ms:
        refunded_total = claims_ms = 0
    return water, last_ms, refunded_total, claims_ms


def _decide_general(
    limit: LeakyBucket, state: State | None, current: State, now_us: int, cost: int, patience_us: int | None
) -> tuple[Outcome, State | None]:
    """Decides all that is not simply allowed: a peek, a refusal, a reservation. `state` as stored, `current` as of
    now."""
    if state is not None and state[1] - now_us // 1000 > _MAX_LOCKOUT_MS:
        state = current
    stored, stored_ms, *_ = state or current
    stored = min(stored, limit.max_water)
    rate, capacity = limit.rate, limit.capacity
    water, last_ms, refunded_total, claims_ms = current
    too_large = cost * _UNIT > capacity
    pour = _UNIT if too_large else (cost or 1) * _UNIT
    after = water + pour
    wait_us = 0
    if after > capacity:
        # From the state as stored: a charge that waits loses nothing to rounding on the way.
        wait_us = (stored_ms - (-(stored + pour - capacity) * 1000 // rate)) * 1000 - now_us
    allowed = not cost and not wait_us
    mark = _pack_mark(limit, after - _UNIT, refunded_total)
    if cost and not too_large and patience_us is not None:
        if after > limit.undelayed_water:
            wait_us = max(wait_us, (after - limit.undelayed_water) * 1000 // rate * 1000)
        if wait_us <= min(patience_us, HORIZON_US) and after <= limit.max_water:
            reset_us = (last_ms - (-after * 1000 // rate)) * 1000 - now_us
            remaining = max(0, (capacity - after) // _UNIT)
            claims_ms = max(claims_ms, (now_us + reset_us) // 1000 + 1) if refunded_total else 0
            return (True, remaining, 0, reset_us, wait_us, now_us, mark), (
                after,
                last_ms,
                refunded_total,
                claims_ms,
            )
    reset_us = max(0, (stored_ms - (-stored * 1000 // rate)) * 1000 - now_us)
    remaining = max(0, (capacity - water) // _UNIT)
    retry_us = None if too_large else wait_us
    return (allowed, remaining, retry_us, reset_us, 0, now_us, after - _UNIT if cost else mark), state


def _pack_mark(limit: LeakyBucket, excess: int, refunded_total: int) -> int:
    """Returns the mark of a charge: the excess, and above it what was given back before."""
    mark = excess + refunded_total * 2 * limit.capacity
    return mark if excess < 2 * limit.capacity and mark < _MAX_WATER else excess + _MAX_WATER


def _unpack_mark(limit: LeakyBucket, mark: int) -> tuple[int, int]:
    """Splits a mark: the thousandths given back before, and the excess."""
    return (0, mark - _MAX_WATER) if mark >= _MAX_WATER else divmod(mark, 2 * limit.capacity)


def refund(
    limit: LeakyBucket, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    """Returns the state with up to `units` of the receipt's charge given back; None if it holds none any more."""
    if state is None or (cancel and receipt.served_us < now_us):
        return None
    stored, last_ms, refunded_total, claims_ms = state
    refunded_before, excess = _unpack_mark(limit, receipt.mark)
    if refunded_before > refunded_total:
        return None
    water, now_ms = min(stored, limit.max_water), now_us // 1000
    ms = now_ms - last_ms
    level = water - limit.rate * (1 if ms < _STEP_BACK_MS else max(0, ms)) // 1000
    # Where the charge's own water ends: the level it was poured to, less what was given back since and all that
    # can have drained.
    since_ms = max(0, max(now_ms, last_ms) - receipt.at_us // 1000)
    refunded_since = max(refunded_total - refunded_before, receipt.refunded_units * _UNIT)
    end = excess + _UNIT - refunded_since - limit.rate * since_ms // 1000
    outstanding = (receipt.cost - receipt.refunded_units) * _UNIT
    refunded = min(units * _UNIT, outstanding)
    # No reservation was promised for later than a bucketful below the highest water that there was.
    highest = max(level, -(-limit.rate * (claims_ms - now_ms) // 1000))
    # Whatever was given back, no more can have drained of it than drained in all since it was charged.
    undrained = max(end, outstanding + (-limit.rate * since_ms // 1000))
    if not cancel:
        refunded = min(refunded, undrained - max(0, highest - limit.capacity))
    elif end != level:
        promised = max(min(limit.undelayed_water, limit.capacity), undrained)
        refunded = min(refunded, outstanding - max(0, highest - promised))
    refunded = min(refunded, undrained, level)
    if refunded <= 0:
        return None
    is_partial = receipt.refunded_units + units < receipt.cost
    # Something remains above the gap, or of the charge.
    if end != level or is_partial or refunded < min(outstanding, end):
        refunded_total += refunded
        claims_ms = max(claims_ms, max(now_ms, last_ms) - (-level * 1000 // limit.rate))
        if (refunded_total + 1) * 2 * limit.capacity > _MAX_WATER:
            return None
    return water - refunded, last_ms, refunded_total, claims_ms


def surcharge(limit: LeakyBucket, state: State | None, now_us: int, units: int, receipt: Receipt) -> State | None:
    """Returns the state with so many units more of a charge, whether they fit or not; None if that changes
    nothing."""
    water, last_ms, refunded_total, claims_ms = _current(limit, state, now_us)
    after = max(water, min(water + units * _UNIT, limit.max_water))
    if refunded_total:
        claims_ms = max(claims_ms, last_ms - (-after * 1000 // limit.rate) + 1)
    return after, last_ms, refunded_total, claims_ms


def dead_at_us(limit: LeakyBucket, state: State) -> int:
    """Returns the instant from which on the state means the same as None."""
    water, last_ms, _, claims_ms = state
    dry_ms = last_ms - (-min(water, limit.max_water) * 1000 // limit.rate)
    return max(dry_ms, claims_ms) * 1000 + MAX_CLOCK_SWING_US


def pack(state: State) -> str:
    water, last_ms, refunded_total, claims_ms = state
    return f"{water}:{last_ms}:{refunded_total}:{claims_ms}" if refunded_total else f"{water}:{last_ms}"


def unpack(text: str) -> State:
    water, last_ms, refunded_total, claims_ms = map(
        int, (text if text.count(":") == 3 else f"{text}:0:0").split(":")
    )
    return water, last_ms, refunded_total, claims_ms
