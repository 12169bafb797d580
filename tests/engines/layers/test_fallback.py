"""The fallback engine as stories: who answers when the engine does not, and how it recovers."""

import logging

import pytest

from headgate.algorithms.decision import DegradedOutcome, Receipt
from headgate.clock import ManualClock
from headgate.engines.layers.fallback import FallbackEngine
from headgate.engines.layers.fallback.breaker import CLOSED, OPEN, SETTLING
from headgate.engines.layers.fallback.membership import Membership
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.url_options import FallbackMode
from headgate.errors import InvalidCharge, InvalidRule
from headgate.limit_syntax import parse
from headgate.limiter import Limiter
from tests.engines.layers.faulty_engine import FaultyEngine, ImmediateFallback, faulty_memory_engine

DAY = "100/day fixed"


def members(count: int, rank: int) -> Membership:
    membership = Membership()
    membership.note_reply(count, rank)
    return membership


def stands(
    instead: FallbackMode, clock: ManualClock, count: int = 1, rank: int = 0, parts: bool = False
) -> tuple[ImmediateFallback, FaultyEngine]:
    wire = faulty_memory_engine(clock, parts)
    return ImmediateFallback(wire, fallback=instead, members=members(count, rank), clock=clock), wire


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("instead", ["allow", "deny", "local"])
def test_no_exception_reaches_a_caller(instead: FallbackMode, clock: ManualClock) -> None:
    engine, wire = stands(instead, clock, 2)
    limiter, held = Limiter("10/s; 100/day fixed", engine, clock=clock), Limiter("3 slots", engine, clock=clock)
    before, lease = limiter.take("key"), held.acquire("key")
    wire.down = True
    for _ in range(12):
        limiter.take("key")
        limiter.peek("key")
        limiter.reserve("key").cancel()
        taken = limiter.take_all([("key", "5/s"), ("other", "7/minute log")])
        limiter.refund(taken)
        limiter.refund(before)
        limiter.set_limit("20/s; 100/day fixed", "key")
        limiter.reset("key")
        held.peek("key")
        held.reset("other")
        lease.renew()
        if instead != "deny":
            held.acquire("key").release()
        clock.advance(0.07)
    lease.release()  # it ends by itself
    assert engine.lost_refunds == 2  # of the decision before, which had two counts
    assert engine.lost_resets
    assert engine.opened_count == 1
    with pytest.raises(InvalidCharge):
        limiter.take("key", -1)
    with pytest.raises(InvalidCharge):
        engine.decide_all([(MemoryEngine().meter(parse("1/s"), "other"), "key", 1)])
    limiter.close()
    assert wire.closed


def test_a_word_that_is_no_fallback() -> None:
    with pytest.raises(InvalidRule, match='"allow", "deny" or "local", not \'open\''):
        FallbackEngine(MemoryEngine(), fallback="open")  # type: ignore[arg-type]


def test_allow_refuses_nothing(clock: ManualClock) -> None:
    engine, wire = stands("allow", clock)
    meter = engine.meter(parse("1/day fixed"), "limit")
    assert not isinstance(meter.decide("key", 1), DegradedOutcome)
    wire.down = True
    for _ in range(50):
        outcome = meter.decide("key", 1000)
        assert isinstance(outcome, DegradedOutcome)
        assert outcome[:5] == (True, 0, 0, 0, 0)
        clock.advance(0.03)
    wire.down = False
    clock.advance(0.5)
    assert meter.decide("key", 1)[0] is False  # at once it is the engine that decides
    assert engine.state() is CLOSED
    assert engine.degraded_count == 50


def test_deny_passes_nothing_and_says_when_to_come_back(clock: ManualClock) -> None:
    engine, wire = stands("deny", clock)
    meter = engine.meter(parse("100/s"), "limit")
    wire.down = True
    waits = [meter.decide("key", 1)[2] for _ in range(4)]
    assert waits == [100_000] * 4
    wire.down = False
    clock.advance(0.099)
    assert meter.decide("key", 1)[:3] == (False, 0, 1000)  # open: nobody asks
    clock.advance(0.001)
    assert meter.decide("key", 1)[:2] == (True, 99)


