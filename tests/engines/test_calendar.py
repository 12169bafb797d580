"""Days, weeks and months of a time zone, by the clock of the engine that decides."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from headgate.algorithms.decision import Charge
from headgate.algorithms.limit import DAY
from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import Engine
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import RedisServer


def instant_us(text: str, zone: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1_000_000


# When the day is, which zone, how long that day lasts in hours.
DAYS = [
    ("2024-03-31", "Europe/Berlin", 23),
    ("2024-10-27", "Europe/Berlin", 25),
    ("2024-11-05", "Asia/Shanghai", 24),
    ("2024-04-26", "Africa/Cairo", 23),  # the clocks jump over midnight: the day starts at one
    ("2024-10-31", "Africa/Cairo", 25),
    ("2024-04-07", "Australia/Lord_Howe", 24.5),
]


@pytest.mark.parametrize(("day", "zone", "hours"), DAYS)
def test_a_day_is_as_long_as_it_is(day: str, zone: str, hours: float, driven_server: RedisServer) -> None:
    noon_us = instant_us(f"{day}T12:00", zone)
    clock = ManualClock(noon_us)
    engines: list[Engine] = [MemoryEngine(clock), RedisEngine(driven_server.unix_url, clock=clock)]
    for engine in engines:
        limiter = Limiter(f"2/day fixed in {zone}", engine)

        def turn(now_us: int) -> None:
            clock.set_us(now_us)
            driven_server.clock.set_us(now_us)

        turn(noon_us)
        end_us = noon_us + limiter.take("key", 2).verdicts[0].reset_after_us
        turn(end_us - 1)
        assert limiter.take("key").retry_after == 1e-6
        turn(end_us - round(hours * 3_600_000_000))
        assert limiter.take("other").reset_after == hours * 3600  # from its first instant to its last
        turn(end_us)
        assert limiter.take("key", 2)
        engine.close()


@pytest.mark.parametrize("skew_us", [0, DAY, -DAY, 40 * DAY, -40 * DAY, 4000 * DAY, -4000 * DAY])
async def test_the_servers_calendar_counts_not_the_callers(skew_us: int, driven_server: RedisServer) -> None:
    """The caller sends the boundaries around its own now; where the server's lies outside, it asks once more."""
    now_us = instant_us("2024-11-15T08:00", "Asia/Shanghai")
    driven_server.clock.set_us(now_us)
    ours = ManualClock(now_us + skew_us)
    until_december = instant_us("2024-12-01T00:00", "Asia/Shanghai") - now_us
    limiter = Limiter("3/month fixed in Asia/Shanghai", RedisEngine(driven_server.unix_url, clock=ours))
    taken = limiter.take("key", 3)
    assert taken.verdicts[0].reset_after_us == until_december
    assert limiter.take("key").retry_after == until_december / 1_000_000
    limiter.refund(taken, 1)
    assert limiter.peek("key").remaining == 1
    joint = limiter.take_all([Charge("key"), Charge("key", "1/week fixed in Asia/Shanghai"), Charge("key", "9/s")])
    assert [verdict.remaining for verdict in joint.verdicts] == [0, 0, 8]
    place = limiter.reserve("key", 3)
    assert place.decision.delay_us == until_december
    place.cancel()
    limiter.close()

    waiter = AsyncLimiter("3/month fixed in Asia/Shanghai", AsyncRedisEngine(driven_server.unix_url, clock=ours))
    assert not await waiter.take("key")
    both = await waiter.take_all(
        [("new", "1/week fixed in Asia/Shanghai"), ("new", "9/year fixed in Asia/Shanghai")]
    )
    assert both.allowed
    await waiter.refund(both)
    await waiter.close()


def test_one_question_is_enough_where_the_clocks_agree(driven_server: RedisServer) -> None:
    """And a second one only where they do not; counted by the server."""
    clock = ManualClock(driven_server.clock.now_us())
    limiter = Limiter("3/day fixed in Asia/Shanghai", RedisEngine(driven_server.unix_url, clock=clock))
    limiter.take("key")
    before = _scripts_run(driven_server)
    limiter.take("key")
    assert _scripts_run(driven_server) == before + 1
    clock.advance(400 * 86_400)
    limiter.take("key")
    assert _scripts_run(driven_server) == before + 3
    limiter.close()


def _scripts_run(server: RedisServer) -> int:
    stats = server.call("INFO", "commandstats")
    assert isinstance(stats, bytes)
    line = next(line for line in stats.decode().splitlines() if line.startswith("cmdstat_evalsha:"))
    return int(line.partition("calls=")[2].partition(",")[0])
