"""FastAPI through a real server: dependencies, decorators, routers, mounts, WebSockets, OpenAPI, and the start.

The file is long for one reason: each way to write a limit has its story here, on the same server.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.responses import Response
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from headgate import ManualClock
from headgate.errors import InvalidRule, InvalidSetting
from headgate.integrations.fastapi import RequestRefused, exempt, limit, rate_limits
from tests.integrations.server_harness import limit_fields, serve, serve_to_client
from tests.servers import RedisServer


def statuses(client: Any, *paths: str, **headers: str) -> list[int]:
    return [client.get(path, headers=headers).status_code for path in paths]


@pytest.fixture
def app() -> FastAPI:
    return FastAPI()


@pytest.fixture(params=["memory", "redis"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    server: RedisServer = request.getfixturevalue("redis_server")
    server.flush()
    return server.url


def test_a_dependency_and_a_decorator_limit_alike(app: FastAPI, engine: str) -> None:
    rate_limits(app, engine=engine)

    @app.get("/dependency", dependencies=[Depends(limit("2/hour"))])
    async def with_dependency() -> str:
        return "dependency"

    @app.get("/decorator")
    @limit("2/hour")
    async def with_decorator() -> str:
        return "decorator"

    @app.get("/sync/{number}")
    @limit("2/hour", key="param.number")
    def in_a_thread(number: int, *, double: bool = False) -> int:
        return 2 * number if double else number

    with serve_to_client(app) as client:
        assert statuses(client, *["/dependency"] * 3) == [200, 200, 429]
        assert statuses(client, *["/decorator"] * 3) == [200, 200, 429]
        assert client.get("/sync/4?double=1").json() == 8
        assert statuses(client, "/sync/4", "/sync/4", "/sync/5") == [200, 429, 200]
        assert client.get("/decorator").headers["RateLimit-Policy"] == '"GET /decorator";q=2;w=3600'


def test_several_limits_of_a_route_are_one_decision(app: FastAPI) -> None:
    limits = rate_limits(app, clock=ManualClock())

    @app.get(
        "/", dependencies=[Depends(limit("9/hour")), Depends(limit("1/hour", key="header.x-key", missing="one"))]
    )
    @limit("5/minute; 7/hour")
    async def root(request: Request) -> int:
        return len(request.state.headgate.decisions)

    with serve_to_client(app) as client:
        assert client.get("/").json() == 1
        assert client.get("/").headers["RateLimit"] == (
            '"GET /";r=8;t=400, "GET /";r=0;t=3600'.replace('"GET /";r=0', '"GET / (2)";r=0')
            + ', "GET / (3)";r=4;t=12, "GET / (3)#1";r=6;t=515'
        )
        assert client.get("/", headers={"X-Key": "b"}).headers["RateLimit"].startswith('"GET /";r=7;')
    assert set(limits._code_rules) == {"GET /", "GET / (2)", "GET / (3)"}


def test_limits_of_routers_and_mounted_apps_do_not_vanish(app: FastAPI) -> None:
    rate_limits(app, limits=[limit("100/hour")])
    inner, outer, mounted = APIRouter(), APIRouter(dependencies=[Depends(limit("4/hour"))]), FastAPI()

    @inner.get("/items/{item}", dependencies=[Depends(limit("3/hour", key="param.item"))])
    async def item(item: str) -> str:
        return item

    @inner.get("/plain")
    async def plain() -> str:
        return "plain"

    @mounted.get("/deep", dependencies=[Depends(limit("2/hour"))])
    async def deep() -> str:
        return "deep"

    outer.include_router(inner, prefix="/inner", dependencies=[Depends(limit("50/hour", name="inner"))])
    app.include_router(outer, prefix="/v1")
    app.include_router(outer, prefix="/v2")
    app.mount("/mounted", mounted)
    with serve_to_client(app) as client:
        assert client.get("/v1/inner/items/a").headers["RateLimit-Policy"] == (
            '"app";q=100;w=3600, "GET /v1/inner/items/{item}";q=4;w=3600, "inner";q=50;w=3600, '
            '"GET /v1/inner/items/{item} (2)";q=3;w=3600'
        )
        assert statuses(client, *["/v1/inner/items/a"] * 3) == [200, 200, 429]
        assert statuses(client, *["/v1/inner/plain"] * 5) == [200] * 4 + [429]
        assert statuses(client, "/v2/inner/plain") == [200], "another route has another counter"
        assert statuses(client, *["/mounted/deep"] * 3) == [200, 200, 429]
        refused = client.get("/mounted/deep", headers={"Accept": "application/json"})
        assert refused.json()["violated-policies"] == ["GET /mounted/deep"]


def test_a_limit_of_the_whole_app_as_a_dependency() -> None:
    app = FastAPI(dependencies=[Depends(limit("1/hour"))])
    rate_limits(app)

    @app.get("/a")
    async def a() -> str:
        return "a"

    app.include_router(router := APIRouter())

    @router.get("/b")
    async def b() -> str:
        return "b"

    with serve_to_client(app) as client:
        assert statuses(client, "/a", "/b", "/a", "/b") == [200, 200, 429, 429]


def test_the_fields_are_on_whatever_is_returned_or_raised(app: FastAPI) -> None:
    rate_limits(app)
    shared = Depends(limit("100/hour", name="all"))

    @app.get("/own", dependencies=[shared])
    async def custom_response() -> Response:
        return PlainTextResponse("own", headers={"X-Own": "1"})

    @app.get("/stream", dependencies=[shared])
    async def stream() -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"part"

        return StreamingResponse(parts())

    @app.get("/fail", dependencies=[shared])
    async def fail() -> str:
        raise RuntimeError("nobody handles this")

    @app.get("/number/{number}", dependencies=[shared])
    async def number(number: int) -> int:
        return number

    async def refuse() -> None:
        raise ValueError("a later dependency fails")

    @app.get("/later", dependencies=[shared, Depends(refuse)])
    async def later() -> str:
        return "never"

    with serve_to_client(app) as client:
        for path, status in (("/own", 200), ("/stream", 200), ("/fail", 500), ("/number/x", 422), ("/later", 500)):
            response = client.get(path)
            assert response.status_code == status
            assert set(limit_fields(response)) == {"ratelimit", "ratelimit-policy"}, path
        assert client.get("/own").headers["x-own"] == "1"


async def _user(request: Request) -> str | None:
    return request.headers.get("x-user")


def test_users_tiers_and_exemptions(app: FastAPI) -> None:
    rate_limits(app, user=_user, attributes=lambda request: {"plan": request.headers.get("x-plan")})
    tiers = limit(
        {"by": "plan", "cases": {"pro": "3/hour"}, "otherwise": "1/hour"},
        key="user",
        missing="one",
        exempt=lambda request: request.headers.get("x-admin"),
    )

    @app.get("/", dependencies=[Depends(tiers)])
    async def root() -> str:
        return "root"

    with serve_to_client(app) as client:
        assert statuses(client, "/", "/", **{"X-User": "ann"}) == [200, 429]
        assert statuses(client, *"////", **{"X-User": "bob", "X-Plan": "pro"}) == [200, 200, 200, 429]
        assert statuses(client, "/", "/") == [200, 429]
        assert statuses(client, *"////", **{"X-Admin": "1"}) == [200] * 4


def test_a_rulebook_knows_the_route_and_its_parameters(app: FastAPI) -> None:
    book = {
        "rules": [
            {"name": "item", "when": {"route": "/v1/items/{item}"}, "key": "param.item", "missing": "deny",
             "limit": "1/hour"},
            {"name": "deep", "when": {"route": "/mounted/{name}"}, "key": "param.name", "missing": "deny",
             "limit": "1/hour"},
        ]
    }  # fmt: skip
    rate_limits(app, book, strict=True)
    router, mounted = APIRouter(prefix="/items"), FastAPI()

    @router.get("/{item}")
    async def item(item: str) -> str:
        return item

    @mounted.get("/{name}")
    async def deep(name: str) -> str:
        return name

    app.include_router(router, prefix="/v1")
    app.mount("/mounted", mounted)
    with serve_to_client(app) as client:
        assert statuses(client, "/v1/items/a", "/v1/items/b", "/v1/items/a") == [200, 200, 429]
        assert statuses(client, "/mounted/a", "/mounted/b", "/mounted/a") == [200, 200, 429]


def test_limits_of_all_requests_know_the_route(app: FastAPI) -> None:
    by_route = limit("1/hour", key="route", name="by-route")
    of_items = limit("2/hour", key=["address", "route"], when={"route": "/items/**"}, name="of-items")
    rate_limits(app, limits=[by_route, of_items])

    @app.get("/items/{id}")
    async def item(id: str) -> str:  # noqa: A002
        return id

    @app.get("/")
    async def root() -> str:
        return "root"

    with serve_to_client(app) as client:
        assert statuses(client, "/", "/items/1", "/items/2", "/") == [200, 200, 429, 429]
        assert statuses(client, "/nowhere", "/nothing") == [404, 429], "requests without a route count together"
        assert '"of-items";r=1' in client.get("/items/3").headers["RateLimit"]


def test_exempt_routes_and_paths(app: FastAPI) -> None:
    rate_limits(app, limits=[limit("1/hour", key=None)], exempt=["/static/**"])
    router = APIRouter(dependencies=[Depends(limit("1/day", key=None))])

    @router.get("/health/{part}")
    @exempt
    async def health(part: str) -> str:
        return part

    @router.get("/static/{path:path}")
    async def static(path: str) -> str:
        return path

    @router.get("/")
    async def root() -> str:
        return "root"

    app.include_router(router)
    with serve_to_client(app) as client:
        assert statuses(client, *["/health/db", "/static/a/b"] * 3) == [200] * 6
        assert statuses(client, "/", "/") == [200, 429]


def test_refusals_of_the_middleware_have_cors_fields(app: FastAPI) -> None:
    rate_limits(app, limits=[limit("1/hour")])
    app.add_middleware(CORSMiddleware, allow_origins=["https://example.org"])
    with serve_to_client(app, Origin="https://example.org") as client:
        for status in (404, 429):
            response = client.get("/")
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == "https://example.org"
            assert "ratelimit" in response.headers


def test_an_app_may_answer_refusals_itself(app: FastAPI) -> None:
    rate_limits(app, clock=ManualClock())

    @app.exception_handler(RequestRefused)
    async def answer(request: Request, error: RequestRefused) -> JSONResponse:
        return JSONResponse({"error": "slow down", "rule": error.record.decision.rule}, 429)  # type: ignore[union-attr]

    @app.get("/")
    @limit("1/hour")
    async def root() -> str:
        return "root"

    with serve_to_client(app) as client:
        assert statuses(client, "/") == [200]
        refused = client.get("/")
        assert (refused.status_code, refused.json()) == (429, {"error": "slow down", "rule": "GET /"})
        assert refused.headers["retry-after"] == "3600"


def test_a_route_that_refuses_gives_back_what_the_app_charged(app: FastAPI, engine: str) -> None:
    rate_limits(app, engine=engine, limits=[limit("3/hour", name="all")])

    @app.get("/", dependencies=[Depends(limit("1/hour"))])
    async def root() -> str:
        return "root"

    with serve_to_client(app) as client:
        assert statuses(client, *"/////") == [200, 429, 429, 429, 429]
        assert client.get("/other").headers["ratelimit"].startswith('"all";r=1;')


def test_successful_logins_do_not_count(app: FastAPI, engine: str) -> None:
    rate_limits(app, engine=engine)

    @app.get("/login")
    @limit("2/hour", refund="2xx")
    async def login(response: Response, good: bool = False) -> str:
        response.status_code = 200 if good else 401
        return "login"

    with serve_to_client(app) as client:
        assert statuses(client, *["/login?good=1"] * 4) == [200] * 4
        assert statuses(client, "/login", "/login", "/login?good=1") == [401, 401, 429]


def test_websockets_may_have_separate_limits(app: FastAPI) -> None:
    rate_limits(app, clock=ManualClock())

    @app.websocket("/echo")
    async def echo(websocket: WebSocket, _: Annotated[None, Depends(limit("1/hour"))]) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())

    with serve(app) as url:
        address = url.replace("http", "ws") + "/echo"
        with connect(address) as websocket:
            websocket.send("hello")
            assert websocket.recv() == "hello"
        with pytest.raises(InvalidStatus) as refused, connect(address):
            pass
        assert refused.value.response.status_code == 429
        assert refused.value.response.headers["Retry-After"] == "3600"


def test_the_429_is_in_the_schema(app: FastAPI) -> None:
    rate_limits(app)
    router = APIRouter()

    @router.get("/limited/{path:path}")
    @limit("1/hour")
    async def limited(path: str) -> str:
        return path

    @app.get("/free")
    async def free() -> str:
        return "free"

    app.include_router(router, prefix="/v1")
    with serve_to_client(app) as client:
        paths = client.get("/openapi.json").json()["paths"]
    assert set(paths["/free"]["get"]["responses"]) == {"200"}
    operation = paths["/v1/limited/{path}"]["get"]
    assert operation["responses"]["429"]["description"] == "Too Many Requests"
    assert [parameter["name"] for parameter in operation["parameters"]] == ["path"]


def test_the_schema_has_no_429_where_none_is_sent(app: FastAPI) -> None:
    rate_limits(app, limits=["9/hour"], exempt=["/static/**", "/health"])

    @app.get("/static/{name}")
    async def static(name: str) -> str:
        return name

    @app.get("/health")
    async def health() -> str:
        return "fine"

    @app.get("/items")
    async def items() -> str:
        return "items"

    paths = app.openapi()["paths"]
    assert {path: "429" in paths[path]["get"]["responses"] for path in paths} == {
        "/static/{name}": False,
        "/health": False,
        "/items": True,
    }


def test_the_schema_has_the_status_that_a_limit_sets(app: FastAPI) -> None:
    rate_limits(app)

    @app.get("/")
    @limit("1/s", refuse={"status": 403, "body": "Not now."})
    @limit("9/minute", refuse={"status": 599})
    async def root() -> str:
        return "root"

    responses = app.openapi()["paths"]["/"]["get"]["responses"]
    assert {status: responses[status]["description"] for status in responses if status != "200"} == {
        "403": "Forbidden",
        "599": "Refused by a limit",
    }


def test_the_schema_of_an_app_with_a_rulebook_has_it_everywhere(app: FastAPI) -> None:
    rate_limits(app, {"rules": [{"name": "all", "limit": "1/s"}]})

    @app.get("/")
    async def root() -> str:
        return "root"

    assert "429" in app.openapi()["paths"]["/"]["get"]["responses"]


def test_decorated_functions_stay_what_they_are() -> None:
    async def original(number: int, /, *, name: str = "x", **more: int) -> str:
        """A coroutine."""
        return f"{name}{number}"

    decorated = limit("1/s")(original)
    assert inspect.iscoroutinefunction(decorated)
    assert decorated.__doc__ == "A coroutine."
    assert list(inspect.signature(decorated).parameters) == ["number", "name", "headgate_limit_0", "more"]

    @limit("1/s")
    async def items() -> AsyncIterator[int]:
        yield 1

    assert inspect.isasyncgenfunction(items)
    with pytest.raises(InvalidRule, match="A limit decorates a function"):
        limit("1/s")(FastAPI())


async def test_a_decorated_function_can_be_called_without_a_server() -> None:
    @limit("1/hour")
    async def double(number: int) -> int:
        return 2 * number

    assert [await double(4), await double(5)] == [8, 10]


def test_limits_can_be_switched_off_in_tests(app: FastAPI) -> None:
    rate_limits(app)
    slow = limit("1/hour")

    @app.get("/", dependencies=[Depends(slow)])
    async def root() -> str:
        return "root"

    app.dependency_overrides[slow] = lambda: None
    with serve_to_client(app) as client:
        assert statuses(client, *"///") == [200] * 3


async def _start_message(app: FastAPI) -> dict[str, Any]:
    """Starts an application as a server does; returns what it replies."""
    replies: list[dict[str, Any]] = []
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> dict[str, str]:
        return next(messages)

    async def send(message: Any) -> None:
        replies.append(message)

    with suppress(InvalidRule):  # raised after the reply
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    return replies[0]


async def test_a_limit_that_can_never_match_stops_the_start(app: FastAPI) -> None:
    rate_limits(app)

    @app.get("/items/{id}", dependencies=[Depends(limit("1/s", key="param.item"))])
    async def item(id: str) -> str:  # noqa: A002
        return id

    reply = await _start_message(app)
    assert reply["type"] == "lifespan.startup.failed"
    assert f"{__file__}:" in reply["message"]
    assert "The limit 1/s of GET /items/{id} can never match" in reply["message"]


async def test_a_limit_above_the_route_stops_the_start(app: FastAPI) -> None:
    rate_limits(app)

    @limit("1/s")
    @app.get("/")
    async def root() -> str:
        return "root"

    reply = await _start_message(app)
    assert reply["type"] == "lifespan.startup.failed"
    assert "it is written above the decorator of the route" in reply["message"]


async def test_a_rule_without_a_route_is_a_warning_or_an_error(caplog: pytest.LogCaptureFixture) -> None:
    book = {"rules": [{"name": "login", "when": {"path": "/login"}, "limit": "1/s"}]}
    relaxed, strict = FastAPI(), FastAPI()
    rate_limits(relaxed, book)
    rate_limits(strict, book, strict=True)
    with caplog.at_level(logging.WARNING):
        assert (await _start_message(relaxed))["type"] == "lifespan.startup.complete"
    assert 'rule "login": No route of the application matches' in caplog.text
    assert (await _start_message(strict))["type"] == "lifespan.startup.failed"


async def test_a_condition_of_all_requests_without_a_route_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    app, strict = FastAPI(), FastAPI()
    for each in (app, strict):
        rate_limits(each, limits=[limit("1/s", when={"path": "/logn"}, name="typo")], strict=each is strict)
        each.get("/login")(lambda: "login")
    with caplog.at_level(logging.WARNING):
        assert (await _start_message(app))["type"] == "lifespan.startup.complete"
    assert f"{__file__}:" in caplog.text
    assert "The limit 1/s of all requests: No route of the application matches its condition: path is /logn" in (
        caplog.text
    )
    assert (await _start_message(strict))["type"] == "lifespan.startup.failed"


async def test_a_parameter_of_one_route_is_no_key_of_all_requests(app: FastAPI) -> None:
    rate_limits(app, limits=[limit("1/s", key="param.id")])
    app.get("/items/{id}")(lambda id: id)  # noqa: A006
    reply = await _start_message(app)
    assert "of all requests can never match: not all requests have the path parameter param.id" in reply["message"]


def test_a_limit_that_is_no_dependency_is_a_sentence(app: FastAPI) -> None:
    rate_limits(app)
    not_a_limit: Any = limit
    with pytest.raises(InvalidRule, match=r'A limit lacks its text: write Depends\(limit\("5/s"\)\)'):
        app.get("/", dependencies=[Depends(not_a_limit)])(lambda: "root")
    not_a_dependency: Any = limit("5/s")
    with pytest.raises(InvalidRule, match=r"test_fastapi.py:\d+: Write Depends around the limit"):
        app.get("/", dependencies=[not_a_dependency])(lambda: "root")


def test_misuse_is_reported(app: FastAPI) -> None:
    rate_limits(app)
    with pytest.raises(InvalidSetting, match="was called before"):
        rate_limits(app)
    other = FastAPI()

    @other.get("/", dependencies=[Depends(limit("1/s"))])
    async def root() -> str:
        return "root"

    with serve_to_client(other) as client:
        assert client.get("/").status_code == 500
    with pytest.raises(InvalidSetting, match="comes too late"):
        rate_limits(other)
