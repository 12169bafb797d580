"""Builds HTTP/2 frames byte by byte, valid and broken; header blocks use neither tables nor Huffman codes."""

from collections.abc import Sequence
from random import Random

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def header_block(fields: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Header fields, each spelt out."""
    return b"".join(b"\x00" + _length_prefixed(name) + _length_prefixed(value) for name, value in fields)


def _length_prefixed(text: bytes) -> bytes:
    size, out = len(text), bytearray()
    if size < 127:
        return bytes((size,)) + text
    out.append(127)
    size -= 127
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + text


def request_frames(
    path: bytes, body: bytes, *, method: bytes = b"POST", kind: bytes = b"application/json"
) -> list[bytes]:
    """The frames of a whole connection with one request."""
    fields = [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"h")]
    fields += [(b"content-type", kind), (b"te", b"trailers")]
    return [
        PREFACE,
        frame(SETTINGS, 0, 0),
        frame(HEADERS, END_HEADERS, 1, header_block(fields)),
        frame(DATA, END_STREAM, 1, body),
    ]


def break_frames(rng: Random, frames: Sequence[bytes]) -> list[bytes]:
    """The frames of a connection, some of them wrong, missing, doubled, or strange ones in between."""
    out = list(frames)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(1, len(out) + 1)
        match rng.randrange(7):
            case 0 if at < len(out):
                del out[at]
            case 1 if at < len(out):
                out.insert(at, out[at])
            case 2:
                out.insert(at, _unexpected_frame(rng))
            case 3:
                out.insert(
                    at, frame(rng.randrange(20), rng.randrange(256), rng.choice((0, 1, 2, 3, 2**31 - 1, 2**31)))
                )
            case 4 if at < len(out) and out[at]:
                one = bytearray(out[at])
                one[rng.randrange(len(one))] = rng.randrange(256)
                out[at] = bytes(one)
            case 5 if at < len(out):
                out[at] = out[at][: rng.randrange(len(out[at]) + 1)]
            case _:
                out.insert(at, rng.randbytes(rng.choice((1, 9, 40))))
    return out


def _unexpected_frame(rng: Random) -> bytes:
    match rng.randrange(8):
        case 0:
            return frame(SETTINGS, 0, 0, rng.randbytes(6 * rng.randrange(4)))
        case 1:
            return frame(
                WINDOW, 0, rng.choice((0, 1)), rng.choice((b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff" * 4))
            )
        case 2:
            return frame(PING, 0, 0, b"12345678") * rng.choice((1, 3, 200))
        case 3:
            return frame(RST, 0, 1, b"\0\0\0\x08") * rng.choice((1, 50))
        case 4:
            return frame(GOAWAY, 0, 0, rng.randbytes(8))
        case 5:  # continuations that never end
            return (
                frame(HEADERS, 0, 3, header_block([(b"a", b"b")]))
                + frame(CONTINUATION, 0, 3, header_block([(b"c", b"d" * 500)])) * 40
            )
        case 6:  # streams that are opened and let go at once
            return b"".join(
                frame(HEADERS, END_HEADERS, number, header_block([(b":method", b"GET"), (b":path", b"/healthz")]))
                + frame(RST, 0, number, b"\0\0\0\x08")
                for number in range(3, 103, 2)
            )
    return frame(HEADERS, END_HEADERS, 3, rng.randbytes(rng.randrange(60)))
