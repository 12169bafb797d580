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
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import StringValue, UInt32Value

from headgate.service.degradations import PARTS, Degradations
from headgate.service.idle_connections import ActiveRequests, parse_grpc_peer

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFERENCE_SERVICE = "ratelimit"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
DEGRADED_FIELD = "headgate-degraded"
WATCH_INTERVAL_S = 1.0


class Health:
    """Reports whether a worker serves."""

    def __init__(
        self, services: Collection[str], active: ActiveRequests | None, degradations: Degradations
    ) -> None:
        self._services = {"", REFERENCE_SERVICE, *services, *PARTS}
        self._degradations = degradations
        self._active = active or ActiveRequests()
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """Reports NOT_SERVING from now on."""
        self._draining.set()

    def methods(self) -> dict[str, Any]:
        """Returns the handlers by their full method names."""
        watch: Any = self._watch
        return {
            CHECK: grpc.unary_unary_rpc_method_handler(self._check),
            WATCH: grpc.unary_stream_rpc_method_handler(watch),
        }

    async def _check(self, data: bytes, context: Any) -> bytes:
        service = await _parse_service(data, context)
        if service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no service {service[:200]!r} here.")
        if degraded := self._degradations.sentences():
            context.set_trailing_metadata([(DEGRADED_FIELD, _ascii(sentence)) for sentence in degraded])
        return self._status(service)

    async def _watch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        service, peer = await _parse_service(data, context), parse_grpc_peer(context.peer())
        self._active.begin(peer)
        try:
            reported = self._status(service)
            yield reported  # the service may begin to stop before this generator goes on
            while not self._draining.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._draining.wait(), WATCH_INTERVAL_S if service in PARTS else None)
                if (status := self._status(service)) != reported:
                    reported = status
                    yield reported
        finally:
            self._active.end(peer)

    def _status(self, service: str) -> bytes:
        degraded = service in PARTS and service in {part for part, _ in self._degradations.parts()}
        status = NOT_SERVING if degraded or self._draining.is_set() else SERVING
        return UInt32Value(value=status if service in self._services else SERVICE_UNKNOWN).SerializeToString()


def _ascii(text: str) -> str:
    """Returns a text as metadata can hold it."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)


async def _parse_service(data: bytes, context: Any) -> str:
    try:
        return StringValue.FromString(data).value
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "These bytes are no HealthCheckRequest.")
        raise
