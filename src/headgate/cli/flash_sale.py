"""Simulates a flash sale: thousands of buyers, one item, and seven gates that see the same calls.

Every call is charged to two limits at once: that of its buyer, and that of the item. Both are charged or neither
is (take_all). The gates differ only in their algorithm; all allow about a hundred calls a second. The sale lasts
twenty seconds, on a clock that only it moves, from a seed: the same every time.

      0 s   calm             a few look around
      4 s   the doors open   everybody at once, on a window's edge
      8 s   lull
   13.7 s   second rush      across the window's edge at 14 s
   15.5 s   closing          the last ones
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from headgate.algorithms.decision import Charge
from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import RateLimited
from headgate.lease import Lease
from headgate.limit_syntax import parse
from headgate.limiter import Limiter

TICK_US = 10_000
SECONDS = 20
TICKS = SECONDS * 1_000_000 // TICK_US
PEAK_WINDOW_TICKS = 2_000_000 // TICK_US  # two seconds, like the windows of the limits
BUYERS = 4000
USER_LIMIT = "5/10s"

_START_US = 1_700_000_000_000_000  # on a window's edge
_ITEM = "item:1"
_IMPATIENT = 8  # buyers who click without pause
_CHECKOUT_US = 150_000, 250_000  # how long a slot is held


class SalePhase(NamedTuple):
    at: float  # seconds
    name: str
    calls: int  # a second


PHASES = (
    SalePhase(0.0, "calm", 20),
    SalePhase(4.0, "the doors open", 900),
    SalePhase(8.0, "lull", 20),
    SalePhase(13.7, "second rush, across a window's edge", 900),
    SalePhase(15.5, "closing", 20),
)


class SaleGate:
    """One algorithm that limits the item, and what it decided."""

    def __init__(self, name: str, limit: str, summary: str, clock: ManualClock) -> None:
        self.name: str = name
        self.limit: str = limit
        self.summary: str = summary
        self.passed: int = 0
        self.delayed: int = 0
        self.refused: int = 0
        self.refused_to_user: int = 0
        self.peak: int = 0  # the most calls served in any two seconds
        self._recent = 0  # calls served in the last two seconds
        self.served: list[int] = [0] * TICKS  # by the tick in which they are served
        self.waited: list[int] = [0] * TICKS  # those of them that had to wait
        self._limit = parse(limit)
        self._limiter = Limiter(USER_LIMIT, MemoryEngine(clock), clock=clock, name="user")

    def call(self, user: str, at_us: int) -> None:
        charges = (Charge(user), Charge(_ITEM, self._limit))
        decision = self._limiter.take_all(charges)
        if decision.allowed:
            self.allow(at_us, decision.delay_us)
        else:
            self.refuse(by_user=not decision.counter_decisions[0].allowed)

    def allow(self, at_us: int, delay_us: int = 0) -> None:
        self.passed += 1
        self.delayed += delay_us > 0
        tick = (at_us + delay_us - _START_US) // TICK_US
        if tick < TICKS:
            self.served[tick] += 1
            self.waited[tick] += delay_us > 0

    def refuse(self, *, by_user: bool) -> None:
        self.refused += 1
        self.refused_to_user += by_user

    def close_tick(self, tick: int) -> None:
        """Updates the peak; no more calls are served in that tick."""
        self._recent += self.served[tick] - (
            self.served[tick - PEAK_WINDOW_TICKS] if tick >= PEAK_WINDOW_TICKS else 0
        )
        self.peak = max(self.peak, self._recent)


class SlotGate(SaleGate):
    """A gate of slots, which are held, not charged: a buyer holds one for as long as the checkout takes."""

    def __init__(self, name: str, limit: str, summary: str, clock: ManualClock, random: Random) -> None:
        super().__init__(name, limit, summary, clock)
        self._slots = Limiter(limit, MemoryEngine(clock), clock=clock)
        self._random = random
        self._held: list[tuple[int, int, Lease]] = []

    def call(self, user: str, at_us: int) -> None:
        while self._held and self._held[0][0] <= at_us:
            heappop(self._held)[2].release()
        decision = self._limiter.take(user)
        if not decision:
            return self.refuse(by_user=True)
        try:
            lease = self._slots.acquire(_ITEM)
        except RateLimited:
            self._limiter.refund(decision)
            return self.refuse(by_user=False)
        heappush(self._held, (at_us + self._random.randint(*_CHECKOUT_US), lease.fence, lease))
        return self.allow(at_us)


class FlashSale:
    """The sale, simulated one tick at a time."""

    def __init__(self, seed: int = 11) -> None:
        self._clock = ManualClock(_START_US)
        self._random = Random(seed)
        self.tick: int = 0
        self.offered: list[int] = [0] * TICKS
        self.buyers: set[str] = set()
        self.gates: list[SaleGate] = _gates(self._clock, Random(seed + 1))

    @property
    def seconds(self) -> float:
        return self.tick * TICK_US / 1_000_000

    @property
    def is_over(self) -> bool:
        return self.tick >= TICKS

    @property
    def phase(self) -> SalePhase:
        return [phase for phase in PHASES if phase.at <= self.seconds][-1]

    @property
    def calls(self) -> int:
        return sum(self.offered)

    def play_until(self, seconds: float) -> None:
        while not self.is_over and self.seconds < seconds:
            self._play_tick()

    def _play_tick(self) -> None:
        for at_us in self._arrivals():
            self._clock.set_us(at_us)
            buyer = self._buyer()
            self.buyers.add(buyer)
            self.offered[self.tick] += 1
            for gate in self.gates:
                gate.call(buyer, at_us)
        for gate in self.gates:
            gate.close_tick(self.tick)
        self.tick += 1

    def _arrivals(self) -> Iterator[int]:
        expected = self.phase.calls * TICK_US / 1_000_000
        count = int(expected + self._random.random())
        offsets = sorted(self._random.randrange(TICK_US) for _ in range(count))
        return (_START_US + self.tick * TICK_US + offset for offset in offsets)

    def _buyer(self) -> str:
        if self._random.random() < 0.2:
            return f"user:{self._random.randrange(_IMPATIENT)}"
        return f"user:{self._random.randrange(_IMPATIENT, BUYERS)}"


def _gates(clock: ManualClock, random: Random) -> list[SaleGate]:
    rates = (
        ("token bucket", "100/s burst 200", "a burst at once, then steady"),
        ("leaky bucket", "100/s queue 50", "no bursts; a short queue waits"),
        ("fixed window", "200/2s fixed", "twice as much at an edge (14 s)"),
        ("sliding window", "200/2s sliding", "full, then shut for 2 s"),
        ("sliding log", "200/2s log", "never over 200 in any 2 s"),
        ("smooth, warm-up", "100/s smooth warmup 3s", "paced; slow while cold"),
    )
    gates = [SaleGate(name, limit, summary, clock) for name, limit, summary in rates]
    gates.append(SlotGate("slots", "20 slots", "20 at once, as fast as they finish", clock, random))
    return gates
