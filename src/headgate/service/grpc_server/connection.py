"""The state machine of an HTTP/2 connection: bytes in, calls on streams and bytes out.

It knows no sockets and no clock: `receive` and `tick` get the time, `take_output` returns what is to be
written, and `closed` says that nothing more will be. Each stream is an object of the type that its head names;
what it receives and sends is its own matter (unary_calls.py and its neighbours).

Bounds, for anybody may connect:
    frames          16 KiB each; those that bring no call: frame_budget.py
    header blocks   MAX_BLOCK_BYTES, or the call is refused; MAX_BLOCK_FRAMES with CONTINUATION
    streams         MAX_STREAMS open at once; the rest are refused, which a client may repeat elsewhere
    requests        REQUEST_TIMEOUT_S until one is whole, or a message of a stream; MIN_HELD_BYTES or more of all
                    that are not
    responses       STALLED_S without a window for them
    silence         a ping after PING_AFTER_S, PING_TIMEOUT_S for its answer; HELLO_TIMEOUT_S for the first frames

Whatever breaks the protocol closes the connection with a GOAWAY that says why, or resets its stream, as RFC
9113 asks. Priorities are read and ignored.

Laws (tests/service/grpc_server/test_connection.py, tests/fuzz/http2_sequences.py): no bytes raise anything;
every call that began ends; when no stream is open, nothing is held.

The reason for the length of this file: it is one state machine, and each kind of frame is a few lines of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from headgate.service.grpc_server.flow_control import FrameSender
from headgate.service.grpc_server.frame_budget import FrameBudget
from headgate.service.grpc_server.frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_HEADER_BYTES,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_PAYLOAD_BYTES,
    MAX_STREAM_ID,
    MAX_WINDOW,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    Http2Error,
    StreamError,
    frame,
    goaway,
    reset,
    settings_frame,
    unpack_frame_header,
    window_update,
)
from headgate.service.grpc_server.header_blocks import Field, is_malformed
from headgate.service.grpc_server.request_heads import (
    LARGE_HEAD,
    MAX_LIST_BYTES,
    HeadDecoder,
    HeadTooLarge,
    RequestHead,
    RequestHeads,
)
from headgate.service.grpc_server.streams import STREAM_WINDOW, Http2Stream

MAX_STREAMS = 1000
MAX_BLOCK_BYTES = 16 * 1024
MAX_BLOCK_FRAMES = 16
CONNECTION_WINDOW = 2**20
MIN_HELD_BYTES = 2**20
HELLO_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 10.0
STALLED_S = 30.0
PING_AFTER_S, PING_TIMEOUT_S = 20.0, 10.0
LEAVE_S = 1.0  # for calls that were sent before the peer knew
_MAX_REMEMBERED_RESETS = 100
_KEEPALIVE_PING, _LEAVE_PING = b"headgate", b"leaving!"

_HELLO = settings_frame(
    {
        HEADER_TABLE_SIZE: 0,
        MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES,
    }
) + window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)


class ConnectionContext(NamedTuple):
    """The common part of all connections of a server."""

    heads: RequestHeads
    stream_type: Callable[[RequestHead], Callable[[Http2Connection, int, RequestHead], Http2Stream]]
    max_message_bytes: int
    loop: Any = None  # for calls


class Http2Connection:
    """One connection of a client. `on_output` is called when there is output outside of `receive`."""

    def __init__(self, context: ConnectionContext, now: float, on_output: Callable[[], object]) -> None:
        self.context: ConnectionContext = context
        self.now: float = now
        self.sender: FrameSender = FrameSender()
        self.sender.output.append(_HELLO)
        self.streams: dict[int, Http2Stream] = {}
        self.closed: bool = False
        self.answered: int = 0
        self.received_at: float = now
        self.called_at: float = now  # when a call began or ran, as of the last tick
        self.held_bytes: int = 0  # of messages that are not whole, or not taken yet
        self._max_held_bytes = max(MIN_HELD_BYTES, 4 * context.max_message_bytes)
        self._by_block = context.heads.by_block
        self._on_output = on_output
        self._expected_since = now
        self._buffer = b""
        self._preface_came = False
        self._expected: int | None = SETTINGS  # the only frame that may come now
        self._decoder = HeadDecoder()
        self._block: list[bytes] = []  # of a stream whose header block is not whole
        self._block_bytes = 0
        self._block_stream_id = 0
        self._block_ends_stream = False
        self._last_stream_id = self._ticked_stream_id = 0
        self._receive_window = CONNECTION_WINDOW
        self._reset_ids: deque[int] = deque(maxlen=_MAX_REMEMBERED_RESETS)  # by us: frames may still come
        self._budget = FrameBudget(now)
        self._pinged_at: float | None = None
        self._leaving_at: float | None = None
        self._left = False  # new streams are refused
        self._handlers = {
            DATA: self._data,
            HEADERS: self._headers,
            PRIORITY: self._priority,
            RST_STREAM: self._rst_stream,
            SETTINGS: self._settings,
            PUSH_PROMISE: self._push_promise,
            PING: self._ping,
            GOAWAY: self._goaway,
            WINDOW_UPDATE: self._window_update,
            CONTINUATION: self._continuation,
        }

    # What the server calls.

    def take_output(self) -> bytes:
        output = b"".join(self.sender.output)
        self.sender.output.clear()
        return output

    def receive(self, data: bytes, now: float) -> None:
        """Takes in what the peer has sent."""
        if self.closed:
            return
        self.now = self.received_at = now
        buffer = self._buffer + data if self._buffer else data
        position, size = 0, len(buffer)
        try:
            if not self._preface_came:
                if not PREFACE.startswith(buffer[: len(PREFACE)]):
                    raise Http2Error(PROTOCOL_ERROR, "This is not HTTP/2 with prior knowledge.")
                if size < len(PREFACE):
                    self._buffer = buffer
                    return
                self._preface_came, position = True, len(PREFACE)
            self._buffer = buffer[self._read_frames(buffer, position, size) :]
        except Http2Error as error:
            self._fail(error)

    def _read_frames(self, buffer: bytes, position: int, size: int) -> int:
        """Handles all whole frames, and returns where the next one begins. The commonest two are handled here."""
        streams, by_block, context = self.streams, self._by_block, self.context
        while size - position >= FRAME_HEADER_BYTES and not self.closed:
            high, low, kind, flags, stream_id = unpack_frame_header(buffer, position)
            length = high << 8 | low
            if length > MAX_PAYLOAD_BYTES:
                raise Http2Error(FRAME_SIZE_ERROR, "A frame has more than 16384 bytes.")
            start = position + FRAME_HEADER_BYTES
            end = start + length
            if end > size:
                break
            position = end
            stream_id &= MAX_STREAM_ID
            if self._expected is not None and kind != self._expected:
                raise Http2Error(PROTOCOL_ERROR, "A frame of another type was expected.")
            if kind == HEADERS and flags == END_HEADERS and self._decoder.without_table:
                head = by_block.get(buffer[start:end])
                if (
                    head is not None
                    and stream_id & 1
                    and stream_id > self._last_stream_id
                    and len(streams) < MAX_STREAMS
                    and not self._left
                ):
                    self._last_stream_id = stream_id
                    streams[stream_id] = context.stream_type(head)(self, stream_id, head)
                    continue
            elif kind == DATA and flags <= END_STREAM:
                stream = streams.get(stream_id)
                if stream is not None and length and length <= self._receive_window and not stream.ended:
                    self._receive_data(stream, buffer[start:end], length, flags == END_STREAM)
                    continue
            handler = self._handlers.get(kind)
            if handler is None:
                self._spend()
                continue
            try:
                handler(flags, stream_id, buffer[start:end])
            except StreamError as error:
                self.reset_stream(stream_id, error.code)
        return position

    def tick(self, now: float) -> None:
        """Does what is due: pings, and closes what has waited for too long. Called about once a second."""
        if self.closed:
            return
        self.now = now
        try:
            self._tick(now)
        except Http2Error as error:
            self._fail(error)

    def _tick(self, now: float) -> None:
        if self._expected is not None and now - self._expected_since > HELLO_TIMEOUT_S:
            raise Http2Error(PROTOCOL_ERROR, "The frames that were expected did not come in time.")
        if self._pinged_at is not None:
            if now - self._pinged_at > PING_TIMEOUT_S:
                raise Http2Error(NO_ERROR, "A ping was not answered in time.")
        elif now - self.received_at > PING_AFTER_S:
            self._pinged_at = now
            self.sender.output.append(frame(PING, 0, 0, _KEEPALIVE_PING))
        if self._last_stream_id != self._ticked_stream_id or not self.is_idle:
            self._ticked_stream_id, self.called_at = self._last_stream_id, now
        for stream in list(self.streams.values()):
            if not stream.ended and now - stream.moved_at > REQUEST_TIMEOUT_S:
                stream.time_out()
            if stream in self.sender.blocked and now - stream.moved_at > STALLED_S:
                self.reset_stream(stream.id, CANCEL)
        if self._leaving_at is not None and now - self._leaving_at > LEAVE_S:
            self._leave_for_good()

    def leave(self, now: float) -> None:
        """Tells the peer to open no more streams; those that it has opened end as ever."""
        if self.closed or self._leaving_at is not None:
            return
        self._leaving_at = now
        # Two steps: what the peer sends before it has read the first is still answered.
        self.sender.output.append(goaway(MAX_STREAM_ID, NO_ERROR) + frame(PING, 0, 0, _LEAVE_PING))

    def cut_off(self) -> None:
        """Ends all calls that still run, and the connection."""
        for stream in list(self.streams.values()):
            stream.cut_off()
        if not self.closed:
            self._leave_for_good()
            self.closed = True

    def lost(self) -> None:
        """The connection has ended, and nothing more can be sent."""
        self.closed = True
        streams = list(self.streams.values())
        self.streams.clear()
        self.sender.blocked.clear()
        for stream in streams:
            self._discard(stream)

    @property
    def is_idle(self) -> bool:
        """Returns whether it has no call that runs."""
        return not any(stream.ended or stream.runs for stream in self.streams.values())

    # What streams call.

    def respond(self, stream: Http2Stream, message: bytes) -> bool:
        """Sends a whole response with the status OK, and ends the stream. False if no window has room for it."""
        if not stream.ended or not self.sender.send_whole(stream, message):
            return False
        stream.is_open = False
        self.answered += 1
        del self.streams[stream.id]
        if self._left:
            self._close_if_done()
        return True

    def send_head(self, stream: Http2Stream, block: bytes) -> None:
        self.sender.send_head(stream, block)

    def send(self, stream: Http2Stream) -> None:
        """Sends what a stream has not sent yet, as far as windows allow, and ends it when all is sent."""
        waited = stream in self.sender.blocked
        if self.sender.send_unsent(stream) or not waited:
            stream.moved_at = self.now
        if waited and not stream.unsent:
            stream.data_sent()
        if not stream.unsent and stream.trailers is not None and stream.is_open:
            if stream.trailers:
                self.sender.send_head(stream, stream.trailers, ends=True)
            else:
                self.sender.output.append(frame(DATA, END_STREAM, stream.id))
            stream.is_open = False
            self.answered += 1
            if not stream.ended:  # a client need not send the rest
                self.sender.output.append(reset(stream.id, NO_ERROR))
                self._reset_ids.append(stream.id)
            self._forget(stream)

    def reset_stream(self, stream_id: int, code: int) -> None:
        """Ends a stream, for the peer and here."""
        self._spend()
        self.sender.output.append(reset(stream_id, code))
        self._reset_ids.append(stream_id)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._discard(stream)

    def credit(self, stream: Http2Stream, size: int) -> None:
        """Lets the peer send so many bytes more on a stream."""
        stream.uncredited += size
        if stream.uncredited >= STREAM_WINDOW // 2 and stream.is_open and not stream.ended:
            stream.receive_window += stream.uncredited
            self.sender.output.append(window_update(stream.id, stream.uncredited))
            stream.uncredited = 0

    def hold(self, size: int) -> bool:
        """Counts bytes that are held, or (negative) no longer; False if those are too many."""
        self.held_bytes += size
        return self.held_bytes <= self._max_held_bytes

    def flush_soon(self) -> None:
        """Asks for a write, because a stream has sent something outside of `receive`."""
        self._on_output()

    # Frames.

    def _receive_data(self, stream: Http2Stream, payload: bytes, length: int, ended: bool) -> None:
        """Takes in data; `length` is what it takes of the windows, which may be more than the payload."""
        self._receive_window -= length
        if self._receive_window < CONNECTION_WINDOW // 2:
            self.sender.output.append(window_update(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        stream.receive_window -= length
        try:
            if stream.receive_window < 0:
                raise StreamError(FLOW_CONTROL_ERROR)
            if stream.head.content_length is not None:
                stream.check_length(payload, ended)
            if ended:
                stream.ended = True
            stream.receive(payload, ended)
        except StreamError as error:
            self.reset_stream(stream.id, error.code)

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        length = len(payload)
        if length > self._receive_window:
            raise Http2Error(FLOW_CONTROL_ERROR, "More data than the connection's window.")
        stream = self._stream(stream_id)
        if flags & PADDED:
            payload = _without_padding(payload)
        if not payload and not flags & END_STREAM:
            self._spend()
        if stream is None or stream.ended:
            self._receive_window -= length
            if self._receive_window < CONNECTION_WINDOW // 2:
                self.sender.output.append(window_update(0, CONNECTION_WINDOW - self._receive_window))
                self._receive_window = CONNECTION_WINDOW
            if stream_id not in self._reset_ids:
                raise StreamError(STREAM_CLOSED)
            self._spend()
            return
        padding = length - len(payload)
        self._receive_data(stream, payload, length, bool(flags & END_STREAM))
        self.credit(stream, padding)

    def _stream(self, stream_id: int) -> Http2Stream | None:
        """Returns an open stream, or None for one that is closed; raises if it was never opened."""
        if stream_id == 0 or not stream_id & 1 or stream_id > self._last_stream_id:
            raise Http2Error(PROTOCOL_ERROR, "A frame of a stream that is not open.")
        return self.streams.get(stream_id)

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise Http2Error(PROTOCOL_ERROR, "A client's streams have odd numbers.")
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & PRIORITY_FLAG:
            if len(payload) < 5:
                raise Http2Error(FRAME_SIZE_ERROR, "A HEADERS frame is too short for its priority.")
            _check_dependency(stream_id, payload)
            payload = payload[5:]
        self._block, self._block_bytes = [payload], len(payload)
        self._block_stream_id, self._block_ends_stream = stream_id, bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._block_complete()
        else:
            self._expected, self._expected_since = CONTINUATION, self.now

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._expected != CONTINUATION or stream_id != self._block_stream_id:
            raise Http2Error(PROTOCOL_ERROR, "A CONTINUATION frame continues nothing.")
        self._block_bytes += len(payload)
        too_large = self._block_bytes > MAX_BLOCK_BYTES
        self._block.append(b"" if too_large else payload)
        if len(self._block) > MAX_BLOCK_FRAMES or (too_large and not self._decoder.without_table):
            raise Http2Error(ENHANCE_YOUR_CALM, "A header block is too long.")
        if flags & END_HEADERS:
            self._expected = None
            self._block_complete()

    def _block_complete(self) -> None:
        block, stream_id, ended = b"".join(self._block), self._block_stream_id, self._block_ends_stream
        self._block, self._block_stream_id = [], 0
        if stream_id <= self._last_stream_id:
            self._trailers(stream_id, ended, self._decode(block))
            return
        cacheable = self._decoder.without_table
        head = self._by_block.get(block) if cacheable else None
        fields: list[Field] = []
        if head is None:
            try:
                fields = self._decode(block)
            except HeadTooLarge:
                head = LARGE_HEAD
        self._last_stream_id = stream_id
        if self._left or len(self.streams) >= MAX_STREAMS:
            raise StreamError(REFUSED_STREAM)
        if head is None:
            head = self.context.heads.parse(fields)
            if cacheable and self._decoder.without_table:
                self.context.heads.store(block, head)
        stream = self.streams[stream_id] = self.context.stream_type(head)(self, stream_id, head)
        stream.ended = ended
        if ended and head.content_length:
            raise StreamError(PROTOCOL_ERROR)
        stream.opened()
        if ended and stream.is_open:
            stream.receive(b"", True)

    def _decode(self, block: bytes) -> list[Field]:
        if self._block_bytes > MAX_BLOCK_BYTES:
            raise HeadTooLarge
        return self._decoder.decode(block)

    def _trailers(self, stream_id: int, ended: bool, fields: list[Field]) -> None:
        stream = self.streams.get(stream_id)
        if stream is None or stream.ended:
            if stream_id in self._reset_ids:
                self._spend()
                return
            raise Http2Error(STREAM_CLOSED, "A HEADERS frame of a stream that has ended.")
        if not ended or is_malformed(fields, trailing=True):
            raise StreamError(PROTOCOL_ERROR)
        if stream.head.content_length is not None:
            stream.check_length(b"", True)
        stream.ended = True
        stream.receive(b"", True)

    def _priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._spend()
        if stream_id == 0:
            raise Http2Error(PROTOCOL_ERROR, "A PRIORITY frame without a stream.")
        if len(payload) != 5:
            raise StreamError(FRAME_SIZE_ERROR)
        _check_dependency(stream_id, payload)

    def _rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(FRAME_SIZE_ERROR, "A RST_STREAM frame has four bytes.")
        stream = self._stream(stream_id)
        self._spend()
        if stream is not None:
            self._discard(stream)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(PROTOCOL_ERROR, "A SETTINGS frame with a stream.")
        if flags & ACK:
            if payload:
                raise Http2Error(FRAME_SIZE_ERROR, "An acknowledgement of settings has no content.")
            if self._expected == SETTINGS:
                raise Http2Error(PROTOCOL_ERROR, "The first frame acknowledges nothing.")
            self._spend()
            self._decoder.confirm_table_size()
            return
        if len(payload) % 6:
            raise Http2Error(FRAME_SIZE_ERROR, "A SETTINGS frame has six bytes for each setting.")
        if self._expected == SETTINGS:
            self._expected = None
        else:
            self._spend()
        for at in range(0, len(payload), 6):
            if at:  # a frame may have thousands
                self._spend()
            number = int.from_bytes(payload[at : at + 2], "big")
            self._setting(number, int.from_bytes(payload[at + 2 : at + 6], "big"))
        self.sender.output.append(SETTINGS_ACK)
        self._send_blocked()

    def _setting(self, number: int, value: int) -> None:
        if number == ENABLE_PUSH and value > 1:
            raise Http2Error(PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1.")
        if number == MAX_FRAME_SIZE:
            if not MAX_PAYLOAD_BYTES <= value < 2**24:
                raise Http2Error(PROTOCOL_ERROR, "MAX_FRAME_SIZE is from 2^14 to 2^24 - 1.")
            self.sender.max_payload_bytes = MAX_PAYLOAD_BYTES  # larger frames gain nothing
        if number == INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise Http2Error(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is at most 2^31 - 1.")
            change, self.sender.initial_window = value - self.sender.initial_window, value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > MAX_WINDOW:
                    raise Http2Error(FLOW_CONTROL_ERROR, "A stream's window is larger than 2^31 - 1.")

    def _push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Http2Error(PROTOCOL_ERROR, "A client pushes nothing.")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(PROTOCOL_ERROR, "A PING frame with a stream.")
        if len(payload) != 8:
            raise Http2Error(FRAME_SIZE_ERROR, "A PING frame has eight bytes.")
        if not flags & ACK:
            self._spend()
            self.sender.output.append(frame(PING, ACK, 0, payload))
        elif payload == _KEEPALIVE_PING:
            self._pinged_at = None
        elif payload == _LEAVE_PING and self._leaving_at is not None:
            self._leave_for_good()
        else:
            self._spend()

    def _goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(PROTOCOL_ERROR, "A GOAWAY frame with a stream.")
        if len(payload) < 8:
            raise Http2Error(FRAME_SIZE_ERROR, "A GOAWAY frame has at least eight bytes.")
        self._spend()
        self._left = True  # it opens no more streams
        self._close_if_done()

    def _window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(FRAME_SIZE_ERROR, "A WINDOW_UPDATE frame has four bytes.")
        increment = int.from_bytes(payload, "big") & MAX_WINDOW
        self._spend()
        if stream_id == 0:
            if increment == 0:
                raise Http2Error(PROTOCOL_ERROR, "A WINDOW_UPDATE frame by 0.")
            self.sender.grow(increment)
            self._send_blocked()
            return
        stream = self._stream(stream_id)
        if stream is None:
            return
        if increment == 0:
            raise StreamError(PROTOCOL_ERROR)
        self.sender.grow_stream(stream, increment)
        if stream in self.sender.blocked:
            self.send(stream)

    # Ends.

    def _send_blocked(self) -> None:
        for stream in list(self.sender.blocked):
            if self.sender.window <= 0:
                return
            if stream.send_window > 0:
                self.send(stream)

    def _spend(self) -> None:
        self._budget.spend(self.now, self.answered)

    def _forget(self, stream: Http2Stream) -> None:
        self.streams.pop(stream.id, None)
        self.sender.blocked.pop(stream, None)
        if self._left:
            self._close_if_done()

    def _discard(self, stream: Http2Stream) -> None:
        """Ends a stream that cannot be answered any more."""
        stream.is_open = False
        self._forget(stream)
        stream.was_reset()

    def _close_if_done(self) -> None:
        if self._left and not self.streams:
            self.closed = True

    def _leave_for_good(self) -> None:
        self._leaving_at = None
        if not self._left:
            self._left = True
            self.sender.output.append(goaway(self._last_stream_id, NO_ERROR))
        self._close_if_done()

    def _fail(self, error: Http2Error) -> None:
        self.sender.output.append(goaway(self._last_stream_id, error.code, error.reason))
        self._buffer = b""
        self.lost()


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2Error(PROTOCOL_ERROR, "A frame has more padding than content.")
    return payload[1 : len(payload) - payload[0]]


def _check_dependency(stream_id: int, payload: bytes) -> None:
    if int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == stream_id:
        raise Http2Error(PROTOCOL_ERROR, "A stream depends on itself.")
