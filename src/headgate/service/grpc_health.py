"""gRPC health checking, version 1: grpc.health.v1.Health, with Check and Watch.

Known names are the empty one (the whole service), Envoy's two services by their full names, and `ratelimit`, which
is the reference service's name for itself. All of them serve until the worker is stopped. Without its engine it
still serves: then each rule's fallback decides.

HealthCheckRequest has one field, a text, and HealthCheckResponse one, an enum: on the wire they are Google's
StringValue and UInt32Value, so nothing is generated for them.

Laws (tests/service/test_grpc_health.py): Check answers NOT_FOUND for an unknown name, Watch SERVICE_UNKNOWN; a
Watch reports the change when the worker is stopped, and ends then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import StringValue, UInt32Value

from headgate.service.idle_connections import ActiveRequests, parse_grpc_peer

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFERENCE_SERVICE = "ratelimit"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class Health:
    """Reports whether a worker serves."""

    def __init__(self, services: Collection[str], active: ActiveRequests | None = None) -> None:
        self._services = {"", REFERENCE_SERVICE, *services}
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
        return self._status(service)

    async def _watch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        service, peer = await _parse_service(data, context), parse_grpc_peer(context.peer())
        self._active.begin(peer)
        try:
            reported = self._status(service)
            yield reported  # the service may begin to stop before this generator goes on
            await self._draining.wait()
            if self._status(service) != reported:
                yield self._status(service)
        finally:
            self._active.end(peer)

    def _status(self, service: str) -> bytes:
        status = NOT_SERVING if self._draining.is_set() else SERVING
        return UInt32Value(value=status if service in self._services else SERVICE_UNKNOWN).SerializeToString()


async def _parse_service(data: bytes, context: Any) -> str:
    try:
        return StringValue.FromString(data).value
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "These bytes are no HealthCheckRequest.")
        raise
