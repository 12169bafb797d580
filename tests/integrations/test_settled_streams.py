"""Real costs through real servers: of streams that end, that the client leaves, and of handlers that fail.

Each application does the same under one limit of tokens, which every request is charged 10 of, and one of bytes:
    /whole     streams, and settles 40
    /endless   streams until the client goes away, and settles as it goes
    /fail      settles 30, and fails;  /fail-early fails before
    /bytes     sends 3000 bytes in parts;  /page sends 500 at once
    /left      costs 1, so that a test can see what is left
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from flask import Flask, Response, g
from starlette.applications import Starlette
from starlette.routing import Route

from headgate.integrations import asgi, fastapi, flask, wsgi
from headgate.integrations.django import limit
from headgate.integrations.request_record import RequestRecord
from tests.integrations.django_project.serving import Interface, serve_project
from tests.integrations.server_harness import serve_to_client
from tests.integrations.wsgi_servers import serve
from tests.servers.wait_until import until

# isort: split
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

QUOTA = 10**9
MAX_CHUNKS = 1_000_000
PATHS = ("whole", "endless", "fail", "fail-early", "bytes", "page", "left")

_settled: list[int] = []  # what /endless has settled


def estimate(url_path: str) -> int:
    return 1 if url_path.endswith("left") else 10


def limits_of(make: Any, path_of: Callable[[Any], str]) -> list[Any]:
    """The two limits, made by a framework's `limit`, whose requests have a path."""
    return [
        make(f"{QUOTA}/day fixed", key=None, name="tokens", cost=lambda native: estimate(path_of(native))),
        make(f"{QUOTA}/day fixed", key=None, name="bytes", cost_after=lambda record: record.bytes_sent),
    ]


def body_of(name: str, record: RequestRecord) -> Iterator[bytes]:
    """The chunks that a path sends, and the cost that it settles meanwhile."""
    match name:
        case "whole":
            yield b"a"
            record.settle(40, rule="tokens")
        case "endless":
            for number in itertools.count(11):
                record.settle(number, rule="tokens")
                _settled.append(number)
                yield b"x" * 1000
                assert number < MAX_CHUNKS, "the server does not notice that the client is gone"
        case "fail" | "fail-early":
            if name == "fail":
                record.settle(30, rule="tokens")
            raise RuntimeError("the handler fails")
        case "bytes":
            yield from [b"y" * 1000] * 3
        case "page":
            yield b"z" * 500


async def stream_of(name: str, record: RequestRecord) -> AsyncIterator[bytes]:
    for chunk in body_of(name, record):
        yield chunk
        await asyncio.sleep(0.001)  # once the client is gone, sending awaits nothing


def starlette_app(app: Any) -> None:
    async def handle(request: Request) -> StreamingResponse:
        name = request.url.path[1:]
        if name.startswith("fail"):
            list(body_of(name, request.state.headgate))
        return StreamingResponse(stream_of(name, request.state.headgate))

    app.router.routes.append(Route("/{name}", handle))


@contextmanager
def asgi_client() -> Iterator[httpx.Client]:
    app = Starlette()
    starlette_app(app)
    with serve_to_client(
        asgi.RateLimitMiddleware(app, limits=limits_of(asgi.limit, lambda s: s["path"]))
    ) as client:
        yield client


@contextmanager
def fastapi_client() -> Iterator[httpx.Client]:
    app = FastAPI()
    fastapi.rate_limits(app, limits=limits_of(fastapi.limit, lambda request: request.url.path))
    starlette_app(app)
    with serve_to_client(app) as client:
        yield client


@contextmanager
def wsgi_client() -> Iterator[httpx.Client]:
    def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        name = environ["PATH_INFO"][1:]
        body = body_of(name, environ["headgate"])
        if name.startswith("fail"):
            list(body)
        start("200 OK", [("Content-Type", "text/plain")])
        return list(body) if name == "page" else body

    limited = wsgi.WSGIRateLimitMiddleware(app, limits=limits_of(wsgi.limit, lambda environ: environ["PATH_INFO"]))
    with serve("waitress", limited) as client:
        yield client


