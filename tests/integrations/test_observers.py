"""Every integration reports its decisions to observers, with the status of the response."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response
from flask import Flask

from headgate import ManualClock
from headgate.errors import InvalidRule, InvalidSetting
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.fastapi import rate_limits
from headgate.integrations.flask import RateLimiter
from headgate.integrations.request_limits import RequestLimits
from headgate.integrations.request_parts import RequestParts
from headgate.integrations.wsgi import WSGIRateLimitMiddleware
from headgate.telemetry.decision_log import DecisionLog
from tests.integrations.django_project import project
from tests.integrations.django_project.serving import Interface, serve_project
from tests.integrations.server_harness import serve_to_client
from tests.integrations.wsgi_servers import THREADED
from tests.integrations.wsgi_servers import serve as serve_wsgi
from tests.telemetry.log_lines import read_lines, replay

BOOK = {
    "rules": [{"name": "all", "when": {"path": "/**"}, "key": "address", "missing": "deny", "limit": "3/minute"}]
}


def request(path: str = "/items/7") -> RequestParts:
    return RequestParts("GET", path, "", [], "192.0.2.7", None)


def assert_statuses(path: Path, statuses: list[int]) -> None:
    lines = read_lines(path)
    assert [each["status"] for each in lines] == statuses
    assert [each["allowed"] for each in lines] == [status != 429 for status in statuses]
    assert all(each["duration_us"] >= 0 for each in lines)
    assert {each["attributes"]["address"] for each in lines} == {"127.0.0.1"}


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    status = 404 if scope.get("path") == "/missing" else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def wsgi_app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("404 Not Found" if environ["PATH_INFO"] == "/missing" else "200 OK", [])
    return [b"ok"]


def statuses(client: httpx.Client, *paths: str) -> list[int]:
    return [client.get(path).status_code for path in paths]


PATHS, ANSWERS = ("/", "/missing", "/", "/"), [200, 404, 200, 429]


def test_asgi(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log")
    with serve_to_client(RateLimitMiddleware(asgi_app, BOOK, observers=[log])) as client:
        assert statuses(client, *PATHS) == ANSWERS
    log.close()
    assert_statuses(tmp_path / "log", ANSWERS)


def test_fastapi(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log")
    app = FastAPI()
    rate_limits(app, BOOK, observers=[log])

    @app.get("/")
    def index() -> Response:
        return Response("ok")

    with serve_to_client(app) as client:
        assert statuses(client, *PATHS) == ANSWERS
    log.close()
    assert_statuses(tmp_path / "log", ANSWERS)


def test_wsgi(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log")
    app = WSGIRateLimitMiddleware(wsgi_app, BOOK, observers=[log])
    with serve_wsgi(THREADED[0], app) as client:
        assert statuses(client, *PATHS) == ANSWERS
    log.close()
    assert_statuses(tmp_path / "log", ANSWERS)


def test_flask(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log")
    app = Flask("tests.integrations.test_observers")
    RateLimiter(app, BOOK, observers=[log])
    app.add_url_rule("/", view_func=lambda: "ok", endpoint="index")
    client = app.test_client()
    assert [client.get(path, buffered=True).status_code for path in PATHS] == ANSWERS
    log.close()
    assert_statuses(tmp_path / "log", ANSWERS)


@pytest.mark.parametrize("interface", ["wsgi", "asgi"])
def test_django(tmp_path: Path, interface: Interface) -> None:
    log = DecisionLog(tmp_path / "log")
    assert project.MIDDLEWARE
    with serve_project(interface, {"rules": BOOK, "observers": [log]}) as client:
        found = statuses(client, "/free", "/missing-page", "/free", "/free")
    log.close()
    assert found[1:] == [404, found[0], 429]
    assert_statuses(tmp_path / "log", found)


def test_what_a_later_stage_gives_back_is_given_back_by_a_replay(tmp_path: Path) -> None:
    rules = {"rules": [{"name": "all", "key": "address", "missing": "deny", "limit": "40/s burst 4"}]}
    log = DecisionLog(tmp_path / "log")
    limits = RequestLimits(rules, observers=[log])
    route = limits.bind("GET /", [CodeLimit("20/s burst 1", key=None)])
    answers = []
    for number in range(100):
        record = limits.begin(request())
        answer = limits.decide(record)
        if answer is None and number % 2:
            answer = limits.decide(record, route, with_rules=False)
        limits.finish(record, 200 if answer is None else answer.status)
        answers.append(200 if answer is None else answer.status)
        time.sleep(0.002)
    limits.close()
    lines = read_lines(tmp_path / "log")
    assert 429 in answers
    assert 200 in answers
    assert any(verdict.get("real_cost") == 0 for line in lines for verdict in line["verdicts"])
    recorded = replay([tmp_path / "log"], rules, tmp_path)["recorded"]
    assert recorded["same"] == recorded["calls"] == len(lines)


def test_limits_in_code_and_a_rulebook_are_replayed_together(tmp_path: Path) -> None:
    rules = {"rules": [{"name": "all", "key": "address", "missing": "deny", "limit": "100/s burst 9"}]}
    log = DecisionLog(tmp_path / "log")
    per_path = CodeLimit("50/s burst 3", key="path", name="per-path")
    limits = RequestLimits(rules, observers=[log], limits=[per_path], clock=ManualClock())
    for number in range(150):
        record = limits.begin(request("/hot" if number < 30 else f"/{number}"))
        limits.decide(record, limits.app_limits)
        limits.finish(record, 200)
    limits.close()
    lines = read_lines(tmp_path / "log")
    assert {each["rule"] for each in lines if not each["allowed"]} == {"all", "per-path"}
    assert [verdict.get("in_code") for verdict in lines[0]["verdicts"]] == [None, True]
    recorded = replay([tmp_path / "log"], rules, tmp_path)["recorded"]
    assert recorded["same"] == recorded["calls"] == 150


@pytest.mark.parametrize("observers", ["log", 7])
def test_something_else_than_a_list_is_refused(observers: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"observers= is a list of headgate.Observer objects, not"):
        RequestLimits(observers=observers)
    with pytest.raises(InvalidRule, match=r"observers= is a list of headgate.Observer objects; 7 is none"):
        RequestLimits(observers=[7])  # type: ignore[list-item]
