"""examples/fastapi_app.py under two real servers, on memory and on Redis."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer
from tests.servers.redis_server import free_port
from tests.servers.wait_until import until

SERVERS = {
    "uvicorn": ["-m", "uvicorn", "examples.fastapi_app:app", "--log-level", "error", "--ws", "websockets-sansio"],
    "granian": ["-m", "granian", "examples.fastapi_app:app", "--interface", "asgi", "--log-level", "error"],
}


@contextmanager
def _running(server: str, engine: str) -> Iterator[httpx.Client]:
    port = str(free_port())
    environment = {**os.environ, "ENGINE": engine, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = subprocess.Popen([sys.executable, *SERVERS[server], "--port", port], env=environment, cwd=ROOT)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            until(lambda: _missing(client), 30)
            yield client
    finally:
        process.terminate()
        process.wait()


def _missing(client: httpx.Client) -> str | None:
    try:
        return None if client.get("/health").status_code == 200 else "the application is not healthy"
    except httpx.TransportError:
        return "the server does not listen"


@pytest.fixture(params=["uvicorn memory", "granian memory", "uvicorn redis", "granian redis"])
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    server, engine = request.param.split()
    url = "memory://"
    if engine == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        redis.flush()
        url = redis.url
    with _running(server, url) as running:
        yield running


def test_the_example_limits_as_it_says(client: httpx.Client) -> None:
    shown = client.get("/items/7")
    assert shown.json() == {"item": 7}
    assert shown.headers["ratelimit-policy"] == '"app";q=100;w=60, "GET /items/{item}";q=20;w=60'
    assert "ratelimit" not in client.get("/health").headers
    ordered = [client.post("/items/7/orders", headers={"X-User": "ann"}) for _ in range(4)]
    assert [response.status_code for response in ordered] == [200, 200, 200, 429]
    assert int(ordered[3].headers["retry-after"]) <= 20
    assert client.post("/items/8/orders", headers={"X-User": "ann"}).status_code == 200
    assert client.post("/items/8/orders").status_code == 429, "an order needs a user"
    wrong, right = {"password": "guess"}, {"password": "open sesame"}
    logins = [
        client.post("/login", params=each).status_code for each in (right, right, wrong, right, *[wrong] * 5)
    ]
    assert logins == [200, 200, 401, 200, 401, 401, 401, 401, 429]
    assert client.get("/report").json() == {"sold": 42}
    assert client.get("/remaining").json()["remaining"] in range(70, 100)
    assert client.get("/nowhere").headers["ratelimit"].startswith('"app";r=')


def _talk(websocket: ClientConnection, messages: int) -> None:
    for number in range(messages):
        websocket.send(str(number))
        assert websocket.recv() == str(number)


def test_the_example_limits_messages(client: httpx.Client) -> None:
    with connect(str(client.base_url).replace("http", "ws").rstrip("/") + "/chat") as websocket:
        with pytest.raises(ConnectionClosed) as closed:
            _talk(websocket, 1000)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
