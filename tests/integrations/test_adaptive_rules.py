"""A rulebook with an adaptive rule in every server integration: each measures response times and reads outcomes.

Handlers move the limiter's clock instead of sleeping: 25 requests of 50 ms fill a window of a target of 10 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web
from fastapi import BackgroundTasks, FastAPI, Response
from flask import Flask
from google.protobuf.wrappers_pb2 import StringValue
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from headgate import ManualClock, Observer
from headgate.integrations import aiohttp, fastapi, flask
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.integrations.finish_flows import outcome_of
from headgate.integrations.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from headgate.integrations.wsgi import WSGIRateLimitMiddleware
from headgate.observer import LimitChange
from tests.integrations import test_aiohttp
from tests.integrations.django_project import project
from tests.integrations.django_project.serving import Interface, serve_project
from tests.integrations.grpc_servers import AsyncOrderHandlers, SyncOrderHandlers, serve_async, serve_sync

from django.http import HttpRequest, HttpResponse  # isort: skip
from django.urls import path as django_path  # isort: skip

assert project.HEADGATE

RULES = {
    "rules": [
        {"name": "app", "limit": {"adaptive": "concurrency", "target": "p50 10ms", "between": [1, 20]}},
        {"name": "users", "limit": "100000/s"},
    ]
}
ENOUGH = 25  # requests
Send = Callable[[int], int]  # sends a request that is to be answered with this status; returns the status


class Watched:
    """The settings of an application, its clock, and what became of its limit."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.changes: list[LimitChange] = []
        watched = self

        class WatchedChanges(Observer):
            def limit_changed(self, change: LimitChange) -> None:
                watched.changes.append(change)

        self.settings: dict[str, Any] = {"rules": RULES, "clock": self.clock, "observers": [WatchedChanges()]}

    def work(self, seconds: float) -> None:
        self.clock.advance(seconds)


def _status(path: str) -> int:
    return int(path.rpartition("/")[2])


class _AsgiSend:
    def __init__(self, app: Any) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def __call__(self, status: int) -> int:
        return asyncio.run(self._send(status))

    async def _send(self, status: int) -> int:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://test") as client:
            return (await client.get(f"/status/{status}")).status_code


@contextmanager
def _asgi(watched: Watched) -> Iterator[Send]:
    async def answer(request: Request) -> PlainTextResponse:
        watched.work(0.05)
        return PlainTextResponse("", _status(request.url.path))

    app = Starlette(routes=[Route("/status/{status}", answer)])
    yield _AsgiSend(RateLimitMiddleware(app, **watched.settings))


@contextmanager
def _fastapi(watched: Watched) -> Iterator[Send]:
    app = FastAPI()
    fastapi.rate_limits(app, **watched.settings)

    @app.get("/status/{status}")
    async def answer(status: int, later: BackgroundTasks) -> Response:
        watched.work(0.05)
        later.add_task(watched.work, 1.0)
        return Response(status_code=status, background=later)

    yield _AsgiSend(app)


@contextmanager
def _wsgi(watched: Watched) -> Iterator[Send]:
    def app(environ: dict[str, Any], start: Any) -> list[bytes]:
        watched.work(0.05)
        start(f"{_status(environ['PATH_INFO'])} Status", [])
        return [b""]

    transport = httpx.WSGITransport(WSGIRateLimitMiddleware(app, **watched.settings))
    with httpx.Client(transport=transport, base_url="http://test") as client:
        yield lambda status: client.get(f"/status/{status}").status_code


@contextmanager
def _flask(watched: Watched) -> Iterator[Send]:
    app = Flask(__name__)
    flask.RateLimiter(app, **watched.settings)

    @app.get("/status/<int:status>")
    def answer(status: int) -> tuple[str, int]:
        watched.work(0.05)
        return "", status

    yield lambda status: app.test_client().get(f"/status/{status}", buffered=True).status_code


