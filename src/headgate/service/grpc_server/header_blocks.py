"""Header blocks of responses, and which header fields of requests are malformed.

Responses have few fields, so they are written as literals that use no table. They mean the same whatever table
sizes the peer allows, and the commonest two are constants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Field = tuple[bytes, bytes]

MAX_MESSAGE_BYTES = 4096  # of a status message, encoded
_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[^\x00\r\n]*")
_ENDS_IN_SPACE = (b" ", b"\t")
_CONNECTION_FIELDS = {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
_REQUEST_PSEUDO_FIELDS = {b":method", b":scheme", b":path", b":authority"}
_REQUIRED_PSEUDO_FIELDS = {b":method", b":scheme", b":path"}
_FULL_LENGTH_BYTES = 127  # a length of seven bits that is continued
_STATUS_200 = b"\x88"
_STATUS_NAME = b"\x08"
_CONTENT_TYPE_NAME = b"\x0f\x10"


def literal(name: bytes, value: bytes) -> bytes:
    """Returns one field of a header block."""
    return b"\x00" + _text(name) + _text(value)


def _text(data: bytes) -> bytes:
    size = len(data)
    if size < _FULL_LENGTH_BYTES:
        return bytes((size,)) + data
    size -= _FULL_LENGTH_BYTES
    length = bytearray((_FULL_LENGTH_BYTES,))
    while size > _FULL_LENGTH_BYTES:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + data


RESPONSE_HEAD = _STATUS_200 + _CONTENT_TYPE_NAME + _text(b"application/grpc")
OK_TRAILERS = literal(b"grpc-status", b"0")


def trailers(code: int, message: str = "", metadata: Iterable[tuple[str, str]] = ()) -> bytes:
    """Returns the block that ends a call: its status, and metadata in printable ASCII."""
    block = literal(b"grpc-status", b"%d" % code)
    if message:
        block += literal(b"grpc-message", _percent_encoded(message))
    return block + b"".join(literal(name.encode("ascii"), value.encode("ascii")) for name, value in metadata)


def http_status(status: int) -> bytes:
    """Returns the block of a response to a request that is not gRPC."""
    return _STATUS_NAME + _text(b"%d" % status) + _CONTENT_TYPE_NAME + _text(b"text/plain")


def _percent_encoded(message: str) -> bytes:
    encoded = bytearray()
    for byte in message.encode("utf-8", "replace"):
        encoded += bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        if len(encoded) > MAX_MESSAGE_BYTES:
            return bytes(encoded[:MAX_MESSAGE_BYTES]).rpartition(b" ")[0]  # not within an encoded byte
    return bytes(encoded)


def is_malformed(fields: Sequence[Field], *, trailing: bool = False) -> bool:
    """Returns whether a request with these fields is malformed (RFC 9113, section 8.2 and 8.3)."""
    pseudo: set[bytes] = set()
    regular = False
    for name, value in fields:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or value[:1] in _ENDS_IN_SPACE:
            return True
        if value[-1:] in _ENDS_IN_SPACE:
            return True
        if name[:1] == b":":
            if regular or trailing or name in pseudo or name not in _REQUEST_PSEUDO_FIELDS:
                return True
            if name == b":path" and not value:
                return True
            pseudo.add(name)
            continue
        regular = True
        if name in _CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
            return True
    return not (trailing or pseudo >= _REQUIRED_PSEUDO_FIELDS)
