"""One stream of a connection, before it is known what it carries.

unary_calls.py, streaming_calls.py and refused_calls.py say what happens with it. What the peer sends, they
receive by `opened`, `receive` and `was_reset`; what they send goes through the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.service.grpc_server.frames import PROTOCOL_ERROR, StreamError

if TYPE_CHECKING:
    from headgate.service.grpc_server.connection import Http2Connection
    from headgate.service.grpc_server.request_heads import RequestHead

STREAM_WINDOW = 65_535


class Http2Stream:
    """A stream: its numbers, and what of the response could not be sent yet."""

    __slots__ = (
        "connection",
        "ended",
        "head",
        "id",
        "is_open",
        "moved_at",
        "receive_window",
        "received_bytes",
        "send_window",
        "trailers",
        "uncredited",
        "unsent",
    )
    runs = True  # not closed for being idle, once the request has ended

    def __init__(self, connection: Http2Connection, stream_id: int, head: RequestHead) -> None:
        self.connection: Http2Connection = connection
        self.id: int = stream_id
        self.head: RequestHead = head
        self.send_window: int = connection.sender.initial_window
        self.receive_window: int = STREAM_WINDOW
        self.received_bytes: int = 0
        self.ended: bool = False  # the peer has sent all of it
        self.is_open: bool = True  # a response can still be sent
        self.moved_at: float = connection.now  # when it was opened, or its response got on
        self.unsent: bytearray = _NOTHING
        self.trailers: bytes | None = None
        self.uncredited: int = 0  # bytes that the peer may send again, and does not know yet

    def opened(self) -> None:
        """The head has come."""

    def receive(self, payload: bytes, ended: bool) -> None:
        """Data has come, within the windows."""
        raise NotImplementedError

    def was_reset(self) -> None:
        """The peer or the connection has gone, or the stream was reset."""

    def data_sent(self) -> None:
        """Notes that everything which had to wait for a window has been sent."""

    def time_out(self) -> None:
        """The request did not arrive in time."""

    def cut_off(self) -> None:
        """The service stops: whatever runs must end now."""

    def check_length(self, payload: bytes, ended: bool) -> None:
        """Holds a request to its content-length."""
        self.received_bytes += len(payload)
        expected = self.head.content_length
        if expected is not None and (
            self.received_bytes > expected or (ended and self.received_bytes != expected)
        ):
            raise StreamError(PROTOCOL_ERROR)

    def send_data(self, data: bytes) -> None:
        """Sends data, as far as windows allow; the rest follows."""
        if not self.is_open:
            return
        if self.unsent is _NOTHING:
            self.unsent = bytearray()
        self.unsent += data
        self.connection.send(self)

    def end_with_data(self, data: bytes) -> None:
        """Ends the response with data, for HTTP without trailers."""
        self.trailers = b""
        self.send_data(data)

    def finish(self, trailers: bytes) -> None:
        """Ends the response, after all of its data."""
        if self.is_open:
            self.trailers = trailers
            self.connection.send(self)


_NOTHING = bytearray()  # never changed
