"""Any ASGI application through a real server: fields on every response, refusals, WebSockets, the lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from litestar import Litestar, get
from litestar import Response as LitestarResponse
from litestar.response import Redirect as LitestarRedirect
from litestar.response import Stream as LitestarStream
from quart import Quart, redirect
from quart import Response as QuartResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from headgate import ManualClock
from headgate.integrations.asgi import RateLimitMiddleware, ResponseStart, Scope, limit
from tests.integrations.server_harness import limit_fields, serve, serve_to_client
from tests.servers import RedisServer

POLICY = '"app";q=10;w=60'


def starlette_app() -> Starlette:
    async def hello(request: Request) -> Response:
        return JSONResponse({"remaining": request.state.headgate.decision.remaining})

    async def stream(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"part"

        return StreamingResponse(parts())

    async def fail(request: Request) -> Response:
        raise RuntimeError("nobody handles this")

    async def moved(request: Request) -> Response:
        return RedirectResponse("/")

    async def unchanged(request: Request) -> Response:
        return Response(status_code=304)

    return Starlette(
        routes=[
            Route("/", hello),
            Route("/stream", stream),
            Route("/fail", fail),
            Route("/moved", moved),
            Route("/unchanged", unchanged),
        ]
    )


def litestar_app() -> Any:
    @get("/", sync_to_thread=False)
    def hello() -> str:
        return "hello"

    @get("/stream", sync_to_thread=False)
    def stream() -> LitestarStream:
        return LitestarStream(iter([b"part"] * 3))

    @get("/fail", sync_to_thread=False)
    def fail() -> str:
        raise RuntimeError("nobody handles this")

    @get("/moved", sync_to_thread=False)
    def moved() -> LitestarRedirect:
        return LitestarRedirect("/")

    @get("/unchanged", sync_to_thread=False)
    def unchanged() -> LitestarResponse[None]:
        return LitestarResponse(None, status_code=304)

    return Litestar([hello, stream, fail, moved, unchanged], openapi_config=None)


def quart_app() -> Quart:
    app = Quart(__name__)

    @app.get("/")
    async def hello() -> str:
        return "hello"

    @app.get("/stream")
    async def stream() -> QuartResponse:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"part"

        return QuartResponse(parts())

    @app.get("/fail")
    async def fail() -> str:
        raise RuntimeError("nobody handles this")

    @app.get("/moved")
    async def moved() -> Any:
        return redirect("/")

    @app.get("/unchanged")
    async def unchanged() -> QuartResponse:
        return QuartResponse("", 304)

    return app


async def bare_app(scope: Any, receive: Any, send: Any) -> None:
    """An application without a framework; it knows no lifespan but its messages."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-ratelimit-limit", b"own")]})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.mark.parametrize("make", [starlette_app, litestar_app, quart_app])
def test_the_fields_are_on_every_response(make: Callable[[], Any]) -> None:
    app = RateLimitMiddleware(make(), limits=[limit("10/minute")], clock=ManualClock())
    with serve_to_client(app) as client:
        paths = [("/", 200), ("/stream", 200), ("/fail", 500), ("/moved", {302, 307}), ("/unchanged", 304)]
        for number, (path, status) in enumerate([*paths, ("/nothing", 404)], 1):
            response = client.get(path)
            assert response.status_code in (status if isinstance(status, set) else {status}), path
            assert limit_fields(response) == {
                "ratelimit-policy": POLICY,
                "ratelimit": f'"app";r={10 - number};t={6 * number}',
            }, path
        assert client.get("/stream").content == b"part" * 3
        assert [client.get("/").status_code for _ in range(3)] == [200] * 3
        refused = client.get("/", headers={"Accept": "application/json"})
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["violated-policies"] == ["app"]
        assert limit_fields(refused) == {
            "ratelimit-policy": POLICY,
            "ratelimit": '"app";r=0;t=6',
            "retry-after": "6",
        }
        assert client.get("/", headers={"Accept": "text/html"}).text.startswith("<!doctype html>")
        assert client.head("/").content == b""


def test_the_record_is_at_the_request() -> None:
    app = RateLimitMiddleware(starlette_app(), limits=[limit("10/minute")])
    with serve_to_client(app) as client:
        assert client.get("/").json() == {"remaining": 9}


