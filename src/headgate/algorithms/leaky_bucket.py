"""The leaky bucket: nginx's limit_req, to the millisecond.

Picture a queue in front of a gate that lets one unit through at a steady pace. The first unit passes at once;
up to `burst` more may stand in the queue, each told how long to wait; a unit that finds the queue full is
refused. With a `delay` of n, the first n in the queue are waved through and only those behind them wait; with
no delay at all (None, nginx's nodelay) the queue merely counts.

Measure. Water is counted in thousandths of a unit and time in whole milliseconds, because nginx does. A
millisecond drains rate/1000 thousandths, and the rate is a whole number of thousandths per second, rounded
down: 10/minute is 166, one per 6.024 s. nginx's excess, which it logs and which `mark` reports, is the water
less one unit: its first unit is free. A refused charge reports the excess it would have made; so does a peek,
and a charge of more than the queue can hold, as if it were of one unit.

"6/minute queue 5": six arrive at once. One passes, five wait 10 s, 20 s ... 50 s, a seventh is refused and
told to come back in 10 s. With nodelay the six pass at once, and the next one 10 s later.

What is nginx's own is kept, though other limits here do better: an admitted charge rounds down what has
drained since the last one (never in the caller's favour), and a clock that is set back by up to 60 s stops the
drain until it has caught up. Further back than that one millisecond is taken to have passed, and the next
admitted charge restarts the drain. In nginx a refusal never does, so a full queue stays full until the clock has
caught up, be it for an hour; here a refusal restarts the drain too, once the clock is more than 120 s back. So
nobody is locked out for longer than 120 s.

Debt. nginx knows no reservations. Here one may pour more than the queue holds: it is served when there is
room for it, or after nginx's own delay if that is longer, and until then nothing else passes. Debt is at most
366 days or 2^52 thousandths (52 days at 1,000,000/s). A reservation refused for want of patience says in
retry_after how long it would have waited.

Refunds are the token bucket's, where their story is told: `given` counts the thousandths that were given back from
below other charges, `claims_ms` is until when that matters, and a charge takes the count along in its mark, above
the excess. (A reservation of more than a second queue on top of the first has no room there; to be safe all that
was given back counts against it.)

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
  - a changed limit keeps the water, at most the deepest debt of the new one, and drains it at the new rate. A
    refused charge gives nothing back, however the limit is changed; an admitted one forgives what was deeper.
"""

from __future__ import annotations

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import (
    EXACT,
    HORIZON_US,
    MAX_CLOCK_SWING_US,
    SECOND,
    YEAR,
    Limit,
    microseconds,
    span,
    whole,
)
from headgate.errors import InvalidRule

# Thousandths of a unit, the millisecond up to which they have drained, thousandths given back from below other
# charges, and the millisecond until which those may hold water.
State = tuple[int, int, int, int]

_UNIT = 1000
_FASTEST = 10**12
_LARGEST = 10**12
_DEEPEST = EXACT // 2
_STEP_BACK_MS = -60_000
_LONGEST_LOCKOUT_MS = 120_000


