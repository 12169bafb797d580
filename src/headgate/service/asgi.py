"""An application as ASGI servers call it.

The applications here are written as granian's RSGI has it: a scope to look at, a protocol to answer through. But
RSGI leaves out every header field that has bytes beyond ASCII, so a client could hide a cookie from its limit by
one odd letter beside it. ASGI hands over the bytes. It costs a few microseconds, and any ASGI server will do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Pairs = list[tuple[str, str]]


class Application(Protocol):
    async def __rsgi__(self, scope: Any, proto: Any) -> None: ...


class Fields:
    """Header fields, as bytes."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._pairs = pairs

    def items(self) -> list[tuple[bytes, bytes]]:
        return self._pairs

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first field of this name, which is in small letters."""
        wanted = name.encode()
        for each, value in self._pairs:
            if each == wanted:
                return value.decode("latin-1")
        return default


class Scope:
    """What is asked."""

    __slots__ = ("_of", "headers", "method", "path", "query_string")

    def __init__(self, of: Mapping[str, Any]) -> None:
        self._of = of
        self.method: str = of["method"]
        self.path: str = of["path"]
        self.query_string: str = of["query_string"].decode("latin-1")
        self.headers = Fields(of["headers"])

    @property
    def peer(self) -> str:
        """The address of who asks; empty if it has none."""
        client = self._of.get("client")
        return client[0] if client else ""

    @property
    def client(self) -> str:
        """The same with a port."""
        client = self._of.get("client")
        if not client:
            return ""
        host, port = client
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Proto:
    """The body of a request, and a place for its answer."""

    __slots__ = ("_receive", "body", "fields", "status")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.status, self.fields, self.body = 500, [("content-length", "0")], b""

    async def __call__(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            return message.get("body", b"")  # type: ignore[no-any-return]
        return b"".join([part async for part in self._parts(message)])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._parts(await self._receive()):
            yield part

    async def _parts(self, message: Message) -> AsyncIterator[bytes]:
        while True:
            if message["type"] != "http.request":
                raise RuntimeError("The client has gone.")
            yield message.get("body", b"")
            if not message.get("more_body"):
                return
            message = await self._receive()

    def response_empty(self, status: int, fields: Pairs) -> None:
        self.status, self.fields = status, fields

    def response_bytes(self, status: int, fields: Pairs, body: bytes) -> None:
        self.status, self.fields, self.body = status, fields, body


class Asgi:
    """The application, for an ASGI server."""

    def __init__(self, application: Application) -> None:
        self._answer = application.__rsgi__

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"Only HTTP is answered here, not {scope['type']}.")
        proto = Proto(receive)
        await self._answer(Scope(scope), proto)
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in proto.fields]
        await send({"type": "http.response.start", "status": proto.status, "headers": fields})
        await send({"type": "http.response.body", "body": proto.body})
