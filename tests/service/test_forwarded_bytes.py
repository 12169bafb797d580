"""What a real granian makes of a sub-request's bytes, and what is made of that."""

import asyncio
import socket
from pathlib import Path
from typing import Any, get_args

import pytest
from granian.server.embed import Server

from headgate.http.address import Proxies
from headgate.service.forwarded import Kind, NotForwarded, forwarded
from tests.servers.redis_server import free_port

PROXIES, CLIENT = Proxies(["127.0.0.0/8", "unix"]), "203.0.113.7"
KINDS: tuple[Kind, ...] = get_args(Kind)
Pairs = list[tuple[str, str]]
Seen = tuple[str, str, str, Pairs, list[str], str]


def heard_by_granian(raw: bytes, tmp_path: Path | None = None) -> Seen:
    """What a real granian makes of these bytes, on a port or on a socket file."""
    seen: list[Seen] = []

    async def app(scope: Any, protocol: Any) -> None:
        fields = scope.headers
        seen.append(
            (scope.method, scope.path, scope.query_string, list(fields.items()), list(fields.keys()), scope.client)
        )
        protocol.response_empty(200, [])

    async def run() -> None:
        port, path = free_port(), tmp_path and tmp_path / "s"
        server = Server(app, address="127.0.0.1", port=port, uds=path, log_enabled=False)
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
    return seen[0]


async def _connected(port: int, path: Path | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            if path is not None:
                return await asyncio.open_unix_connection(path)
            return await asyncio.open_connection("127.0.0.1", port, family=socket.AF_INET)
        except OSError:
            await asyncio.sleep(0.02)


def test_granian_leaves_out_what_is_not_ascii_and_the_gateway_is_told(tmp_path: Path) -> None:
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
    method, path, query, headers, names, peer = heard_by_granian(b"\r\n".join(lines) + b"\r\n\r\n")
    assert (method, path, query) == ("PUT", "/a/b%2Fc?d\ufffd", "q=%41")
    assert peer.startswith("127.0.0.1:")
    assert PROXIES.client(peer, None) == "127.0.0.1"
    lost = set(names) - {name for name, _ in headers}
    assert lost == {"x-original-uri", "x-forwarded-for"}
    assert [value for name, value in headers if name == "x-a"] == ["1"]
    for kind in KINDS:
        with pytest.raises(NotForwarded, match="is missing, or has bytes beyond ASCII"):
            forwarded(kind, method, path, query, headers, peer, PROXIES)
    mended = [*headers, ("x-forwarded-for", CLIENT)]
    assert forwarded("ext_authz", method, path, query, mended, peer, PROXIES)["path"] == path
    *_, peer = heard_by_granian(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", tmp_path)
    assert PROXIES.behind(peer, CLIENT) == CLIENT, peer
    assert Proxies(["0.0.0.0/0", "::/0"]).behind(peer, CLIENT) is None, peer
