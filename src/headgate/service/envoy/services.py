"""Envoy's rate limit and quota services and health checks, on one gRPC server.

Needs the extra `envoy`. The worker imports this file only where that is installed.
"""

from __future__ import annotations

import socket

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.service.degradations import Degradations
from headgate.service.envoy import rlqs, rls
from headgate.service.grpc_health import Health
from headgate.service.grpc_server.server import GrpcServer
from headgate.service.settings import Settings


class EnvoyServices:
    """Envoy's services on one limiter."""

    def __init__(self, limiter: AsyncRuleLimiter, settings: Settings, degradations: Degradations) -> None:
        self._limiter, self._settings = limiter, settings
        with_headers, with_names = settings.envoy_headers == "on", settings.envoy_names == "on"
        self.rate_limits: rls.RateLimits = rls.RateLimits(
            limiter, with_headers=with_headers, with_names=with_names
        )
        self._health = Health((rls.SERVICE, rlqs.SERVICE), degradations)

    async def serve(self, listener: socket.socket) -> GrpcServer:
        """Starts to answer gRPC at a socket that listens."""
        methods = {
            **rls.methods(self.rate_limits),
            **rlqs.methods(rlqs.QuotaService(self._limiter)),
            **self._health.methods(),
        }
        return await GrpcServer(self._settings, listener, methods).start()

    def drain(self) -> None:
        """Makes health checks report that the worker serves no more."""
        self._health.drain()
