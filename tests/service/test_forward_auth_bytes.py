"""The bytes of a sub-request through a real granian, and the attributes that result."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from granian.constants import Interfaces
from granian.server.embed import Server

from headgate.http.client_ip import Proxies
from headgate.service.asgi import Asgi, Handler, Request, Response
from headgate.service.forward_auth import InvalidSubrequest, forwarded_attributes
from tests.servers.redis_server import free_port

PROXIES, CLIENT = Proxies(["127.0.0.0/8", "unix"]), "203.0.113.7"


class RecordingApp:
    """An application that keeps what it is asked."""

    request: Request

    def route(self, request: Request) -> tuple[None, Handler]:
        self.request = request
        return None, lambda _: (200, [], b"")

    def error_response(self, request: Request, error: Exception) -> Response:
        raise error


def request_from_granian(raw: bytes, tmp_path: Path | None = None) -> Request:
    """Returns the request that a real granian reads from these bytes, on a port or on a socket file."""
    app = RecordingApp()

    async def run() -> None:
        port, path = free_port(), tmp_path and tmp_path / "s"
        where: Any = {"address": "127.0.0.1", "port": port, "uds": path}
        server = Server(Asgi(app), **where, interface=Interfaces.ASGINL, log_enabled=False)
        serving = asyncio.create_task(server.serve())
        try:
            async with asyncio.timeout(20):
                reader, writer = await _connected(port, path)
                writer.write(raw)
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                writer.close()
        finally:
            server.stop()  # type: ignore[no-untyped-call]
            await asyncio.wait([serving], timeout=10)

    asyncio.run(run())
    return app.request


async def _connected(port: int, path: Path | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            if path is not None:
                return await asyncio.open_unix_connection(path)
            return await asyncio.open_connection("127.0.0.1", port, family=socket.AF_INET)
        except OSError:
            await asyncio.sleep(0.02)


def test_granian_passes_on_every_byte_of_a_field(tmp_path: Path) -> None:
    lines = [
        b"PUT /a%2Fb%252Fc%3Fd%E9?q=%41 HTTP/1.1",
        b"Host: Ex.com",
        b"X-Original-Method: PUT",
        b"X-Original-URI: /caf\xc3\xa9",
        b"X-Original-Host: Ex.com",
        b"X-Forwarded-For: \xe9, 203.0.113.7",
        b"X-A: 1",
        b"X-A: \xe9",
        b"X-Long: " + b"z" * 65536,
        b"Connection: close",
    ]
    app = request_from_granian(b"\r\n".join(lines) + b"\r\n\r\n")
    assert (app.method, app.path, app.query) == ("PUT", "/a/b%2Fc?d\ufffd", "q=%41")
    assert app.client.startswith("127.0.0.1:")
    assert PROXIES.client(app.client, None) == "127.0.0.1"
    assert [value for name, value in app.headers if name == b"x-a"] == [b"1", b"\xe9"]
    forwarded = "PUT", app.path, app.query, app.headers, app.client, PROXIES
    attributes = forwarded_attributes("auth_request", *forwarded)
    assert (attributes["path"], attributes["address"]) == ("/caf\u00e9", CLIENT)
    assert forwarded_attributes("ext_authz", *forwarded)["path"] == app.path
    with pytest.raises(InvalidSubrequest, match="X-Forwarded-Host is missing"):
        forwarded_attributes("forward_auth", *forwarded)
    peer = request_from_granian(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", tmp_path).client
    assert PROXIES.behind(peer, CLIENT) == CLIENT, peer
    assert Proxies(["0.0.0.0/0", "::/0"]).behind(peer, CLIENT) is None, peer
