"""Floods of some 10,000 requests a second on real gateways: how many requests reach Redis, and which pass.

A flood shares two cores with whatever else runs there, so the bars leave room: seen are 0.9 to 1.2 questions for
each unit, 0.98 to 1.01 of the limit used, and 0.0003 as the smallest of 72 chances. Without shedding most floods
miss that bar, and all ask too much.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.nginx import wrk_flood
from tests.nginx.engines.redis.redis_harness import NginxRedisEngine, RedisDriverNginx
from tests.nginx.gateway_harness import NginxGateway
from tests.nginx.wrk_flood import Flood, flood, same_chance, tenth_of
from tests.servers import RedisServer

RATE, SECONDS = 200, 6
UNFAIR = 1e-6  # chance that a fair gate would treat its callers so unequally

# Whatever is opened is shed by one of two members, and there is a look into its dict in the place of `command`.
LINES = """
lua_shared_dict rates 1m;
init_by_lua_block {
  local engines, load_shedding = require "resty.headgate.engines.redis.engine", require
  "resty.headgate.engines.load_shedding" local open = engines.open function engines.open(url, chosen)
    local engine = open(url, chosen)
    local around = load_shedding.around(engine, ngx.shared.rates, { position = function() return 2, 0 end })
    function around.use(_, ...) return engine:use(...) end
    function around.command() return ngx.shared.rates:get_keys(0) end
    return around
  end
}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def gate() -> Iterator[RedisDriverNginx]:
    with RedisDriverNginx(LINES) as running:
        yield running


@contextmanager
def gateways(server: RedisServer, count: int, *rules: dict[str, str]) -> Iterator[list[NginxGateway]]:
    """So many gateways that follow a book of these rules."""
    server.flush()
    book = {"name": "sale", "rules": list(rules)}
    url = f"{server.url}?deadline=2s&nodes={count}"
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                NginxGateway(None if place else book, url, http=wrk_flood.HTTP, server=wrk_flood.SERVER, workers=2)
            )
            for place in range(count)
        ]
        time.sleep(1.5)  # until all follow the book
        yield running


def missed(flooded: Flood) -> list[str]:
    """The bars that a flood did not reach."""
    requests = flooded.after(1)
    seconds = int(requests[-1].at) - int(requests[0].at) + 1
    used = sum(request.passed for request in requests) / (RATE * seconds)
    reasons = {
        f"{flooded.script_calls} questions": flooded.script_calls <= 3 * RATE * SECONDS,
        f"{used:.3f} of the limit": 0.9 <= used <= 1.1,
        f"{len(flooded.requests) / SECONDS:.0f}/s": len(flooded.requests) > 5 * RATE * SECONDS,
    }
    groups = {
        "arrival": tenth_of(1),
        "connection": lambda request: request.connection,
        "worker": lambda request: request.worker,
    }
    for name, group in groups.items():
        chance = same_chance(requests, group)
        reasons[f"{name} p = {chance:.2g}"] = chance > UNFAIR
    return [bar for bar, reached in reasons.items() if not reached]


@pytest.mark.parametrize("gates", [1, 2])
@pytest.mark.parametrize("text", [f"{RATE}/s fixed", f"{RATE}/s"])
def test_shedding_uses_the_limit_with_few_requests_and_fair_chances(
    server: RedisServer, text: str, gates: int
) -> None:
    with gateways(server, gates, {"name": "sale", "limit": text}) as running:
        assert missed(flood(running, server, SECONDS)) == []


def prefetched(text: str, name: str = "prefetched") -> dict[str, str]:
    return {"name": name, "limit": text, "prefetch": "100ms"}


