"""The examples for Starlette, Litestar, Quart and plain WSGI under real servers, on memory and on Redis."""

from collections.abc import Iterator

import httpx
import pytest

from tests.integrations.example_server import PORT, engine_url, serve_example

SERVERS = {
    "uvicorn": ["-m", "uvicorn", "--log-level", "critical", "--port", PORT],
    "granian": ["-m", "granian", "--interface", "asgi", "--no-log", "--port", PORT],
    "gunicorn": ["-m", "gunicorn", "--log-level", "critical", "--bind", f"127.0.0.1:{PORT}"],
    "gunicorn, 2 workers": ["-m", "gunicorn", "--workers", "2", "--bind", f"127.0.0.1:{PORT}"],
    "granian, WSGI": ["-m", "granian", "--interface", "wsgi", "--no-log", "--port", PORT],
    "hypercorn": ["-m", "hypercorn", "--log-level", "critical", "--bind", f"127.0.0.1:{PORT}"],
}
CASES = [
    *(("starlette_app", "uvicorn", "memory"), ("starlette_app", "granian", "redis")),
    *(("litestar_app", "uvicorn", "memory"), ("litestar_app", "granian", "redis")),
    *(
        ("quart_app", "hypercorn", "memory"),
        ("quart_app", "hypercorn", "redis"),
        ("quart_app", "uvicorn", "memory"),
    ),
    *(("wsgi_app", "gunicorn", "memory"), ("wsgi_app", "gunicorn, 2 workers", "redis")),
    ("wsgi_app", "granian, WSGI", "memory"),
]


@pytest.fixture(params=CASES, ids=" ".join)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    example, server, engine = request.param
    words = [*SERVERS[server], f"examples.{example}:app"]
    with serve_example(words, engine_url(engine, request)) as running:
        yield running


def test_the_example_limits_as_it_says(client: httpx.Client) -> None:
    shown = [client.get("/items/7") for _ in range(4)]
    assert [each.status_code for each in shown] == [200, 200, 200, 429]
    assert shown[0].json() == {"item": 7}
    assert shown[0].headers["ratelimit-policy"] == '"app";q=100;w=60, "item";q=3;w=60'
    assert int(shown[3].headers["retry-after"]) <= 20
    assert client.get("/items/8").status_code == 200
    right, wrong = "/login?password=open+sesame", "/login?password=guess"
    logins = [client.post(path).status_code for path in (right, right, wrong, right, *[wrong] * 5)]
    assert logins == [200, 200, 401, 200, 401, 401, 401, 401, 429]
    assert client.get("/nowhere").headers["ratelimit"].startswith('"app";r=')
    assert "ratelimit" not in client.get("/health").headers
