"""HTTP/2 frames: their numbers, and those that the server sends (RFC 9113, section 6)."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED = range(6)
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM = range(6, 12)

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)
MAX_HEADER_LIST_SIZE = 6

FRAME_HEADER_BYTES = 9
MAX_PAYLOAD_BYTES = 16_384  # that we accept, and that every peer accepts
DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1
_MAX_REASON_CHARS = 200

# Length in two parts, type, flags, stream.
unpack_frame_header: Callable[..., tuple[int, ...]] = Struct(">HBBBI").unpack_from
pack_number: Callable[[int], bytes] = Struct(">I").pack
_pack_frame_header = Struct(">HBBBI").pack
_pack_setting = Struct(">HI").pack


class Http2Error(Exception):
    """The peer broke the protocol, or went beyond a bound: its connection is closed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class StreamError(Exception):
    """A single stream cannot go on: it is reset."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return _pack_frame_header(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def settings_frame(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_pack_setting(name, value) for name, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, pack_number(increment))


def reset(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, pack_number(code))


def goaway(last_stream_id: int, code: int, reason: str = "") -> bytes:
    words = reason.encode("ascii", "replace")[:_MAX_REASON_CHARS]
    return frame(GOAWAY, 0, 0, pack_number(last_stream_id) + pack_number(code) + words)


SETTINGS_ACK = frame(SETTINGS, ACK, 0)