@pytest.mark.parametrize(
    ("rules", "gates"),
    [
        ([prefetched(f"{RATE}/s")], 1),
        ([prefetched(f"{RATE}/s")], 2),
        ([prefetched(f"{RATE}/s fixed")], 1),
        ([prefetched("100000/s"), {"name": "sale", "limit": f"{RATE}/s"}], 1),
        ([prefetched("1000/s", "first"), prefetched(f"{RATE}/s")], 1),
    ],
    ids=["bucket", "two gates", "window", "beside another", "both prefetched"],
)
def test_prefetched_rules_send_at_most_three_requests_for_a_unit(
    server: RedisServer, rules: list[dict[str, str]], gates: int
) -> None:
    """Seen are 0.2 to 1.5 questions for each unit; from 5 to 18 if units are prefetched before shedding."""
    with gateways(server, gates, *rules) as running:
        flooded = flood(running, server, SECONDS)
    admitted = sum(request.passed for request in flooded.requests)
    assert flooded.script_calls <= 3 * admitted
    assert RATE * SECONDS / 2 < admitted < 1.5 * RATE * SECONDS


def test_shed_requests_are_refused_with_spread_retry_times(gate: RedisDriverNginx, server: RedisServer) -> None:
    outcome = _shed(_flooded(gate, server, "100/s"), 50)
    waits = {each[2] for each in outcome}
    assert {(each[0], each[1], each[4]) for each in outcome} == {(0, 0, 0)}
    assert all(0 < wait <= 1_000_000 for wait in waits)
    assert len(waits) == len(outcome)
    assert min(waits) < 250_000
    assert max(waits) > 750_000
    assert abs(outcome[-1][5] / 1_000_000 - time.time()) < 5


def test_a_shed_charge_refuses_all_and_asks_nobody(gate: RedisDriverNginx, server: RedisServer) -> None:
    engine = _flooded(gate, server, "100/s", other="1000/day")
    left = engine.take("other", "x")[1]
    shed = 0
    for _ in range(200):
        outcomes = engine.decide(("other", "x", 1), ("sale", "hot", 1))
        if isinstance(outcomes, dict):
            assert set(outcomes) == {"2"}
            shed += 1
        elif outcomes[0][0] == outcomes[1][0] == 1:
            left -= 1
    assert shed > 100
    assert engine.take("other", "x")[1] == left - 1


@pytest.mark.parametrize(
    "terms", [{"lockout": [1000, 1_000_000, 1_000_000]}, {"overrides": True}, {"is_shadow": True}]
)
def test_rules_that_redis_must_decide_are_not_shed(
    gate: RedisDriverNginx, server: RedisServer, terms: dict[str, Any]
) -> None:
    engine = _flooded(gate, server, "100/s", terms=terms)
    assert _shed(engine, 0) == []
    assert not any("hot" in name for name in engine.do("command", words=[]))


def test_keys_that_are_not_refused_cost_nothing(gate: RedisDriverNginx, server: RedisServer) -> None:
    server.flush()
    engine = NginxRedisEngine(gate, server.url, {"sale": "2/minute", "other": "100/minute"}, {}, {})
    for number in range(100):
        engine.take("sale", f"quiet{number}")
    assert not any("quiet" in name for name in engine.do("command", words=[]))
    for _ in range(3):
        engine.decide(("sale", "quiet0", 1), ("other", "quiet", 1))
    assert sum("quiet" in name for name in engine.do("command", words=[])) == 2
    time.sleep(2.1)
    assert not any("quiet" in name for name in engine.do("command", words=[]))


def _flooded(
    gate: RedisDriverNginx, server: RedisServer, text: str, *, terms: dict[str, Any] | None = None, **others: str
) -> NginxRedisEngine:
    """An engine on whose rule `sale` the key "hot" is flooded."""
    server.flush()
    time.sleep(2.1)  # what others knew of the key is gone
    engine = NginxRedisEngine(gate, server.url, {"sale": text, **others}, {"sale": terms or {}}, {})
    for _ in range(8):
        engine.do("decide_many", charges=engine.charges(("sale", "hot", 1)), commit=1, times=200)
        time.sleep(0.02)
    return engine


def _shed(engine: NginxRedisEngine, wanted: int) -> list[Any]:
    """The outcome of so many requests that were shed; of any among some hundred, if none is wanted."""
    shed = []
    for _ in range(20 * wanted or 200):
        answer = engine.do("decide", charges=engine.charges(("sale", "hot", 1)), commit=1, word=True)
        if answer["word"] == "unasked":
            shed.append(answer["answers"][0])
            if len(shed) == wanted:
                break
    assert len(shed) == wanted
    return shed
