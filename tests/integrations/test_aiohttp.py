"""aiohttp applications through a real server: fields on every response, routes and views, streams, WebSockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from headgate import ManualClock
from headgate.errors import InvalidRule, InvalidRulebook, InvalidSetting
from headgate.integrations.aiohttp import RECORD, exempt, limit, rate_limits
from tests.integrations.server_harness import limit_fields
from tests.servers import RedisServer
from tests.servers.wait_until import until

POLICY = '"app";q=10;w=60'
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextmanager
def serve(app: web.Application) -> Iterator[httpx.Client]:
    """Serves an application in a thread of its own; yields a client."""
    started = threading.Event()
    replies: list[Any] = []

    async def run() -> None:
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        try:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            loop, stop = asyncio.get_running_loop(), asyncio.Event()
            replies.extend([runner.addresses[0][1], lambda: loop.call_soon_threadsafe(stop.set)])
            started.set()
            await stop.wait()
        except BaseException as error:
            replies.append(error)
            started.set()
        finally:
            await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert started.wait(30)
    if isinstance(replies[0], BaseException):
        thread.join()
        raise replies[0]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{replies[0]}", trust_env=False, timeout=30) as client:
            yield client
    finally:
        replies[1]()
        thread.join()


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


def shop(folder: Path | None = None) -> web.Application:
    """Returns an application with a route for each way in which a response may come."""
    app = web.Application()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(3):
            await response.write(b"part")
        await response.write_eof(b"end")
        return response

    async def parts(request: web.Request) -> web.Response:
        async def produce() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"part"

        return web.Response(body=produce())

    async def fail(request: web.Request) -> web.Response:
        raise RuntimeError("nobody handles this")

    async def moved(request: web.Request) -> web.Response:
        raise web.HTTPFound("/")

    async def unchanged(request: web.Request) -> web.Response:
        return web.Response(status=304)

    async def nothing(request: web.Request) -> web.Response:
        return None  # type: ignore[return-value]

    async def file(request: web.Request) -> web.FileResponse:
        assert folder is not None
        return web.FileResponse(folder / "file")

    for path, handler in {
        "/": hello, "/stream": stream, "/parts": parts, "/fail": fail, "/moved": moved, "/unchanged": unchanged,
        "/nothing": nothing, "/file": file,
    }.items():  # fmt: skip
        app.router.add_get(path, handler)
    return app


def test_the_fields_are_on_every_response(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    app = shop(tmp_path)
    rate_limits(app, limits=[limit("10/minute")], clock=ManualClock())
    with serve(app) as client:
        paths = [("/", 200), ("/stream", 200), ("/parts", 200), ("/fail", 500), ("/moved", 302),
                 ("/unchanged", 304), ("/nothing", 500), ("/file", 200), ("/nowhere", 404)]  # fmt: skip
        for number, (path, status) in enumerate(paths, 1):
            response = client.get(path)
            assert response.status_code == status, path
            assert limit_fields(response) == {
                "ratelimit-policy": POLICY,
                "ratelimit": f'"app";r={10 - number};t={6 * number}',
            }, path
        assert client.post("/").status_code == 405
        refused = client.get("/", headers={"Accept": "application/json"})
        assert (refused.status_code, refused.json()["violated-policies"]) == (429, ["app"])
        assert refused.headers["content-type"] == "application/problem+json"
        assert limit_fields(refused) == {
            "ratelimit-policy": POLICY,
            "ratelimit": '"app";r=0;t=6',
            "retry-after": "6",
        }
        assert client.get("/", headers={"Accept": "text/html"}).text.startswith("<!doctype html>")
        assert client.head("/").content == b""


def test_routes_views_and_subapplications_have_separate_limits() -> None:
    app, admin = web.Application(), web.Application()
    routes = web.RouteTableDef()

    @routes.get(r"/items/{id:\d+}")
    @limit("2/hour", key="param.id")
    @limit("3/hour", key=None, name="all-items")
    async def item(request: web.Request) -> web.Response:
        return web.json_response({"remaining": request[RECORD].decision.remaining})  # type: ignore[union-attr]

    @routes.view("/view")
    @limit("5/hour")
    class Shelf(web.View):
        async def get(self) -> web.Response:
            return web.Response(text="shelf")

        @limit("1/hour")
        async def post(self) -> web.Response:
            return web.Response(text="posted")

        @exempt
        async def delete(self) -> web.Response:
            return web.Response(text="deleted")

    @exempt
    async def health(request: web.Request) -> web.Response:
        return web.Response(text="fine")

    class Desk:
        @limit("1/hour")
        async def show(self, request: web.Request) -> web.Response:
            return web.Response(text="desk")

    app.add_routes(routes)
    app.router.add_get("/desk", Desk().show)
    app.router.add_get("/health", health)
    admin.router.add_get("/users/{id}", limit("1/hour", key="param.id")(hello))
    app.add_subapp("/admin", admin)
    rate_limits(app, limits=[limit("100/hour")], clock=ManualClock())
    with serve(app) as client:
        first = client.get("/items/7")
        assert first.json() == {"remaining": 1}
        assert first.headers["ratelimit-policy"] == (
            '"app";q=100;w=3600, "GET /items/{id}";q=2;w=3600, "all-items";q=3;w=3600'
        )
        statuses = [
            client.head("/items/7").status_code,
            *(client.get(f"/items/{n}").status_code for n in (7, 8, 9)),
        ]
        assert statuses == [200, 429, 200, 429]
        assert [client.get("/view").status_code for _ in range(3)] == [200] * 3
        assert [client.post("/view").status_code for _ in range(3)] == [200, 429, 429]
        assert [client.get("/view").status_code for _ in range(2)] == [200, 429], "what was refused is not counted"
        assert client.delete("/view").status_code == 200
        assert client.put("/view").status_code == 429, "a method that the view does not have"
        assert [client.get("/desk").status_code for _ in range(2)] == [200, 429]
        assert [client.get(f"/admin/users/{user}").status_code for user in (1, 2, 1)] == [200, 200, 429]
        assert limit_fields(client.get("/health")) == {}


def test_a_limit_below_a_decorator_that_hides_it_still_counts() -> None:
    def hide(handler: Handler) -> Handler:
        async def call(request: web.Request) -> web.StreamResponse:
            return await handler(request)

        return call

    app = web.Application()
    app.router.add_get("/", hide(limit("2/hour", key=None)(limit("9/hour")(hello))))
    rate_limits(app, limits=[limit("2/hour", name="whole")], clock=ManualClock())
    with serve(app) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    app = web.Application()
    app.router.add_get("/", limit("2/hour")(hello))
    with serve(app) as client:
        assert client.get("/").status_code == 500, "a limit without an engine does not pass in silence"


def test_other_middlewares_run_outside_of_the_decision() -> None:
    @web.middleware
    async def log_in(request: web.Request, handler: Handler) -> web.StreamResponse:
        clone = request.clone(headers={**request.headers, "X-User": request.headers["X-Token"][::-1]})
        response = await handler(clone)
        response.headers["X-Seen"] = str(response.status)
        return response

    async def user(request: web.Request) -> str:
        return request.headers["X-User"]

    app = web.Application()
    app.router.add_get("/", hello)
    rate_limits(app, limits=[limit("1/hour", key="user", missing="deny")], user=user)
    app.middlewares.append(log_in)
    with serve(app) as client:
        replies = [client.get("/", headers={"X-Token": token}) for token in ("ann", "bob", "ann")]
        assert [(reply.status_code, reply.headers["x-seen"]) for reply in replies] == [
            (200, "200"), (200, "200"), (429, "429"),
        ]  # fmt: skip
        assert all("ratelimit" in reply.headers for reply in replies)


def test_a_rulebook_knows_routes_and_paths() -> None:
    app = web.Application()
    app.router.add_get("/files/{path:.*}", hello)
    app.router.add_get("/items/{id}", hello)
    book = {"rules": [
        {"name": "files", "when": {"route": "/files/{path...}"}, "key": "param.path", "missing": "deny",
         "limit": "1/hour"},
        {"name": "items", "when": {"path": "/items/{item}"}, "key": "item", "limit": "1/hour",
         "refuse": {"status": 403, "body": "Later.", "type": "text/plain"}},
    ]}  # fmt: skip
    rate_limits(app, book, strict=True)
    with serve(app) as client:
        paths = ["/files/a/b", "/files/a/c", "/files/a/b", "/items/1", "/items/1"]
        assert [client.get(path).status_code for path in paths] == [200, 200, 429, 200, 403]
        assert client.get("/items/1").text == "Later."


@pytest.mark.parametrize("path", ["/stream", "/parts", "/file", "/"])
def test_bytes_are_counted_and_settled(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 70_000)
    app = shop(tmp_path)
    sent = limit("1000000/hour", cost_after=lambda record: record.bytes_sent, name="bytes")
    rate_limits(app, limits=[sent], clock=ManualClock())
    sizes = {"/stream": 15, "/parts": 12, "/file": 70_000, "/": 5}
    with serve(app) as client:
        client.get(path)
        left = int(client.get("/nowhere").headers["ratelimit"].partition("r=")[2].partition(";")[0])
        assert (
            0 <= 1_000_000 - 1 - sizes[path] - left < 60
        )  # the framing of chunks counts where aiohttp writes them


def test_a_handler_settles_and_refunds_follow_the_status() -> None:
    app = web.Application()

    async def generate(request: web.Request) -> web.Response:
        request[RECORD].settle(7)
        if "fail" in request.query:
            raise RuntimeError("after settling")
        return web.Response(text="answer")

    async def login(request: web.Request) -> web.Response:
        if request.query["password"] != "open":
            raise web.HTTPUnauthorized
        return web.Response(text="welcome")

    app.router.add_get("/ask", limit("100/hour", cost=10, name="tokens")(generate))
    app.router.add_get("/login", limit("2/hour", refund="2xx")(login))
    rate_limits(app, clock=ManualClock())
    with serve(app) as client:
        assert [client.get(path).status_code for path in ("/ask", "/ask?fail")] == [200, 500]
        assert client.get("/ask").headers["ratelimit"].startswith('"tokens";r=76;')
        right, wrong = "/login?password=open", "/login?password=no"
        statuses = [client.get(path).status_code for path in (right, right, right, wrong, right, wrong, wrong)]
        assert statuses == [200, 200, 200, 401, 200, 401, 429]


@pytest.mark.parametrize("streams", [True, False])
def test_a_slot_is_free_when_the_client_leaves(streams: bool) -> None:
    app = web.Application()

    async def endless(request: web.Request) -> web.StreamResponse:
        async def produce() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 1000
                await asyncio.sleep(0.001)

        if not streams:
            return web.Response(body=produce())
        response = web.StreamResponse()
        await response.prepare(request)
        async for part in produce():
            await response.write(part)
        return response

    slot = limit("1 slots", key=None, name="slot")
    app.router.add_get("/endless", slot(endless))
    app.router.add_get("/", slot(hello))
    rate_limits(app)
    with serve(app) as client:
        for _ in range(2):
            with client.stream("GET", "/endless") as response:
                assert response.status_code == 200
                chunks = response.iter_bytes()
                next(chunks)
                assert client.get("/").status_code == 429
            until(lambda: None if client.get("/").status_code == 200 else "the slot is held", 30)


def test_websockets_and_their_messages() -> None:
    app = web.Application()

    async def chat(request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        async for message in websocket:
            await websocket.send_str(message.data)
        return websocket

    app.router.add_get("/chat", limit("2/hour")(chat))
    rate_limits(app, messages=[limit("3/hour", key=None)], clock=ManualClock())
    with serve(app) as client:
        url = str(client.base_url).replace("http", "ws").rstrip("/") + "/chat"
        with connect(url) as websocket:
            assert websocket.response is not None
            assert websocket.response.headers["ratelimit"] == '"GET /chat";r=1;t=1800'
            for number in range(3):
                websocket.send(str(number))
                assert websocket.recv() == str(number)
            websocket.send("one more")
            with pytest.raises(ConnectionClosed) as closed:
                websocket.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (
                1008,
                "Too many messages. Try again in 1200 s.",
            )
        with connect(url):
            pass
        with pytest.raises(InvalidStatus) as refused:
            connect(url)
        assert refused.value.response.status_code == 429
        assert refused.value.response.headers["retry-after"] == "1800"


def test_trusted_proxies_and_exempt_paths() -> None:
    app = shop()
    rate_limits(app, limits=[limit("1/hour")], trusted_proxies=["127.0.0.0/8"], exempt=["/unchanged"])
    with serve(app) as client:
        addresses = ["192.0.2.1", "192.0.2.2", "8.8.8.8, 192.0.2.1"]
        statuses = [client.get("/", headers={"X-Forwarded-For": address}).status_code for address in addresses]
        assert statuses == [200, 200, 429]
        assert [client.get(path).status_code for path in ["/unchanged"] * 3] == [304] * 3
        assert limit_fields(client.get("/unchanged")) == {}


def test_an_outage_is_a_503_and_a_queue_waits() -> None:
    app = shop()
    rate_limits(app, engine="redis://127.0.0.1:1", limits=[limit("1/hour")])
    with serve(app) as client:
        assert (client.get("/").status_code, client.get("/").headers["retry-after"]) == (503, "1")
    clock = ManualClock()
    app = shop()
    rate_limits(app, limits=[limit("1/s queue 2")], clock=clock)
    with serve(app) as client:
        start = clock.now_us()
        assert [client.get("/").status_code for _ in range(3)] == [200] * 3
        assert clock.now_us() - start >= 2_000_000


def test_two_processes_share_a_limit_through_redis(redis_server: RedisServer) -> None:
    first, second = shop(), shop()
    limits = [
        rate_limits(app, engine=redis_server.url, limits=[limit("3/hour; 100/day")]) for app in (first, second)
    ]
    with serve(first) as here, serve(second) as there:
        statuses = [client.get("/").status_code for client in (here, there, here, there, here)]
        assert statuses == [200] * 3 + [429] * 2
    assert [each._limiter for each in limits] == [None, None], "the engine is closed with the application"


def test_an_application_and_its_subapplication_may_both_have_limits() -> None:
    app, admin = web.Application(), web.Application()
    admin.router.add_get("/", hello)
    rate_limits(admin, limits=[limit("2/hour", name="admin")], clock=ManualClock())
    app.add_subapp("/admin", admin)
    rate_limits(app, limits=[limit("5/hour", name="whole")], clock=ManualClock())
    with serve(app) as client:
        replies = [client.get("/admin/") for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert replies[0].headers["ratelimit-policy"] == '"whole";q=5;w=3600, "admin";q=2;w=3600'


def test_mistakes_are_found_at_start(caplog: pytest.LogCaptureFixture) -> None:
    app = web.Application()
    app.router.add_get("/items/{id}", limit("1/hour", key="param.item")(hello))
    rate_limits(app)
    with (
        pytest.raises(InvalidRule, match=r"test_aiohttp\.py:\d+: .*GET /items/\{id\} can never match"),
        serve(app),
    ):
        pass
    app = shop()
    book = {"rules": [{"name": "gone", "when": {"path": "/gone"}, "limit": "1/hour"}]}
    rate_limits(app, book, strict=True)
    with pytest.raises(InvalidRulebook, match="No route of the application matches"), serve(app):
        pass
    with pytest.raises(InvalidSetting, match="was called before"):
        rate_limits(app)
    app.freeze()
    with pytest.raises(InvalidSetting, match="comes too late"):
        rate_limits(app)
    with pytest.raises(InvalidRule, match="decorates a coroutine or a View, not 7"):
        limit("1/hour")(7)  # type: ignore[type-var]
    with pytest.raises(InvalidSetting, match="Did you mean messages="):
        rate_limits(web.Application(), mesages=["1/s"])  # type: ignore[call-arg]