def _django(interface: Interface) -> Any:
    @contextmanager
    def served(watched: Watched) -> Iterator[Send]:
        def answer(request: HttpRequest, status: int) -> HttpResponse:
            watched.work(0.05)
            return HttpResponse(status=status)

        urls = type("Urls", (), {"urlpatterns": (django_path("status/<int:status>", answer),)})
        with serve_project(interface, watched.settings, ROOT_URLCONF=urls) as client:
            yield lambda status: client.get(f"/status/{status}").status_code

    return served


@contextmanager
def _aiohttp(watched: Watched) -> Iterator[Send]:
    async def answer(request: web.Request) -> web.Response:
        watched.work(0.05)
        return web.Response(status=_status(request.path))

    app = web.Application()
    app.router.add_get("/status/{status}", answer)
    aiohttp.rate_limits(app, **watched.settings)
    with test_aiohttp.serve(app) as client:
        yield lambda status: client.get(f"/status/{status}").status_code


@contextmanager
def _grpc(watched: Watched) -> Iterator[Send]:
    class SlowOrders(SyncOrderHandlers):
        def One(self, request: StringValue, context: Any) -> StringValue:  # noqa: N802
            watched.work(0.05)
            return request

    with serve_sync(RateLimitInterceptor(**watched.settings), SlowOrders()) as client:
        yield lambda status: 200 if client.one()[0] == "OK" else 503


@contextmanager
def _grpc_aio(watched: Watched) -> Iterator[Send]:
    class SlowAsyncOrders(AsyncOrderHandlers):
        async def One(self, request: StringValue, context: Any) -> StringValue:  # noqa: N802
            watched.work(0.05)
            return request

    with serve_async(lambda: AsyncRateLimitInterceptor(**watched.settings), SlowAsyncOrders()) as client:
        yield lambda status: 200 if client.one()[0] == "OK" else 503


HTTP = [_asgi, _fastapi, _wsgi, _flask, _django("wsgi"), _django("asgi"), _aiohttp]


@pytest.mark.parametrize("serve", [*HTTP, _grpc, _grpc_aio])
def test_response_times_move_the_limit(serve: Any) -> None:
    watched = Watched()
    with serve(watched) as send:
        assert [send(200) for _ in range(ENOUGH)] == [200] * ENOUGH
    assert watched.changes == [LimitChange("app", "all", 20, 16, "above the target")]


@pytest.mark.parametrize("serve", HTTP)
def test_errors_of_the_application_say_nothing(serve: Any) -> None:
    watched = Watched()
    with serve(watched) as send:
        assert [send(500) for _ in range(ENOUGH)] == [500] * ENOUGH
    assert watched.changes == []


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((200, "success"), (302, "success"), (404, "success"), (429, "success")),
        *((503, "dropped"), (504, "dropped")),
        *((500, "ignored"), (502, "ignored"), (499, "ignored"), (101, "ignored")),
    ],
)
def test_what_a_status_says(status: int, outcome: str) -> None:
    assert outcome_of(status) == outcome


def test_a_refused_request_gets_503_with_retry_after() -> None:
    watched = Watched()
    watched.settings["rules"] = {
        "rules": [{"name": "app", "limit": {"adaptive": "concurrency", "between": [1, 1]}}]
    }
    app = FastAPI()
    limits = fastapi.rate_limits(app, **watched.settings)

    @app.get("/nested")
    async def nested() -> dict[str, Any]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            refused = await client.get("/nested")
        return {"status": refused.status_code, "fields": dict(refused.headers), "body": refused.json()}

    async def call_application() -> dict[str, Any]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            answer = (await client.get("/nested")).json()
            assert isinstance(answer, dict)
            return answer

    answer = asyncio.run(call_application())
    assert (answer["status"], answer["fields"]["retry-after"]) == (503, "1")
    assert answer["body"] == {
        "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "This service is working on as many requests as it can. Try again later.",
        "violated-policies": ["app"],
    }
    assert "ratelimit" not in answer["fields"]
    assert limits.limiter.adaptive.rules["app"].limits()["all"][1] == 0
