"""examples/flask_app.py under gunicorn and waitress, on memory and on Redis."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import httpx
import pytest

from tests.integrations.example_server import PORT, engine_url, environment, serve_example
from tests.repo_rules.repository import ROOT

SERVERS = {
    "gunicorn": ["-m", "gunicorn", "--threads=4", "--log-level=critical", f"--bind=127.0.0.1:{PORT}"],
    "waitress": ["-m", "waitress", f"--listen=127.0.0.1:{PORT}"],
}
FIELDS = ("RateLimit", "RateLimit-Policy")


@pytest.fixture(params=["gunicorn memory", "waitress memory", "gunicorn redis", "waitress redis"])
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    server, engine = request.param.split()
    words = [*SERVERS[server], "examples.flask_app:app"]
    with serve_example(words, engine_url(engine, request)) as running:
        yield running


def test_the_flask_example_limits_as_it_says(client: httpx.Client) -> None:
    shown = client.get("/items/7")
    assert shown.json() == {"item": 7}
    assert shown.headers["RateLimit-Policy"] == '"app";q=100;w=60, "DELETE|GET /items/{item}";q=20;w=60'
    assert "RateLimit" not in client.get("/health").headers
    assert [client.delete("/items/7").status_code for _ in range(3)] == [204, 204, 429]
    ordered = [client.post("/items/7/orders", headers={"X-User": "ann"}) for _ in range(4)]
    assert [reply.status_code for reply in ordered] == [200, 200, 200, 429]
    assert ordered[3].json()["error"] == "Slow down."
    assert int(ordered[3].headers["Retry-After"]) <= 20
    assert client.post("/items/8/orders", headers={"X-User": "ann"}).status_code == 200
    assert client.post("/items/8/orders").status_code == 429, "an order needs a user"
    wrong, right = {"password": "guess"}, {"password": "open sesame"}
    logins = [client.post("/login", data=each).status_code for each in (right, right, wrong, right, *[wrong] * 5)]
    assert logins == [200, 200, 401, 200, 401, 401, 401, 401, 429]
    assert [client.get("/report").text for _ in range(3)] == ["item,sold\n7,42\n"] * 3
    assert client.get("/remaining").json()["remaining"] in range(30, 100)
    for path, status in (("/broken", 500), ("/nowhere", 404), ("/report", 200)):
        reply = client.get(path)
        assert (reply.status_code, [field in reply.headers for field in FIELDS]) == (status, [True, True])


def test_the_command_lists_the_routes_of_the_example() -> None:
    command = [sys.executable, "-m", "flask", "--app", "examples.flask_app", "headgate", "limits"]
    shown = subprocess.run(command, env=environment("memory://"), cwd=ROOT, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    page = (ROOT / "docs" / "how-to" / "flask.md").read_text("utf-8")
    documented = page.partition("headgate limits\n    all")[2].partition("    …\n")[0]
    assert shown.stdout.startswith(textwrap.dedent("    all" + documented))
    assert "GET /health\n    exempt\n" in shown.stdout
    assert "DELETE /items/{item}\n    2/minute by address  examples/flask_app.py:" in shown.stdout
