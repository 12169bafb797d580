"""Units of hot keys, fetched ahead by real nginx of two workers each and handed out without asking Redis.

Nothing is admitted that was not charged, and what was charged and not admitted comes back: so when a flood is over
and nothing is held any more, what is gone from the count is what was admitted, to the unit.
"""

import contextlib
import http.client
import os
import signal
import time
from collections import Counter

import pytest

from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limit_syntax import parse
from tests.nginx.engines.prefetch_harness import (
    HOLD_US,
    PrefetchFlood,
    PrefetchNginx,
    PrefetchRule,
    await_charged_units,
    charged_units,
    script_calls,
    start_prefetch_nginx,
)
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import Proxy, RedisServer

SLOW = {
    "bucket": PrefetchRule("20000/year burst 20000"),
    "fixed": PrefetchRule("20000/year fixed"),
    "sliding": PrefetchRule("20000/year sliding"),
    "log": PrefetchRule("20000/year log"),
}
CELLS = {"cells": PrefetchRule("20000/10s sliding")}  # of a second each


@pytest.mark.parametrize("rule", SLOW)
def test_charged_units_equal_admitted_units(redis_server: RedisServer, rule: str) -> None:
    """Two nginx, four workers, one key; far fewer questions than calls; and nothing is lost or made on the way."""
    with start_prefetch_nginx(redis_server, SLOW) as both:
        before = script_calls(redis_server)
        with PrefetchFlood(both, rule) as crowd:
            result = crowd.end()
        script_runs = script_calls(redis_server) - before
        assert result.troubles == result.refused == 0
        assert result.admitted == result.calls > 500
        assert script_runs < result.calls / 4
        assert result.prefetched > result.calls / 2
        assert await_charged_units(redis_server, rule, SLOW[rule].limit, result.admitted) == result.admitted


@pytest.mark.parametrize("rule", ["bucket", "log", "cells"])
def test_refunds_of_prefetched_units_are_exact(redis_server: RedisServer, rule: str) -> None:
    """Every third call gives its unit back, half of them when the stock that it came from has ended."""
    with start_prefetch_nginx(redis_server, SLOW | CELLS) as both:
        with PrefetchFlood(
            both, rule, each=24, seconds=1.5, refund_every=3, refund_after=HOLD_US / 1e6 * 1.2
        ) as crowd:
            result = crowd.end()
        assert result.returned > 40
        assert result.admitted + result.returned == result.calls
        # Where many units come back, what drained of each since it was taken may be lost: less than one in all.
        charged = await_charged_units(redis_server, rule, (SLOW | CELLS)[rule].limit, result.admitted)
        assert result.admitted <= charged <= result.admitted + (rule == "bucket")


def test_calls_of_all_sizes(redis_server: RedisServer) -> None:
    with start_prefetch_nginx(redis_server, SLOW) as both:
        with PrefetchFlood(both, "bucket", costs=[1, 1, 5, 2, 1, 3000, 3]) as crowd:
            result = crowd.end()
        charged = await_charged_units(redis_server, "bucket", SLOW["bucket"].limit, result.admitted)
        assert result.admitted <= 20_000
        assert result.prefetched > 100
        # Two workers may have met at the end of a stock.
        assert result.admitted <= charged <= result.admitted + 20


BURST, RATE = 3000, 200
EDGE = {
    "edge": PrefetchRule(f"{RATE}/s burst {BURST}"),
    "window": PrefetchRule("1500/s fixed"),
    "wide": PrefetchRule("30000/s fixed"),
}


def test_at_most_n_times_u_more(redis_server: RedisServer) -> None:
    """More is asked for than there is. All that can pass does, and hardly more: N * U is what may."""
    with start_prefetch_nginx(redis_server, EDGE) as both:
        began = time.monotonic()
        with PrefetchFlood(both, "edge", seconds=2.5) as crowd:
            result = crowd.end()
        span = time.monotonic() - began
        assert result.prefetched > BURST / 3
        assert result.refused > 0, "the limit was never reached: the story tells nothing"
        assert BURST + RATE * 2 <= result.admitted <= BURST + RATE * span + 2 * BURST / 10


@pytest.mark.parametrize("callers", [1, 6])
def test_at_most_u_are_kept_from_others(redis_server: RedisServer, callers: int) -> None:
    """On a slow link: what was charged and not admitted, on its way out and back included, at any moment."""
    units = 300
    rules = {"slow": PrefetchRule("500000/year burst 500000", hold_us=1_000_000, units=units)}
    engine = RedisEngine(redis_server.url)
    meter = engine.meter(parse(rules["slow"].limit), "slow")
    with Proxy(redis_server) as link:
        link.delay(20)
        with PrefetchNginx(link.url, rules) as nginx:
            held = []
            with PrefetchFlood([nginx], "slow", each=callers, seconds=2.5, pause=0.0015 * callers) as crowd:
                ends = time.monotonic() + 2.4
                while time.monotonic() < ends:
                    charged = 500_000 - meter.decide("ada", 0)[1]
                    held.append(charged - nginx.do("admitted")["units"])
                result = crowd.end()
    engine.close()
    assert result.prefetched > units
    assert units / 3 < max(held) <= units + callers


