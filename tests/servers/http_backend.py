"""A small HTTP/1.1 server behind a gateway: keeps connections, and records its requests.

It answers 200 and `answered by the backend`, unless it is given an `answer` of the test's own: then it can as well
be the service that a gateway asks for permission. It runs on an event loop in a thread of its own, so a test may
call it, and wait for gateways that call it, from anywhere.

Laws:
  - every request is counted before it is answered;
  - a connection is kept unless the client says `Connection: close`;
  - what `answer` raises is a 500 for the client, with the error in its body, and is kept in `errors`.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self

from tests.servers.redis_server import PORT_ATTEMPTS, free_port

REMEMBERED = 1000
BODY = b"answered by the backend"


class BackendRequest(NamedTuple):
    method: str
    target: str  # with the query, as it came
    headers: Mapping[str, str]  # names in small letters; of several fields of one name, joined by ", "
    body: bytes
    connection: int  # the first client's is 1

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class BackendResponse(NamedTuple):
    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = BODY


class Backend:
    """A real server on 127.0.0.1. `counts` has requests by path, `last` the latest ones, oldest first."""

    def __init__(
        self, answer: Callable[[BackendRequest], BackendResponse] = lambda request: BackendResponse()
    ) -> None:
        self.answer = answer
        self.port = 0
        self.counts: Counter[str] = Counter()
        self.last: deque[BackendRequest] = deque(maxlen=REMEMBERED)
        self.connections = 0
        self.errors: list[Exception] = []
        self._open: set[asyncio.Transport] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def total(self) -> int:
        return self.counts.total()

    def forget(self) -> None:
        """Count from nothing again. Open connections stay, and keep their numbers."""
        self.counts.clear()
        self.last.clear()

    def start(self) -> Self:
        """Listen; on the port it had before, if it had one."""
        listening: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="backend", daemon=True)
        self._thread.start()
        self.port = listening.result()
        return self

    def stop(self) -> None:
        """Close every connection and listen no more."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, listening: Future[int]) -> None:
        loop = asyncio.new_event_loop()
        try:
            server, port = loop.run_until_complete(self._listen(loop))
        except BaseException as error:
            loop.close()
            listening.set_exception(error)
            return
        self._loop = loop
        listening.set_result(port)
        loop.run_forever()
        server.close()
        for transport in list(self._open):
            transport.abort()
        loop.run_until_complete(server.wait_closed())
        while self._open:
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Server, int]:
        for left in reversed(range(PORT_ATTEMPTS)):
            port = self.port or free_port()
            try:
                return await loop.create_server(
                    lambda: _BackendConnection(self), "127.0.0.1", port, backlog=1024
                ), port
            except OSError:
                if self.port or not left:
                    raise
        raise AssertionError("unreachable")

    def _met(self, transport: asyncio.Transport) -> int:
        self._open.add(transport)
        self.connections += 1
        return self.connections

    def _parted(self, transport: asyncio.Transport) -> None:
        self._open.discard(transport)

    def _answer(self, request: BackendRequest) -> BackendResponse:
        self.counts[request.path] += 1
        self.last.append(request)
        try:
            return self.answer(request)
        except Exception as error:
            self.errors.append(error)
            return BackendResponse(500, {}, repr(error).encode())


class _BackendConnection(asyncio.Protocol):
    """One connection: bytes come in any pieces, answers go out in order."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._number = self._backend._met(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._backend._parted(self._transport)

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        while (parsed := _parse(self._bytes, self._number)) is not None:
            request, self._bytes = parsed
            answer = self._backend._answer(request)
            self._transport.write(_render_response(answer, request.method))
            if request.headers.get("connection", "").lower() == "close":
                self._transport.close()
                return


def _parse(data: bytes, connection: int) -> tuple[BackendRequest, bytes] | None:
    """The first request in the bytes and what follows it; None while it is not all there."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if "chunked" in headers.get("transfer-encoding", ""):
        taken = _unchunked(rest)
        if taken is None:
            return None
        body, rest = taken
    else:
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return None
        body, rest = rest[:length], rest[length:]
    return BackendRequest(method, target, headers, body, connection), rest


def _unchunked(data: bytes) -> tuple[bytes, bytes] | None:
    body = b""
    while True:
        size, end, data = data.partition(b"\r\n")
        if not end or len(data) < int(size, 16) + 2:
            return None
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
        if length == 0:
            return body, data


def _render_response(answer: BackendResponse, method: str) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if answer.status != 204:
        lines.append(f"content-length: {len(answer.body)}")
    body = b"" if method == "HEAD" or answer.status == 204 else answer.body
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
