"""gRPC health checking, version 1: grpc.health.v1.Health, with Check and Watch.

Known names are the empty one (the whole service), Envoy's two services by their full names, and `ratelimit`, which
is the reference service's name for itself. All of them serve until the worker is stopped. Without its engine it
still serves: then each rule's fallback decides. Parts of the service have names, too: `engine`, `rulebook` and
`decision_log`; each is NOT_SERVING while it is degraded. The sentences about what is degraded are in the trailing
metadata of every Check, one `headgate-degraded` each.

HealthCheckRequest has one field, a text, and HealthCheckResponse one, an enum: on the wire they are Google's
StringValue and UInt32Value, so nothing is generated for them.

Laws (tests/service/test_grpc_health.py): Check answers NOT_FOUND for an unknown name, Watch SERVICE_UNKNOWN; a
Watch reports the change when the worker is stopped, and ends then; that of a part also reports when it is
degraded, within WATCH_INTERVAL_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import suppress

from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import StringValue, UInt32Value

from headgate.service.degradations import PARTS, Degradations
from headgate.service.grpc_server.methods import CallFailed, Metadata, Method, Reply, StatusCode

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFERENCE_SERVICE = "ratelimit"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
DEGRADED_FIELD = "headgate-degraded"
WATCH_INTERVAL_S = 1.0


class Health:
    """Reports whether a worker serves."""

    def __init__(self, services: Collection[str], degradations: Degradations) -> None:
        self._services = {"", REFERENCE_SERVICE, *services, *PARTS}
        self._degradations = degradations
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """Reports NOT_SERVING from now on."""
        self._draining.set()

    def methods(self) -> dict[str, Method]:
        """Returns the methods by their full names."""
        return {CHECK: Method(unary=self._check), WATCH: Method(streaming=self._watch)}

    async def _check(self, data: bytes) -> bytes | Reply:
        service = _parse_service(data)
        if service not in self._services:
            raise CallFailed(StatusCode.NOT_FOUND, f"There is no service {service[:200]!r} here.")
        if degraded := self._degradations.sentences():
            return Reply(self._status(service), tuple((DEGRADED_FIELD, _ascii(sentence)) for sentence in degraded))
        return self._status(service)

    async def _watch(self, requests: AsyncIterator[bytes], metadata: Metadata) -> AsyncIterator[bytes]:
        try:
            service = _parse_service(await anext(requests))
        except StopAsyncIteration:
            message = "This method takes one message, and none was sent."
            raise CallFailed(StatusCode.UNIMPLEMENTED, message) from None
        reported: bytes | None = None
        while True:
            stopping = self._draining.is_set()  # before the status is read: it may be set during a yield
            if (status := self._status(service)) != reported:
                reported = status
                yield reported
            if stopping:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), WATCH_INTERVAL_S if service in PARTS else None)

    def _status(self, service: str) -> bytes:
        degraded = service in PARTS and service in {part for part, _ in self._degradations.parts()}
        status = NOT_SERVING if degraded or self._draining.is_set() else SERVING
        return UInt32Value(value=status if service in self._services else SERVICE_UNKNOWN).SerializeToString()


def _ascii(text: str) -> str:
    """Returns a text as metadata can hold it."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def _parse_service(data: bytes) -> str:
    try:
        return StringValue.FromString(data).value
    except DecodeError as error:
        raise CallFailed(StatusCode.INVALID_ARGUMENT, "These bytes are no HealthCheckRequest.") from error
