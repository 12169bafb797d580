"""examples/fastapi_app.py under two real servers, on memory and on Redis."""

from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.integrations.example_server import PORT, engine_url, serve_example

SERVERS = {
    "uvicorn": ["-m", "uvicorn", "examples.fastapi_app:app", "--log-level", "error", "--ws", "websockets-sansio"],
    "granian": ["-m", "granian", "examples.fastapi_app:app", "--interface", "asgi", "--log-level", "error"],
}


@pytest.fixture(scope="module", params=["uvicorn memory", "granian memory", "uvicorn redis", "granian redis"])
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    server, engine = request.param.split()
    with serve_example([*SERVERS[server], "--port", PORT], engine_url(engine, request)) as running:
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
