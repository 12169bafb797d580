"""The commands of a decision: one request, one reading of the clock, and no write unless it passes."""

import pytest

from headgate.algorithms.decision import Charge
from headgate.clock import ManualClock
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import CorruptState
from headgate.limiter import Limiter
from tests.servers import RedisServer

LIMITS = [
    *("2/hour", "7/s burst 2", "1/s queue 1", "1/s queue 1 nodelay", "2/day fixed"),
    *(
        "2/month fixed in Asia/Shanghai",
        "2/hour sliding",
        "2/hour log",
        "1/hour smooth",
        "1/hour smooth warmup 60s",
    ),
]


def changes(server: RedisServer) -> int:
    """Returns how often anything was written."""
    info = server.call("INFO", "persistence")
    assert isinstance(info, bytes)
    return int(info.split(b"rdb_changes_since_last_save:")[1].split()[0])


def calls(server: RedisServer) -> dict[str, int]:
    """Returns how often each command was run, inside scripts too."""
    info = server.call("INFO", "commandstats")
    assert isinstance(info, bytes)
    lines = (line.partition(":") for line in info.decode().splitlines() if line.startswith("cmdstat_"))
    return {
        name.removeprefix("cmdstat_"): int(rest.partition("=")[2].partition(",")[0]) for name, _, rest in lines
    }


def new_calls(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in grown.items() if count and name != "info"}


@pytest.mark.parametrize("text", LIMITS)
def test_a_refusal_writes_nothing(text: str, driven_server: RedisServer) -> None:
    with Limiter(text, RedisEngine(driven_server.unix_url)) as limiter:
        while limiter.take("key", 2):
            pass
        before, others = changes(driven_server), calls(driven_server)
        for _ in range(5):
            assert not limiter.take("key", 2)
            assert not limiter.take("key", 10**15)
            assert not limiter.wait("key", 2, timeout=0.0)
            limiter.peek("key")
            limiter.peek("never seen")
            assert not limiter.take_all(
                [Charge("fresh", "9/s log", 3), Charge("fresh", "9/s", 3), Charge("key", None, 2)]
            )
        assert changes(driven_server) == before
        written = {"set", "setrange", "del", "unlink", "pexpire", "zadd"} & set(
            new_calls(others, calls(driven_server))
        )
        assert written == set()


@pytest.mark.parametrize("text", LIMITS)
def test_an_allowed_call_writes(text: str, driven_server: RedisServer) -> None:
    with Limiter(text, RedisEngine(driven_server.unix_url)) as limiter:
        before = changes(driven_server)
        assert limiter.take("key")
        assert changes(driven_server) > before


@pytest.mark.parametrize("text", LIMITS)
def test_a_take_is_one_question_and_one_reading_of_the_clock(text: str, driven_server: RedisServer) -> None:
    clock = ManualClock(driven_server.clock.now_us())
    with Limiter(text, RedisEngine(driven_server.unix_url, clock=clock)) as limiter:
        limiter.take("warm")  # the script is loaded, the line is open
        before = calls(driven_server)
        limiter.take("key")
        made = new_calls(before, calls(driven_server))
    assert (made.pop("evalsha"), made.pop("time")) == (1, 1)
    assert set(made) <= {"get", "set", "getrange", "setrange", "pexpire"}


def test_several_charges_are_one_question(driven_server: RedisServer) -> None:
    with Limiter("10/s; 500/hour", RedisEngine(driven_server.unix_url)) as limiter:
        limiter.take("warm")
        before = calls(driven_server)
        limiter.take("key", 3)
        assert new_calls(before, calls(driven_server)) == {"evalsha": 1, "time": 1, "get": 2, "set": 2}


def test_several_charges_of_which_one_count_is_not_ours(driven_server: RedisServer) -> None:
    """It is left as it is, and the other is not charged."""
    with Limiter("10/s; 500/hour", RedisEngine(driven_server.unix_url)) as limiter:
        driven_server.call("LPUSH", "hg2:tb:500/hour:{key}", "theirs")
        with pytest.raises(CorruptState, match=r"the key hg2:tb:500/hour:\{key\} holds"):
            limiter.take("key")
        assert driven_server.call("KEYS", "*") == [b"hg2:tb:500/hour:{key}"]
        assert driven_server.call("TYPE", "hg2:tb:500/hour:{key}") == b"list"


def test_a_refund_that_gives_nothing_writes_nothing(driven_server: RedisServer) -> None:
    with Limiter("10/s", RedisEngine(driven_server.unix_url)) as limiter:
        taken = limiter.take("key", 10)
        driven_server.clock.advance_us(1_000_000)
        limiter.take("key", 10)
        before = changes(driven_server)
        limiter.refund(taken)
        assert changes(driven_server) == before