class LeakyBucket(Limit):
    """Passes `amount` units per `per` seconds, `burst` more queued, `delay` of those served at once (None: all).

    >>> LeakyBucket(6, per=60, burst=5)
    <LeakyBucket 6/minute queue 5>
    """

    __slots__ = ("burst", "capacity", "delay", "most", "prompt", "rate")
    algorithm = "leaky_bucket"

    def __init__(self, amount: int, per: float = 1, burst: int = 0, delay: int | None = 0) -> None:
        whole("The amount of a leaky bucket", amount)
        whole("The queue of a leaky bucket", burst, least=0)
        whole("The delay of a leaky bucket", 0 if delay is None else delay, least=0)
        period_us = microseconds("The period of a leaky bucket", per)
        self.text: str = f"{amount}/{span(period_us)} queue {burst}"
        self.text += " nodelay" if delay is None else f" delay {delay}" if delay else ""
        self.burst: int = burst
        self.delay: int | None = delay
        self.rate: int = amount * _UNIT * SECOND // period_us
        if self.rate == 0:
            raise InvalidRule(
                f'"{self.text}" is too slow for a leaky bucket, which like nginx counts in thousandths of a '
                "unit per second: it needs at least one unit per 1000 s. "
                f'Write it as a token bucket: "{amount}/{span(period_us)} burst {burst + 1}".'
            )
        self.capacity: int = (burst + 1) * _UNIT
        too_long = self.capacity * SECOND > 100 * YEAR * self.rate
        if self.rate > _FASTEST or too_long or burst > _LARGEST or (delay or 0) > _LARGEST:
            raise InvalidRule(
                f'"{self.text}" cannot be exact: a leaky bucket drains at most 10^9 units a second, holds '
                "and delays at most 10^12, and must run dry within 100 years. Lower the amount or the queue."
            )
        # Up to here water makes nobody wait; up to there a reservation may pour.
        self.prompt: int = EXACT if delay is None else (delay + 1) * _UNIT
        self.most: int = min(_DEEPEST, self.capacity + self.rate * (HORIZON_US // SECOND))
        self.args: tuple[int | float, ...] = (self.rate, burst * _UNIT, -1 if delay is None else delay * _UNIT)

    @property
    def max_cost(self) -> int:
        return self.burst + 1


def decide(
    limit: LeakyBucket, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Outcome, State | None]:
    """Judge one charge. Pure: same arguments, same answer. With patience, a wait up to that is allowed."""
    rate = limit.rate
    now_ms = now_us // 1000
    water, last_ms, given, claims_ms = state or (0, now_ms, 0, 0)
    if water > limit.most:
        water = limit.most
    ms = now_ms - last_ms
    if ms > 0:
        water -= rate * ms // 1000
        last_ms = now_ms
    elif ms < _STEP_BACK_MS:
        water -= rate // 1000
        last_ms = now_ms
    if water < 0:
        water = 0
    if claims_ms <= now_ms:
        given = claims_ms = 0
    after = water + cost * _UNIT
    if after > limit.capacity or patience_us is not None or not cost:
        return _wait(limit, state, (water, last_ms, given, claims_ms), now_us, cost, patience_us)
    reset_us = (last_ms - (-after * 1000 // rate)) * 1000 - now_us
    delay_us = (after - limit.prompt) * 1000 // rate * 1000 if after > limit.prompt else 0
    remaining = (limit.capacity - after) // _UNIT
    if not given:
        return (True, remaining, 0, reset_us, delay_us, now_us, after - _UNIT), (after, last_ms, 0, 0)
    # This charge knows what was given back before: so that is kept as long as the charge holds water.
    claims_ms = max(claims_ms, (now_us + reset_us) // 1000 + 1)
    mark = _mark(limit, after - _UNIT, given)
    return (True, remaining, 0, reset_us, delay_us, now_us, mark), (after, last_ms, given, claims_ms)


def _wait(
    limit: LeakyBucket, state: State | None, drained: State, now_us: int, cost: int, patience_us: int | None
) -> tuple[Outcome, State | None]:
    """What is not simply taken: a peek, a refusal, a reservation. `state` as stored, `drained` as of now."""
    if state is not None and state[1] - now_us // 1000 > _LONGEST_LOCKOUT_MS:
        state = drained
    stored, stored_ms, *_ = state or drained
    stored = min(stored, limit.most)
    rate, capacity = limit.rate, limit.capacity
    water, last_ms, given, claims_ms = drained
    never = cost * _UNIT > capacity
    pour = _UNIT if never else (cost or 1) * _UNIT
    after = water + pour
    wait_us = 0
    if after > capacity:
        # From the state as stored: a charge that waits loses nothing to rounding on the way.
        wait_us = (stored_ms - (-(stored + pour - capacity) * 1000 // rate)) * 1000 - now_us
    allowed = not cost and not wait_us
    mark = _mark(limit, after - _UNIT, given)
    if cost and not never and patience_us is not None:
        if after > limit.prompt:
            wait_us = max(wait_us, (after - limit.prompt) * 1000 // rate * 1000)
        if wait_us <= min(patience_us, HORIZON_US) and after <= limit.most:
            reset_us = (last_ms - (-after * 1000 // rate)) * 1000 - now_us
            remaining = max(0, (capacity - after) // _UNIT)
            claims_ms = max(claims_ms, (now_us + reset_us) // 1000 + 1) if given else 0
            return (True, remaining, 0, reset_us, wait_us, now_us, mark), (after, last_ms, given, claims_ms)
    reset_us = max(0, (stored_ms - (-stored * 1000 // rate)) * 1000 - now_us)
    remaining = max(0, (capacity - water) // _UNIT)
    retry_us = None if never else wait_us
    return (allowed, remaining, retry_us, reset_us, 0, now_us, after - _UNIT if cost else mark), state


def _mark(limit: LeakyBucket, excess: int, given: int) -> int:
    """The excess, and above it what was given back before."""
    mark = excess + given * 2 * limit.capacity
    return mark if excess < 2 * limit.capacity and mark < _DEEPEST else excess + _DEEPEST


def _unmarked(limit: LeakyBucket, mark: int) -> tuple[int, int]:
    """Takes a mark apart: the thousandths given back before, and the excess."""
    return (0, mark - _DEEPEST) if mark >= _DEEPEST else divmod(mark, 2 * limit.capacity)


def refund(
    limit: LeakyBucket, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    """The state with up to `units` of the receipt's charge given back; None if it holds nothing any more."""
    if state is None or (cancel and receipt.served_us < now_us):
        return None
    stored, last_ms, given, claims_ms = state
    given_before, excess = _unmarked(limit, receipt.mark)
    if given_before > given:
        return None
    water, now_ms = min(stored, limit.most), now_us // 1000
    ms = now_ms - last_ms
    level = water - limit.rate * (1 if ms < _STEP_BACK_MS else max(0, ms)) // 1000
    # Where the charge's own water ends: where it was poured to, less what was given back since and all that can
    # have drained.
    since_ms = max(0, max(now_ms, last_ms) - receipt.at_us // 1000)
    given_since = max(given - given_before, receipt.returned * _UNIT)
    end = excess + _UNIT - given_since - limit.rate * since_ms // 1000
    held = (receipt.cost - receipt.returned) * _UNIT
    back = min(units * _UNIT, held)
    # No reservation was promised for later than a bucketful below the highest water that there was.
    highest = max(level, -(-limit.rate * (claims_ms - now_ms) // 1000))
    # Whatever was given back, no more can have drained of it than drained in all since it was charged.
    holds = max(end, held + (-limit.rate * since_ms // 1000))
    if not cancel:
        back = min(back, holds - max(0, highest - limit.capacity))
    elif end != level:
        back = min(back, held - max(0, highest - max(min(limit.prompt, limit.capacity), holds)))
    back = min(back, holds, level)
    if back <= 0:
        return None
    in_part = receipt.returned + units < receipt.cost
    if end != level or in_part or back < min(held, end):  # Something is left above the gap, or of the charge.
        given += back
        claims_ms = max(claims_ms, max(now_ms, last_ms) - (-level * 1000 // limit.rate))
        if (given + 1) * 2 * limit.capacity > _DEEPEST:
            return None
    return water - back, last_ms, given, claims_ms


def dead_at_us(limit: LeakyBucket, state: State) -> int:
    """From when on the state says no more than None does."""
    water, last_ms, _, claims_ms = state
    dry_ms = last_ms - (-min(water, limit.most) * 1000 // limit.rate)
    return max(dry_ms, claims_ms) * 1000 + MAX_CLOCK_SWING_US


def pack(state: State) -> str:
    water, last_ms, given, claims_ms = state
    return f"{water}:{last_ms}:{given}:{claims_ms}" if given else f"{water}:{last_ms}"


def unpack(text: str) -> State:
    water, last_ms, given, claims_ms = map(int, (text if text.count(":") == 3 else f"{text}:0:0").split(":"))
    return water, last_ms, given, claims_ms