def test_three_failures_and_nobody_asks_until_one_call_probes(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.meter(parse(DAY), "limit")
    wire.down = True
    for _ in range(10):
        meter.decide("key", 1)
    assert (wire.calls, engine.state()) == (3, OPEN)
    clock.advance(0.1)
    for _ in range(10):
        meter.decide("key", 1)
    assert wire.calls == 4


def test_single_degraded_calls_are_settled_at_once(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.meter(parse(DAY), "limit")
    for _ in range(20):
        wire.down = True
        assert isinstance(meter.decide("key", 1), DegradedOutcome)
        wire.down = False
        assert not isinstance(meter.decide("key", 1), DegradedOutcome)
    assert (engine.state(), engine.opened_count, engine.degraded_count) == (CLOSED, 0, 20)
    assert meter.decide("key", 0)[1] == 60
    assert engine.shard_of("key").is_healthy
    assert not engine.shard_of("key").counts


def test_a_share_is_a_part_of_the_remaining_units(clock: ManualClock) -> None:
    engine, wire = stands("local", clock, count=4, rank=3)
    meter = engine.meter(parse(DAY), "limit")
    meter.decide("known", 50)  # 50 are left, of which 12 or 13 are ours
    wire.down = True
    assert sum(meter.decide("known", 1)[0] for _ in range(100)) == 12
    assert sum(meter.decide("unknown", 1)[0] for _ in range(100)) == 25
    clock.advance(86400)
    assert sum(meter.decide("known", 1)[0] for _ in range(100)) == 25


def test_a_limit_smaller_than_the_number_of_members(clock: ManualClock) -> None:
    passed = []
    for rank in range(3):
        engine, wire = stands("local", clock, count=3, rank=rank)
        wire.down = True
        meter = engine.meter(parse("2/day fixed"), "limit")
        other = engine.meter(parse("100/day fixed"), "other")
        passed.append(sum(meter.decide("key", 1)[0] for _ in range(5)))
        together = engine.decide_all([(meter, "joint", 1), (other, "joint", 1)])
        assert all(outcome[0] for outcome in together) == (rank < 2)
        assert other.decide("joint", 0)[1] == 33 + (rank == 0) - (rank < 2)
    assert passed == [1, 1, 0]


def test_only_so_many_counts_are_remembered(clock: ManualClock) -> None:
    engine = ImmediateFallback(faulty_memory_engine(clock), fallback="local", clock=clock, max_recent=10)
    meter = engine.meter(parse(DAY), "limit")
    for number in range(100):
        meter.decide(f"key {number}", 1)
    assert 5 <= len(engine.recent) <= 10


def test_recovery_does_not_admit_a_second_burst(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.meter(parse("100/day fixed"), "limit")
    wire.down = True
    assert sum(meter.decide("key", 1)[0] for _ in range(150)) == 100
    assert sum(meter.decide("idle", 1)[0] for _ in range(30)) == 30
    wire.down = False
    clock.advance(0.1)
    assert not meter.decide("key", 1)[0]
    assert engine.state() is SETTLING
    inner = wire.engine.meter(parse("100/day fixed"), "limit")
    assert inner.decide("key", 0)[1] == 0
    assert inner.decide("idle", 0)[1] == 70  # told in the background
    clock.advance(1)
    assert not isinstance(meter.decide("key", 1), DegradedOutcome)
    assert (engine.state(), len(engine.shard_of("key").counts)) == (CLOSED, 0)


def test_a_settlement_that_does_not_fit_is_charged_in_part(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    inner = wire.engine.meter(parse(DAY), "limit")
    meter = engine.meter(parse(DAY), "limit")
    wire.down = True
    for _ in range(40):
        meter.decide("key", 1)
    inner.decide("key", 70)  # by others, who could ask
    wire.down = False
    clock.advance(0.1)
    assert not meter.decide("key", 1)[0]
    assert inner.decide("key", 0)[1] == 0


def test_while_settling_a_call_must_pass_both(clock: ManualClock) -> None:
    engine, wire = stands("local", clock, count=2)
    meter = engine.meter(parse("10/day fixed"), "limit")
    inner = wire.engine.meter(parse("10/day fixed"), "limit")
    wire.down = True
    for _ in range(3):
        assert meter.decide("key", 1)[0]
    wire.down = False
    clock.advance(0.1)
    passed = [meter.decide("key", 1) for _ in range(4)]
    assert [outcome[0] for outcome in passed] == [True, True, False, False]  # a share is five
    assert [isinstance(outcome, DegradedOutcome) for outcome in passed] == [False, False, True, True]
    assert inner.decide("key", 0)[1] == 5
    # Where the engine refuses, the share's unit is given back.
    inner.decide("other", 10)
    assert not meter.decide("other", 1)[0]
    assert engine.shard_of("other").counts[meter.tag("other")].meter.decide("other", 0)[1] == 5
    clock.advance(1)
    assert sum(meter.decide("key", 1)[0] for _ in range(10)) == 5


def test_a_request_without_a_reply_is_not_sent_again(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.meter(parse(DAY), "limit")
    wire.deaf = True
    assert meter.decide("key", 1)[0]
    assert wire.calls == 1


def test_an_idle_member_is_woken_by_its_beat(clock: ManualClock) -> None:
    wire = faulty_memory_engine(clock)
    beats = Membership(heartbeat=lambda _: (1, 0), interval_s=3600)
    engine = ImmediateFallback(wire, fallback="local", clock=clock, members=beats)
    meter = engine.meter(parse(DAY), "limit")
    wire.down = True
    for _ in range(5):
        meter.decide("key", 1)
    wire.down = False
    beats.heartbeat_once()
    assert engine.state() is SETTLING
    assert wire.engine.meter(parse(DAY), "limit").decide("key", 0)[1] == 95
    engine.close()


def test_parts_fail_apart(clock: ManualClock) -> None:
    engine, wire = stands("deny", clock, parts=True)
    meter = engine.meter(parse(DAY), "limit")
    wire.down_parts = {"b"}
    for _ in range(5):
        assert meter.decide("alpha", 1)[0]
        assert not meter.decide("beta", 1)[0]
    assert (engine.state("a"), engine.state("b")) == (CLOSED, OPEN)
    clock.advance(0.1)
    # Together they are asked only if both may be; the probe that was not made is left to another.
    engine.shard_of("alpha").breaker = engine.shard_of("beta").breaker._replace(until_us=clock.now_us() + 1)
    assert not engine.decide_all([(meter, "beta", 1), (meter, "alpha", 1)])[0][0]
    assert engine.state("b") is OPEN
    wire.down_parts = set()
    assert meter.decide("beta", 1)[0]


def test_a_refund_goes_to_whoever_admitted(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.meter(parse(DAY), "limit")
    inner = wire.engine.meter(parse(DAY), "limit")
    before = meter.decide("key", 10)
    wire.down = True
    here = meter.decide("key", 20)
    assert meter.refund("key", 20, Receipt.from_outcome(here, 20))[1] == 90
    assert meter.refund("key", 10, Receipt.from_outcome(before, 10))[1] == 90  # lost
    assert engine.lost_refunds == 1
    gone = meter.decide("key", 30)
    wire.down = False
    clock.advance(0.1)
    meter.decide("key", 1)
    clock.advance(1)
    meter.decide("key", 1)
    assert inner.decide("key", 0)[1] == 58
    meter.refund("key", 30, Receipt.from_outcome(gone, 30))  # its share is gone, and the engine was told a sum
    assert inner.decide("key", 0)[1] == 58
    meter.refund("key", 10, Receipt.from_outcome(before, 10))
    assert inner.decide("key", 0)[1] == 68


def test_a_refund_of_an_uncounted_call_gives_nothing_back(clock: ManualClock) -> None:
    engine, wire = stands("allow", clock)
    meter = engine.meter(parse("1/s queue 9 nodelay"), "limit")
    wire.down = True
    allowed = meter.decide("key", 5)
    wire.down = False
    assert meter.decide("key", 5)[1] == 5
    meter.refund("key", 5, Receipt.from_outcome(allowed, 5))
    assert meter.decide("key", 0)[1] == 5


def test_a_reset_forgets_in_both_places(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.meter(parse(DAY), "limit")
    meter.decide("key", 60)
    wire.down = True
    meter.decide("key", 30)
    meter.reset("key")
    assert meter.decide("key", 100)[0]
    wire.down = False
    meter.reset("key")
    assert meter.decide("key", 100)[0]


def test_a_reset_count_starts_as_new(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.meter(parse(DAY), "limit")
    meter.decide("key", 60)
    meter.reset("key")
    wire.down = True
    assert meter.decide("key", 100)[0]


def test_a_refund_of_an_earlier_outage_gives_nothing_in_this_one(clock: ManualClock) -> None:
    engine, wire = stands("local", clock)
    meter = engine.meter(parse(DAY), "limit")
    wire.down = True
    earlier = meter.decide("key", 30)
    wire.down = False
    clock.advance(1)
    meter.decide("key", 10)
    wire.down = True
    assert meter.decide("key", 1)[1] == 59
    assert meter.refund("key", 30, Receipt.from_outcome(earlier, 30))[1] == 59


def test_coming_and_going_is_one_outage(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    engine, wire = stands("local", clock)
    meter = engine.meter(parse(DAY), "limit")
    for _ in range(5):
        wire.down = True
        for _ in range(4):
            meter.decide("key", 1)
        wire.down = False
        clock.advance(0.5)
        meter.decide("key", 1)
    assert (engine.opened_count, len(caplog.messages)) == (5, 1)
    clock.advance(1)
    meter.decide("key", 1)
    assert len(caplog.messages) == 2


def test_one_line_when_it_is_gone_and_one_when_it_is_back(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    engine, wire = stands("local", clock, count=4, rank=1)
    meter = engine.meter(parse(DAY), "limit")
    wire.down = True
    for _ in range(50):
        meter.decide("key", 1)
        clock.advance(0.1)
    wire.down = False
    for _ in range(20):
        meter.decide("key", 1)
        clock.advance(0.1)
    assert [record.levelno for record in caplog.records if record.name == "headgate"] == [logging.WARNING] * 2
    gone, back = caplog.messages
    assert gone == ("headgate: Nobody is there. Deciding locally by a share of 1/4 (rank 1) until it answers.")
    assert back.startswith("headgate: The engine answers again after 5.")
    assert back.endswith(" calls were decided locally.")


def test_a_fork_forgets(clock: ManualClock) -> None:
    engine, wire = stands("local", clock, count=2)
    meter = engine.meter(parse(DAY), "limit")
    wire.down = True
    for _ in range(5):
        meter.decide("key", 1)
    engine.reset_after_fork()
    engine.members.reset_after_fork()
    assert (engine.state(), len(engine.recent), engine.members.position) == (CLOSED, 0, (3, None))
    assert meter.decide("key", 1)[0]
