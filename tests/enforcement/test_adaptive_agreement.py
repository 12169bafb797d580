"""Processes agree on the limits of adaptive rules through a real Redis; the story says when they exchange them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headgate.enforcement import adaptive_agreement, adaptive_rules
from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
from headgate.rules import load
from tests.servers import RedisServer
from tests.servers.redis_server import free_port
from tests.servers.wait_until import until

LIMIT = {"adaptive": "concurrency", "between": [1, 40]}
KEY = "hg2:{adaptive}"
BOOK = load.from_mapping({"rules": [{"name": "app", "limit": LIMIT, "where": "cluster"}]})


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_agreement, "INTERVAL_S", 3600.0)
    monkeypatch.setattr(adaptive_agreement, "LIVE_US", 3_600_000_000)  # steps take long on a busy machine
    monkeypatch.setattr(adaptive_rules, "VOTE_NS", 3_600_000_000_000)


@pytest.fixture
def nodes(redis_server: RedisServer) -> Iterator[list[Any]]:
    redis_server.flush()
    with ExitStack() as stack:
        yield [stack.enter_context(RuleLimiter(BOOK, redis_server.url)) for _ in range(4)]


def _learn(node: Any, limit: int) -> None:
    """Lets a process learn a limit, as a window of calls would."""
    limiter = node.adaptive.rules["app"].limiter("all")
    limiter._gate.windows += 1
    limiter.go_on_from(limit)


def _limits(nodes: list[Any]) -> list[int]:
    return [node.adaptive.rules["app"].limiter("all").limit for node in nodes]


def _exchange(nodes: list[Any]) -> None:
    for node in nodes:
        node._agreement.exchange()


def test_from_three_on_all_go_on_from_the_median(nodes: list[Any]) -> None:
    for node, limit in zip(nodes, (10, 12, 14, 39), strict=True):
        _learn(node, limit)
    _exchange(nodes[:2])
    assert _limits(nodes) == [10, 12, 14, 39], "of two, each keeps its own"
    _exchange(nodes[2:])
    _exchange(nodes)
    assert max(_limits(nodes)) <= 14
    assert min(_limits(nodes)) >= 10
    for _ in range(3):
        _exchange(nodes)
    assert len(set(_limits(nodes))) == 1


def test_a_process_without_calls_has_no_vote_but_goes_along(nodes: list[Any]) -> None:
    for node in nodes[:3]:
        _learn(node, 8)
    _exchange(nodes)
    assert _limits(nodes) == [8, 8, 8, 8]
    assert nodes[3].adaptive.rules["app"].limits()["all"][2] == "agreed"


def test_a_rate_is_no_vote_on_calls_in_flight(nodes: list[Any], redis_server: RedisServer) -> None:
    """A changed rulebook reaches one process after the other."""
    rate = {"adaptive": "rate", "target": "p90 100ms", "between": [1, 1000]}
    changed = load.from_mapping({"rules": [{"name": "app", "limit": rate, "where": "cluster"}]})
    for node in nodes[:2]:
        node.replace(changed)
    for node, limit in zip(nodes, (800, 900, 10, 12), strict=True):
        _learn(node, limit)
    for _ in range(2):
        _exchange(nodes)
    assert _limits(nodes) == [800, 900, 10, 12]


def test_a_process_that_is_gone_is_not_counted(nodes: list[Any], redis_server: RedisServer) -> None:
    for node in nodes:
        _learn(node, 10)
        _exchange([node])
    for gone in nodes[2:]:
        redis_server.call("HSET", KEY, gone._agreement._process, '1 {"app":10}')  # dead long ago
    survivors = nodes[:2]
    _learn(survivors[0], 30)
    _exchange(survivors)
    assert sorted(_limits(survivors)) == [10, 30]
    assert redis_server.call("HLEN", KEY) == 2


def test_without_redis_each_goes_on_alone(caplog: pytest.LogCaptureFixture) -> None:
    with RuleLimiter(BOOK, f"redis://127.0.0.1:{free_port()}?fallback=allow") as node:
        _learn(node, 7)
        for _ in range(3):
            _exchange([node])
        assert _limits([node]) == [7]
        assert node.check({}).allowed
    lost = [message for message in caplog.messages if "adaptive limits are not agreed on" in message]
    assert len(lost) == 1
    assert lost[0].endswith("Each process goes on alone.")


def test_a_foreign_value_is_left_alone(
    nodes: list[Any], redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.call("SET", KEY, "mine")
    with caplog.at_level(logging.WARNING, "headgate"):
        _exchange(nodes)
    assert "holds a value that headgate did not write" in caplog.text
    assert redis_server.call("GET", KEY) == b"mine"


def test_an_awaited_limiter_agrees_too_and_a_live_change_starts_it(redis_server: RedisServer) -> None:
    async def story() -> None:
        alone = load.from_mapping({"rules": [{"name": "app", "limit": LIMIT}]})
        async with AsyncRuleLimiter(alone, redis_server.url) as node:
            assert node._agreement is None
            node.replace(BOOK)
            _exchange([node])
            assert redis_server.call("HLEN", KEY) == 1

    redis_server.flush()
    asyncio.run(story())


def test_a_thread_exchanges_them_by_itself(
    nodes: list[Any], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive_agreement, "INTERVAL_S", 0.02)
    for node in nodes[:2]:
        _learn(node, 8)
    _exchange(nodes[:2])
    with RuleLimiter(BOOK, redis_server.url) as busy, RuleLimiter(BOOK, redis_server.url) as idle:
        _learn(busy, 9)
        until(lambda: None if _limits([busy, idle]) == [8, 8] else str(_limits([busy, idle])), 30)
