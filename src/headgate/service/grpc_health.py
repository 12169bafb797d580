"""gRPC's health checking, version 1: grpc.health.v1.Health, with Check and Watch.

Known names are the empty one (the whole service), Envoy's two services by their full names, and `ratelimit`, which
is what the reference service calls itself. All of them serve until the worker was told to stop. Without its engine
it still serves: then each rule's fallback decides.

HealthCheckRequest has one field, a text, and HealthCheckResponse one, an enum: on the wire they are Google's
StringValue and UInt32Value, so nothing is generated for them.

Laws (tests/service/test_grpc_health.py): Check answers NOT_FOUND for a name that is not known, Watch
SERVICE_UNKNOWN; a Watch tells the change when the worker is told to stop, and ends then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import StringValue, UInt32Value

from headgate.service.idle_connections import UnderWay, peer_of

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFERENCE = "ratelimit"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class Health:
    """Answers whether a worker serves."""

    def __init__(self, services: Collection[str], under_way: UnderWay | None = None) -> None:
        self._services = {"", REFERENCE, *services}
        self._under_way = under_way or UnderWay()
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """From now on it does not serve."""
        self._draining.set()

    def methods(self) -> dict[str, Any]:
        """By their full names."""
        watch: Any = self._watch
        return {
            CHECK: grpc.unary_unary_rpc_method_handler(self._check),
            WATCH: grpc.unary_stream_rpc_method_handler(watch),
        }

    async def _check(self, data: bytes, context: Any) -> bytes:
        service = await _service(data, context)
        if service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no service {service[:200]!r} here.")
        return self._status(service)

    async def _watch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        service, peer = await _service(data, context), peer_of(context.peer())
        self._under_way.begin(peer)
        try:
            told = self._status(service)
            yield told  # the service may begin to stop before this generator goes on
            await self._draining.wait()
            if self._status(service) != told:
                yield self._status(service)
        finally:
            self._under_way.end(peer)

    def _status(self, service: str) -> bytes:
        known = NOT_SERVING if self._draining.is_set() else SERVING
        return UInt32Value(value=known if service in self._services else SERVICE_UNKNOWN).SerializeToString()


async def _service(data: bytes, context: Any) -> str:
    try:
        return StringValue.FromString(data).value
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "These bytes are no HealthCheckRequest.")
        raise
