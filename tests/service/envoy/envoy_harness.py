"""Runs our service on a real port, and calls it with Envoy's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2  # type: ignore[import-untyped]
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc  # type: ignore[import-untyped]

from headgate.clock import ManualClock
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.engines.url import open_async_engine
from headgate.service.envoy.rls import SERVICE, RateLimits, methods
from headgate.service.grpc_server.methods import Method
from headgate.service.grpc_server.server import GrpcServer
from headgate.service.settings import Address, Settings
from headgate.service.supervisor import open_listener

OK, OVER_LIMIT = rls_pb2.RateLimitResponse.OK, rls_pb2.RateLimitResponse.OVER_LIMIT
Unit: Any = rls_pb2.RateLimitResponse.RateLimit
_BACK = b"\x20\x01"  # is_negative_hits, which the package does not know yet


class EnvoyClient:
    """Envoy, as far as this service sees it."""

    def __init__(self, channel: grpc.aio.Channel, limiter: AsyncRuleLimiter, clock: ManualClock) -> None:
        self.limiter = limiter
        self.clock = clock
        self._stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        self._raw: Any = channel.unary_unary(f"/{SERVICE}/ShouldRateLimit")

    async def should_rate_limit(self, *descriptors: Any, domain: str = "shop", hits: int = 0) -> Any:
        request = rls_pb2.RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits)
        return await self._stub.ShouldRateLimit(request, timeout=20)

    async def codes(self, *descriptors: Any, **more: Any) -> list[int]:
        """The overall code, and those of the statuses."""
        response = await self.should_rate_limit(*descriptors, **more)
        return [response.overall_code, *(status.code for status in response.statuses)]

    async def refused(self, *descriptors: Any, **more: Any) -> tuple[grpc.StatusCode, str]:
        """The error that is answered instead."""
        try:
            response = await self.should_rate_limit(*descriptors, **more)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"it was answered: {response}")

    async def send(self, data: bytes) -> Any:
        return await self._raw(data, timeout=20)


def descriptor(
    *entries: tuple[str, str],
    hits: int | None = None,
    back: bool = False,
    limit: tuple[int, int] | None = None,
) -> Any:
    made = ratelimit_pb2.RateLimitDescriptor()
    for key, value in entries:
        made.entries.add(key=key, value=value)
    if hits is not None:
        made.hits_addend.value = hits
    if limit is not None:
        made.limit.requests_per_unit, made.limit.unit = limit
        made.limit.SetInParent()
    return made.FromString(made.SerializeToString() + _BACK) if back else made


@asynccontextmanager
async def serve_envoy(rules: Any, engine: str = "memory://", **options: bool) -> AsyncIterator[EnvoyClient]:
    clock = ManualClock()
    opened = engine if engine.startswith("memory:") else open_async_engine(engine, ruled=True)
    async with AsyncRuleLimiter(rules, opened, clock=clock) as limiter:
        served = methods(RateLimits(limiter, **options))
        async with serving_grpc(served) as address, grpc.aio.insecure_channel(address) as channel:
            yield EnvoyClient(channel, limiter, clock)


@asynccontextmanager
async def serving_grpc(methods: dict[str, Method], **settings: Any) -> AsyncIterator[str]:
    """A gRPC server of ours for as long as the block; says its address."""
    listener = open_listener(Address("127.0.0.1", 0))
    server = await GrpcServer(Settings(**{"drain": 0.2, "body": 2**22} | settings), listener, methods).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.stop()
