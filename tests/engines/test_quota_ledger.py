"""Quota ledgers in memory and on real servers, sync and async; lost ledgers and servers that do not answer."""

from collections.abc import Iterator

import pytest

from headgate.algorithms.divisible_limit import ALL_GRANT_UNITS
from headgate.algorithms.limit import SECOND
from headgate.algorithms.quota_grants import QuotaGrant
from headgate.clock import ManualClock
from headgate.engines.layers.denial_cache import AsyncDenialCacheEngine, DenialCacheEngine
from headgate.engines.layers.fallback import FallbackEngine
from headgate.engines.layers.prefetch import AsyncPrefetchEngine, PrefetchEngine
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import Engine, Ledger
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.engines.url_options import FallbackMode
from headgate.errors import EngineUnavailable, InvalidCharge, InvalidRule
from headgate.limit_syntax import parse
from headgate.testing.sync_adapter import SyncAdapter
from tests.engines.layers.faulty_engine import ImmediateFallback, faulty_memory_engine
from tests.servers import BASE_US, RedisServer

LIMIT = parse("100/s")
PERIOD_US = 10**6 * SECOND
TTL_US, GRACE_US = 7 * SECOND, 3 * SECOND
KEY = "hg2:at:rule:{key}"
PATIENT = 30  # seconds: a busy machine is no outage


def ledger_of(engine: Engine, limit: str = "100/s") -> Ledger:
    return engine.quota_ledger(parse(limit), "rule", TTL_US, GRACE_US)


def per_second(grant: QuotaGrant | None) -> float | None:
    return None if grant is None else grant.units * SECOND / grant.period_us


def old(clock: ManualClock) -> MemoryEngine:
    """An engine in memory that began long ago."""
    now_us = clock.now_us()
    clock.set_us(now_us - 3600 * SECOND)
    engine = MemoryEngine(clock)
    clock.set_us(now_us)
    return engine


class MemoryLedgers:
    """The embedded engine under a clock, as a server would be asked."""

    def __init__(self, *, awaited: bool = False) -> None:
        self.clock = ManualClock(BASE_US)
        engine = old(self.clock)
        self.engine: Engine = SyncAdapter(AsyncMemoryEngine(engine)) if awaited else engine

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


class ServerLedgers:
    """A server under a driven clock."""

    def __init__(self, server: RedisServer, *, awaited: bool = False) -> None:
        self.server = server
        self.engine: Engine = (
            SyncAdapter(AsyncRedisEngine(server.unix_url, deadline=PATIENT))
            if awaited
            else RedisEngine(server.unix_url, deadline=PATIENT)
        )

    def advance(self, seconds: float) -> None:
        self.server.clock.advance_us(round(seconds * SECOND))


WORLDS = ["memory", "awaited memory", "redis", "awaited redis", "valkey", "awaited valkey"]


@pytest.fixture(params=WORLDS)
def ledgers(
    request: pytest.FixtureRequest, driven_redis: RedisServer, driven_valkey: RedisServer
) -> Iterator[object]:
    awaited, kind = request.param.startswith("awaited"), request.param.split()[-1]
    servers = {"redis": driven_redis, "valkey": driven_valkey}
    found = ServerLedgers(servers[kind], awaited=awaited) if kind in servers else MemoryLedgers(awaited=awaited)
    yield found
    found.engine.close()