@contextmanager
def flask_client() -> Iterator[httpx.Client]:
    app = Flask(__name__)
    app.logger.disabled = True
    flask.RateLimiter(app, limits=limits_of(flask.limit, lambda request: request.path))

    @app.get("/<name>")
    def handle(name: str) -> Response:
        body = body_of(name, g.headgate)
        return Response(list(body) if name.startswith(("fail", "page", "left")) else body)

    with serve("werkzeug", app) as client:
        yield client


def django_view(request: HttpRequest, name: str) -> Any:
    body = body_of(name, request.headgate)  # type: ignore[attr-defined]
    if name.startswith(("fail", "page", "left")):
        return HttpResponse(b"".join(body))
    return StreamingHttpResponse(body)


async def django_async_view(request: HttpRequest, name: str) -> Any:
    if name.startswith(("fail", "page", "left")):
        return django_view(request, name)
    return StreamingHttpResponse(stream_of(name, request.headgate))  # type: ignore[attr-defined]


@contextmanager
def django_client(interface: Interface) -> Iterator[httpx.Client]:
    view: Any = django_view if interface == "wsgi" else django_async_view
    urls = type("Urls", (), {"urlpatterns": [path("<name>", view)]})
    limits = limits_of(limit, lambda request: request.path)
    with serve_project(interface, {"limits": limits}, ROOT_URLCONF=urls) as client:
        yield client


CLIENTS: dict[str, Callable[[], AbstractContextManager[httpx.Client]]] = {
    "asgi": asgi_client,
    "fastapi": fastapi_client,
    "wsgi": wsgi_client,
    "flask": flask_client,
    "django wsgi": lambda: django_client("wsgi"),
    "django asgi": lambda: django_client("asgi"),
}


class Account:
    """Returns the counts of both limits, without the requests that look at them."""

    def __init__(self, client: httpx.Client) -> None:
        self.client, self.looks = client, 0

    def used(self) -> dict[str, int]:
        field = self.client.get("/left").headers["RateLimit"]
        self.looks += 1
        left = {name: int(rest) for name, rest in re.findall(r'"(\w+)";r=(\d+)', field)}
        return {"tokens": QUOTA - left["tokens"] - self.looks, "bytes": QUOTA - left["bytes"] - 1}

    def becomes(self, **expected: int) -> None:
        """Waits: a server sends the last byte before it has closed the response."""

        def missing() -> str | None:
            used = self.used()
            return None if used.items() >= expected.items() else f"{used} is not {expected}"

        until(missing, 30)


@pytest.fixture(params=CLIENTS)
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    _settled.clear()
    with CLIENTS[request.param]() as client:
        yield Account(client)


def test_a_stream_that_ends_is_charged_what_it_settled(account: Account) -> None:
    for number in range(1, 4):
        assert account.client.get("/whole").content == b"a"
        account.becomes(tokens=40 * number)


def test_a_client_that_goes_away_pays_for_what_it_got(account: Account) -> None:
    with account.client.stream("GET", "/endless") as reply:
        pieces = reply.iter_bytes()
        for _ in range(3):
            next(pieces)
        del pieces

    def missing() -> str | None:
        """The server notices it a few chunks later: so the last word is known only then."""
        before = list(_settled)
        used = account.used()
        return None if before == _settled and used["tokens"] == _settled[-1] else f"{used}, {_settled[-1]}"

    until(missing, 30)
    assert account.used()["tokens"] > 10, "more than the estimate"
    assert account.used()["bytes"] >= 1000


def test_a_handler_that_fails_pays_its_stated_cost_or_the_estimate(account: Account) -> None:
    assert account.client.get("/fail").status_code == 500
    account.becomes(tokens=30)
    assert account.client.get("/fail-early").status_code == 500
    account.becomes(tokens=40)


def test_bytes_are_counted(account: Account) -> None:
    before = account.used()["bytes"]
    assert len(account.client.get("/bytes").content) == 3000
    account.becomes(bytes=before + 3000)
    assert len(account.client.get("/page").content) == 500
    account.becomes(bytes=before + 3500)
