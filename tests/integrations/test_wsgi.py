"""The WSGI middleware on real servers: fields on every response, refusals, refunds and slots."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from werkzeug.test import EnvironBuilder

from headgate import ManualClock
from headgate.integrations.request_limits import RequestLimits
from headgate.integrations.wsgi import WSGIRateLimitMiddleware, WSGIResponseStart, limit, request_parts
from tests.integrations.wsgi_servers import THREADED, serve
from tests.servers import RedisServer
from tests.servers.wait_until import until

Start = Callable[..., Callable[[bytes], object]]


class ClosingStream:
    """A body in pieces, which notes that it was closed."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces, self.closed = iter(pieces), False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self.pieces)

    def close(self) -> None:
        self.closed = True


def endless() -> Iterator[bytes]:
    while True:
        yield b"x" * 65536


def site(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """An application without a framework."""
    path = environ["PATH_INFO"]
    plain = [("Content-Type", "text/plain")]
    match path:
        case "/list":
            start("200 OK", plain)
            return [b"one ", b"two"]
        case "/stream":
            start("200 OK", plain)
            return ClosingStream([b"", b"one ", b"two"])
        case "/written":
            start("200 OK", [*plain, ("Content-Length", "7")])(b"written")
            return []
        case "/file":
            start("200 OK", [*plain, ("Content-Length", "4")])
            wrapper = environ.get("wsgi.file_wrapper")
            return wrapper(io.BytesIO(b"file")) if wrapper else [b"file"]
        case "/redirect":
            start("302 Found", [("Location", "/list")])
            return []
        case "/unchanged":
            start("304 Not Modified", [("ETag", '"1"')])
            return []
        case "/restarted":
            start("200 OK", plain)
            try:
                raise ValueError("too late for 200")
            except ValueError as error:
                start("418 I'm a teapot", plain, (ValueError, error, error.__traceback__))
            return [b"teapot"]
        case "/own":
            start("200 OK", [*plain, ("RateLimit", '"mine";r=1'), ("Retry-After", "7")])
            return [b"own"]
        case "/raise":
            raise RuntimeError("not handled")
        case "/raise-later":
            start("200 OK", plain)
            return ClosingStream(int(text).to_bytes() for text in ("no number",))
        case "/login":
            good = environ.get("QUERY_STRING") == "password=right"
            start("200 OK" if good else "401 Unauthorized", [*plain, ("Content-Length", "2")])
            return ClosingStream([b"hi"])
        case _:
            start("200 OK", plain)
            return [str(environ["headgate"].decision.remaining).encode()]


@pytest.mark.parametrize("kind", THREADED)
def test_every_response_has_the_fields(kind: str) -> None:
    app = WSGIRateLimitMiddleware(site, limits=[limit("1000/minute")], clock=ManualClock())
    expected = {
        "/list": (200, "one two"),
        "/stream": (200, "one two"),
        "/written": (200, "written"),
        "/file": (200, "file"),
        "/redirect": (302, ""),
        "/unchanged": (304, ""),
        "/restarted": (418, "teapot"),
        "/raise": (500, "Internal Server Error\n"),
        "/raise-later": (500, "Internal Server Error\n"),
    }
    with serve(kind, app) as client:
        for number, (path, (status, body)) in enumerate(expected.items(), start=1):
            reply = client.get(path)
            assert (path, reply.status_code, reply.text) == (path, status, body)
            assert reply.headers["RateLimit-Policy"] == '"app";q=1000;w=60', path
            assert reply.headers["RateLimit"].startswith(f'"app";r={1000 - number};'), path
            assert "Retry-After" not in reply.headers
        assert client.head("/raise").headers["RateLimit"].startswith('"app"')


@pytest.mark.parametrize("kind", THREADED)
def test_a_list_keeps_its_length(kind: str) -> None:
    """Waitress computes the Content-Length of a list with one item, which it would not of a wrapper."""
    app = WSGIRateLimitMiddleware(site, limits=[limit("5/minute")], clock=ManualClock())
    with serve(kind, app) as client:
        reply = client.get("/count")
        assert reply.text == "4"
        assert reply.headers.get("Content-Length") == ("1" if kind == "waitress" else None)


def test_a_refusal_is_a_problem_a_page_or_a_sentence() -> None:
    app = WSGIRateLimitMiddleware(site, limits=[limit("1/minute")], clock=ManualClock())
    with serve("werkzeug", app) as client:
        client.get("/list")
        problem = client.get("/list", headers={"Accept": "application/json"})
        page = client.get("/list", headers={"Accept": "text/html"})
        sentence = client.get("/list", headers={"Accept": "text/plain"})
        program = client.get("/list")
        head = client.head("/list")
    assert {reply.status_code for reply in (problem, page, sentence, head)} == {429}
    assert {reply.headers["Retry-After"] for reply in (problem, page, sentence, head)} == {"60"}
    assert problem.json()["violated-policies"] == ["app"]
    assert "<html" in page.text
    assert sentence.text == "Too many requests. Try again in 60 seconds.\n"
    assert program.json() == problem.json()
    assert head.headers["Content-Length"] == str(len(problem.content))


def test_fields_of_the_application_stay() -> None:
    app = WSGIRateLimitMiddleware(site, limits=[limit("1/minute")], clock=ManualClock())
    with serve("werkzeug", app) as client:
        reply = client.get("/own")
        assert reply.headers.get_list("RateLimit") == ['"mine";r=1', '"app";r=0;t=60']
        assert reply.headers.get_list("Retry-After") == ["7"]


@pytest.mark.parametrize("kind", THREADED)
def test_successes_do_not_count(kind: str) -> None:
    app = WSGIRateLimitMiddleware(site, limits=[limit("2/minute", refund="2xx")], clock=ManualClock())
    with serve(kind, app) as client:
        statuses = [client.get("/login?password=right").status_code for _ in range(9)]
        statuses += [client.get("/login").status_code for _ in range(3)]
    assert statuses == [200] * 9 + [401, 401, 429]


@pytest.mark.parametrize(("path", "chunks"), [("/login?password=right", 1), ("/stream", 4)])
def test_a_refund_is_made_before_the_last_byte(path: str, chunks: int) -> None:
    """Else a client could send its next request before. A body of unknown length ends with its iterable."""
    app = WSGIRateLimitMiddleware(site, limits=[limit("2/minute", key=None, refund="2xx")], clock=ManualClock())
    environ = EnvironBuilder(path).get_environ()
    body = iter(app(environ, lambda status, headers, exc_info=None, /: len))
    charged = environ["headgate"].refunds
    for _ in range(chunks):
        assert environ["headgate"].refunds == charged != []
        next(body, None)
    assert not environ["headgate"].refunds


def test_a_refund_function_receives_the_start_of_the_response() -> None:
    seen: list[WSGIResponseStart] = []
    app = WSGIRateLimitMiddleware(site, limits=[limit("9/minute", refund=seen.append)], clock=ManualClock())
    with serve("werkzeug", app) as client:
        client.get("/redirect")
    assert seen == [WSGIResponseStart(302, [("Location", "/list")])]


@pytest.mark.parametrize("kind", THREADED)
def test_slots_are_released_when_the_client_goes_away(kind: str) -> None:
    stream = ClosingStream(endless())

    def app(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        return stream if environ["PATH_INFO"] == "/stream" else [b"short"]

    limited = WSGIRateLimitMiddleware(app, limits=[limit("1 slots")])
    with serve(kind, limited) as client:
        with client.stream("GET", "/stream") as reply:
            pieces = reply.iter_bytes()
            assert next(pieces)
            assert client.get("/").status_code == 429
            del pieces
        until(lambda: None if client.get("/").status_code == 200 else "the slot is held", 30)
        assert stream.closed
        limited.close()


def test_rules_and_redis(redis_server: RedisServer) -> None:
    book = {
        "rules": [
            {"name": "lists", "limit": "2/hour", "when": {"path": "/list", "method": "GET"}, "key": "address"},
            {"name": "agents", "limit": "9/hour", "key": "header.user-agent", "missing": "skip"},
        ]
    }
    apps = [WSGIRateLimitMiddleware(site, book, redis_server.url) for _ in range(2)]  # two processes, say
    with serve("werkzeug", apps[0]) as one, serve("waitress", apps[1]) as two:
        statuses = [client.get("/list").status_code for client in (one, two, one, two)]
        fields = two.get("/%6Cist").headers["RateLimit"]
    assert statuses == [200, 200, 429, 429]
    assert '"lists";r=0' in fields
    for app in apps:
        app.close()


def test_an_engine_that_is_down_is_a_503() -> None:
    app = WSGIRateLimitMiddleware(site, engine="redis://127.0.0.1:1/0", limits=[limit("2/hour")])
    with serve("werkzeug", app) as client:
        assert [client.get("/list").status_code for _ in range(2)] == [503, 503]
    app.close()


def test_trusted_proxies_name_the_client() -> None:
    app = WSGIRateLimitMiddleware(
        site, limits=[limit("1/minute")], trusted_proxies=["127.0.0.0/8"], clock=ManualClock()
    )
    with serve("werkzeug", app) as client:
        statuses = [
            client.get("/list", headers={"X-Forwarded-For": line}).status_code
            for line in ("192.0.2.1", "192.0.2.2", "6.6.6.6, 192.0.2.1")
        ]
    assert statuses == [200, 200, 429]


def test_the_path_is_what_the_application_sees() -> None:
    limits = RequestLimits({"rules": [{"name": "path", "limit": "1/s", "key": "path"}]}, clock=ManualClock())
    for path_info, expected in (
        ("/a b", "/a%20b"),
        ("/%6Cogin", "/%256Cogin"),
        ("/\xc3\xa9", "/%C3%A9"),
        ("", "/"),
    ):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path_info, "SCRIPT_NAME": ""}
        assert request_parts(environ).path == expected
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/items", "SCRIPT_NAME": "/shop"}
    assert limits.begin(request_parts(environ)).parts.path == "/shop/items"


def test_werkzeugs_debugger_gets_the_exception() -> None:
    from werkzeug.debug import DebuggedApplication

    app = WSGIRateLimitMiddleware(site, limits=[limit("9/minute")], clock=ManualClock())
    with serve("werkzeug", DebuggedApplication(app, evalex=True, pin_security=False)) as client:
        reply = client.get("/raise")
    assert reply.status_code == 500
    assert "RuntimeError: not handled" in reply.text
