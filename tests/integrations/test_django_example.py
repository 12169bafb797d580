"""examples/django_app.py under Django's own server, uvicorn and granian, on memory and on Redis."""

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.integrations.example_server import PORT, engine_url, environment, serve_example
from tests.repo_rules.repository import ROOT

SERVERS = {
    "runserver": ["examples/django_app.py", "runserver", "--noreload", "--skip-checks", PORT],
    "uvicorn": ["-m", "uvicorn", "examples.django_app:asgi", "--log-level", "critical", "--port", PORT],
    "granian": ["-m", "granian", "examples.django_app:wsgi", "--interface", "wsgi", "--no-log", "--port", PORT],
}


CASES = [(server, engine) for server in SERVERS for engine in ("memory", "redis")]


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    server, engine = request.param
    with serve_example(SERVERS[server], engine_url(engine, request)) as running:
        yield running


def test_the_example_limits_as_it_says(client: httpx.Client) -> None:
    shown = client.get("/items/7")
    assert shown.json() == {"item": 7}
    assert shown.headers["ratelimit-policy"] == '"app";q=100;w=60, "/items/{item}";q=20;w=60'

    ann, bob = {"X-User": "ann"}, {"X-User": "bob"}
    orders = [client.post("/items/7/orders", headers=ann).status_code for _ in range(4)]
    assert orders == [200, 200, 200, 429]
    assert client.post("/items/7/orders", headers=bob).status_code == 200
    assert client.post("/items/7/orders").status_code == 429

    good, bad = "/login?password=open+sesame", "/login?password=guess"
    logins = [client.post(path).status_code for path in (good, *[bad] * 4, good, bad, good)]
    assert logins == [200, 401, 401, 401, 401, 200, 401, 429]

    assert [client.get("/search").status_code for _ in range(5)] == [200] * 5
    assert client.get("/missing").headers["ratelimit"].startswith('"app"')
    assert "ratelimit" not in client.get("/health").headers


def test_the_api_of_the_example_is_throttled(client: httpx.Client) -> None:
    assert [client.get("/api/reports").status_code for _ in range(4)] == [200, 200, 200, 429]
    prices = [client.get("/api/prices") for _ in range(21)]
    assert [each.status_code for each in prices] == [200] * 20 + [429]
    assert 1 <= int(prices[-1].headers["retry-after"]) <= 60
    assert '"throttle_anon";q=20;w=60' in prices[0].headers["ratelimit-policy"]


def test_the_checks_of_the_example_find_nothing() -> None:
    command = [sys.executable, "examples/django_app.py", "check"]
    ran = subprocess.run(
        command, env=environment("memory://"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "System check identified no issues (0 silenced).\n"), ran.stderr
