"""Adapts an application to ASGI: a Request is answered by a status, header fields and a body.

granian's own interface, RSGI, is not used: it leaves out every header field that has bytes beyond ASCII, so a
client could hide a cookie from its limit by one odd letter beside it. ASGI passes the bytes on.

A body is read completely, up to a size and within a time. A client that sends more, or takes longer, gets an
HttpError.

granian goes on with a request whose client has hung up, and its response is lost. A response with a receipt that
the client must give back is awaited by `unless_disconnected`, which cancels it if the client is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from headgate.http.headers import Fields
from headgate.service.body_timeout import BodyTimeouts
from headgate.service.idle_connections import ActiveRequests

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]
Response = tuple[int, RawHeaders, bytes]  # status, header fields, body


class StreamedResponse(NamedTuple):
    """A response whose body comes in chunks, as long as the client reads them."""

    status: int
    headers: RawHeaders
    chunks: AsyncIterator[bytes]


BODY_TIMEOUT_S = 10.0  # for a complete body
_MAX_LENGTH_DIGITS = 20  # of Content-Length; the server has checked that it is a number in its range
_MAX_BODY_CHUNKS = 1024  # of a body, more if it may be large: each costs as much as a request
_CLOSE_CONNECTION = [("connection", "close")]  # the rest of the body is not read


T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client has hung up, so no response can reach it."""


class HttpError(Exception):
    """A request that gets an error response: its status, a sentence and header fields."""

    def __init__(self, status: int, detail: str, fields: Fields | None = None) -> None:
        super().__init__(detail)
        self.status: int = status
        self.detail: str = detail
        self.fields: Fields = fields or []


class Request:
    """An HTTP request."""

    __slots__ = ("_receive", "_scope", "body", "headers")

    def __init__(self, scope: Mapping[str, Any], receive: Receive) -> None:
        self._scope, self._receive = scope, receive
        self.headers: RawHeaders = scope["headers"]
        self.body: bytes = b""  # set once it was read

    @property
    def method(self) -> str:
        return self._scope["method"]  # type: ignore[no-any-return]

    @property
    def path(self) -> str:
        return self._scope["path"]  # type: ignore[no-any-return]

    @property
    def query(self) -> str:
        return self._scope["query_string"].decode("latin-1")  # type: ignore[no-any-return]

    def field(self, name: bytes) -> str | None:
        """Returns the first header field of this name, which is in lower case."""
        for field_name, value in self.headers:
            if field_name == name:
                return value.decode("latin-1")
        return None

    @property
    def peer(self) -> str:
        """The IP address of the peer; empty if it has none."""
        client = self._scope.get("client")
        return client[0] if client else ""

    @property
    def client(self) -> str:
        """The address of the peer with its port."""
        client = self._scope.get("client")
        if not client:
            return ""
        host, port = client
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields the body as it comes, to a handler that reads it by itself. Raises ClientDisconnected."""
        message: Message = {"more_body": True}
        while message.get("more_body"):
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientDisconnected
            yield message.get("body", b"")

    async def unless_disconnected(
        self, answer: Awaitable[T], undo: Callable[[T], Awaitable[object]] | None = None
    ) -> T:
        """Awaits an answer while the client is connected.

        If the client hangs up, the answer is cancelled, or undone if it is there already, and ClientDisconnected
        is raised. Call it once, after the body was read.
        """
        answering = asyncio.ensure_future(answer)
        disconnected = asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait([answering, disconnected], return_when=asyncio.FIRST_COMPLETED)
            if not disconnected.done():
                return await answering
            answering.cancel()
            await asyncio.wait([answering])
            if undo is not None and not answering.cancelled() and answering.exception() is None:
                await undo(answering.result())
            raise ClientDisconnected
        finally:
            disconnected.cancel()
            answering.cancel()

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


AnyResponse = Response | StreamedResponse
Handler = Callable[[Request], AnyResponse | Awaitable[AnyResponse]]


class Application(Protocol):
    """Finds the handler of a request, and turns errors into responses; Asgi serves it."""

    def route(self, request: Request) -> tuple[int | None, Handler]:
        """Returns the largest body in bytes, None if it is not read; and the handler of the request."""

    def error_response(self, request: Request, error: Exception) -> Response:
        """Returns the response to a request whose handler raised an error."""


class Asgi:
    """An Application as an ASGI callable."""

    def __init__(
        self, application: Application, active: ActiveRequests | None = None, seconds: float = BODY_TIMEOUT_S
    ) -> None:
        self._route, self._error_response = application.route, application.error_response
        self._active = active or ActiveRequests()
        self._body_timeouts = BodyTimeouts(seconds)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"Only HTTP is answered here, not {scope['type']}.")
        peer = scope.get("client")
        if peer:
            self._active.begin(peer)
        try:
            await self._respond(scope, receive, send)
        finally:
            if peer:
                self._active.end(peer)

    async def _respond(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            max_bytes, handler = self._route(request)
            if max_bytes is not None:
                request.body = await self._read_body(request.headers, receive, max_bytes)
            answer = handler(request)
            response = answer if isinstance(answer, tuple) else await answer
        except ClientDisconnected:
            return
        except Exception as error:
            response = self._error_response(request, error)
        if isinstance(response, StreamedResponse):
            await _send_chunks(request, response, send)
            return
        status, fields, body = response
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    async def _read_body(self, headers: RawHeaders, receive: Receive, max_bytes: int) -> bytes:
        """Reads the body, of at most so many bytes."""
        length = -1
        for name, value in headers:
            if name == b"content-length":
                # HTTP allows any number of leading zeros, and Python parses no number of so many digits.
                short = len(value) < _MAX_LENGTH_DIGITS
                length = int(value if short else value.lstrip(b"0")[:_MAX_LENGTH_DIGITS] or 0)
                if length > max_bytes:
                    raise _too_large(max_bytes)
        timeouts = self._body_timeouts
        task = timeouts.begin()
        try:
            message = await receive()
            body: bytes = message.get("body", b"")
            # granian reports more_body until the next receive(), which costs as much again.
            if len(body) == length and message["type"] == "http.request":
                return body
            return await _read_chunks(message, receive, max_bytes)
        except asyncio.CancelledError:
            if timeouts.timed_out(task):
                raise HttpError(
                    408, f"The body did not come within {timeouts.seconds:g} s.", _CLOSE_CONNECTION
                ) from None
            raise
        finally:
            timeouts.end(task)


async def _send_chunks(request: Request, response: StreamedResponse, send: Send) -> None:
    """Sends a body in chunks, until it ends or the client hangs up."""
    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})

    async def send_all() -> None:
        async for chunk in response.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    with suppress(ClientDisconnected):
        await request.unless_disconnected(send_all())


async def _read_chunks(message: Message, receive: Receive, max_bytes: int) -> bytes:
    body = bytearray()
    for _ in range(_MAX_BODY_CHUNKS + max_bytes // 4096):
        if message["type"] != "http.request":
            raise HttpError(400, "The body ends too early. Send as many bytes as Content-Length says.")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            break
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()
    raise _too_large(max_bytes)


def encode_headers(fields: Fields) -> RawHeaders:
    """Encodes header fields as bytes."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, f"A body may have at most {max_bytes} bytes. Send a smaller one.", _CLOSE_CONNECTION)