def test_fields_of_the_application_stay() -> None:
    app = RateLimitMiddleware(bare_app, limits=[limit("10/minute")], headers="legacy", clock=ManualClock())
    with serve_to_client(app) as client:
        assert limit_fields(client.get("/")) == {
            "x-ratelimit-limit": "own", "x-ratelimit-remaining": "9", "x-ratelimit-reset": "6",
        }  # fmt: skip


def test_a_rulebook_decides_with_its_refusal() -> None:
    book = {
        "headers": "off",
        "rules": [
            {
                "name": "login",
                "when": {"path": "/moved", "method": "GET"},
                "limit": "1/hour",
                "refuse": {"status": 403, "body": "Later.", "type": "text/plain"},
            }
        ],
    }
    with serve_to_client(RateLimitMiddleware(starlette_app(), book)) as client:
        assert [client.get("/moved").status_code for _ in range(2)] == [307, 403]
        assert client.get("/moved/?x").text == "Later."
        assert limit_fields(client.get("/unchanged")) == {}


def test_two_processes_share_a_limit_through_redis(redis_server: RedisServer) -> None:
    first, second = (
        RateLimitMiddleware(starlette_app(), engine=redis_server.url, limits=[limit("3/hour; 100/day")])
        for _ in range(2)
    )
    with serve_to_client(first) as here, serve_to_client(second) as there:
        assert [client.get("/").status_code for client in (here, there, here, there, here)] == [200] * 3 + [
            429
        ] * 2
    assert first.limits._limiter is None, "the engine is closed with the lifespan"


def test_an_engine_that_is_down_is_a_503_or_the_fallbacks_answer() -> None:
    down = "redis://127.0.0.1:1"
    with serve_to_client(RateLimitMiddleware(starlette_app(), engine=down, limits=[limit("3/hour")])) as client:
        response = client.get("/", headers={"Accept": "application/json"})
        assert response.status_code == 503
        assert response.json()["title"] == "Service Unavailable"
    app = RateLimitMiddleware(starlette_app(), engine=f"{down}?fallback=allow", limits=[limit("3/hour")])
    with serve_to_client(app) as client:
        assert client.get("/").status_code == 200


def test_clients_are_distinguished_behind_a_trusted_proxy_only() -> None:
    for trusted, statuses in ((["127.0.0.0/8"], [200, 200, 429]), ([], [200, 429, 429])):
        app = RateLimitMiddleware(starlette_app(), limits=[limit("1/hour")], trusted_proxies=trusted)
        with serve_to_client(app) as client:
            addresses = ("203.0.113.7", "203.0.113.8", "6.6.6.6, 203.0.113.7")
            found = [client.get("/", headers={"X-Forwarded-For": each}).status_code for each in addresses]
            assert found == statuses


def test_failures_only_by_status_and_by_response() -> None:
    def was_redirect(response: ResponseStart) -> bool:
        return any(name == b"location" for name, _ in response.headers)

    limits = [limit("2/hour", refund="2xx"), limit("2/hour", refund=was_redirect)]
    with serve_to_client(RateLimitMiddleware(starlette_app(), limits=limits)) as client:
        assert [client.get("/").status_code for _ in range(2)] == [200, 200]
        assert client.get("/moved").status_code == 429, "the second limit counted both"
    with serve_to_client(RateLimitMiddleware(starlette_app(), limits=limits[:1])) as client:
        assert [client.get("/").status_code for _ in range(5)] == [200] * 5
        assert [client.get("/fail").status_code for _ in range(3)] == [500, 500, 429]


def test_what_a_response_gives_back_is_back_before_its_last_byte() -> None:
    statuses: list[int] = []

    async def main() -> None:
        complete, background = asyncio.Event(), asyncio.Event()

        async def answer_and_work(scope: Scope, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"hello"})
            await background.wait()  # a background task, or a middleware that is still busy

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            else:
                complete.set()

        scope = {"type": "http", "path": "/", "headers": [], "method": "GET"}
        limits = [limit("1 slots", key=None, name="one"), limit("1/hour", refund="2xx", name="failures")]
        app = RateLimitMiddleware(answer_and_work, limits=limits)
        requests = []
        for _ in range(3):
            complete.clear()
            requests.append(asyncio.ensure_future(app(dict(scope), _never, send)))
            await complete.wait()
        background.set()
        await asyncio.gather(*requests)

    asyncio.run(main())
    assert statuses == [200, 200, 200]


