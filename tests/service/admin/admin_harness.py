"""Calls the admin application as an operator: in this process, or on a real port by granian."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

import msgspec
from granian.constants import Interfaces
from granian.server.embed import Server

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.http.refusal_body import REASONS
from headgate.service import sample_rules
from headgate.service.admin import Admin
from headgate.service.admin.routes import ROUTES, AdminRoute
from headgate.service.admin.schema import AdminErrorBody
from headgate.service.asgi import Asgi
from headgate.service.settings import Settings
from headgate.service.worker import counts_of
from tests.servers.redis_server import free_port
from tests.service.service_harness import ServiceReply

TOKEN = "a token of tests, 0123456789"
YAML = "application/yaml"
BOOK: dict[str, Any] = {
    "rules": [
        {"name": "login", "key": "user", "missing": "skip", "limit": "5/hour fixed", "overrides": True},
        {
            "name": "plans",
            "when": {"path": "/plans"},
            "key": "user",
            "missing": "skip",
            "limit": {"by": "plan", "cases": {"pro": "100/hour fixed"}, "otherwise": "10/hour fixed"},
        },
        {"name": "jobs", "when": {"path": "/jobs"}, "limit": "2 slots"},
    ]
}

_clients = (f"192.0.{high}.{low}:40000" for high in count() for low in range(256))


class ChunkedBody:
    """A body that comes in pieces, and tells whether anybody read it."""

    def __init__(self, body: bytes) -> None:
        self._body, self.read = body, 0

    async def __call__(self) -> dict[str, Any]:
        start = self.read * 1000
        self.read += 1
        piece = self._body[start : start + 1000]
        return {"type": "http.request", "body": piece, "more_body": start + 1000 < len(self._body)}


class Operator:
    """Somebody who knows the token. Each request comes from an address of its own, unless one is given."""

    def __init__(self, rules: Any = None, **settings: Any) -> None:
        self.settings = Settings(rules=rules if isinstance(rules, str) else "", **settings)
        given = rules if rules is not None else sample_rules.SAMPLE_RULEBOOK
        self.counts = counts_of(self.settings)
        self.limiter = AsyncRuleLimiter(
            given, self.settings.engine, prefix=self.settings.prefix, observers=[self.counts]
        )
        self.admin = Admin(self.limiter, self.settings, TOKEN, self.counts)
        self._answer = Asgi(self.admin)

    async def __call__(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        author: str | None = "ann",
        token: str | None = TOKEN,
        client: str | None = None,
        **headers: str,
    ) -> ServiceReply:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if author is not None:
            fields["x-headgate-author"] = author
        if token is not None:
            fields["authorization"] = f"Bearer {token}"
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.body = ChunkedBody(raw)
        path, _, query = target.partition("?")
        host, _, port = (next(_clients) if client is None else client).rpartition(":")
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "query_string": query.encode("latin-1"),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in fields.items()],
            "client": (host.strip("[]"), int(port)) if port else None,
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self._answer(scope, self.body, send)
        start, end = sent
        response_headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start["headers"]
        }
        reply = ServiceReply(start["status"], response_headers, end["body"])
        assert_matches_schema(method, unquote(path), reply)
        return reply

    async def put_rules(self, text: str, target: str = "/rules", kind: str = YAML, **given: Any) -> ServiceReply:
        return await self("PUT", target, text.encode(), content_type=kind, **given)

    async def check(self, **attributes: Any) -> bool:
        return (await self.limiter.check(attributes)).allowed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.admin.close()
        await self.limiter.close()


def sentence(reply: Any) -> str:
    assert reply.json["title"] == REASONS[reply.status]
    detail: str = reply.json["detail"]
    return detail


def path_of(route: AdminRoute) -> str:
    return route.path.format(rule="login", key="user=ann", version=1) if "{" in route.path else route.path


def assert_matches_schema(method: str, path: str, reply: ServiceReply) -> None:
    """Checks a response against the API description."""
    assert reply.headers["cache-control"] == "no-store"
    if reply.status != 200:
        assert reply.headers["content-type"] == "application/problem+json"
        trouble = msgspec.json.decode(reply.body, type=AdminErrorBody)
        assert trouble.status == reply.status
        assert trouble.detail
        routes = [route for route in ROUTES if route.method == method and route.pattern.fullmatch(path)]
        assert all(reply.status in (400, 401, 429, *route.errors) for route in routes[:1]), reply
    elif path != "/openapi.json":
        route = next(route for route in ROUTES if route.method == method and route.pattern.fullmatch(path))
        msgspec.json.decode(reply.body, type=route.response_type)


class OperatorConnection:
    """The same over a real connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = f"http://127.0.0.1:{port}"

    async def __call__(self, method: str, target: str, body: bytes | None = None, **headers: str) -> ServiceReply:
        return await asyncio.to_thread(self._send_request, method, target, body, headers)

    def _send_request(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> ServiceReply:
        fields = {"Authorization": f"Bearer {TOKEN}", "X-Headgate-Author": "ann"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            line.request(method, target, body, fields)
            answer = line.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return ServiceReply(answer.status, found, answer.read())
        finally:
            line.close()


@asynccontextmanager
async def serve_admin(admin: Admin) -> AsyncIterator[OperatorConnection]:
    """The application behind a real server."""
    port = free_port()
    server: Any = Server(
        Asgi(admin), address="127.0.0.1", port=port, interface=Interfaces.ASGINL, log_enabled=False
    )
    serving = asyncio.ensure_future(server.serve())
    try:
        for _ in range(200):
            if await _answers(port):
                break
            await asyncio.sleep(0.05)
        yield OperatorConnection(port)
    finally:
        server.stop()
        await serving


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def nonblank_lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.strip())
