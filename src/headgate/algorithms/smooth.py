"""Smooth pacing: Guava's RateLimiter, to the microsecond, with a burst saved up or a warm-up.

The file is long for one reason: the story and the laws are above the code that keeps them.

Picture a ticket window that never makes anyone wait for their own request. A caller that comes when it is free is
served at once, however much they want, and the window then stays shut for as long as that was worth; the next
one waits. All there is to remember is the instant at which it is free again, and what idleness has saved.

Idle time is stored as permits. What they mean is the choice between two limits:
  bursty    idle time was unused capacity. Up to `burst` seconds' worth is saved and later spent for nothing:
            at "10/s smooth burst 2s" twenty pass for nothing after a long rest, and one more that the next
            one pays for. A new key has saved nothing yet.
  warm-up   idle time let things go cold: caches empty, connections close. Stored permits are then spent
            slowly. A new key is stone cold; each unit first costs `cold` intervals, and less and less until,
            after `warmup` seconds of steady demand, it costs one:

            cost of the next unit
                 ^
      3 x 1/rate +                  /
                 |                /
                 |              /
          1/rate +------------/
                 +------------|-----|---> stored permits
                 0         halfway   full (cold)

Measure. Permits are doubles and every expression is spelled as Guava spells it, so that all bits agree; the
instants are whole microseconds, and a price is rounded down to them, as in Guava. At 700,000/s a unit costs 1
us instead of 10/7, which is why nothing faster than 1,000,000/s can be paced. `mark` is what the charge cost,
in microseconds: those the window stays shut, and for a burst those that its saved permits took to save.

The clock. If a state was written up to MAX_CLOCK_SWING_US after now, the clock swings, and the charge is decided
as of that instant. If it was written later still, the clock was set back: the state moves along with it, and even
a refusal stores that.

Refunds of a burst work as in token_bucket.py, which tells their story: `refunded_total_us` is what was given back
from below other charges, `claims_us` is until when that matters, and a charge takes the count along in its mark,
above the price. (A charge of more than twice the store has no room for it there; to be safe all that was given
back counts against it.)

Surcharges, units that a call used beyond what it was charged, spend what is stored and keep the window shut for
the rest, without asking; up to 366 days, and what would be longer is forgiven.

What Guava does not know. Debt is bounded: no charge may keep the window shut beyond 366 days from now, and a
cost that could do so alone is never allowed. `remaining` counts the units that would pass one by one at this
instant: one more than the whole permits saved, just one in a warm-up, none while the window is shut. The
count is "reset" when the store is full again.

Forgetting. A warm-up that has gone cold is as if never used, and is forgotten then. A forgotten burst starts
with nothing saved, which is less than Guava's idle limiter has; so its state is kept until it is full, and
for at least a day. After that the first unit passes and the burst is saved up anew: forgetting never gives
more.

Laws (tests/algorithms/test_smooth.py, test_clock_laws.py, test_refund_laws.py):
  - a charge that comes while the window is free is served at once; the next one pays the price;
  - nobody is served before an earlier reservation; a denied charge leaves no trace (unless the clock was set back)
    and passes exactly retry_after later;
  - over any span of t at most  max stored + rate * t  units pass, besides the last charge, those that passed
    within the span and were given back themselves, and what rounding prices down to whole microseconds is worth;
  - a clock that swings adds nothing; one that is set back keeps the debt and what is stored, and adds nothing;
    nobody waits longer for it than MAX_CLOCK_SWING_US;
  - a refund of a burst gives back what the charge still holds, oldest drained first as in the token bucket, and
    nothing from a state of another limit; one of a warm-up gives back the time still ahead if nothing came after
    the charge, otherwise nothing; of a part of a charge at most the price of taking the units again. It cools the
    limiter by at least as much as the charge had warmed it: refunding and taking again gains nothing;
  - the time of a cancelled reservation is given back whole if nothing came after it, otherwise not at all (all
    that came after was built on it), and not once served. A warm-up may be colder afterwards, never warmer;
  - a surcharge of n units is as if a charge of n had been reserved then, and delays what follows as that would
    (test_surcharge_laws.py);
  - a changed limit (`retune`) is Guava's setRate: idleness until now counts at the old rate, what is stored
    keeps its share of the store, and debt already granted stays. From burst to warm-up and back one starts as
    new. A refused charge gives nothing back, however the limit is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil, nextafter

from headgate.algorithms.decision import AT_US, MARK, RESET_AFTER_US, RETRY_AFTER_US, Outcome, Receipt
from headgate.algorithms.durations import format_duration, format_period, in_words
from headgate.algorithms.limit import (
    DAY,
    EXACT,
    HORIZON_US,
    MAX_CLOCK_SWING_US,
    REFUSAL_TEXT,
    SECOND,
    Description,
    Limit,
    ceil_seconds,
    check_microseconds,
)
from headgate.errors import InvalidRule

# The numbers a state was written under: rate, warm-up in microseconds, then cold factor or burst in seconds.
_Args = tuple[float, int, float]

# Stored permits, the instant from when on it is free, the instant it was written, and under which numbers; time
# given back from below other charges, and until when those may hold any.
State = tuple[float, int, int, _Args, int, int]

_MARK_LIMIT = EXACT // 2


class Smooth(Limit):
    """Passes `amount` units per `per` seconds, evenly; `burst` seconds' worth saved, or a `warmup` in seconds.

    >>> Smooth(10, warmup=5)
    <Smooth 10/s smooth warmup 5s>
    """

    __slots__ = (
        "cool_us",
        "initial",
        "interval_us",
        "max_units",
        "price_range",
        "slope",
        "store",
        "threshold",
        "warmup_us",
    )
    algorithm = "smooth"
    refill = "bucket"
    no_bucket = "a smooth limit makes callers wait for each other, and holders decide alone"
    args: _Args
    interval_us: float
    store: float
    cool_us: float
    threshold: float
    slope: float

    def __init__(
        self, amount: float, per: float = 1, warmup: float = 0, cold: float = 3.0, burst: float = 1.0
    ) -> None:
        _check_number("The amount of a smooth limit", amount, 0.0001, 1e15)
        _check_number("The cold factor of a smooth limit", cold, 1, 1000)
        period_us = check_microseconds("The period of a smooth limit", per)
        warmup_us = 0 if warmup == 0 else check_microseconds("The warm-up of a smooth limit", warmup)
        burst_us = 0 if burst == 0 else check_microseconds("The burst of a smooth limit", burst)
        self.text: str = f"{_decimal(amount)}/{format_period(period_us)} smooth"
        self.text += f" warmup {format_duration(warmup_us)}" if warmup_us else ""
        self.text += f" cold {_decimal(cold)}" if cold != 3 else ""
        self.text += f" burst {format_duration(burst_us)}" if burst_us != SECOND else ""
        if (cold != 3 and not warmup_us) or (burst_us != SECOND and warmup_us):
            raise InvalidRule(
                f'"{self.text}" cannot be: a smooth limit either warms up, with a cold factor, or saves a '
                'burst. Write "... smooth warmup 5s cold 4" or "... smooth burst 2s".'
            )
        rate = float(amount / (period_us / SECOND))
        if not (1 / HORIZON_US < rate / SECOND <= 1) or max(warmup_us, burst_us) > HORIZON_US:
            raise InvalidRule(
                f'"{self.text}" cannot be paced: a smooth limit passes between one unit in 366 days and '
                "1,000,000 a second, and neither its warm-up nor its burst may be longer than 366 days."
            )
        self.args = (rate, warmup_us, float(cold) if warmup_us else burst_us / SECOND)
        self.warmup_us: int = warmup_us
        self.interval_us, self.store, self.cool_us, self.threshold, self.slope = _derived_fields(self.args)
        self.initial: float = self.store if warmup_us else 0.0
        coldest_unit_us = self.interval_us * cold if warmup_us else self.interval_us
        self.max_units: int = int(HORIZON_US / coldest_unit_us)
        # A mark holds a price below this, and above it what was given back before.
        self.price_range: int = EXACT if warmup_us else 2 * int(max(self.store, 1.0) * self.interval_us) + 2
        if self.max_units < 1:
            raise InvalidRule(
                f'"{self.text}" cannot be paced: when cold, one unit would take more than 366 days. '
                "Raise the amount, or lower the cold factor."
            )

    @property
    def max_cost(self) -> int:
        return self.max_units

    @property
    def units_at_once(self) -> int:
        return 1

    @property
    def quota(self) -> int:
        return max(1, int(self.args[0] * self.window_seconds))

    @property
    def window_seconds(self) -> int:
        """The seconds in which at least one unit passes, and all that can be saved is saved."""
        saved_us = 0 if self.warmup_us else round(self.args[2] * SECOND)
        return max(1, ceil_seconds(max(saved_us, ceil(self.interval_us))))

    @property
    def units_per_second(self) -> Fraction:
        return Fraction(self.args[0])

    def units_in_use(self, outcome: Outcome) -> int:
        return -(-(outcome[RETRY_AFTER_US] or 0) // max(1, int(self.interval_us)))

    def receipt_of_newest(self, outcome: Outcome, units: int) -> Receipt | None:
        at_us, reset_us, shut_us = outcome[AT_US], outcome[RESET_AFTER_US], outcome[RETRY_AFTER_US] or 0
        if self.warmup_us and shut_us:
            # Half of a charge that began that much earlier: so that a warm-up prices the units itself.
            return Receipt(2 * units, at_us - shut_us, reset_us, 0, 2 * shut_us)
        price_us = min(shut_us, int(units * self.interval_us))
        refunded_us, _ = unpack_mark(self, outcome[MARK])
        mark = pack_mark(self, price_us, refunded_us)
        return Receipt(units, at_us, reset_us, 0, mark) if shut_us else None

    def divide(self, count: int, units: int, sharers: int) -> Smooth | None:
        """Returns a share of the rate alone: a smooth limit holds no units."""
        rate, warmup_us, shape = self.args
        shape_options = {"warmup": warmup_us / SECOND, "cold": shape} if warmup_us else {"burst": shape}
        amount = rate * SECOND
        while True:
            try:
                candidate = Smooth(amount, count * SECOND, **shape_options)
            except InvalidRule:
                return None  # too slow to be paced
            if Fraction(candidate.args[0]) * count <= Fraction(rate):
                return candidate
            amount = nextafter(amount, 0)

    def gateway_fields(self) -> Iterator[tuple[str, object]]:
        yield "interval_us", max(1, int(self.interval_us))

    def explain(self) -> Description:
        rate, warmup_us, shape = self.args
        interval, warmup = in_words(self.interval_us), in_words(warmup_us)
        yield "algorithm", "smooth pacing: Guava's RateLimiter"
        yield "passes", f"one every {interval}; the next one waits for what the last one took"
        if warmup_us:
            yield "cold", f"starts {shape:g} times slower, and is at full rate after {warmup} of steady demand"
            yield "idle keys", f"are forgotten when they have gone cold: {warmup} after they were paid for"
        else:
            saved_us = shape * SECOND
            saved = f"saves up to {in_words(saved_us)} of idle time, {self.store:g} units"
            yield "burst", f"{saved}; a new key has saved nothing"
            yield "idle keys", f"are forgotten after {in_words(max(DAY, saved_us))}, with what they had saved"
        yield "exact", f"as Guava is: doubles, prices rounded down to whole microseconds; {rate:g} a second"
        yield "refused", f"{REFUSAL_TEXT}; take asks without waiting, wait and reserve take a place"


def _check_number(what: str, value: object, minimum: float, maximum: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise InvalidRule(f"{what} must be a number between {minimum:g} and {maximum:g}, not {value!r}.")


def _decimal(value: float) -> str:
    return repr(int(value)) if value == int(value) else repr(value)


def _derived_fields(args: _Args) -> tuple[float, float, float, float, float]:
    """Returns Guava's fields: a unit's interval, the store's size, how fast it fills, where it gets steep,
    slope."""
    rate, warmup_us, shape = args
    interval_us = SECOND / rate
    if not warmup_us:
        return interval_us, shape * rate, interval_us, 0.0, 0.0
    cold_us = interval_us * shape
    threshold = 0.5 * warmup_us / interval_us
    store = threshold + 2.0 * warmup_us / (interval_us + cold_us)
    return interval_us, store, warmup_us / store, threshold, (cold_us - interval_us) / (store - threshold)


def decide(
    limit: Smooth, state: State | None, now_us: int, cost: int, patience_us: int | None = None
) -> tuple[Outcome, State | None]:
    """Decides one charge. Pure: same arguments, same result. With patience, a wait of at most that is allowed."""
    args, store, at_us = limit.args, limit.store, now_us
    refunded_total_us = claims_us = 0
    if state is None:
        stored, free_us = limit.initial, now_us
    else:
        stored, free_us, stamp_us, written_args, refunded_total_us, claims_us = state
        if now_us < stamp_us <= now_us + MAX_CLOCK_SWING_US:
            at_us = stamp_us
        if claims_us <= now_us or limit.warmup_us:
            refunded_total_us = claims_us = 0
        if stamp_us > at_us or (written_args is not args and written_args != args):
            stored, free_us = _permits_at(limit, state, at_us)
        elif at_us > free_us:
            stored += (at_us - free_us) / limit.cool_us
            free_us = at_us
            if stored > store:
                stored = store
    wait_us = free_us - now_us if free_us > at_us else 0
    if cost and cost <= limit.max_units and (not wait_us or (patience_us is not None and wait_us <= patience_us)):
        spent = stored if stored < cost else cost
        if limit.warmup_us:
            paid_us = price_us = _price_us(limit, stored, spent, cost)
        else:
            price_us = int((cost - spent) * limit.interval_us)
            paid_us = int(price_us + spent * limit.interval_us)
        shut_us = free_us + price_us - at_us
        if shut_us <= HORIZON_US:
            stored -= spent
            remaining = 0 if shut_us else 1 if limit.warmup_us else int(stored) + 1
            reset_us = free_us + price_us - now_us + int((store - stored) * limit.cool_us) + 1
            outcome = (True, remaining, 0, reset_us, wait_us, now_us, pack_mark(limit, paid_us, refunded_total_us))
            # The mark of this charge refers to what was given back before: kept as long as the charge holds any.
            if refunded_total_us:
                claims_us = max(claims_us, now_us + reset_us + 1)
            return outcome, (stored, free_us + price_us, at_us, args, refunded_total_us, claims_us)
    reset_us = free_us - now_us + int((store - stored) * limit.cool_us) + 1
    remaining = 0 if wait_us else 1 if limit.warmup_us else int(stored) + 1
    retry_us = wait_us if cost <= limit.max_units else None
    refusal = (
        not cost and not wait_us,
        remaining,
        retry_us,
        reset_us,
        0,
        now_us,
        pack_mark(limit, 0, refunded_total_us),
    )
    if state is None or state[2] <= at_us:
        return refusal, state
    # The clock was set back behind the state, which moves along with it.
    step_us = state[2] - now_us
    return refusal, (state[0], state[1] - step_us, now_us, *state[3:])


def pack_mark(limit: Smooth, price_us: int, refunded_total_us: int) -> int:
    """Returns the mark of a charge: its price, and above it what was given back before."""
    mark = price_us + refunded_total_us * limit.price_range
    return mark if price_us < limit.price_range and mark < _MARK_LIMIT else price_us + _MARK_LIMIT


def unpack_mark(limit: Smooth, mark: int) -> tuple[int, int]:
    """Splits a mark: the time given back before, and the price."""
    return (0, mark - _MARK_LIMIT) if mark >= _MARK_LIMIT else divmod(mark, limit.price_range)


def _price_us(limit: Smooth, stored: float, spent: float, cost: int) -> int:
    """Returns the price of a charge of a warm-up, `spent` of it out of the store: the area below the slope."""
    interval_us = limit.interval_us
    price_us = int((cost - spent) * interval_us)
    steep_stored = stored - limit.threshold
    if steep_stored > 0.0:
        steep_spent = steep_stored if steep_stored < spent else spent
        first_us = interval_us + steep_stored * limit.slope
        last_us = interval_us + (steep_stored - steep_spent) * limit.slope
        price_us += int(steep_spent * (first_us + last_us) / 2.0)
        spent -= steep_spent
    return price_us + int(interval_us * spent)


def _permits_at(limit: Smooth, state: State, at_us: int) -> tuple[float, int]:
    """Returns the stored permits and when it is free, also after the clock was set back or under another limit."""
    stored, free_us, stamp_us, args, _, _ = state
    if stamp_us > at_us:
        free_us -= stamp_us - at_us
    _, store, cool_us, _, _ = _derived_fields(args)
    if at_us > free_us:
        stored = min(store, stored + (at_us - free_us) / cool_us)
        free_us = at_us
    if args != limit.args:
        if (args[1] > 0) != (limit.warmup_us > 0):
            stored = limit.initial
        else:
            stored = stored * limit.store / store if store else 0.0
    return stored, free_us


def _as_at(state: State, now_us: int) -> int:
    """Returns the instant that a state is decided as of: now, or that of its writing if the clock swings."""
    return state[2] if now_us < state[2] <= now_us + MAX_CLOCK_SWING_US else now_us


def retune(limit: Smooth, state: State | None, now_us: int) -> State:
    """Returns the state under this limit from now on: Guava's setRate, or a new limiter if there was none."""
    if state is None:
        return limit.initial, now_us, now_us, limit.args, 0, 0
    at_us = _as_at(state, now_us)
    stored, free_us = _permits_at(limit, state, at_us)
    return stored, free_us, at_us, limit.args, state[4], state[5]


