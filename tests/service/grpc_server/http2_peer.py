"""A client of the state machine, without sockets: it sends frames by hand, and turns the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from hpack import Decoder

from headgate.service.grpc_server.connection import ConnectionContext, Http2Connection
from headgate.service.grpc_server.methods import CallFailed, Metadata, Method, Reply, StatusCode
from headgate.service.grpc_server.request_heads import RequestHeads
from headgate.service.grpc_server.server import call_type
from tests.fuzz.http2_frame_builder import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    header_block,
)

NAMES = {DATA: "DATA", HEADERS: "HEADERS", RST: "RST_STREAM", GOAWAY: "GOAWAY", WINDOW: "WINDOW_UPDATE"}
NAMES |= {SETTINGS: "SETTINGS", PING: "PING", PRIORITY: "PRIORITY"}
CODES = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
]
ACK = frame(SETTINGS, 1, 0)
MAX_MESSAGE = 65_536
OK = ["HEADERS 200", "DATA 7", "HEADERS end grpc-status=0"]  # of /test/Echo with two letters


class DrivenLoop(asyncio.SelectorEventLoop):
    """An event loop whose time the test turns."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def turn(self) -> None:
        """Runs all that is ready."""
        for _ in range(10):
            self.call_soon(self.stop)
            self.run_forever()


class TestMethods:
    """Methods that do whatever a test may want, and note what became of them."""

    __test__ = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: list[asyncio.Future[bytes]] = []
        self.seen: list[str] = []
        self.entered = 0

    @property
    def running(self) -> int:
        """Returns how many handlers were entered and have not been left."""
        return self.entered - self.seen.count("left")

    async def echo(self, message: bytes) -> bytes:
        return message

    async def large(self, message: bytes) -> bytes:
        return message * 20_000

    def quick(self, message: bytes) -> bytes | None:
        """Answers at once: twice, at length, not at all, by an error."""
        if message == b"fail":
            raise CallFailed(StatusCode.NOT_FOUND, "not at once")
        if message == b"wrong":
            raise ZeroDivisionError
        return None if message == b"wait" else message * (20_000 if message == b"large" else 2)

    async def noted(self, message: bytes) -> Reply:
        return Reply(message, (("note", "well"),))

    async def fail(self, message: bytes) -> bytes:
        raise CallFailed(StatusCode.NOT_FOUND, "100 % nothing, äh")

    async def wrong(self, message: bytes) -> bytes:
        raise ZeroDivisionError

    async def yields(self, message: bytes) -> bytes:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert (task.cancelling(), task.uncancel()) == (0, 0)
        await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        return message

    async def wait(self, message: bytes) -> bytes:
        self.entered += 1
        self.waiting.append(self.loop.create_future())
        try:
            async with asyncio.timeout(100):
                return await self.waiting[-1]
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        finally:
            self.seen.append("left")

    async def chat(self, messages: AsyncIterator[bytes], metadata: Metadata) -> AsyncIterator[bytes]:
        self.entered += 1
        try:
            async for message in messages:
                if message == b"fail":
                    raise CallFailed(StatusCode.ABORTED, "as asked")
                if message == b"slow":
                    self.waiting.append(self.loop.create_future())
                    await self.waiting[-1]
                self.seen.append(message[:10].decode("latin-1"))
                yield message * (20_000 if message == b"large" else 1) + metadata.get("add", "").encode()
        finally:
            self.seen.append("left")

    def by_name(self) -> Mapping[str, Method]:
        unary = (self.echo, self.large, self.noted, self.fail, self.wrong, self.yields, self.wait)
        methods = {f"/test/{each.__name__.title()}": Method(unary=each) for each in unary}
        quick = Method(unary=self.echo, at_once=self.quick)
        return {**methods, "/test/Quick": quick, "/test/Chat": Method(streaming=self.chat)}


class Http2Peer:
    """A client, its connection, and the time."""

    def __init__(self, *, hello: bool = True, confirm: bool = True, loop: DrivenLoop | None = None) -> None:
        self._owns_loop = loop is None
        self.loop = loop or DrivenLoop()
        self.methods = TestMethods(self.loop)
        context = ConnectionContext(RequestHeads(self.methods.by_name()), call_type, MAX_MESSAGE, self.loop)
        self.connection = Http2Connection(context, self.loop.now, lambda: None)
        self._decoder = Decoder()
        self.read()
        if hello:
            self.send(PREFACE + frame(SETTINGS, 0, 0), *([ACK] if confirm else []))

    def __enter__(self) -> Http2Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.lost()
        self.loop.turn()
        if self._owns_loop:
            self.loop.close()

    def send(self, *frames: bytes) -> list[str]:
        """Sends frames; says what comes back."""
        self._in_loop(lambda: self.connection.receive(b"".join(frames), self.loop.now))
        return self.read()

    def _in_loop(self, step: Callable[[], object]) -> None:
        """Does something as a callback of the event loop, as a server does."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                step()
            except BaseException as error:
                errors.append(error)
            finally:
                self.loop.stop()

        self.loop.call_soon(run)
        self.loop.run_forever()
        if errors:
            raise errors[0]

    def turn(self) -> list[str]:
        """Lets handlers go on; says what comes."""
        self.loop.turn()
        return self.read()

    def wait(self, seconds: float) -> list[str]:
        """Lets time pass; says what comes."""
        ends = self.loop.now + seconds
        while self.loop.now < ends:
            self.loop.now = min(ends, self.loop.now + 0.5)
            self.loop.turn()
            self.connection.tick(self.loop.now)
        return self.read()

    def read(self) -> list[str]:
        """Returns what came, a line for each frame; an acknowledgement of settings is left out."""
        data, lines = self.connection.take_output(), []
        while data:
            size, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
            payload, data = data[9 : 9 + size], data[9 + size :]
            line = self._line(kind, flags, payload)
            if line:
                lines.append(line)
        return lines

    def _line(self, kind: int, flags: int, payload: bytes) -> str:
        end = " end" if flags & END_STREAM else ""
        if kind == HEADERS:
            fields: list[Any] = list(self._decoder.decode(payload))
            shown = [
                value if name == ":status" else f"{name}={value}"
                for name, value in fields
                if name != "content-type"
            ]
            return f"HEADERS{end} {' '.join(shown)}"
        if kind == DATA:
            return f"DATA{end} {len(payload)}"
        if kind == RST:
            return f"RST_STREAM {CODES[int.from_bytes(payload, 'big')]}"
        if kind == GOAWAY:
            return f"GOAWAY {CODES[int.from_bytes(payload[4:8], 'big')]}"
        if kind == WINDOW:
            return f"WINDOW_UPDATE {int.from_bytes(payload, 'big')}"
        return "" if kind == SETTINGS else f"{NAMES[kind]}{' ack' if end else ''}"


def head(stream: int, path: str = "/test/Echo", *, end: bool = False, **fields: str) -> bytes:
    """A request's HEADERS frame; in names of fields, _ is -."""
    given = {"content-type": "application/grpc", "te": "trailers"}
    given |= {name.replace("_", "-"): value for name, value in fields.items()}
    pairs = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"h")]
    pairs += [(name.encode(), value.encode()) for name, value in given.items()]
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, header_block(pairs))


def message(stream: int, content: bytes = b"hi", *, end: bool = True) -> bytes:
    """A message in a DATA frame."""
    return frame(DATA, END_STREAM if end else 0, stream, prefixed(content))


def prefixed(content: bytes) -> bytes:
    return b"\0" + len(content).to_bytes(4, "big") + content