def test_not_one_more_in_a_fixed_window(redis_server: RedisServer) -> None:
    with start_prefetch_nginx(redis_server, EDGE) as both, PrefetchFlood(both, "window", seconds=3.2) as crowd:
        windows = crowd.marks()
        result = crowd.end()
    assert result.prefetched > 500
    assert result.refused > 0
    assert len(windows) >= 3
    assert max(windows.values()) <= 1500
    assert sorted(windows.values())[-2] == 1500, "nothing was lost either"


def test_a_stock_ends_with_its_window(redis_server: RedisServer) -> None:
    """Windows end while there is something in stock."""
    with start_prefetch_nginx(redis_server, EDGE) as both, PrefetchFlood(both, "wide", seconds=3.2) as crowd:
        assert len(crowd.marks()) >= 3
        result = crowd.end()
    assert result.prefetched > result.calls / 2
    assert result.admitted == result.calls
    assert result.late == 0


HELD = {"slow": PrefetchRule("20000/year burst 20000", hold_us=30_000_000)}


def test_a_cold_key_asks_itself(redis_server: RedisServer) -> None:
    with start_prefetch_nginx(redis_server, SLOW, count=1) as (nginx,):
        assert nginx.take("bucket")["outcome"][:2] == [1, 19_999]
        before = script_calls(redis_server)
        for _ in range(6):
            assert not nginx.take("bucket")["prefetched"]
            time.sleep(HOLD_US / 1e6 / 2)
        assert script_calls(redis_server) - before == 6


def test_outcomes_report_the_remaining_units(redis_server: RedisServer) -> None:
    """Call for call, as if each had been asked of Redis. A stock knows nothing of what was asked of Redis after it
    was ordered, nor of another stock that it meets."""
    with start_prefetch_nginx(redis_server, HELD, count=1) as (nginx,):
        takes = [nginx.take("slow") for _ in range(60)]
        stocks = [one["stock"] for one in takes if one["prefetched"]]
        assert len(stocks) > 30
        assert Counter(stocks).most_common(1)[0][1] > 10
        counts: dict[str, int] = {}
        script_runs = 0
        unit_us = 365.2425 * 86_400e6 / 20_000
        for number, one in enumerate(takes, 1):
            allowed, remaining, retry_us, reset_us, delay_us, at_us, _ = one["outcome"]
            assert (allowed, retry_us, delay_us) == (1, 0, 0)
            assert abs(at_us - time.time() * 1e6) < 20e6
            script_runs += not one["prefetched"]
            assert 20_000 - number - 120 <= remaining <= 20_000 - number + script_runs
            assert (20_000 - remaining) * unit_us * 0.9 < reset_us < (20_000 - remaining) * unit_us * 1.1
            if one["prefetched"]:
                assert remaining == counts.get(one["stock"], remaining + 1) - 1
                counts[one["stock"]] = remaining


def test_a_unit_goes_back_into_its_stock(redis_server: RedisServer) -> None:
    with start_prefetch_nginx(redis_server, HELD, count=1) as (nginx,):
        for _ in range(8):
            nginx.take("slow")
        time.sleep(0.5)  # an order that is on its way has come
        charged = charged_units(redis_server, "slow", HELD["slow"].limit)
        before = script_calls(redis_server)
        taken = [nginx.take("slow", refund=True) for _ in range(20)]
        assert all(one["prefetched"] for one in taken)
        assert {one["outcome"][1] for one in taken} == {taken[0]["outcome"][1]}
        assert all(one["after"][1] == one["outcome"][1] + 1 for one in taken)
        assert script_calls(redis_server) == before
        assert charged_units(redis_server, "slow", HELD["slow"].limit) == charged


def test_a_unit_that_comes_back_while_its_stock_ends(redis_server: RedisServer) -> None:
    """The call that ends a prefetched batch refunds it with the rest, and not twice."""
    with start_prefetch_nginx(redis_server, HELD, count=1) as (nginx,):
        for _ in range(8):
            nginx.take("slow")
        time.sleep(0.5)
        left = nginx.do("take_and_meet_an_end", rule="slow", key="ada")["left"]
        assert left > 1
        assert await_charged_units(redis_server, "slow", HELD["slow"].limit, 8) == 8


def test_a_call_that_wants_more_than_is_left(redis_server: RedisServer) -> None:
    """It ends the stock; what is left goes back, and the call is asked for by itself."""
    with start_prefetch_nginx(redis_server, HELD, count=1) as (nginx,):
        for _ in range(8):
            nginx.take("slow")
        time.sleep(0.5)
        assert charged_units(redis_server, "slow", HELD["slow"].limit) > 8
        assert not nginx.take("slow", cost=1000)["prefetched"]
        assert await_charged_units(redis_server, "slow", HELD["slow"].limit, 1008) == 1008


