"""The denial cache of a real nginx: it repeats refusals without a request to the real Redis behind it."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.nginx.engines.redis.redis_harness import NginxRedisEngine, RedisDriverNginx
from tests.nginx.wrk_flood import decision_calls
from tests.servers import RedisServer

# Whatever is opened has a denial cache around it, and a look into its dict in the place of `command`.
LINES = """
lua_shared_dict memo 1m;
init_by_lua_block {
  local engines, denial_cache = require "resty.headgate.engines.redis.engine", require
  "resty.headgate.engines.denial_cache" local open = engines.open function engines.open(url, chosen)
    local engine = open(url, chosen)
    local around = denial_cache.around(engine, ngx.shared.memo)
    function around.use(_, ...) return engine:use(...) end
    function around.command(_, words)
      if words[1] == "forget" then ngx.shared.memo:flush_all() end
      return ngx.shared.memo:get_keys(0)
    end
    return around
  end
}
"""
LOCKOUT = [3, 60_000_000, 60_000_000]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def gate() -> Iterator[RedisDriverNginx]:
    with RedisDriverNginx(LINES) as running:
        yield running


class NginxDenialCacheHarness:
    """An engine with a memo, and how often Redis was asked since the last look."""

    def __init__(self, gate: RedisDriverNginx, server: RedisServer, limits: dict[str, str], **terms: Any) -> None:
        server.flush()
        self.server = server
        self.engine = NginxRedisEngine(gate, server.url, limits, terms, {})
        for name in limits:
            self.engine.decide((name, "warm", 1))  # scripts are loaded
        self.dict_names("forget")
        self._calls_before = decision_calls(server)

    def decide(self, *charges: tuple[str, str, int], commit: int = 1) -> list[Any]:
        """The outcome of each; None of who was not asked."""
        outcomes = self.engine.decide(*charges, commit=commit)
        if isinstance(outcomes, list):
            return [*outcomes, *[None] * (len(charges) - len(outcomes))]
        return [outcomes.get(str(place)) for place in range(1, len(charges) + 1)]

    def take(self, key: str, cost: int = 1, name: str = "sale") -> Any:
        return self.decide((name, key, cost))[0]

    def dict_names(self, *words: str) -> list[str]:
        """The names in the dict."""
        return list(self.engine.do("command", words=list(words)))

    @property
    def script_calls(self) -> int:
        before, self._calls_before = self._calls_before, decision_calls(self.server)
        return self._calls_before - before


def test_a_refusal_is_repeated_and_aged(gate: RedisDriverNginx, server: RedisServer) -> None:
    harness = NginxDenialCacheHarness(gate, server, {"sale": "2/minute"})
    assert [harness.take("a")[0] for _ in range(2)] == [1, 1]
    first = harness.take("a")
    assert (first[0], harness.script_calls) == (0, 3)
    time.sleep(0.1)
    again = [harness.take("a") for _ in range(20)]
    assert harness.script_calls == 0
    for outcome in again:
        assert outcome[:2] == [0, 0]
        by = first[2] - outcome[2]
        assert 100_000 <= by < 900_000
        assert first[3] - outcome[3] == by
        assert outcome[5] - first[5] == by
    assert harness.take("b")[0] == 1  # another key
    assert harness.script_calls == 1


def test_a_smaller_cost_than_the_refused_one_reaches_redis(gate: RedisDriverNginx, server: RedisServer) -> None:
    harness = NginxDenialCacheHarness(gate, server, {"sale": "5/minute"})
    assert harness.take("a", 3)[0] == 1
    assert harness.take("a", 3)[0] == 0
    assert harness.script_calls == 2
    assert [harness.take("a", cost)[0] for cost in (3, 4, 5)] == [0, 0, 0]
    assert harness.script_calls == 0
    assert harness.take("a", 2)[0] == 1
    assert harness.script_calls == 1


def test_it_ends_with_its_retry_after(gate: RedisDriverNginx, server: RedisServer) -> None:
    harness = NginxDenialCacheHarness(gate, server, {"sale": "5/s burst 1"})
    harness.take("a")
    wait_us = harness.take("a")[2]
    assert 0 < wait_us <= 200_000
    time.sleep(wait_us / 1_000_000 + 0.002)
    assert harness.take("a")[0] == 1


def test_it_ends_after_a_second_at_the_latest(gate: RedisDriverNginx, server: RedisServer) -> None:
    harness = NginxDenialCacheHarness(gate, server, {"sale": "1/day"})
    harness.take("a")
    assert harness.take("a")[0] == 0
    assert harness.take("a", 2)[2] > 0  # never, which memory does not know
    assert harness.script_calls == 2
    time.sleep(1.05)
    assert harness.take("a")[0] == 0
    assert harness.script_calls == 1


def test_a_cost_that_never_fits_is_repeated_as_never(gate: RedisDriverNginx, server: RedisServer) -> None:
    harness = NginxDenialCacheHarness(gate, server, {"sale": "5/minute"})
    assert [harness.take("a", 6)[:3:2] for _ in range(3)] == [[0, -1]] * 3
    assert harness.script_calls == 1


def test_refunds_of_this_nginx_end_it(gate: RedisDriverNginx, server: RedisServer) -> None:
    harness = NginxDenialCacheHarness(gate, server, {"sale": "1/minute fixed"})
    taken = harness.take("a")
    assert [harness.take("a")[0] for _ in range(3)] == [0, 0, 0]
    assert harness.script_calls == 2
    harness.engine.about("refund", ("sale", "a", 1), outcome=taken)
    assert harness.take("a")[0] == 1
    assert harness.take("a")[0] == 0
    assert harness.script_calls == 3
    assert harness.take("a")[0] == 0  # and a refusal after it is remembered again
    assert harness.script_calls == 0


def test_one_refusal_refuses_all_and_the_others_are_not_cached(
    gate: RedisDriverNginx, server: RedisServer
) -> None:
    harness = NginxDenialCacheHarness(gate, server, {"sale": "1/minute", "all": "10/minute"})
    both = ("all", "x", 1), ("sale", "a", 1)
    assert [outcome[0] for outcome in harness.decide(*both)] == [1, 1]
    assert [outcome[0] for outcome in harness.decide(*both)] == [1, 0]
    assert harness.script_calls == 2
    for _ in range(5):
        other, outcome = harness.decide(*both)
        assert other is None
        assert outcome[0] == 0
    assert harness.script_calls == 0
    assert harness.take("x", name="all")[:2] == [1, 8]  # nothing was charged, by memory or otherwise
    first, other = harness.decide(("sale", "a", 1), ("all", "y", 1))
    assert first[0] == 0
    assert other is None


def test_a_rolled_back_charge_is_not_cached(gate: RedisDriverNginx, server: RedisServer) -> None:
    harness = NginxDenialCacheHarness(gate, server, {"sale": "1/minute", "all": "10/minute"})
    harness.take("a")
    harness.decide(("all", "x", 1), ("sale", "a", 1))
    assert harness.take("x", name="all")[0] == 1


def test_a_call_that_commits_nothing_reaches_redis(gate: RedisDriverNginx, server: RedisServer) -> None:
    harness = NginxDenialCacheHarness(gate, server, {"sale": "1/minute"})
    harness.take("a")
    harness.take("a")
    assert harness.script_calls == 2
    for _ in range(3):
        assert harness.decide(("sale", "a", 1), commit=0)[0][0] == 0
    assert harness.script_calls == 3


def test_charges_together_with_a_shadow_reach_redis(gate: RedisDriverNginx, server: RedisServer) -> None:
    harness = NginxDenialCacheHarness(
        gate, server, {"sale": "1/minute", "beside": "100/minute"}, beside={"is_shadow": True}
    )
    for _ in range(2):
        harness.take("a")
    assert harness.script_calls == 2
    lefts = [harness.decide(("sale", "a", 1), ("beside", "x", 1))[1][1] for _ in range(3)]
    assert lefts == [99, 98, 97]
    assert harness.script_calls == 3


def test_a_lockout_counts_every_refusal_and_is_repeated(gate: RedisDriverNginx, server: RedisServer) -> None:
    terms = {"lockout": LOCKOUT}
    harness = NginxDenialCacheHarness(
        gate, server, {"sale": "1/minute", "other": "1/minute"}, sale=terms, other=terms
    )
    harness.take("a")
    verdicts = [harness.take("a")[0] for _ in range(4)]
    assert verdicts[0] == 0
    assert verdicts[-1] == -3
    harness.script_calls  # noqa: B018
    for _ in range(5):
        assert harness.take("a")[0] == -3
    assert harness.script_calls == 0
    harness.take("b", name="other")
    counted = [harness.decide(("other", "b", 1), ("sale", "a", 1))[0][0] for _ in range(4)]
    assert counted[-1] == -3  # its refusals were counted beside one that is locked out


def test_a_key_that_passes_costs_nothing_and_a_full_dict_is_no_trouble(
    gate: RedisDriverNginx, server: RedisServer
) -> None:
    harness = NginxDenialCacheHarness(gate, server, {"sale": "1/minute"})
    harness.take("quiet")
    assert harness.dict_names() == []
    harness.take("quiet")
    assert len(harness.dict_names()) == 1
    long = "k" * 180
    for number in range(6000):  # in a dict of a megabyte
        harness.take(f"{long}{number % 3000}")
    assert harness.take(f"{long}0")[0] == 0
