"""The laws of total admission: N members over one engine that fails for all of them or for some."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import SECOND, Limit
from headgate.algorithms.token_bucket import TokenBucket
from headgate.clock import ManualClock
from headgate.engines.layers.fallback.breaker import CLOSED
from headgate.engines.layers.fallback.membership import Membership
from headgate.engines.memory.engine import MemoryEngine
from tests.engines.layers.faulty_engine import FaultyEngine, ImmediateFallback

WINDOW = 10
START_US = 1_700_000_000_000_000


class FallbackEvent(NamedTuple):
    after_ms: int
    member: int
    what: str
    cost: int


EVENTS = st.lists(
    st.builds(
        FallbackEvent,
        st.sampled_from([0, 1, 30, 120, 400, 900, 2500]),
        st.integers(0, 4),
        st.sampled_from(["take"] * 12 + ["gone", "back", "gone for one", "back for one", "lost", "heard"]),
        st.sampled_from([1, 1, 1, 2, 5]),
    ),
    min_size=20,
    max_size=250,
)


class FallbackFleet:
    """Members, what they admitted in each window, and what happened to the engine in it."""

    def __init__(self, limit: Limit, size: int, members_counted: bool = True) -> None:
        self.clock = ManualClock(START_US)
        self.limit = limit
        self.shared = MemoryEngine(self.clock)
        self.wires = [FaultyEngine(self.shared) for _ in range(size)]
        self.engines = [self._member(wire, rank) for rank, wire in enumerate(self.wires)]
        self.meters = [engine.meter(limit, "limit") for engine in self.engines]
        self.admitted: dict[int, int] = {}
        self.troubled: set[int] = set()  # windows in which an outage began or was partial
        self.beaten_us = START_US

    def _member(self, wire: FaultyEngine, rank: int) -> ImmediateFallback:
        members = Membership()
        members.note_reply(len(self.wires), rank)
        return ImmediateFallback(wire, fallback="local", members=members, clock=self.clock)

    @property
    def window(self) -> int:
        return self.clock.now_us() // (WINDOW * SECOND)

    def on(self, event: FallbackEvent) -> None:
        self._pass(event.after_ms)
        member = event.member % len(self.wires)
        if event.what == "take":
            outcome = self.meters[member].decide("key", event.cost)
            if outcome[0]:
                self.admitted[self.window] = self.admitted.get(self.window, 0) + event.cost
        elif event.what in ("gone", "back"):
            if event.what == "gone":
                self.troubled.add(self.window)
            for wire in self.wires:
                wire.down, wire.deaf = event.what == "gone", False
        else:
            wire = self.wires[member]
            wire.down = event.what == "gone for one"
            wire.deaf = event.what == "lost"
            self.troubled.add(self.window)
        self._look()

    def _pass(self, ms: int) -> None:
        """Time passes; every second each member beats."""
        until_us = self.clock.now_us() + ms * 1000
        while self.beaten_us + SECOND <= until_us:
            self.beaten_us += SECOND
            self.clock.set_us(self.beaten_us)
            self._look()
            for wire, engine in zip(self.wires, self.engines, strict=True):
                if not wire.down and not wire.deaf:
                    engine.on_heartbeat()
        self.clock.set_us(until_us)

    def _look(self) -> None:
        if len({(wire.down, wire.deaf) for wire in self.wires}) > 1 or any(wire.deaf for wire in self.wires):
            self.troubled.add(self.window)


@settings(max_examples=300)
@given(events=EVENTS, amount=st.integers(1, 40), size=st.integers(1, 5))
def test_a_fixed_window(events: list[FallbackEvent], amount: int, size: int) -> None:
    fleet = FallbackFleet(FixedWindow(amount, WINDOW), size)
    for event in events:
        fleet.on(event)
    share = -(-amount // size)
    for window, admitted in fleet.admitted.items():
        assert admitted <= (2 * amount if window in fleet.troubled else amount + share)


@settings(max_examples=300)
@given(events=EVENTS, amount=st.integers(1, 40), burst=st.integers(1, 40), size=st.integers(1, 5))
def test_a_token_bucket(events: list[FallbackEvent], amount: int, burst: int, size: int) -> None:
    fleet = FallbackFleet(TokenBucket(amount, WINDOW, burst), size)
    for event in events:
        fleet.on(event)
    share = -(-burst // size)
    for window, admitted in fleet.admitted.items():
        passes = amount + burst  # of one bucket, in any window
        assert admitted <= (2 * passes if window in fleet.troubled else passes + share)


@settings(max_examples=100)
@given(events=EVENTS, size=st.integers(1, 5))
def test_two_seconds_after_it_is_back_it_alone_decides(events: list[FallbackEvent], size: int) -> None:
    fleet = FallbackFleet(FixedWindow(100, WINDOW), size)
    for event in events:
        fleet.on(event)
    fleet.on(FallbackEvent(0, 0, "back", 1))
    for member in range(size):
        for _ in range(4):  # whoever is asked, notices
            fleet.on(FallbackEvent(250, member, "take", 1))
    fleet._pass(2000)
    for engine, wire, meter in zip(fleet.engines, fleet.wires, fleet.meters, strict=True):
        before = engine.degraded_count
        meter.decide("key", 1)
        calls = wire.calls
        outcome = meter.decide("key", 1)
        assert (engine.state(), wire.calls - calls, engine.degraded_count - before) == (CLOSED, 1, 0)
        assert outcome[1] <= 100
