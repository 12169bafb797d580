"""Charge options across several scripts and many keys: batches, slots of a cluster, tables that stay small.

What terms mean in one question is told in tests/contract/test_charge_options.py, on every engine.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from headgate.algorithms.decision import (
    ALLOWED,
    REMAINING,
    CrossSlotOutcome,
    DegradedOutcome,
    LockedOutcome,
    Outcome,
    OverriddenOutcome,
)
from headgate.algorithms.limit import HOUR, MINUTE, SECOND
from headgate.algorithms.lockout import Lockout
from headgate.clock import ManualClock
from headgate.engines import deadlines
from headgate.engines.charge_options import ChargeOptions, group_by_rule
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import Meter
from headgate.engines.redis import cross_slot, take_all
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.protocol import RedisRequest
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable
from headgate.flow import run
from headgate.limit_syntax import parse
from tests.servers import Cluster, RedisServer

SHADOW = ChargeOptions("shadow", is_shadow=True)
LOGIN = ChargeOptions("login", lockout=Lockout(2, MINUTE, HOUR))
API = ChargeOptions("api", overrides=True)


@pytest.fixture
def engine(cluster: Cluster) -> Iterator[RedisEngine]:
    engine = RedisEngine(cluster.url, deadline=5)
    yield engine
    engine.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shadows of other nodes are waited for, however busy the machine is."""
    monkeypatch.setattr(deadlines, "FALLBACK_DEADLINE_S", 5.0)


@pytest.fixture
def keys(cluster: Cluster) -> list[str]:
    """A key for each master."""
    names = [f"key{n}" for n in range(100)]
    return [next(key for key in names if cluster.master_of(key) is master) for master in cluster.masters()]


def kinds(outcomes: Sequence[Outcome]) -> list[type]:
    return [type(each) for each in outcomes]


def left(outcomes: Sequence[Outcome]) -> list[int]:
    return [each[REMAINING] for each in outcomes]


def allowed(outcomes: Sequence[Outcome]) -> list[bool]:
    return [each[ALLOWED] for each in outcomes]


def test_a_part_is_one_rules_charges_or_as_many_plain_ones_as_follow_each_other() -> None:
    engine = MemoryEngine()
    terms = [None, ChargeOptions("silent"), LOGIN, LOGIN, LOGIN, SHADOW, SHADOW, None]
    named = ["a", "b", "a", "a", "b", "b", "b", "b"]
    charges = [(engine.meter(parse("1/s"), str(n), each), named[n], 1) for n, each in enumerate(terms)]
    assert [[meter.name for meter, _, _ in part] for part in group_by_rule(charges)] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
        ["5", "6"],
        ["7"],
    ]


def test_a_check_before_the_commit_charges_only_shadows(redis_server: RedisServer) -> None:
    engine = RedisEngine(redis_server.unix_url)
    meters = [
        engine.meter(parse("1/hour"), name, terms) for name, terms in (("a", None), ("b", SHADOW), ("c", LOGIN))
    ]

    def decide(mode: int) -> list[Outcome]:
        charges = [(meter.builder, "key", 1) for meter in meters]
        return take_all.parse_outcomes(engine.execute(take_all.joint_request(charges, None, 0, mode)), charges)

    assert (allowed(decide(take_all.DRY_RUN)), redis_server.call("DBSIZE")) == ([True] * 3, 0)
    assert (left(decide(take_all.PRECHECK)), redis_server.call("KEYS", "*")) == ([1, 0, 1], [b"hg2:tb:b:{key}"])
    assert allowed(decide(take_all.COMMIT)) == [True, False, True]
    assert kinds([decide(take_all.PRECHECK)[2] for _ in range(2)]) == [tuple, LockedOutcome]
    engine.close()


@pytest.mark.usefixtures("patient")
def test_several_slots_of_which_one_is_live_need_one_round(engine: RedisEngine, keys: list[str]) -> None:
    a, b, c = keys
    live, shadow = engine.meter(parse("1/day"), "live"), engine.meter(parse("9/day"), "shadow", SHADOW)
    charges: list[tuple[Meter, str, int]] = [(live, a, 1), (shadow, a, 1), (shadow, b, 1), (shadow, c, 2)]
    outcomes = engine.decide_all(charges)
    assert (left(outcomes), kinds(outcomes)) == ([0, 8, 8, 7], [tuple] * 4)
    outcomes = engine.decide_all(charges)
    assert (allowed(outcomes), left(outcomes)) == ([False, True, True, True], [0, 7, 7, 5])


