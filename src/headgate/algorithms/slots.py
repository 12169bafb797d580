"""Slots: how many callers may work at the same time (concurrency).

Picture a cloakroom with `amount` hooks. A caller that finds a free hook gets a lease: a numbered hook that is
theirs until they release it, or until the lease expires because nobody renewed it. So a holder that crashed
gives its slot back by itself, after at most `ttl` on the engine's clock, and one that works long keeps it by
renewing.

A caller that finds no hook may draw a ticket and try again; the first in the queue is served first, and a newcomer
passes only if there is a slot for everybody in the queue. A ticket lives for TICKET_US and each try renews it, so
a waiter that died drops out by itself and delays the queue no longer than that.

The numbers of leases and tickets come from one sequence that never repeats for a key: the next one is at
least the clock's microseconds, so it is beyond all earlier ones even when the key was long forgotten. A
lease's number is its fence: storage that remembers the highest it has seen can turn away a holder that does
not know yet that its lease is gone. A clock that is set back must not undo that, so the highest number is
remembered beyond the last lease: in memory and on a shared dict for as long as those live, in Redis for
FENCE_MEMORY_US with each key.

The clock. A key proves the instant at which a lease or ticket was last written. If that lies up to
MAX_CLOCK_SWING_US ahead of the clock, the clock swings, and all is decided as of that instant. If it lies further
ahead, the clock was set back, and all ends move along with it.

A key holds a collection, which the engine stores (engines/memory/slot_table.py; a sorted set in Redis). The model
sees five numbers of it and decides by those, and it alone knows what they mean.

"3 slots": three are held, until 12:00:10, :20 and :30. At :05 a newcomer is refused: a slot comes free in 5 s
at the latest. A waiter draws a ticket. At :07 a holder releases: the waiter, trying again, gets the slot; a
newcomer that came in between did not.

Laws (tests/algorithms/test_slots.py; of the engines, tests/engines/slot_stories.py and test_slot_table.py):
  - at no instant are more than `amount` leases alive;
  - fences strictly increase for a key, also across its death, and whatever the clock does (in Redis: unless it is
    set back by more than a day after nobody used the key for a day);
  - a lease that expired or was released can be neither renewed nor released, whoever has its slot now;
  - waiters are served in the order of their tickets, and nobody is served before a live waiter;
  - a denied attempt leaves no trace but a waiter's own ticket, and passes exactly retry_after later if
    nothing else came: no release, no renewal, and nobody in the queue tried again. (With waiters behind, it may
    pass earlier.)
  - a clock that swings shortens no lease. One that is set back leaves every lease the time that it had left when
    one was last given or renewed (also one that expired since, if nothing was given since: nobody had its slot; a
    waiter that gives up gives nothing). The first request after the step stores that, even if it is denied:
    otherwise the clock would have to catch up before any lease of a crashed holder could end;
  - a lowered amount gives no new lease until fewer are held, a raised one at once; a changed ttl applies to a
    lease from its next renewal.
"""

from __future__ import annotations

from headgate.algorithms.decision import Outcome
from headgate.algorithms.durations import format_duration, in_words
from headgate.algorithms.limit import (
    DAY,
    EXACT,
    HORIZON_US,
    MAX_CLOCK_SWING_US,
    SECOND,
    Description,
    Limit,
    check_microseconds,
    check_whole,
)
from headgate.errors import InvalidRule

# The engine's counts, for the caller that it decides about:
#   alive     leases and tickets of others that are alive
#   behind    how many of those are tickets behind the caller's; 0 for a newcomer, who is last in the queue
#   opens_us  when the one ends that `turn` chose; anything if it chose none
#   last_us   when the last of them ends; anything up to now if there is none
#   fresh     the least number that was never used; 0 at first
State = tuple[int, int, int, int, int]

# A lease: its fence, and when it expires.
Held = tuple[int, int]

TICKET_US = SECOND
FENCE_MEMORY_US = DAY

_DEFAULT_TTL_US = 30 * SECOND