NEVER = {
    "leaky": PrefetchRule("100000/s queue 100000"),
    "smooth": PrefetchRule("100000/s smooth"),
    "locked": PrefetchRule("100000/s", terms={"lockout": [5, 60_000_000, 60_000_000]}),
    "overrides": PrefetchRule("100000/s", terms={"overrides": True}),
    "aside": PrefetchRule("100000/s", terms={"aside": True}),
    "large": PrefetchRule("100000/s", units=2),
}


@pytest.mark.parametrize("rule", NEVER)
def test_exact_limits_are_not_prefetched(redis_server: RedisServer, rule: str) -> None:
    cost = 3 if rule == "large" else 1
    with start_prefetch_nginx(redis_server, NEVER, count=1) as (nginx,):
        nginx.take(rule, cost=cost)
        before = script_calls(redis_server)
        assert not any(nginx.take(rule, cost=cost)["prefetched"] for _ in range(30))
        assert script_calls(redis_server) - before == 30


def test_peeks_are_sent_to_redis(redis_server: RedisServer) -> None:
    with start_prefetch_nginx(redis_server, HELD, count=1) as (nginx,):
        for _ in range(8):
            nginx.take("slow")
        before = script_calls(redis_server)
        assert not any(nginx.take("slow", commit=0)["prefetched"] for _ in range(5))
        assert script_calls(redis_server) - before == 5


def test_a_reload(redis_server: RedisServer) -> None:
    """Workers that end give back what they ordered; nobody is refused, and nothing is lost."""
    with start_prefetch_nginx(redis_server, HELD, count=1) as (nginx,):
        for _ in range(3):
            with PrefetchFlood([nginx], "slow", seconds=10, pause=0.004) as crowd:
                time.sleep(0.3)
                nginx.reload()
                crowd.marks()
        result = nginx.totals()
        assert result.prefetched > 50
        # Once more, so that the last workers end as well.
        nginx.reload()
        assert await_charged_units(redis_server, "slow", HELD["slow"].limit, result.admitted) == result.admitted


def test_a_worker_is_killed(redis_server: RedisServer) -> None:
    """No caller gets a unit that was not charged, and the other worker goes on."""
    with start_prefetch_nginx(redis_server, SLOW, count=1) as (nginx,):
        for _ in range(3):
            with PrefetchFlood([nginx], "bucket", seconds=0.6, deadline=0.5) as crowd:
                time.sleep(0.3)
                os.kill(nginx.worker_pids[0], signal.SIGKILL)
                with contextlib.suppress(http.client.HTTPException, ConnectionError):
                    crowd.marks()
        time.sleep(2.5)  # a flag that was left is gone by then
        killed = nginx.totals()
        before = charged_units(redis_server, "bucket", SLOW["bucket"].limit)
        assert 100 < killed.admitted <= before
        with PrefetchFlood([nginx], "bucket") as crowd:
            result = crowd.end()
        assert result.prefetched > result.calls / 2
        assert (
            await_charged_units(redis_server, "bucket", SLOW["bucket"].limit, before + result.admitted)
            == before + result.admitted
        )


def test_a_full_dict_prefetches_nothing(redis_server: RedisServer) -> None:
    """A full dict keeps its entries, and calls are decided in Redis."""
    with start_prefetch_nginx(redis_server, SLOW, count=1, room="32k") as (nginx,):
        count = nginx.do("fill")["count"]
        with PrefetchFlood([nginx], "bucket") as crowd:
            result = crowd.end()
        assert nginx.do("filled", count=count)["count"] == count > 20
        assert result.admitted == result.calls
        assert (
            await_charged_units(redis_server, "bucket", SLOW["bucket"].limit, result.admitted) == result.admitted
        )


def test_redis_is_gone(redis_server: RedisServer) -> None:
    """Prefetched units are handed out; then calls fail as without prefetching, and recover when Redis is back."""
    with RedisServer() as server, start_prefetch_nginx(server, HELD, count=1) as (nginx,):
        for _ in range(6):
            nginx.take("slow")
        server.pause()
        prefetched = []
        while "outcome" in (one := nginx.take("slow", deadline=0.2)):
            prefetched.append(one["prefetched"])
            assert len(prefetched) < 100
        assert all(prefetched)
        assert prefetched
        server.resume()
        assert nginx.take("slow")["outcome"][0] == 1


def test_another_rule_refuses(redis_server: RedisServer) -> None:
    """The whole gateway: what was taken from stock for a request that another rule refuses is back at once."""
    rules = [
        {"name": "hot", "key": "address", "limit": SLOW["bucket"].limit, "prefetch": "200ms"},
        {"name": "strict", "key": "address", "limit": "25/day"},
    ]
    with NginxGateway({"name": "two", "rules": rules}, redis=f"{redis_server.url}?deadline=5s", workers=2) as gate:
        statuses = Counter(gate.get("/").status for _ in range(150))
        assert statuses == {200: 25, 429: 125}
        assert gate.get("/").status == 429
        assert await_charged_units(redis_server, "hot", SLOW["bucket"].limit, 25, "address=127.0.0.1") == 25
