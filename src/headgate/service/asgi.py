"""An application as ASGI servers call it: a Request is answered by a status, header fields and a body.

granian's own interface, RSGI, is not used: it leaves out every header field that has bytes beyond ASCII, so a
client could hide a cookie from its limit by one odd letter beside it. ASGI hands over the bytes.

A body is read whole, up to a size and within a time. Whoever sends more, or takes longer, is Refused.

granian goes on with a request whose client has hung up, and its answer is lost. An answer that brings something
which the client must give back is awaited by `unless_gone`, which breaks off if the client is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol, TypeVar

from headgate.http.headers import Fields
from headgate.service.body_timeout import BodyTimeouts
from headgate.service.idle_connections import UnderWay

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Pairs = list[tuple[bytes, bytes]]
Answer = tuple[int, Pairs, bytes]  # status, header fields, body

BODY_SECONDS = 10.0  # in which a body must have come
_DIGITS = 20  # of a length that are read: the server has seen that it is a number, and not a larger one
_PARTS = 1024  # in which a body may come, and more if it may be large: each costs as much as a request
_CLOSED = [("connection", "close")]  # what is still to come of the body is not read


T = TypeVar("T")


class HungUp(Exception):
    """The client has left, and nobody hears an answer."""


class Refused(Exception):
    """A request that is not answered, with its status and why."""

    def __init__(self, status: int, detail: str, fields: Fields | None = None) -> None:
        super().__init__(detail)
        self.status: int = status
        self.detail: str = detail
        self.fields: Fields = fields or []


class Request:
    """What is asked."""

    __slots__ = ("_receive", "_scope", "body", "headers")

    def __init__(self, scope: Mapping[str, Any], receive: Receive) -> None:
        self._scope, self._receive = scope, receive
        self.headers: Pairs = scope["headers"]
        self.body: bytes = b""  # as far as somebody wants to read it

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
        """The first field of this name, which is in small letters."""
        for each, value in self.headers:
            if each == name:
                return value.decode("latin-1")
        return None

    @property
    def peer(self) -> str:
        """The address of who asks; empty if it has none."""
        client = self._scope.get("client")
        return client[0] if client else ""

    @property
    def client(self) -> str:
        """The same with a port."""
        client = self._scope.get("client")
        if not client:
            return ""
        host, port = client
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def unless_gone(self, answer: Awaitable[T], undo: Callable[[T], Awaitable[object]] | None = None) -> T:
        """Await an answer while the client is there. If it hangs up, the answer is cancelled, or undone if it has
        come, and HungUp is raised. To be called once, after the body was read."""
        asked, gone = asyncio.ensure_future(answer), asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait([asked, gone], return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                return await asked
            asked.cancel()
            await asyncio.wait([asked])
            if undo is not None and not asked.cancelled() and asked.exception() is None:
                await undo(asked.result())
            raise HungUp
        finally:
            gone.cancel()
            asked.cancel()

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


Answers = Callable[[Request], Answer | Awaitable[Answer]]


class Application(Protocol):
    def asked(self, request: Request) -> tuple[int | None, Answers]:
        """How many bytes its body may have, None if nobody reads it; and who answers it then."""

    def trouble(self, request: Request, error: Exception) -> Answer:
        """What is answered where that came to nothing."""


class Asgi:
    """The application, for an ASGI server."""

    def __init__(
        self, application: Application, under_way: UnderWay | None = None, seconds: float = BODY_SECONDS
    ) -> None:
        self._asked, self._trouble = application.asked, application.trouble
        self._under_way = under_way or UnderWay()
        self._overdue = BodyTimeouts(seconds)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"Only HTTP is answered here, not {scope['type']}.")
        peer = scope.get("client")
        if peer:
            self._under_way.begin(peer)
        try:
            await self._answer(scope, receive, send)
        finally:
            if peer:
                self._under_way.end(peer)

    async def _answer(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            most, answers = self._asked(request)
            if most is not None:
                request.body = await self._body(request.headers, receive, most)
            answer = answers(request)
            status, fields, body = answer if isinstance(answer, tuple) else await answer
        except HungUp:
            return
        except Exception as error:
            status, fields, body = self._trouble(request, error)
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    async def _body(self, headers: Pairs, receive: Receive, most: int) -> bytes:
        """All of it: at most so many bytes."""
        length = -1
        for name, value in headers:
            if name == b"content-length":
                # HTTP allows for zeros without end before it, and Python reads no number of so many digits.
                length = int(value if len(value) < _DIGITS else value.lstrip(b"0")[:_DIGITS] or 0)
                if length > most:
                    raise _too_large(most)
        overdue = self._overdue
        waits = overdue.begin()
        try:
            message = await receive()
            body: bytes = message.get("body", b"")
            # granian says that there is more until it was asked once more, which costs as much again.
            if len(body) == length and message["type"] == "http.request":
                return body
            return await _rest(message, receive, most)
        except asyncio.CancelledError:
            if overdue.is_over(waits):
                raise Refused(408, f"The body did not come within {overdue.seconds:g} s.", _CLOSED) from None
            raise
        finally:
            overdue.end(waits)


async def _rest(message: Message, receive: Receive, most: int) -> bytes:
    body = bytearray()
    for _ in range(_PARTS + most // 4096):
        if message["type"] != "http.request":
            raise Refused(400, "The body ends too early. Send as many bytes as Content-Length says.")
        body += message.get("body", b"")
        if len(body) > most:
            break
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()
    raise _too_large(most)


def encoded(fields: Fields) -> Pairs:
    """Header fields as they are sent."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]


def _too_large(most: int) -> Refused:
    return Refused(413, f"A body may have at most {most} bytes. Send a smaller one.", _CLOSED)
