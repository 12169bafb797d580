"""Handlers of methods, and the statuses of calls.

A unary handler is an async function: the request's bytes in, the response's out, or a Reply with trailing
metadata. A streaming handler is an async generator: an iterator of messages and the call's metadata in,
messages out. Either ends its call early by raising CallFailed.

A unary method may answer some requests at once, without a coroutine: `at_once` returns the response, or None where
`unary` is to be called.

A unary handler is driven without a task until it waits, and by unary_calls.py after that; asyncio.timeout and
tasks of its own work as in any task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

Metadata = Mapping[str, str]


class StatusCode(IntEnum):
    """The statuses of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallFailed(Exception):
    """Ends a call with a status and a sentence."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Reply(NamedTuple):
    """A response with trailing metadata."""

    message: bytes
    metadata: tuple[tuple[str, str], ...]


UnaryHandler = Callable[[bytes], Coroutine[Any, Any, bytes | Reply]]
StreamingHandler = Callable[[AsyncIterator[bytes], Metadata], AsyncIterator[bytes]]


class Method(NamedTuple):
    """A method: exactly one handler, and for a unary one perhaps a function that answers at once."""

    unary: UnaryHandler | None = None
    streaming: StreamingHandler | None = None
    at_once: Callable[[bytes], bytes | None] | None = None
