"""Parses the head of a request, and caches it by the bytes that it came in.

A client repeats itself: all calls of an Envoy have the same head, but decoding it (HPACK, in Python) would cost
several times as much as the rest of the request. So the server announces a header table of size 0. Once the
peer has confirmed that, the bytes of a header block mean the same whenever they come, on any connection, and a
dict has them. Blocks are cached from their first time on; long ones are not, and all are forgotten when there
are too many. Gain:
an RLS call on memory takes 11 us of CPU time, and 68 us if each head is decoded.

Laws (tests/service/grpc_server/test_connection.py): a cached head is the one that would be decoded; nothing
that was decoded with a table is cached; what is cached is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from hpack import Decoder, HPACKError, OversizedHeaderListError

from headgate.service.grpc_server.frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    PROTOCOL_ERROR,
    Http2Error,
    StreamError,
)
from headgate.service.grpc_server.header_blocks import Field, is_malformed
from headgate.service.grpc_server.methods import Metadata, Method, StatusCode

MAX_LIST_BYTES = 16 * 1024  # of decoded fields, each with 32 bytes more
MAX_CACHED_HEADS = 4096
MAX_CACHED_BLOCK_BYTES = 1024
DEFAULT_TABLE_BYTES = 4096
_CONTENT_TYPE = re.compile(rb"application/grpc(?:[+;].*)?")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LENGTH = re.compile(rb"[0-9]{1,18}")
_METHOD_NOT_ALLOWED, _UNSUPPORTED_MEDIA_TYPE = 405, 415


class RefusedHead(NamedTuple):
    """A reason to refuse a request by its head: an HTTP status, or a status of gRPC."""

    code: StatusCode = StatusCode.OK
    message: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    http_status: int | None = None


class RequestHead(NamedTuple):
    """The parts of a request's head that matter."""

    method: Method | None
    timeout_s: float | None = None
    content_length: int | None = None
    metadata: Metadata = {}  # noqa: RUF012 (never changed); of streaming methods only
    refusal: RefusedHead | None = None


_TOO_LARGE = f"The metadata of a call has at most {MAX_LIST_BYTES} bytes here, with 32 for each field."
LARGE_HEAD = RequestHead(None, refusal=RefusedHead(StatusCode.RESOURCE_EXHAUSTED, _TOO_LARGE))


class HeadTooLarge(StreamError):
    """A header block has too much in it, and need not be decoded."""

    def __init__(self) -> None:
        super().__init__(ENHANCE_YOUR_CALM)


class RequestHeads:
    """The heads that all connections of a server have in common."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = {name.encode(): method for name, method in methods.items()}
        self.by_block: dict[bytes, RequestHead] = {}  # of unary calls

    def store(self, block: bytes, head: RequestHead) -> None:
        if head.method is None or head.method.streaming or len(block) > MAX_CACHED_BLOCK_BYTES:
            return
        if len(self.by_block) >= MAX_CACHED_HEADS:
            self.by_block.clear()
        self.by_block[block] = head

    def parse(self, fields: list[Field]) -> RequestHead:
        """Returns the head with these fields; raises StreamError if it is malformed."""
        if is_malformed(fields):
            raise StreamError(PROTOCOL_ERROR)
        by_name = dict(fields)
        content_length = None
        if (length := by_name.get(b"content-length")) is not None:
            if not _LENGTH.fullmatch(length):
                raise StreamError(PROTOCOL_ERROR)
            content_length = int(length)
        if (refusal := _refusal(by_name)) is not None:
            return RequestHead(None, content_length=content_length, refusal=refusal)
        method = self._methods.get(by_name[b":path"])
        if method is None:  # its name is never decoded
            unknown = RefusedHead(StatusCode.UNIMPLEMENTED, "There is no such method here.")
            return RequestHead(None, content_length=content_length, refusal=unknown)
        timeout = by_name.get(b"grpc-timeout")
        metadata = _metadata(fields) if method.streaming else {}
        return RequestHead(method, None if timeout is None else _seconds(timeout), content_length, metadata)


def _refusal(fields: dict[bytes, bytes]) -> RefusedHead | None:
    if not _CONTENT_TYPE.fullmatch(fields.get(b"content-type", b"")):
        return RefusedHead(http_status=_UNSUPPORTED_MEDIA_TYPE)
    if fields[b":method"] != b"POST":
        return RefusedHead(http_status=_METHOD_NOT_ALLOWED)
    if fields.get(b"grpc-encoding", b"identity") != b"identity":
        message = "Messages are not decompressed here: send them as they are."
        return RefusedHead(StatusCode.UNIMPLEMENTED, message, (("grpc-accept-encoding", "identity"),))
    timeout = fields.get(b"grpc-timeout")
    if timeout is not None and not _TIMEOUT.fullmatch(timeout):
        return RefusedHead(StatusCode.INTERNAL, "grpc-timeout is not up to eight digits and one of HMSmun.")
    return None


def _seconds(timeout: bytes) -> float:
    return int(timeout[:-1]) * _UNIT_S[timeout[-1:]]


def _metadata(fields: list[Field]) -> Metadata:
    return {name.decode("ascii"): value.decode("utf-8", "replace") for name, value in fields if name[:1] != b":"}


class HeadDecoder:
    """Decodes the header blocks of one connection."""

    __slots__ = ("_decoder", "without_table")

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_LIST_BYTES)
        self.without_table: bool = False  # then a block means the same whenever it comes

    def confirm_table_size(self) -> None:
        """The peer has acknowledged that there is no table. It uses none from now on."""
        self._decoder.header_table_size = 0
        self._decoder.max_allowed_table_size = 0
        self.without_table = True

    def decode(self, block: bytes) -> list[Field]:
        decoder: Any = self._decoder
        try:
            fields: list[Field] = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            if self.without_table:  # the next block needs nothing of this one
                raise HeadTooLarge from error
            raise Http2Error(ENHANCE_YOUR_CALM, "A header block is too long.") from error
        except (HPACKError, IndexError, ValueError, UnicodeError) as error:
            raise Http2Error(COMPRESSION_ERROR, f"A header block cannot be decoded: {error}.") from error
        self.without_table = bool(decoder.header_table_size == 0)
        return fields
