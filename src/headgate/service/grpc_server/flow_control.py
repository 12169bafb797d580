"""Sends responses within the peer's windows: one of the connection, and one of each stream.

What does not fit waits with its stream, in the order in which streams began to wait, until the peer opens a
window. A stream that waits still counts as open, so a peer that never opens one is bounded by the number of its
streams; and after STALLED_S without progress its stream is reset (connection.py).

Laws (tests/service/grpc_server/test_connection.py): no more is sent than both windows allow, and no frame is
larger than the peer allows; everything is sent in the end, in order; a window never exceeds 2^31 - 1.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from headgate.service.grpc_server.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEADERS,
    MAX_PAYLOAD_BYTES,
    MAX_WINDOW,
    Http2Error,
    StreamError,
    frame,
    pack_number,
)
from headgate.service.grpc_server.header_blocks import OK_TRAILERS, RESPONSE_HEAD

if TYPE_CHECKING:
    from headgate.service.grpc_server.streams import Http2Stream

MESSAGE_PREFIX_BYTES = 5
_HEAD_START = frame(HEADERS, END_HEADERS, 0, RESPONSE_HEAD)[:5]
_TRAILERS_START = frame(HEADERS, END_HEADERS | END_STREAM, 0, OK_TRAILERS)[:5]
_pack_data_start = Struct(">HBBBIBI").pack  # of a frame and of the message in it


class FrameSender:
    """The sending side of a connection: what is to be written, and the windows."""

    __slots__ = ("blocked", "initial_window", "max_payload_bytes", "output", "window")

    def __init__(self) -> None:
        self.output: list[bytes] = []
        self.window: int = DEFAULT_WINDOW
        self.initial_window: int = DEFAULT_WINDOW
        self.max_payload_bytes: int = MAX_PAYLOAD_BYTES
        self.blocked: dict[Http2Stream, None] = {}

    def send_whole(self, stream: Http2Stream, message: bytes) -> bool:
        """Sends a whole response at once: head, message, and trailers that say OK. False if it does not fit."""
        size = len(message) + MESSAGE_PREFIX_BYTES
        if size > self.window or size > stream.send_window or size > MAX_PAYLOAD_BYTES:
            return False
        self.window -= size
        stream_id = stream.id
        number = pack_number(stream_id)
        self.output += (
            _HEAD_START,
            number,
            RESPONSE_HEAD,
            _pack_data_start(size >> 8, size & 0xFF, DATA, 0, stream_id, 0, size - MESSAGE_PREFIX_BYTES),
            message,
            _TRAILERS_START,
            number,
            OK_TRAILERS,
        )
        return True

    def send_head(self, stream: Http2Stream, block: bytes, *, ends: bool = False) -> None:
        flags = END_HEADERS | END_STREAM if ends else END_HEADERS
        self.output.append(frame(HEADERS, flags, stream.id, block))

    def send_unsent(self, stream: Http2Stream) -> bool:
        """Sends as much of the stream's unsent data as fits; returns whether any was sent."""
        unsent, sent = stream.unsent, 0
        while sent < len(unsent):
            size = min(len(unsent) - sent, self.window, stream.send_window, self.max_payload_bytes)
            if size <= 0:
                break
            self.output.append(frame(DATA, 0, stream.id, bytes(unsent[sent : sent + size])))
            self.window -= size
            stream.send_window -= size
            sent += size
        del unsent[:sent]
        if unsent:
            self.blocked[stream] = None
        else:
            self.blocked.pop(stream, None)
        return sent > 0

    def grow(self, increment: int) -> None:
        """Opens the connection's window."""
        if self.window + increment > MAX_WINDOW:
            raise Http2Error(FLOW_CONTROL_ERROR, "The connection's window is larger than 2^31 - 1.")
        self.window += increment

    def grow_stream(self, stream: Http2Stream, increment: int) -> None:
        if stream.send_window + increment > MAX_WINDOW:
            raise StreamError(FLOW_CONTROL_ERROR)
        stream.send_window += increment