@pytest.mark.usefixtures("patient")
def test_a_shadow_is_charged_once_in_two_cluster_rounds(engine: RedisEngine, keys: list[str]) -> None:
    a, b, c = keys
    one, many = engine.meter(parse("1/day"), "one"), engine.meter(parse("9/day"), "many")
    shadow = engine.meter(parse("9/day"), "shadow", SHADOW)
    charges: list[tuple[Meter, str, int]] = [
        (shadow, a, 1),
        (one, a, 1),
        (shadow, c, 1),
        (many, b, 1),
        (shadow, b, 1),
    ]
    outcomes = engine.decide_all(charges)
    assert (left(outcomes), {type(each) for each in outcomes}) == ([8, 0, 8, 8, 8], {CrossSlotOutcome})
    outcomes = engine.decide_all(charges)  # one of them refuses in the first round
    assert (allowed(outcomes), left(outcomes)) == ([True, False, True, True, True], [7, 0, 7, 8, 7])


def test_refusals_across_slots_are_counted_once(engine: RedisEngine, keys: list[str]) -> None:
    a, b, _ = keys
    login, many = engine.meter(parse("1/day"), "login", LOGIN), engine.meter(parse("9/day"), "many")
    charges: list[tuple[Meter, str, int]] = [(login, a, 1), (many, b, 1)]
    assert allowed(engine.decide_all(charges)) == [True, True]
    kinds = []
    for _ in range(3):
        refused = engine.decide_all(charges)
        assert (allowed(refused), refused[1][REMAINING]) == ([False, True], 8)
        kinds.append([isinstance(refused[0], kind) for kind in (LockedOutcome, CrossSlotOutcome)])
    assert kinds == [[False, True], [True, True], [True, True]]


@pytest.mark.usefixtures("patient")
async def test_the_awaited_engine_does_the_same(cluster: Cluster, keys: list[str]) -> None:
    a, b, _ = keys
    awaited = AsyncRedisEngine(cluster.url, deadline=5)
    assert await awaited.overrides("api").set(a, "3/day")
    meters = [
        awaited.meter(parse("1/day"), name, terms)
        for name, terms in (("api", API), ("many", None), ("login", LOGIN))
    ]
    outcomes = await awaited.decide_all([(meters[0], a, 1), (meters[1], b, 1), (meters[2], b, 1)])
    assert (left(outcomes), [isinstance(each, CrossSlotOutcome) for each in outcomes]) == ([2, 0, 0], [True] * 3)
    assert isinstance(outcomes[0], OverriddenOutcome)
    assert str(outcomes[0].limit) == "3/day"
    assert kinds([await meters[2].decide(b, 1) for _ in range(2)]) == [tuple, LockedOutcome]
    await awaited.close()


@pytest.mark.usefixtures("patient")
def test_a_peek_takes_one_cluster_round(engine: RedisEngine, cluster: Cluster, keys: list[str]) -> None:
    meters = [
        engine.meter(parse("1/day"), name, terms) for name, terms in (("a", None), ("b", SHADOW), ("c", LOGIN))
    ]
    charges = [(meter, key, 1) for meter, key in zip(meters, keys, strict=True)]
    for _ in range(3):
        outcomes = engine.decide_all(charges, commit=False)
        assert (allowed(outcomes), left(outcomes)) == ([True] * 3, [1] * 3)
    assert [node.call("DBSIZE") for node in cluster.masters()] == [0, 0, 0]


@pytest.mark.usefixtures("patient")
def test_a_cross_slot_rollback_uses_the_override_of_the_key(engine: RedisEngine, keys: list[str]) -> None:
    """Somebody takes the last unit elsewhere between the two rounds."""
    a, b, c = keys
    engine.overrides("api").set(a, "100/day")
    api = engine.meter(parse("1/day burst 50"), "api", API)
    last, shadow = engine.meter(parse("1/day"), "last"), engine.meter(parse("9/day"), "shadow", SHADOW)
    rounds = count(1)

    def execute_all(questions: Sequence[RedisRequest], deadlines: Sequence[float | None]) -> list[Any]:
        if next(rounds) == 2:
            assert last.decide(b, 1)[ALLOWED]
        return engine.execute_all(questions, deadlines)

    charges = [(each.builder, key, cost) for each, key, cost in ((api, a, 40), (last, b, 1), (shadow, c, 1))]
    outcomes = run(cross_slot.decide_by_slot(engine.execute, execute_all, charges, None, 0))
    assert (allowed(outcomes), next(rounds)) == ([True, False, True], 4)
    assert (left(outcomes), left([api.decide(a, 0), shadow.decide(c, 0)])) == ([100, 0, 8], [100, 8])
    assert isinstance(outcomes[0], OverriddenOutcome)


