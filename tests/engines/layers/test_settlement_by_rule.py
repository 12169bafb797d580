"""Settlement by rule: accounts are settled for rules that share a limit and for no others; and where a share
starts.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate.algorithms.decision import ALLOWED, REMAINING, DegradedOutcome, LockedOutcome
from headgate.algorithms.lockout import Lockout
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.fallback import AsyncFallbackEngine, FallbackEngine
from headgate.engines.layers.fallback.breaker import CLOSED, SETTLING
from headgate.engines.layers.fallback.membership import AsyncMembership, Membership
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from tests.engines.layers.fallback_harness import DAY, FallbackHarness, allowed_and_remaining, assert_unavailable
from tests.engines.layers.faulty_engine import FaultyEngine, ImmediateFallback, faulty_memory_engine


@pytest.fixture(params=[False, True], ids=["blocking", "awaited"])
def harness(request: pytest.FixtureRequest) -> Iterator[FallbackHarness]:
    harness = FallbackHarness(awaited=request.param)
    yield harness
    harness.engine.close()


def test_a_share_takes_its_charge_back_if_another_rule_fails_or_refuses() -> None:
    for word, failing in (("deny", False), (None, True)):
        harness = FallbackHarness()
        local, other = harness.rule("local", "local"), harness.rule("other", word)  # type: ignore[arg-type]
        harness.outage()
        for _ in range(3):
            local.decide("k", 1)
        harness.back()
        local.decide("k", 1)
        assert harness.inside.state() is SETTLING  # both must pass, and the engine goes away again
        held = harness.share(local).decide("k", 0)[REMAINING]
        harness.outage()
        if failing:
            assert_unavailable(lambda: harness.together((local, "k", 1), (other, "k", 1)))  # noqa: B023
        else:
            assert list(map(allowed_and_remaining, harness.together((local, "k", 1), (other, "k", 1)))) == [
                (True, held),
                (False, 0),
            ]
        assert harness.share(local).decide("k", 0)[REMAINING] == held
        assert not harness.inside.shards[0].unsettled


def test_a_shadow_refusal_after_an_outage_gives_nothing_back() -> None:
    harness = FallbackHarness()
    aside, local = harness.rule("aside", is_shadow=True), harness.rule("local", "local")
    harness.outage()
    for _ in range(3):
        local.decide("k", 1)
    harness.back()
    local.decide("k", 1)
    assert harness.inside.state() is SETTLING
    share = harness.share(local)
    before = share.decide("k", 0)[REMAINING]
    answers = harness.together((aside, "k", 99), (local, "k", 1))
    assert [outcome[ALLOWED] for outcome in answers] == [False, True]
    assert share.decide("k", 0)[REMAINING] == before - 1
    answers = harness.together((aside, "k", 1), (local, "k", 6))  # more than the share has
    assert list(map(allowed_and_remaining, answers)) == [(True, 0), (False, before - 1)]


def test_only_local_fallbacks_are_settled() -> None:
    harness = FallbackHarness()
    local, allow, none = harness.rule("local", "local"), harness.rule("allow", "allow"), harness.rule("none")
    harness.outage()
    for _ in range(5):
        local.decide("k", 1)
    harness.back()
    assert not isinstance(allow.decide("k", 1), DegradedOutcome)
    assert harness.inside.state() is SETTLING
    assert allowed_and_remaining(local.decide("k", 1)) == (False, 0)  # its share is used up
    assert allow.decide("k", 8)[:2] == (True, 1)
    assert none.decide("k", 8)[:2] == (True, 2)
    assert harness.together((allow, "k", 1), (none, "k", 1))[1][:2] == (True, 1)
    refused = harness.together((allow, "l", 1), (none, "l", 1), (local, "k", 1))
    assert [outcome[ALLOWED] for outcome in refused] == [True, True, False]
    assert allow.decide("l", 0)[REMAINING] == 10
    harness.clock.advance(1.1)
    assert local.decide("k", 1)[:2] == (True, 4)
    assert harness.inside.state() is CLOSED


def test_a_rule_without_a_fallback_waits_while_accounts_are_settled() -> None:
    """In a hurry a call leaves the telling to the background; not if nothing else can answer it."""

    class SlowEngine(FaultyEngine):
        def call(self, key: str, verb: Callable[..., Any], *words: Any) -> Any:
            clock.advance(0.02)
            return super().call(key, verb, *words)

    harness = FallbackHarness()
    clock = harness.clock
    harness.engine = harness.inside = ImmediateFallback(
        SlowEngine(harness.wire.engine), fallback=None, clock=clock, members=harness.inside.members, deadline=1.0
    )
    patient, hurried = harness.rule("p", "local"), harness.rule("h", "local", deadline=0.05)
    none = harness.rule("none", deadline=0.05)
    for meter in (patient, hurried):
        harness.inside.inner.down = True
        for _ in range(4):
            meter.decide("k", 1)
        harness.inside.inner.down = False
        clock.advance(0.6)
        assert isinstance(meter.decide("k", 1), DegradedOutcome) is (meter is hurried)
        clock.advance(5)
        meter.decide("k", 0)
        clock.advance(5)
    harness.inside.inner.down = True
    for _ in range(4):
        hurried.decide("l", 1)
    harness.inside.inner.down = False
    clock.advance(0.6)
    assert not any(
        isinstance(each, DegradedOutcome) for each in harness.together((hurried, "l", 1), (none, "l", 1))
    )


def test_members_are_joined_when_the_first_rule_is_local() -> None:
    beats: list[str] = []

    def beat(member: str) -> tuple[int, int]:
        beats.append(member)
        return 2, 0

    membership = Membership(beat, interval_s=0.01)
    clock = ManualClock()
    wire = faulty_memory_engine(clock)
    engine = FallbackEngine(wire, fallback=None, members=membership, clock=clock)
    engine.meter(DAY, "none")
    allow = engine.meter(DAY, "allow", ChargeOptions("allow", fallback="allow"))
    engine.meter(DAY, "aside", ChargeOptions("aside", fallback="local", is_shadow=True))
    allow.decide("k", 1)
    assert not membership.engines
    assert not engine.uses_shares
    engine.meter(DAY, "local", ChargeOptions("local", fallback="local"))
    assert set(membership.engines) == {engine}
    wire.down = True
    for _ in range(3):
        allow.decide("k", 1)
    wire.down = False
    clock.advance(0.6)
    allow.decide("k", 1)
    assert engine.state() is SETTLING  # also for a part that was known before
    engine.close()
    assert not membership.engines
    assert len(set(beats)) <= 1


async def test_heartbeats_start_with_the_first_call_of_any_rule() -> None:
    beats: list[str] = []

    async def beat(member: str) -> tuple[int, int]:
        beats.append(member)
        return 2, 0

    membership = AsyncMembership(beat)
    engine = AsyncFallbackEngine(
        AsyncMemoryEngine(faulty_memory_engine(ManualClock())), fallback=None, members=membership
    )
    none = engine.meter(DAY, "none")
    await none.decide("k", 1)
    await asyncio.sleep(0.01)
    assert not beats
    engine.meter(DAY, "local", ChargeOptions("local", fallback="local"))
    await none.decide("k", 1)
    await asyncio.sleep(0.01)
    assert beats
    assert membership.count == 2
    await engine.close()


def test_a_share_is_one_of_the_limit_that_decided_last(harness: FallbackHarness) -> None:
    local = harness.rule("own", "local", overrides=True)
    harness.engine.overrides("own").set("vip", "100/day fixed")
    assert local.decide("vip", 10)[:2] == (True, 90)
    local.decide("k", 2)
    harness.outage()
    assert allowed_and_remaining(local.decide("vip", 1)) == (True, 44)  # of the 90 that were left
    assert allowed_and_remaining(local.decide("k", 1)) == (True, 3)
    assert allowed_and_remaining(local.decide("new", 1)) == (
        True,
        4,
    )  # nobody has asked about it, so by the rule's


def test_outages_and_settlements_count_no_lockout_refusals() -> None:
    harness = FallbackHarness()
    lock = Lockout(1, 60_000_000, 60_000_000)
    local = harness.rule("login", "local", lockout=lock)
    other = harness.wire.engine.meter(DAY, "login")
    harness.outage()
    assert [local.decide("k", 1)[ALLOWED] for _ in range(8)] == [True] * 5 + [False] * 3
    other.decide("k", 7)  # another process is told of nothing
    harness.back()
    assert not isinstance(local.decide("k", 0), LockedOutcome)
    assert other.decide("k", 0)[REMAINING] == 0  # told what fits, of the five
    harness.clock.advance(2)
    assert isinstance(local.decide("k", 1), LockedOutcome)  # the engine's own refusal counts
