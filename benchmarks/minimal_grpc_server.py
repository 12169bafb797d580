"""The least that a gRPC server in Python can do for unary calls: a floor for the service's own.

An asyncio protocol that reads HEADERS and DATA, calls the handler, and writes the response. It checks nothing,
decodes no header, bounds nothing, and ends no call: no server that anybody could run.
"""

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any, cast

Handler = Callable[[bytes], Coroutine[Any, Any, bytes]]
_FRAME = struct.Struct(">HBBBI")
_DATA_START = struct.Struct(">HBBBIBI").pack  # of a frame and of the message in it
_HELLO = (
    b"\0\0\x0c\x04\0\0\0\0\0"
    + struct.pack(">HIHI", 1, 0, 3, 1000)
    + b"\0\0\x04\x08\0\0\0\0\0"
    + struct.pack(">I", 2**31 - 1 - 65535)
)
_HEAD = b"\x88\x0f\x10\x10application/grpc"
_TRAILERS = b"\x00\x0bgrpc-status\x010"
_HEAD_START = struct.pack(">I", len(_HEAD))[1:] + b"\x01\x04"
_TRAILERS_START = struct.pack(">I", len(_TRAILERS))[1:] + b"\x01\x05"


class _Connection(asyncio.Protocol):
    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._buffer, self._position = b"", 24  # behind the preface
        self._output: list[bytes] = []
        self._flushes = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(_HELLO)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        position, size = self._position, len(buffer)
        while size - position >= 9:
            high, low, kind, flags, stream = _FRAME.unpack_from(buffer, position)
            start = position + 9
            end = start + (high << 8 | low)
            if end > size:
                break
            if kind == 0 and flags & 1:
                self._call(stream, buffer[start + 5 : end])
            elif kind == 4 and not flags & 1:
                self._output.append(b"\0\0\0\x04\x01\0\0\0\0")
            elif kind == 6 and not flags & 1:
                self._output.append(b"\0\0\x08\x06\x01\0\0\0\0" + buffer[start:end])
            position = end
        self._buffer, self._position = (buffer[position:], 0) if position <= size else (buffer, position)
        self._flush()

    def _call(self, stream: int, message: bytes) -> None:
        coroutine = self._handler(message)
        try:
            self._wait(stream, coroutine, coroutine.send(None))
        except StopIteration as stop:
            self._respond(stream, stop.value)

    def _wait(self, stream: int, coroutine: Any, future: Any) -> None:
        def resume(_: object) -> None:
            try:
                self._wait(stream, coroutine, coroutine.send(None))
            except StopIteration as stop:
                self._respond(stream, stop.value)
                if not self._flushes:
                    self._flushes = True
                    self._loop.call_soon(self._flush)

        future._asyncio_future_blocking = False
        future.add_done_callback(resume)

    def _respond(self, stream: int, message: bytes) -> None:
        size, number = len(message) + 5, stream.to_bytes(4, "big")
        start = _DATA_START(size >> 8, size & 255, 0, 0, stream, 0, size - 5)
        self._output += (_HEAD_START, number, _HEAD, start, message, _TRAILERS_START, number, _TRAILERS)

    def _flush(self) -> None:
        self._flushes = False
        if self._output and not self._transport.is_closing():
            self._transport.write(b"".join(self._output))
            self._output.clear()


async def serve(handler: Handler, address: str) -> None:
    host, _, port = address.rpartition(":")
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(handler), host, int(port))
    await server.serve_forever()