def test_a_background_task_may_still_settle_but_not_what_was_refunded() -> None:
    left: list[dict[str, float | None]] = []

    async def answer_and_settle(scope: Scope, receive: Any, send: Any) -> None:
        record = scope["state"]["headgate"]
        left.append({each.rule: each.remaining for each in record.decision.verdicts})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})
        for rule in ("kept", "refunded"):
            record.settle(30, rule=rule)

    async def ignore(message: Any) -> None:
        return None

    async def main() -> None:
        scope = {"type": "http", "path": "/", "headers": [], "method": "GET"}
        limits = [
            limit("100/hour", cost=10, name="kept"),
            limit("100/hour", cost=10, name="refunded", refund="2xx"),
        ]
        app = RateLimitMiddleware(answer_and_settle, limits=limits, clock=ManualClock())
        for _ in range(2):
            await app(dict(scope), _never, ignore)

    asyncio.run(main())
    assert left == [{"kept": 90, "refunded": 90}, {"kept": 60, "refunded": 90}]


async def _never() -> Any:
    await asyncio.Event().wait()


def test_functions_receive_the_scope_and_may_be_coroutines() -> None:
    async def by_key(scope: Scope) -> str | None:
        return next((value.decode() for name, value in scope["headers"] if name == b"x-key"), None)

    app = RateLimitMiddleware(starlette_app(), limits=[limit("1/hour", key=by_key)])
    with serve_to_client(app) as client:
        assert client.get("/nothing").status_code == client.get("/nothing").status_code == 404
        statuses = [client.get("/nothing", headers={"X-Key": key}).status_code for key in ("a", "b", "a")]
        assert statuses == [404, 404, 429]


def websocket_app() -> Starlette:
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    async def hello(request: Request) -> Response:
        return PlainTextResponse("hello")

    return Starlette(routes=[WebSocketRoute("/echo", echo), Route("/", hello)])


def test_a_websocket_is_decided_when_it_connects() -> None:
    app = RateLimitMiddleware(websocket_app(), limits=[limit("1/hour")], clock=ManualClock())
    with serve(app) as url:
        address = url.replace("http", "ws") + "/echo"
        with connect(address) as websocket:
            websocket.send("hello")
            assert websocket.recv() == "hello"
            assert websocket.response is not None
            assert websocket.response.headers["RateLimit"] == '"app";r=0;t=3600'
        with pytest.raises(InvalidStatus) as refused, connect(address):
            pass
        assert refused.value.response.status_code == 429
        assert refused.value.response.headers["Retry-After"] == "3600"
        assert refused.value.response.body is not None
        assert b'"violated-policies":["app"]' in refused.value.response.body


def test_connections_are_held_as_slots() -> None:
    app = RateLimitMiddleware(websocket_app(), limits=[limit("1 slot", key=None)])
    with serve(app) as url:
        address = url.replace("http", "ws") + "/echo"
        with connect(address), pytest.raises(InvalidStatus), connect(address):
            pass
        with connect(address) as websocket:
            websocket.send("again")
            assert websocket.recv() == "again"


def test_too_many_messages_close_a_websocket() -> None:
    app = RateLimitMiddleware(websocket_app(), messages=[limit("2/hour")], clock=ManualClock())
    with serve(app) as url, connect(url.replace("http", "ws") + "/echo") as websocket:
        for text in ("one", "two", "three"):
            websocket.send(text)
        assert [websocket.recv(), websocket.recv()] == ["one", "two"]
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (
            1008,
            "Too many messages. Try again in 1800 s.",
        )


def test_a_queue_slows_messages_down() -> None:
    clock = ManualClock(0)
    app = RateLimitMiddleware(websocket_app(), messages=[limit("10/s queue 5")], clock=clock)
    with serve(app) as url, connect(url.replace("http", "ws") + "/echo") as websocket:
        for number in range(5):
            websocket.send(str(number))
            assert websocket.recv() == str(number)
    assert clock.now_us() == 400_000
