"""Programs that use headgate, for type checkers: mypy reads this file with the tests, test_public_types.py runs
pyright.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, assert_type

from aiohttp import web
from celery import Celery
from flask import Blueprint
from flask.views import MethodView

from headgate import (
    AsyncLease,
    AsyncLimiter,
    AsyncReservation,
    AsyncRuleLimiter,
    Decision,
    Lease,
    Limit,
    Limiter,
    Reservation,
    RuleDecision,
    RuleLimiter,
)
from headgate.client import Answer, AsyncClient, Client
from headgate.integrations import aiohttp as headgate_aiohttp
from headgate.integrations import celery as headgate_celery
from headgate.integrations import django
from headgate.integrations import flask as headgate_flask
from headgate.integrations.fastapi import exempt, limit

app = Celery("shop")
limiter = Limiter("3/s")
alimiter = AsyncLimiter("3/s")


@limiter.guard("key")
def report(user: str, *, pages: int = 1) -> list[str]:
    return [user] * pages


@limiter.guard(lambda user: user)
def lines(user: str) -> Iterator[str]:
    yield user


@alimiter.guard("key")
async def areport(user: str, *, pages: int = 1) -> list[str]:
    return [user] * pages


@alimiter.guard("key")
async def alines(user: str) -> AsyncIterator[str]:
    yield user


@alimiter.guard("key")
def alater(user: str) -> Awaitable[int]:
    return asyncio.get_running_loop().run_in_executor(None, len, user)


class GuardedMethods:
    @alimiter.guard(lambda self, user: user)
    async def report(self, user: str) -> int:
        return len(user)


def guarded() -> None:
    assert_type(report("ann", pages=2), list[str])
    assert_type(lines("ann"), Iterator[str])
    _ = assert_type(areport("ann", pages=2), Coroutine[Any, Any, list[str]])
    _ = assert_type(alater("ann"), Coroutine[Any, Any, int])
    assert_type(alines("ann"), AsyncIterator[str])
    _ = assert_type(GuardedMethods().report("ann"), Coroutine[Any, Any, int])
    report(3)  # type: ignore[arg-type]
    _ = areport(user="ann", sheets=2)  # type: ignore[call-arg]
    needs_a_coroutine(areport)


def needs_a_coroutine(function: Callable[[str], Coroutine[Any, Any, list[str]]]) -> None:
    """As asyncio.run and TaskGroup.create_task do."""


def sync() -> None:
    assert_type(limiter.take("key"), Decision)
    assert_type(limiter.take("key").or_raise(), Decision)
    assert_type(limiter.reserve("key"), Reservation)
    assert_type(limiter.acquire("key"), Lease)
    assert_type(limiter.take("key").remaining, int)
    assert_type(limiter.take("key").limit, Limit)
    with Limiter("3/s") as opened:
        assert_type(opened, Limiter)
    with limiter.acquire("key") as lease:
        assert_type(lease, Lease)
        assert_type(lease.fence, int)
    with limiter.guard("key") as decision:
        assert_type(decision, Decision)
    ruled = Limiter.from_rules({"rules": []})
    assert_type(ruled, RuleLimiter)
    assert_type(ruled.check({}).or_raise(), RuleDecision)
    assert_type(ruled.check({}).remaining, int | None)
    assert_type(ruled.check({}).limit, Limit | None)
    with ruled.hold({}) as held:
        assert_type(held, RuleDecision)
    with Client() as gate, gate.hold({}) as answer:
        assert_type(gate, Client)
        assert_type(answer, Answer)
        assert_type(answer.remaining, int | None)


async def awaited() -> None:
    assert_type(await alimiter.take("key"), Decision)
    assert_type(await alimiter.reserve("key"), AsyncReservation)
    assert_type(await alimiter.acquire("key"), AsyncLease)
    async with AsyncLimiter("3/s") as opened:
        assert_type(opened, AsyncLimiter)
    async with await alimiter.acquire("key") as lease:
        assert_type(lease, AsyncLease)
    async with alimiter.guard("key") as decision:
        assert_type(decision, Decision)
    ruled = AsyncLimiter.from_rules({"rules": []})
    assert_type(ruled, AsyncRuleLimiter)
    assert_type(await ruled.check({}), RuleDecision)
    async with ruled.hold({}) as held:
        assert_type(held, RuleDecision)
    async with AsyncClient() as gate, gate.hold({}) as answer:
        assert_type(gate, AsyncClient)
        assert_type(answer, Answer)


@limit("5/s", key="user", missing="deny", refund="2xx")
async def limited_route(item: int, *, page: int = 1) -> str:
    return f"{item} {page}"


@exempt
@limit("5/s", key=lambda request: request.headers["x-key"])
def limited_sync_route(item: int) -> str:
    return str(item)


@django.limit("5/s", key=django.user_or_address)
async def limited_view(request: Any, pk: int) -> int:
    return pk


@django.exempt
@django.limit("5/s", block=False)
def limited_sync_view(request: Any) -> str:
    return "found"


async def decorated_views_keep_their_types(request: Any) -> None:
    assert_type(await limited_view(request, pk=2), int)
    assert_type(limited_sync_view(request), str)


async def decorated_routes_keep_their_types() -> None:
    assert_type(await limited_route(7, page=2), str)
    assert_type(limited_sync_route(7), str)


@headgate_celery.limit("100/minute burst 10", key="user_id", cost=lambda call: call.arguments["pages"])
@headgate_celery.limit("5 slots")
def limited_task(user_id: int, *, pages: int = 1) -> list[str]:
    return [str(user_id)] * pages


def decorated_tasks_keep_their_types() -> None:
    assert_type(limited_task(7, pages=2), list[str])
    limited_task("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    rate_limits = headgate_celery.rate_limits(app, engine="redis://localhost:6379/0", limits=["5/s"], timeout=60)
    assert_type(rate_limits, headgate_celery.TaskLimits)


@headgate_flask.limit("5/s", key="user", missing="deny", refund="2xx")
async def limited_async_view(item: int, *, page: int = 1) -> str:
    return f"{item} {page}"


@headgate_flask.exempt
@headgate_flask.limit("5/s", key=lambda request: request.headers["x-key"])
def limited_flask_view(item: int) -> str:
    return str(item)


@headgate_flask.limit("5/s")
class LimitedView(MethodView):
    @headgate_flask.limit("1/s")
    def get(self, item: int) -> str:
        return str(item)


async def decorated_flask_views_keep_their_types() -> None:
    assert_type(await limited_async_view(7, page=2), str)
    assert_type(limited_flask_view(7), str)
    assert_type(LimitedView().get(7), str)
    assert_type(headgate_flask.limit("5/s")(Blueprint("api", __name__)), Blueprint)


@headgate_aiohttp.limit("5/s", key="user", missing="deny", refund="2xx")
async def limited_aiohttp_handler(request: web.Request) -> web.Response:
    return web.Response()


@headgate_aiohttp.limit("5/s")
class LimitedAiohttpView(web.View):
    @headgate_aiohttp.exempt
    async def get(self) -> web.Response:
        return web.Response()


async def decorated_aiohttp_handlers_keep_their_types(request: web.Request) -> None:
    assert_type(await limited_aiohttp_handler(request), web.Response)
    assert_type(await LimitedAiohttpView(request).get(), web.Response)
