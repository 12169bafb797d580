"""Adaptive rules that nobody measures for: the load refuses them, or one line says that they stand still.

Server integrations that measure are in test_adaptive_rules.py, clients in test_outbound_rules.py, tasks in
test_task_limits.py, the check service and Envoy in tests/service.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fastapi import FastAPI

from headgate import AsyncLimiter, InvalidRule, Limiter, ManualClock, Observer
from headgate.enforcement.check_together import BatchedCall
from headgate.integrations import aiohttp, fastapi
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.mcp_call_limiter import MCPCallLimiter
from headgate.integrations.mcp_calls import MCPCall
from headgate.observer import LimitChange

LIMIT = {"adaptive": "concurrency", "target": "p50 10ms", "between": [1, 20]}
RULES = {"rules": [{"name": "app", "limit": LIMIT}]}
LOWERED = LimitChange("app", "all", 20, 16, "above the target")


class KeptChanges(Observer):
    def __init__(self) -> None:
        self.changes: list[LimitChange] = []

    def limit_changed(self, change: LimitChange) -> None:
        self.changes.append(change)


@pytest.mark.parametrize(("failed", "changes"), [(False, [LOWERED]), (True, [])])
def test_calls_of_mcp_are_measured_and_failed_ones_are_ignored(failed: bool, changes: list[LimitChange]) -> None:
    clock, kept = ManualClock(), KeptChanges()

    async def handle() -> str:
        clock.advance(0.05)
        return "answer"

    async def story() -> None:
        limiter = MCPCallLimiter(RULES, clock=clock, observers=[kept])
        for _ in range(25):
            call = MCPCall("tools/call", {"name": "search"})
            await limiter.limit_call(call, handle, lambda _: failed, lambda *_: Exception())
        await limiter.close()

    asyncio.run(story())
    assert kept.changes == changes


def _middleware(limits: Any) -> Any:
    return RateLimitMiddleware(FastAPI(), messages=limits)


def _fastapi_app(limits: Any) -> Any:
    return fastapi.rate_limits(FastAPI(), messages=limits)


def _aiohttp_app(limits: Any) -> Any:
    return aiohttp.rate_limits(web.Application(), messages=limits)


@pytest.mark.parametrize("make", [_middleware, _fastapi_app, _aiohttp_app])
def test_messages_of_websockets_have_no_adaptive_limit(make: Any) -> None:
    adaptive: Any = LIMIT
    expected = (
        r"test_adaptive_signals\.py:\d+: An adaptive limit learns from how long calls take, and nobody knows "
    )
    with pytest.raises(InvalidRule, match=expected):
        make([CodeLimit(adaptive)])


def test_a_rule_of_which_all_calls_end_as_ignored_says_once_that_it_stands_still(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An application of WebSockets only."""
    with Limiter.from_rules(RULES) as limiter, caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(99):
            limiter.finish(limiter.check({}), "ignored")
        assert caplog.messages == []
        for _ in range(101):
            limiter.finish(limiter.check({}), "ignored")
        [line] = caplog.messages
        assert line == (
            'headgate: the rule "app" stands still: all of 100 calls ended as ignored, so its limit does not '
            "move. WebSockets, errors from 500 on and clients that went away tell nothing; limit connections that "
            "stay open by slots."
        )
        assert limiter.adaptive.rules["app"].stands_still
        limiter.finish(limiter.check({}))
        assert not limiter.adaptive.rules["app"].stands_still


def test_a_rule_that_learned_once_does_not_warn_of_ignored_calls(caplog: pytest.LogCaptureFixture) -> None:
    with Limiter.from_rules(RULES) as limiter:
        limiter.finish(limiter.check({}))
        for _ in range(200):
            limiter.finish(limiter.check({}), "ignored")
    assert caplog.messages == []


@pytest.mark.parametrize("verb", ["check", "wait", "reserve"])
def test_a_program_that_never_reports_is_warned_once(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    expected = 'headgate: the rule "app" stands still: of 20 calls nobody said how they ended'
    with Limiter.from_rules(RULES) as limiter:
        for _ in range(50):
            assert getattr(limiter, verb)({}).allowed

    async def story() -> None:
        async with AsyncLimiter.from_rules(RULES) as awaited:
            for _ in range(50):
                assert (await getattr(awaited, verb)({})).allowed

    asyncio.run(story())
    assert len(caplog.messages) == 2, "one line of each limiter"
    assert all(message.startswith(expected) for message in caplog.messages)


def test_calls_that_are_decided_together_are_measured() -> None:
    clock, kept = ManualClock(), KeptChanges()
    with Limiter.from_rules(RULES, clock=clock, observers=[kept]) as limiter:
        for _ in range(25):
            decisions = limiter.check_together([BatchedCall({})])
            clock.advance(0.05)
            for decision in decisions:
                limiter.finish(decision)
    assert kept.changes == [LOWERED]


def test_the_page_has_a_line_for_each_way(request: pytest.FixtureRequest) -> None:
    page = (Path(request.config.rootpath) / "docs" / "how-to" / "adaptive.md").read_text()
    table = page[page.index("### Who measures") :].split("\n\n")[1:4]
    lines = "\n".join(table)
    for way in (
        *("ASGI, FastAPI", "WSGI, Flask, Django", "aiohttp", "gRPC", "MCP"),
        *("httpx", "Celery, Dramatiq", "`limiter.check`", "`hold`", "`POST /v1/check`"),
        *("forward auth", "Envoy, RLS", "Envoy, RLQS", "nginx", "WebSocket", "DRF"),
    ):
        assert way in lines, way
