"""Applications behind an AdaptiveLimiter: what is in flight, what is refused, and what each response tells."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from flask import Flask

from headgate import AdaptiveLimiter
from headgate.adaptive.aimd import Aimd
from headgate.errors import InvalidSetting
from headgate.integrations.adaptive import AdaptiveMiddleware, AdaptiveWSGIMiddleware


def _limiter(limit: int = 20, **settings: Any) -> AdaptiveLimiter:
    """A limiter whose every dropped call lowers the limit by a tenth."""
    return AdaptiveLimiter(Aimd(initial=limit, floor=1, ceiling=limit), **settings)


class AsgiClient:
    """Sends one request at a time to an ASGI application."""

    def __init__(self, app: Any) -> None:
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return asyncio.run(self._get(path, headers))

    async def _get(self, path: str, headers: dict[str, str] | None) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://test") as client:
            return await client.get(path, headers=headers)


def _fastapi(limiter: AdaptiveLimiter, **settings: Any) -> Callable[..., Any]:
    app = FastAPI()
    app.add_middleware(AdaptiveMiddleware, limiter=limiter, **settings)

    @app.get("/status/{status}")
    async def answer(status: int) -> int:
        if status >= 400:
            raise HTTPException(status)
        return limiter.in_flight

    @app.get("/slow")
    async def slow() -> None:
        raise TimeoutError

    @app.get("/wrong")
    async def wrong() -> None:
        raise ValueError

    return AsgiClient(app).get


def _flask(limiter: AdaptiveLimiter, **settings: Any) -> Callable[..., Any]:
    app = Flask(__name__)

    @app.get("/status/<int:status>")
    def answer(status: int) -> tuple[str, int]:
        return str(limiter.in_flight), status

    app.wsgi_app = AdaptiveWSGIMiddleware(app.wsgi_app, limiter, **settings)  # type: ignore[method-assign]
    return partial(app.test_client().get, buffered=True)


@pytest.mark.parametrize("get_of", [_fastapi, _flask])
def test_a_request_is_in_flight_until_its_response_is_complete(get_of: Any) -> None:
    limiter = _limiter()
    response = get_of(limiter)("/status/200")
    assert (response.status_code, response.text) == (200, "1")
    assert limiter.in_flight == 0


@pytest.mark.parametrize("get_of", [_fastapi, _flask])
def test_a_request_too_many_gets_503_and_when_to_come_again(get_of: Any) -> None:
    limiter = _limiter(1)
    with limiter.guard():
        response = get_of(limiter)("/status/200")
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.headers["content-type"] == "application/problem+json"
    assert json.loads(response.text)["type"].endswith("#temporary-reduced-capacity")
    assert limiter.in_flight == 0


@pytest.mark.parametrize("get_of", [_fastapi, _flask])
def test_a_refusal_has_the_form_that_its_client_accepts(get_of: Any) -> None:
    limiter = _limiter(1)
    with limiter.guard():
        response = get_of(limiter)("/status/200", headers={"Accept": "text/html,*/*;q=0.8"})
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "working on as many requests as it can" in response.text


@pytest.mark.parametrize("get_of", [_fastapi, _flask])
@pytest.mark.parametrize(("status", "limit"), [(200, 20), (404, 20), (429, 20), (500, 20), (503, 18), (504, 18)])
def test_the_status_tells_how_it_went(get_of: Any, status: int, limit: int) -> None:
    limiter = _limiter()
    assert get_of(limiter)(f"/status/{status}").status_code == status
    assert (limiter.limit, limiter.in_flight) == (limit, 0)


@pytest.mark.parametrize(("path", "limit"), [("/slow", 18), ("/wrong", 20)])
def test_an_exception_tells_how_it_went(path: str, limit: int) -> None:
    limiter = _limiter()
    assert _fastapi(limiter)(path).status_code == 500
    assert (limiter.limit, limiter.in_flight) == (limit, 0)


@pytest.mark.parametrize("get_of", [_fastapi, _flask])
def test_other_statuses_can_mean_dropped_and_requests_can_be_exempt(get_of: Any) -> None:
    limiter = _limiter()
    get = get_of(limiter, drop_statuses={429}, exempt=lambda request: _path(request) == "/status/299")
    get("/status/503")
    assert limiter.limit == 20
    get("/status/429")
    assert limiter.limit == 18
    assert get("/status/299").text == "0"


def _path(request: dict[str, Any]) -> str:
    return str(request.get("path") or request.get("PATH_INFO"))


def test_priorities_and_users_come_from_the_request() -> None:
    limiter = _limiter(1, priorities=("high", "low"), queue=30, fair=True)
    seen = []

    def priority(scope: Any) -> str:
        seen.append(scope["path"])
        return "low"

    get = _fastapi(limiter, priority=priority, user=lambda scope: scope["client"])
    with limiter.guard("high"):
        assert get("/status/200").status_code == 503  # the least important never wait
    assert get("/status/200").status_code == 200
    assert seen == ["/status/200", "/status/200"]


def test_a_client_that_goes_away_says_nothing() -> None:
    limiter = _limiter()

    def body() -> Iterator[bytes]:
        yield b"one"
        yield b"two"

    def app(environ: Any, start_response: Any) -> Any:
        start_response("503 Service Unavailable", [])
        return body()

    response = AdaptiveWSGIMiddleware(app, limiter)({}, lambda status, headers: None)
    assert next(iter(response)) == b"one"
    assert limiter.in_flight == 1
    response.close()  # type: ignore[attr-defined]
    assert (limiter.limit, limiter.in_flight) == (20, 0)


async def test_a_request_that_is_cancelled_says_nothing() -> None:
    limiter = _limiter()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(3600)

    task = asyncio.ensure_future(AdaptiveMiddleware(app, limiter)({"type": "http"}, None, None))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert limiter.in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (limiter.limit, limiter.in_flight) == (20, 0)


async def test_websockets_and_lifespans_pass() -> None:
    limiter, seen = _limiter(1), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["type"], limiter.in_flight))

    for kind in ("websocket", "lifespan"):
        await AdaptiveMiddleware(app, limiter)({"type": kind}, None, None)  # type: ignore[arg-type]
    assert seen == [("websocket", 0), ("lifespan", 0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limiter": 20}, "limiter is an AdaptiveLimiter; not 20."),
        ({"priority": "high"}, "priority is a function of the request; not 'high'."),
        ({"drop_statuses": {7}}, "drop_statuses is a collection of statuses, such as {503, 504}; not {7}."),
        ({"drop_statuses": 503}, "drop_statuses is a collection of statuses, such as {503, 504}; not 503."),
    ],
)
@pytest.mark.parametrize("middleware", [AdaptiveMiddleware, AdaptiveWSGIMiddleware])
def test_bad_settings_are_refused_with_a_sentence(middleware: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        middleware(print, **settings)
    assert str(refused.value) == message
