"""examples/aiohttp_app.py under aiohttp's own server, on memory and on Redis."""

from collections.abc import Iterator

import httpx
import pytest

from tests.integrations.example_server import PORT, engine_url, serve_example


@pytest.fixture(params=["memory", "redis"])
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    words = ["-m", "aiohttp.web", "-H", "127.0.0.1", "-P", PORT, "examples.aiohttp_app:make_app"]
    with serve_example(words, engine_url(request.param, request)) as running:
        yield running


def test_the_aiohttp_example_limits_as_it_says(client: httpx.Client) -> None:
    shown = client.get("/items/7")
    assert shown.json() == {"item": 7}
    assert shown.headers["ratelimit-policy"] == '"app";q=100;w=60, "/items/{item}";q=20;w=60'
    assert "ratelimit" not in client.get("/health").headers
    assert [client.delete("/items/7").status_code for _ in range(3)] == [204, 204, 429]
    ordered = [client.post("/items/7/orders", headers={"X-User": "ann"}) for _ in range(4)]
    assert [reply.status_code for reply in ordered] == [200, 200, 200, 429]
    assert int(ordered[3].headers["retry-after"]) <= 20
    assert client.post("/items/8/orders", headers={"X-User": "ann"}).status_code == 200
    assert client.post("/items/8/orders").status_code == 429, "an order needs a user"
    wrong, right = {"password": "guess"}, {"password": "open sesame"}
    logins = [
        client.post("/login", params=each).status_code for each in (right, right, wrong, right, *[wrong] * 5)
    ]
    assert logins == [200, 200, 401, 200, 401, 401, 401, 401, 429]
    assert [client.get("/report").text for _ in range(3)] == ["item,sold\n7,42\n"] * 3
    assert client.get("/remaining").json()["remaining"] in range(70, 100)
    assert client.get("/nowhere").headers["ratelimit"].startswith('"app";r=')