def refund(
    limit: Smooth, state: State | None, now_us: int, units: int, receipt: Receipt, cancel: bool
) -> State | None:
    """Returns the state with up to `units` of the receipt's charge given back; None if it holds none any more."""
    if state is None or (cancel and receipt.served_us < now_us):
        return None
    at_us = _as_at(state, now_us)
    stored, free_us = _permits_at(limit, state, at_us)
    cost, returned = receipt.cost, receipt.refunded_units
    units = min(units, cost - returned)
    if not limit.warmup_us:
        return _refund_of_burst(limit, state, stored, free_us, at_us, units, receipt, cancel)
    paid_us = receipt.mark
    returned_us = int(paid_us * (returned / cost))
    refunded_us = int(paid_us * ((returned + units) / cost)) - returned_us
    # Until when the charge itself has shut the window.
    shut_until_us = receipt.served_us + paid_us - returned_us
    if free_us != shut_until_us:  # Others came after it, and a reservation of theirs may lie ahead.
        return None
    cooled = min(limit.store, stored + units)
    refunded_us = min(refunded_us, free_us - at_us, shut_until_us - at_us)
    if units < cost:
        refunded_us = min(refunded_us, _price_us(limit, cooled, min(units, cooled), units))
    return None if refunded_us <= 0 else (cooled, free_us - refunded_us, at_us, limit.args, 0, 0)