@pytest.mark.usefixtures("patient")
def test_a_calendar_that_was_guessed_wrong_charges_nothing_twice(cluster: Cluster, keys: list[str]) -> None:
    """The caller's clock is ten years behind: each group is asked again by itself, from its server's time."""
    a, b, _ = keys
    engine = RedisEngine(cluster.url, deadline=5, clock=ManualClock(1_400_000_000 * SECOND))
    month = engine.meter(parse("9/month fixed in Asia/Shanghai"), "month")
    shadow, many = engine.meter(parse("9/day"), "shadow", SHADOW), engine.meter(parse("9/day"), "many")
    outcomes = engine.decide_all([(month, a, 1), (shadow, b, 1), (many, b, 1)])
    assert (allowed(outcomes), left(outcomes)) == ([True] * 3, [8, 8, 8])
    engine.close()


def test_a_shadow_whose_server_hangs_is_in_nobodys_way(cluster: Cluster, keys: list[str]) -> None:
    a, b, c = keys
    engine = RedisEngine(cluster.url, deadline=0.5)
    live, shadow = engine.meter(parse("9/day"), "live"), engine.meter(parse("9/day"), "shadow", SHADOW)
    assert allowed(engine.decide_all([(live, a, 1), (live, b, 1), (live, c, 1)])) == [True] * 3
    hung = cluster.masters()[1]
    hung.pause()
    try:
        outcomes = engine.decide_all([(live, a, 1), (shadow, b, 1), (live, c, 1)])
        assert (allowed(outcomes), outcomes[0][REMAINING], outcomes[2][REMAINING]) == ([True] * 3, 7, 7)
        assert isinstance(outcomes[1], DegradedOutcome)
        with pytest.raises(EngineUnavailable):
            engine.decide_all([(shadow, b, 1)])
    finally:
        hung.resume()
        engine.close()


async def test_nor_is_it_waited_for_long(cluster: Cluster, keys: list[str]) -> None:
    """Far less than the engine's own deadline."""
    a, b, _ = keys
    blocking, awaiting = RedisEngine(cluster.url, deadline=30), AsyncRedisEngine(cluster.url, deadline=30)
    engines: list[Any] = [blocking, awaiting]
    hung = cluster.masters()[1]
    for engine in engines:
        live, shadow = engine.meter(parse("9/day"), "live"), engine.meter(parse("9/day"), "shadow", SHADOW)
        charges = [(live, a, 1), (shadow, b, 1)]
        decided = engine.decide_all(charges)
        assert allowed(await decided if engine is awaiting else decided) == [True] * 2
        hung.pause()
        try:
            began = time.monotonic()
            decided = engine.decide_all(charges)
            outcome = await decided if engine is awaiting else decided
            assert time.monotonic() - began < 10
            assert allowed(outcome) == [True] * 2
            assert isinstance(outcome[1], DegradedOutcome)
        finally:
            hung.resume()
    blocking.close()
    await awaiting.close()


def test_lockouts_stay_as_many_as_are_alive() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    meter = engine.meter(parse("1/s"), "login", ChargeOptions("login", lockout=Lockout(3, SECOND, SECOND)))
    for n in range(5000):
        meter.decide(f"key {n}", 2)
        clock.set_us(clock.now_us() + 100_000)
    assert len(engine) < 50


def test_a_count_under_a_longer_override_is_not_dropped_early() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    meter = engine.meter(parse("5/s log"), "api", API)
    engine.overrides("api").set("anna", "5/hour log")
    assert meter.decide("anna", 5)[ALLOWED]
    clock.set_us(clock.now_us() + 60 * SECOND)
    for n in range(100):
        meter.decide(f"key {n}", 1)
    assert not meter.decide("anna", 1)[ALLOWED]


def test_overrides_that_have_ended_are_dropped_as_others_come() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    for n in range(1000):
        engine.overrides("api").set(f"key {n}", "1/s", ttl=1)
        clock.set_us(clock.now_us() + 100_000)
    assert len(engine._overrides["api"].states) < 50


def test_a_plain_meter_takes_the_short_way(redis_server: RedisServer) -> None:
    """Terms that a lone charge need not know, such as a shadow's, change nothing of its question."""
    engine = RedisEngine(redis_server.unix_url)
    plain, shadow, login = (engine.meter(parse("1/s"), "x", each) for each in (None, SHADOW, LOGIN))
    requests = [meter.builder.decide("key", 1, None, 0) for meter in (plain, shadow)]
    assert requests[0] == requests[1]
    assert (plain._only_pool is engine.only_pool, shadow._only_pool is engine.only_pool, login._only_pool) == (
        True,
        True,
        None,
    )
    engine.close()