class Slots(Limit):
    """At most `amount` leases held at once; one that is not renewed returns after `ttl` seconds.

    >>> Slots(20, ttl=60)
    <Slots 20 slots ttl 1m>
    """

    __slots__ = ("amount", "ttl_us")
    algorithm = "slots"
    is_held = True
    no_bucket = "slots are held, and only the engine knows who holds one"

    def __init__(self, amount: int, ttl: float = 30.0) -> None:
        self.amount: int = check_whole("The number of slots", amount)
        self.ttl_us: int = check_microseconds("The ttl of slots", ttl)
        self.text: str = f"{amount} slots" + (
            "" if self.ttl_us == _DEFAULT_TTL_US else f" ttl {format_duration(self.ttl_us)}"
        )
        if amount > EXACT or self.ttl_us > HORIZON_US:
            raise InvalidRule(f'"{self.text}" is out of range: a ttl is at most 366 days, an amount at most 2^53.')
        self.args: tuple[int | float, ...] = (amount, self.ttl_us)

    @property
    def max_cost(self) -> int:
        return 1  # a slot at a time

    @property
    def units_at_once(self) -> int:
        return self.amount

    def _share(self, units: int, sharers: int) -> Slots:
        return Slots(units, self.ttl_us / SECOND)

    def explain(self) -> Description:
        ttl = in_words(self.ttl_us)
        yield "algorithm", "slots: how many calls may run at once, however long each takes"
        yield "passes", f"{self.amount:,} holders at a time, with acquire and release; waiters are served in order"
        yield "crash", f"a holder that does not renew for {ttl} loses its slot"
        yield "exact", "every lease has a fencing number that never repeats"
        yield "idle keys", f"are forgotten when the last lease has ended: {ttl} after its last renewal at most"
        yield "refused", "leaves no trace; retry_after is when a slot comes free at the latest"


def turn(limit: Slots, alive: int) -> int | None:
    """Returns which of the `alive`, counted from 0 as they end, must end before a newcomer passes; None if
    none."""
    return alive - limit.amount if alive >= limit.amount else None


def as_at(stamp_us: int, now_us: int) -> int:
    """Returns the instant that a key is decided as of: now, or that of its last writing if the clock swings."""
    return stamp_us if now_us < stamp_us <= now_us + MAX_CLOCK_SWING_US else now_us


def decide(
    limit: Slots, state: State | None, now_us: int, cost: int, at_us: int | None = None
) -> tuple[Outcome, Held | None]:
    """Decides whether a caller gets a slot (cost 1), or peeks (cost 0), as of `at_us`. Pure.

    The mark of the outcome is the fence of a lease; of a refusal, the place in the queue: 1 is next.
    """
    alive, behind, opens_us, last_us, fresh = state or (0, 0, 0, 0, 0)
    at_us = now_us if at_us is None else at_us
    free = limit.amount - alive
    if cost and free + behind > 0:
        fence, expires_us = max(fresh, at_us), at_us + limit.ttl_us
        outcome = (True, max(0, free - 1), 0, max(last_us, expires_us) - now_us, 0, now_us, fence)
        return outcome, (fence, expires_us)
    reset_us = max(0, last_us - now_us)
    if free > 0:
        return (True, free, 0, reset_us, 0, now_us, 0), None
    return (False, 0, opens_us - now_us, reset_us, 0, now_us, 1 - free - behind), None


def draw(fresh: int, now_us: int) -> Held:
    """Returns a new ticket: its number, and when it expires unless its waiter tries again."""
    return max(fresh, now_us), now_us + TICKET_US


def renewed_us(limit: Slots, now_us: int) -> int:
    """Returns when a lease that is renewed now expires."""
    return now_us + limit.ttl_us


def stepped_us(stamp_us: int, now_us: int) -> int:
    """Returns how far the clock was set back behind the last lease or ticket written: all of them end that much
    earlier."""
    return stamp_us - now_us if stamp_us - now_us > MAX_CLOCK_SWING_US else 0


def dead_at_us(last_us: int, fresh: int) -> int:
    """Returns the instant from which on the key means the same as None, whichever way the clock swings."""
    return max(last_us + MAX_CLOCK_SWING_US, fresh)