def test_a_limit_is_divided_among_the_reporting_holders(ledgers: MemoryLedgers | ServerLedgers) -> None:
    ledger = ledger_of(ledgers.engine)
    grant = ledger.grant("key", "a", 400, 10 * SECOND)
    assert grant == QuotaGrant(72_500_000, PERIOD_US, 72, TTL_US, ALL_GRANT_UNITS * 725 // 1000)
    assert per_second(ledger.grant("key", "b", 2000, 10 * SECOND)) == 27.5
    assert per_second(ledger.grant("other key", "b", 2000, 10 * SECOND)) == 100
    ledgers.advance(5)
    assert per_second(ledger.grant("key", "a", 200, 5 * SECOND)) == 45
    ledgers.advance(5)
    assert per_second(ledger.grant("key", "b", 1000, 5 * SECOND)) == 55
    assert ledger.grant("key", "c", None) == QuotaGrant(0, PERIOD_US, 0, TTL_US, 0)
    assert ledger.grant("key", "c", 10**6, 0) == ledger.grant("key", "c", None)
    ledger.leave("key", "a")
    ledger.leave("never seen", "a")
    ledgers.advance(5)
    assert per_second(ledger.grant("key", "b", 1000, 5 * SECOND)) == pytest.approx(100 - 100 / 3, abs=0.001)
    assert ledger.limit == LIMIT
    assert ledger.name == "rule"


def test_empty_keys_and_holders_are_refused(ledgers: MemoryLedgers | ServerLedgers) -> None:
    ledger = ledger_of(ledgers.engine)
    for key, holder in (("", "a"), ("key", "")):
        with pytest.raises(InvalidCharge, match="not empty"):
            ledger.grant(key, holder, 1, SECOND)
        with pytest.raises(InvalidCharge, match="not empty"):
            ledger.leave(key, holder)
    with pytest.raises(InvalidCharge, match="0 units or more"):
        ledger.grant("key", "a", -1, SECOND)
    with pytest.raises(InvalidRule, match="cannot be divided"):
        ledger_of(ledgers.engine, "10 slots")
    with pytest.raises(InvalidRule, match="at most a day"):
        ledgers.engine.quota_ledger(LIMIT, "rule", 86_400 * SECOND, 1)


def test_a_new_engine_in_memory_listens_until_all_earlier_parts_have_run_out() -> None:
    clock = ManualClock(BASE_US)
    before = ledger_of(old(clock))
    assert per_second(before.grant("key", "a", 200, SECOND)) == 100  # then the process dies
    after = ledger_of(MemoryEngine(clock))
    assert after.grant("key", "b", 200, SECOND) is None
    clock.advance(5)
    assert after.grant("key", "b", 200, SECOND) is None
    clock.advance(4.999_999)
    assert after.grant("key", "a", 200, SECOND) is None
    assert after.grant("other key", "a", 200, SECOND) is None
    clock.advance(0.000_001)
    assert per_second(after.grant("key", "a", 200, SECOND)) == 50
    assert per_second(after.grant("third key", "a", 200, SECOND)) == 100


def test_a_clock_that_steps_back_does_not_make_memory_listen_for_long() -> None:
    clock = ManualClock(BASE_US)
    ledger = ledger_of(MemoryEngine(clock))
    clock.advance(-3600)
    assert ledger.grant("key", "a", 200, SECOND) is None
    clock.advance(10)
    assert per_second(ledger.grant("key", "a", 200, SECOND)) == 100
    assert per_second(ledger.grant("new", "a", 200, SECOND)) == 100


def test_ledgers_in_memory_are_dropped_when_they_are_dead() -> None:
    clock = ManualClock(BASE_US)
    engine = old(clock)
    ledger = ledger_of(engine)
    for number in range(1000):
        ledger.grant(f"key {number}", "a", 1, SECOND)
        clock.advance(1)
    assert len(engine) < 50


def test_a_ledger_survives_its_process_on_a_server(driven_server: RedisServer) -> None:
    first = RedisEngine(driven_server.unix_url, deadline=PATIENT)
    assert per_second(ledger_of(first).grant("key", "a", 200, SECOND)) == 100
    first.close()
    second = RedisEngine(driven_server.unix_url, deadline=PATIENT)
    assert per_second(ledger_of(second).grant("key", "b", 200, SECOND)) == 0
    second.close()


def test_a_key_lives_as_long_as_anything_may_be_in_use(driven_server: RedisServer) -> None:
    engine = RedisEngine(driven_server.unix_url, deadline=PATIENT)
    ledger = ledger_of(engine)
    ledger.grant("key", "a b", 0, SECOND)
    now_us = driven_server.time_us()
    half = ALL_GRANT_UNITS // 2
    assert driven_server.call("GET", KEY) == f"{now_us} 0\na%20b 0 {half} {now_us + 10 * SECOND}\n".encode()
    assert 9000 < int(str(driven_server.call("PTTL", KEY))) <= 10_000
    ledger.leave("key", "a b")
    assert driven_server.call("GET", KEY) == f"{now_us} 0\na%20b -1 {half} {now_us + 10 * SECOND}\n".encode()
    driven_server.clock.advance_us(10 * SECOND + 1000)
    assert driven_server.call("EXISTS", KEY) == 0
    ledger.leave("key", "a b")
    assert driven_server.call("EXISTS", KEY) == 0
    engine.close()


@pytest.mark.parametrize("awaited", [False, True])
def test_a_lost_ledger_grants_nothing_at_first_if_a_holder_had_grants(
    awaited: bool, driven_server: RedisServer
) -> None:
    ledgers = ServerLedgers(driven_server, awaited=awaited)
    ledger_of(ledgers.engine).grant("key", "a", 200, SECOND)
    ledgers.advance(4)
    driven_server.flush()
    changed = ledger_of(ledgers.engine, "50/s")  # the limit may have changed meanwhile
    assert changed.grant("key", "b", 200, SECOND) is None
    assert per_second(changed.grant("never told", "b", 200, SECOND)) == 50
    ledgers.advance(5.999_999)
    assert changed.grant("key", "a", 200, SECOND) is None
    ledgers.advance(0.000_001)
    assert per_second(changed.grant("key", "a", 200, SECOND)) == 25
    ledgers.engine.close()


def test_a_lost_ledger_without_reported_grants_grants_at_once(driven_server: RedisServer) -> None:
    first, second = (RedisEngine(driven_server.unix_url, deadline=PATIENT) for _ in range(2))
    ledger_of(first).grant("key", "a", 200, SECOND)
    assert per_second(ledger_of(second).grant("key", "b", 200, SECOND)) == 0
    driven_server.flush()
    assert per_second(ledger_of(second).grant("key", "b", 200, SECOND)) == 100  # as the law says: it knew of none
    first.close()
    second.close()


@pytest.mark.parametrize("instead", ["allow", "deny", "local", None])
def test_an_engine_that_does_not_answer_tells_nothing(instead: FallbackMode | None) -> None:
    clock = ManualClock(BASE_US)
    wire = faulty_memory_engine(clock)
    wire.engine = old(clock)
    engine = ImmediateFallback(wire, fallback=instead, clock=clock)
    ledger = ledger_of(engine)
    assert per_second(ledger.grant("key", "a", 200, SECOND)) == 100
    wire.down = True
    with pytest.raises(EngineUnavailable):
        ledger.grant("key", "a", 200, SECOND)
    wire.down, wire.deaf = False, True
    with pytest.raises(EngineUnavailable):
        ledger.grant("key", "b", 200, SECOND)
    wire.deaf = False
    clock.advance(9)
    assert per_second(ledger.grant("key", "b", 200, SECOND)) == 0
    clock.advance(1)
    assert per_second(ledger.grant("key", "a", 200, SECOND)) == 50  # b was noted, though its answer was lost
    engine.close()


def test_a_server_that_is_gone_tells_nothing() -> None:
    with RedisServer("redis") as server:
        engine = FallbackEngine(RedisEngine(server.unix_url, deadline=1), fallback="allow")
        ledger = ledger_of(engine)
        assert per_second(ledger.grant("key", "a", 200, SECOND)) == 100
        server.kill()
        with pytest.raises(EngineUnavailable):
            ledger.grant("key", "a", 200, SECOND)
        engine.close()


def test_engines_around_an_engine_let_it_divide() -> None:
    clock = ManualClock(BASE_US)
    engine = FallbackEngine(DenialCacheEngine(PrefetchEngine(old(clock), clock=clock), clock=clock), clock=clock)
    assert per_second(ledger_of(engine).grant("key", "a", 200, SECOND)) == 100
    engine.close()
    inner = AsyncDenialCacheEngine(AsyncPrefetchEngine(AsyncMemoryEngine(old(clock)), clock=clock), clock=clock)
    awaited = SyncAdapter(inner)
    assert per_second(ledger_of(awaited).grant("key", "a", 200, SECOND)) == 100
    awaited.close()
