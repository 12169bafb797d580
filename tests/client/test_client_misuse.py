"""A client refuses by a sentence what it cannot be made with or cannot send, and a URL that leads elsewhere."""

import asyncio
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from headgate.client import AsyncClient, Client
from headgate.errors import EngineUnavailable, InvalidCharge
from tests.servers.redis_server import free_port
from tests.service.service_harness import Service

BOTH: list[Callable[..., Any]] = [Client, AsyncClient]
both = pytest.mark.parametrize("make", BOTH, ids=["sync", "async"])
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    admin = f"127.0.0.1:{free_port()}"
    with Service({"rules": [{"name": "all", "limit": "1000/s"}]}, admin=admin, admin_token="t" * 32) as running:
        yield running


def attempt(make: Callable[..., Any], url: str, verb: str, *args: Any, **options: Any) -> Any:
    """Makes a client, calls one verb of it, and closes it."""
    client = make(url, timeout=20, **options)
    if isinstance(client, Client):
        with client:
            return getattr(client, verb)(*args)

    async def awaited() -> Any:
        async with client:
            return await getattr(client, verb)(*args)

    return asyncio.run(awaited())


URLS = [
    ("127.0.0.1:18080", r"^A check service's URL is such as http://127\.0\.0\.1:8080, not '127.*Write http://127"),
    ("localhost:8080", r"Write http://localhost:8080\.$"),
    ("gate.example.com", r"Write http://gate\.example\.com\.$"),
    ("ftp://host:8080", r"not 'ftp://host:8080'"),
    ("redis://host:6379", r"not 'redis://host:6379'"),
    ("http://", r"not 'http://'"),
    ("http://:8080", r"not 'http://:8080'"),
    ("http://host:99999", r"not 'http://host:99999'"),
    ("http://host:8080?x=1", r"not 'http://host:8080\?x=1'"),
    ("", r"not ''"),
    (None, r"not None"),
    (8080, r"not 8080"),
    (b"http://h", r"not b'http://h'"),
]


@both
@pytest.mark.parametrize(("url", "sentence"), URLS, ids=[repr(url) for url, _ in URLS])
def test_a_wrong_url(make: Callable[..., Any], url: Any, sentence: str) -> None:
    for fallback in (None, "allow"):
        with pytest.raises(InvalidCharge, match=sentence):
            make(url, fallback=fallback)


def test_a_wrong_url_shows_no_login() -> None:
    with pytest.raises(InvalidCharge) as raised:
        Client("ftp://ann:secret@host")
    assert "secret" not in str(raised.value)
    with Client("http://ann:secret@127.0.0.1:1") as client, pytest.raises(EngineUnavailable) as silent:
        client.check({})
    assert "secret" not in str(silent.value)


@both
@pytest.mark.parametrize("timeout", ["50ms", 0, -1, None, True, float("nan"), float("inf"), 1e12], ids=repr)
def test_a_wrong_timeout(make: Callable[..., Any], timeout: Any) -> None:
    with pytest.raises(InvalidCharge, match=r"^timeout is a number of seconds above 0 .*, such as 0\.05; not "):
        make(NOWHERE, timeout=timeout)


@both
def test_no_answer_is_one_sentence(make: Callable[..., Any]) -> None:
    with pytest.raises(EngineUnavailable, match=r"gave no answer: .*[^.]\.$"):
        attempt(make, NOWHERE, "check", {})


@both
def test_invalid_attributes_are_refused(make: Callable[..., Any]) -> None:
    attributes: tuple[Any, ...] = ("x", None, 3, ["user"])
    for given in attributes:
        for verb in ("check", "peek", "reserve"):
            with pytest.raises(InvalidCharge, match=r'^Attributes are a mapping such as \{"user": "ann"\}, not '):
                attempt(make, NOWHERE, verb, given)
        with pytest.raises(InvalidCharge, match=r"^Attributes are a mapping such as"):
            attempt(make, NOWHERE, "together", [{}, given])
    calls: tuple[Any, ...] = ("x", None, 3, {"user": "ann"})
    for given in calls:
        with pytest.raises(InvalidCharge, match=r'^Calls are a list .* \[\{"user": "ann"\}, \{"user": "bob"\}\]'):
            attempt(make, NOWHERE, "together", given)


@both
def test_attributes_that_json_cannot_hold_are_refused(make: Callable[..., Any]) -> None:
    sentence = r'^The attribute "user" cannot be sent: .*Give a text, a number, a bool or None\.$'
    loop: list[Any] = []
    loop.append(loop)
    for given in (object(), {1, 2}, b"ann", float("nan"), "\ud800", loop):
        for verb, args in (("check", {"path": "/", "user": given}), ("together", [{}, {"user": given}])):
            with pytest.raises(InvalidCharge, match=sentence):
                attempt(make, NOWHERE, verb, args, fallback="allow")
    with pytest.raises(InvalidCharge, match=r"^The name of an attribute is a text, not \(1, 2\)\.$"):
        attempt(make, NOWHERE, "check", {(1, 2): "x"})
    with pytest.raises(InvalidCharge, match=r"^cost cannot be sent: "):
        attempt(make, NOWHERE, "check", {}, object())


@both
def test_a_url_that_is_not_the_base_url(make: Callable[..., Any], service: Service) -> None:
    sentence = r"^http://.*/v1 is not the base URL of a check service: .* 404 to POST /v1/v1/.*Leave out /v1\.$"
    for verb, args in (("check", {}), ("together", [{}]), ("refund", "some receipt")):
        with pytest.raises(InvalidCharge, match=sentence):
            attempt(make, f"{service.url}/v1", verb, args, fallback="allow")


@both
def test_an_unknown_receipt_is_not_a_wrong_url(make: Callable[..., Any], service: Service) -> None:
    with pytest.raises(InvalidCharge) as raised:
        attempt(make, service.url, "refund", "some receipt")
    assert "base URL" not in str(raised.value)


@both
def test_the_admin_port(make: Callable[..., Any], service: Service) -> None:
    admin = f"http://{service.settings['admin']}"
    sentence = r"is not the base URL of a check service: it answered 401 to POST /v1/check \(Show the admin token"
    with pytest.raises(InvalidCharge, match=sentence):
        attempt(make, admin, "check", {}, fallback="allow")


class ForeignServer(BaseHTTPRequestHandler):
    """Answers as other web servers do: by a page, by JSON of its own, by a redirect."""

    def do_POST(self) -> None:
        page = self.path.split("/")[1]
        self.send_response(301 if page == "moved" else 200)
        if page == "moved":
            self.send_header("Location", "https://example.com/")
        body = b'["no answer"]' if page == "json" else b"<p>Welcome</p>"
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), ForeignServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@both
@pytest.mark.parametrize("verb", ["check", "together", "refund", "release"])
def test_another_web_server(make: Callable[..., Any], elsewhere: str, verb: str) -> None:
    args: Any = [{}] if verb == "together" else {} if verb == "check" else "some receipt"
    for page in ("page", "json"):
        sentence = (
            r"is not the base URL of a check service: its answer to POST /page|json/v1/.* is not one of a che"
        )
        with pytest.raises(EngineUnavailable, match=sentence):
            attempt(make, f"{elsewhere}/{page}", verb, args)
    with pytest.raises(InvalidCharge, match=r"it answered 301 to POST /moved/v1/.* \(see https://example.com/\)"):
        attempt(make, f"{elsewhere}/moved", verb, args)