def surcharge(limit: Smooth, state: State | None, now_us: int, units: int, receipt: Receipt) -> State | None:
    """Returns the state with so many units more of a charge, whether they fit or not; None if that changes
    nothing."""
    at_us, stored, free_us, refunded_total_us, claims_us = now_us, limit.initial, now_us, 0, 0
    if state is not None:
        at_us = _as_at(state, now_us)
        stored, free_us = _permits_at(limit, state, at_us)
        if state[5] > now_us and not limit.warmup_us:
            refunded_total_us, claims_us = state[4:]
    units = min(units, limit.max_units)
    spent = stored if stored < units else units
    price_us = (
        _price_us(limit, stored, spent, units) if limit.warmup_us else int((units - spent) * limit.interval_us)
    )
    stored, free_us = stored - spent, max(free_us, min(free_us + price_us, at_us + HORIZON_US))
    if refunded_total_us:
        claims_us = max(claims_us, free_us + int((limit.store - stored) * limit.cool_us) + 2)
    return stored, free_us, at_us, limit.args, refunded_total_us, claims_us


def _refund_of_burst(
    limit: Smooth,
    state: State,
    stored: float,
    free_us: int,
    at_us: int,
    units: int,
    receipt: Receipt,
    cancel: bool,
) -> State | None:
    """Gives a charge's time back as permits; that of the last charge first as time that the window is shut."""
    refunded_total_us, claims_us = state[4:]
    refunded_before_us, paid_us = unpack_mark(limit, receipt.mark)
    if state[3] != limit.args or refunded_before_us > refunded_total_us:
        return None
    cost, returned = receipt.cost, receipt.refunded_units
    returned_us = int(paid_us * (returned / cost))
    refunded_us = int(paid_us * ((returned + units) / cost)) - returned_us
    # Until when the charge delays a full store, less what was given back since; and until when all of them do.
    since_us = max(refunded_total_us - refunded_before_us, ceil(returned * limit.interval_us))
    end_us = receipt.at_us + receipt.reset_after_us - since_us
    full_us = free_us + int((limit.store - stored) * limit.cool_us) + 1
    is_last = full_us == end_us
    if cancel and not is_last:
        return None
    # The reset is counted one microsecond late, for doubles round; the charge does not hold that one. And whatever
    # was given back, no more can have drained of it than drained in all since it was charged.
    undrained_us = max(end_us - 1 - at_us, paid_us - returned_us - max(0, at_us - receipt.at_us))
    refunded_us = min(refunded_us, undrained_us)
    if not is_last:
        # No charge is served later than a full store before the highest there was.
        ahead_us = max(full_us, claims_us) - int(limit.store * limit.interval_us) - at_us
        refunded_us = min(refunded_us, undrained_us - max(0, ahead_us), full_us - at_us)
    if refunded_us <= 0:
        return None
    if not is_last or returned + units < cost:  # Something remains above the gap, or of the charge itself.
        refunded_total_us += refunded_us
        claims_us = max(claims_us, full_us)
        if (refunded_total_us + 1) * limit.price_range > _MARK_LIMIT:
            return None
    # Only the last charge's own time opens the window earlier: another one may be promised for when it opens.
    shut_us = min(refunded_us, free_us - max(at_us, receipt.served_us)) if is_last else 0
    stored = min(limit.store, stored + (refunded_us - shut_us) / limit.interval_us)
    return stored, free_us - shut_us, at_us, limit.args, refunded_total_us, claims_us


