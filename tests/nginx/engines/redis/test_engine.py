"""The engine of a gateway on a real server: what it decides, together with whom, and what it gives back."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.algorithms.lockout import Lockout
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limit_syntax import parse
from headgate.limiter import Limiter
from tests.nginx.engines.redis.redis_harness import PATIENCE_S, NginxRedisError, RedisDriverNginx
from tests.servers import RedisServer

DAY = 86_400_000_000


def test_a_take_is_the_models(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"login": "2/day"})
    assert engine.take("login", "ada")[:2] == [1, 1]
    assert engine.take("login", "ada")[:2] == [1, 0]
    allowed, remaining, retry_us, *_ = engine.take("login", "ada")
    assert (allowed, remaining) == (0, 0)
    assert 0 < retry_us <= DAY / 2
    assert engine.take("login", "bob", 2)[:2] == [1, 0]
    assert engine.take("login", "eve", 3)[:3] == [0, 2, -1]
    assert engine.take("login", "eve", 2**60)[:3] == [0, 2, -1]
    assert engine.take("login", "eve", 0)[:2] == [1, 2]


@pytest.mark.parametrize("key", ["a b%{c}", "x" * 200, "y" * 201, "ü" * 150, "}", "\x7f\t", "user=ada"])
def test_a_key_is_pythons(gate: RedisDriverNginx, server: RedisServer, key: str) -> None:
    engine = gate.engine(server.url, {"login": "5/day fixed"})
    there = RedisEngine(server.url, deadline=PATIENCE_S).meter(parse("5/day fixed"), "login")
    assert engine.take("login", key)[1] == 4
    assert there.decide(key, 1)[1] == 3
    assert engine.take("login", key)[1] == 2


def test_both_drain_one_count(gate: RedisDriverNginx, server: RedisServer) -> None:
    """Python and nginx ask at the same time, four times as often as the limit: exactly the limit passes."""
    amount = 200
    engine = gate.engine(server.url, {"login": f"{amount}/day"})
    there = RedisEngine(server.url, deadline=PATIENCE_S).meter(parse(f"{amount}/day"), "login")
    with ThreadPoolExecutor(8) as pool:
        takes = [
            (
                pool.submit(lambda: bool(engine.take("login", "ada")[0])),
                pool.submit(lambda: bool(there.decide("ada", 1)[0])),
            )
            for _ in range(2 * amount)
        ]
        passed = [sum(each.result() for each in side) for side in zip(*takes, strict=True)]
    assert sum(passed) == amount
    assert min(passed) > 0, "one of them never came to it: the story tells nothing"


def test_many_at_once_in_one_worker(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"login": "50/day"})
    answer = engine.do("decide_many", charges=engine.charges(("login", "ada", 1)), commit=1, times=120)
    assert sum(each["answers"][0][0] for each in answer) == 50
    assert server.call("DBSIZE") == 1


@pytest.mark.parametrize("text", ["3/day", "3/day fixed", "3/day sliding", "3/day log"])
def test_all_or_none(gate: RedisDriverNginx, server: RedisServer, text: str) -> None:
    engine = gate.engine(server.url, {"one": text, "two": "1/day fixed"})
    both = (("one", "ada", 1), ("two", "ada", 1))
    assert [outcome[0] for outcome in engine.decide(*both, commit=0)] == [1, 1]
    assert [outcome[:2] for outcome in engine.decide(*both)] == [[1, 2], [1, 0]]
    refused = engine.decide(*both)
    assert [outcome[:2] for outcome in refused] == [[1, 2], [0, 0]]
    assert engine.take("one", "ada", 0)[1] == 2


def test_a_shadow_charge_has_its_verdict(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"live": "1/day", "shadow": "2/day"}, {"shadow": {"is_shadow": True}})
    both = (("live", "ada", 1), ("shadow", "ada", 1))
    assert [outcome[:2] for outcome in engine.decide(*both)] == [[1, 0], [1, 1]]
    assert [outcome[:2] for outcome in engine.decide(*both)] == [[0, 0], [1, 0]]
    assert [outcome[:2] for outcome in engine.decide(*both)] == [[0, 0], [0, 0]]
    assert engine.take("shadow", "bob")[:2] == [1, 1]  # by itself it is a take


def test_a_lockout_is_pythons(gate: RedisDriverNginx, server: RedisServer) -> None:
    lockout = (2, 60_000_000, 600_000_000)
    engine = gate.engine(server.url, {"login": "1/day"}, {"login": {"lockout": lockout}})
    assert engine.take("login", "ada")[0] == 1
    assert engine.take("login", "ada")[0] == 0
    allowed, remaining, retry_us, *_ = engine.take("login", "ada")
    assert (allowed, remaining) == (-3, 0)
    assert 599_000_000 < retry_us <= 600_000_000
    terms = ChargeOptions("login", lockout=Lockout(*lockout))
    there = RedisEngine(server.url).meter(parse("1/day"), "login", terms)
    outcome = there.decide("ada", 1)
    assert outcome[0] is False
    assert (outcome[2] or 0) > 590_000_000


def test_an_override_decides_and_is_given_back_by_its_numbers(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"login": "1/day"}, {"login": {"overrides": True}})
    RedisEngine(server.url).overrides("login").set("ada", "5/day")
    outcome = engine.take("login", "ada")
    assert outcome[:2] == [1, 4]
    assert outcome[7].partition("|")[2] == "5/day"
    assert engine.about("refund", ("login", "ada", 1), outcome=outcome)[1] == 5
    assert engine.take("login", "ada", 5)[:2] == [1, 0]
    assert engine.take("login", "bob")[:2] == [1, 0]


def test_given_back(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"login": "5/day"})
    outcome = engine.take("login", "ada", 3)
    assert engine.about("refund", ("login", "ada", 3), outcome=outcome)[1] == 5


def test_slots(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"open": "1 slots"})
    charge = ("open", "ada", 1)
    outcome = engine.about("acquire", charge)
    assert outcome[0] == 1
    fence = outcome[6]
    assert engine.about("acquire", charge)[0] == 0
    assert engine.about("renew", charge, fence=fence) is True
    assert engine.about("release", charge, fence=fence) is True
    assert engine.about("release", charge, fence=fence) is False
    assert engine.about("renew", charge, fence=fence) is False
    again = engine.about("acquire", charge)
    assert again[0] == 1
    assert again[6] > fence


def test_plain_commands(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"login": "5/day"})
    server.call("HSET", "hg2:rules", "version", "3", "3", "x" * 300_000)
    assert engine.do("command", words=["HMGET", "hg2:rules", "version", "no"]) == ["3", False]
    assert engine.do("command", words=["HGET", "hg2:rules", "no"]) is False
    assert engine.do("command", words=["HGET", "hg2:rules", "3"]) == "x" * 300_000
    with pytest.raises(NginxRedisError, match=r"it answered with an error \(ERR unknown command") as refused:
        engine.do("command", words=["NOSUCH"])
    assert refused.value.kind == "refused"


def test_flushed_scripts_are_loaded_again_and_logged_once(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"one": "9/day", "two": "9/day fixed"})
    for left in (8, 7):
        server.call("SCRIPT", "FLUSH")
        assert engine.take("one", "ada")[1] == left
        server.call("CONFIG", "RESETSTAT")
        assert engine.take("one", "bob")[1] == left
        assert "cmdstat_eval" not in server.info("commandstats"), "the server knew it, and was told again"
        assert [outcome[1] for outcome in engine.decide(("one", "eve", 1), ("two", "eve", 1))] == [left, left]
    server.call("SCRIPT", "FLUSH")
    engine.do("forget_scripts")
    with pytest.raises(NginxRedisError, match="NOSCRIPT"):
        engine.take("one", "ada")


def test_the_smallest_script_that_covers_them(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(
        server.url, {"one": "9/day", "two": "9/day fixed", "three": "9/day log", "four": "9/s sliding"}
    )
    both = (("one", "ada", 1), ("two", "ada", 1))
    engine.do("drop", script="take_all fixed_window token_bucket")
    assert [outcome[1] for outcome in engine.decide(*both)] == [8, 8]
    names = [name for name in engine.bundle.scripts if name.startswith("take_all ")]
    for name in names:
        if len(name.split()) == 4:
            engine.do("drop", script=name)
    assert [outcome[1] for outcome in engine.decide(*both)] == [7, 7]
    engine.do("drop", script=max(names, key=len))
    with pytest.raises(NginxRedisError, match="no script for fixed_window, token_bucket together"):
        engine.decide(*both)
    assert engine.take("one", "ada")[1] == 6


def test_a_limit_without_a_script_gets_a_sentence(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"open": "1 slots"})
    with pytest.raises(NginxRedisError, match="no script for slots") as refused:
        engine.take("open", "ada")
    assert refused.value.kind == "wrong"


def test_a_foreign_value_under_our_prefix_is_reported(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"login": "5/day"})
    server.call("LPUSH", "hg2:tb:login:{ada}", "x")
    with pytest.raises(NginxRedisError, match="holds a value that headgate did not write") as refused:
        engine.take("login", "ada")
    assert refused.value.kind == "corrupt"


def test_python_reads_what_nginx_counted(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = gate.engine(server.url, {"10/minute": "10/minute"})
    with Limiter("10/minute", server.url) as limiter:
        for left in range(9, 3, -2):
            assert engine.take("10/minute", "ada")[1] == left
            assert limiter.take("ada").remaining == left - 1


def test_a_calendar_goes_by_the_servers_clock(gate: RedisDriverNginx, driven_server: RedisServer) -> None:
    """The server lives in another year than nginx: the windows that were sent do not hold its time."""
    engine = gate.engine(driven_server.url, {"bill": "5/month fixed", "login": "9/day"}, zones={"UTC": [[0, 0]]})
    there = RedisEngine(driven_server.url).meter(parse("5/month fixed"), "bill")
    first = engine.take("bill", "ada")
    assert first[:2] == [1, 4]
    assert first[5] == driven_server.time_us()
    assert there.decide("ada", 1)[1] == 3
    assert [outcome[1] for outcome in engine.decide(("bill", "ada", 1), ("login", "ada", 1))] == [2, 8]
    assert engine.about("refund", ("bill", "ada", 1), outcome=first)[1] == 3
    driven_server.clock.advance_us(31 * DAY)
    assert engine.take("bill", "ada")[:2] == [1, 4]
