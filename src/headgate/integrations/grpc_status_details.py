"""Writes a refusal as gRPC does: status codes, and google.rpc.Status with RetryInfo and QuotaFailure.

The messages are a few numbers and texts, written here in protobuf's wire format, so that a server needs no other
package than grpcio. Clients read them from the trailing metadata `grpc-status-details-bin`.
"""

from __future__ import annotations

from collections.abc import Sequence

DETAILS_FIELD = "grpc-status-details-bin"

# HTTP statuses by the name of the gRPC code, as google.rpc.Code maps them.
HTTP_STATUS = {
    "OK": 200,
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}

# Codes of the statuses that a rule's `refuse` may have; any other is RESOURCE_EXHAUSTED.
CODE_OF_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}

_TYPES = "type.googleapis.com/google.rpc."


def status_details(code: int, message: str, retry_after: float | None, rules: Sequence[str]) -> bytes:
    """Returns a google.rpc.Status: with RetryInfo where waiting helps, and QuotaFailure where rules refused."""
    details = []
    if retry_after is not None:
        seconds, nanos = divmod(round(retry_after * 1_000_000_000), 1_000_000_000)
        details.append(_any("RetryInfo", _bytes(1, _integer(1, seconds) + _integer(2, nanos))))
    if rules:
        violations = (_bytes(1, _text(1, rule) + _text(2, message)) for rule in rules)
        details.append(_any("QuotaFailure", b"".join(violations)))
    return _integer(1, code) + _text(2, message) + b"".join(_bytes(3, detail) for detail in details)


def _any(name: str, value: bytes) -> bytes:
    return _text(1, _TYPES + name) + _bytes(2, value)


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode("utf-8", "replace"))


def _bytes(field: int, value: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + _varint(len(value)) + value


def _integer(field: int, number: int) -> bytes:
    return bytes((field << 3,)) + _varint(number) if number else b""


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