def dead_at_us(limit: Smooth, state: State) -> int:
    """Returns the instant from which on the state means the same as None; for a burst, when it is deleted."""
    stored, free_us, _, args, _, claims_us = state
    store, cool_us = limit.store, limit.cool_us
    if args != limit.args:
        _, store, cool_us, _, _ = _derived_fields(args)  # these apply until its next charge
    fill_us = int((store - stored) * cool_us) + 1
    if not args[1]:
        fill_us = max(fill_us, DAY) if store else 0
    return max(free_us + fill_us, claims_us) + MAX_CLOCK_SWING_US


def pack(state: State) -> str:
    stored, free_us, stamp_us, (rate, warmup_us, shape), refunded_total_us, claims_us = state
    text = f"{stored:.17g}:{free_us}:{stamp_us}:{rate:.17g}:{warmup_us}:{shape:.17g}"
    return f"{text}:{refunded_total_us}:{claims_us}" if refunded_total_us else text


def unpack(text: str) -> State:
    stored, free_us, stamp_us, rate, warmup_us, shape, *rest = text.split(":")
    refunded_total_us, claims_us = map(int, rest or (0, 0))
    args = float(rate), int(warmup_us), float(shape)
    return float(stored), int(free_us), int(stamp_us), args, refunded_total_us, claims_us
