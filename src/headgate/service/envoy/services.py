"""Envoy's rate limit and quota services and health checks, on one gRPC server.

Needs the extra `envoy`. The worker imports this file only where that is installed.
"""

from __future__ import annotations

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.service.degradations import Degradations
from headgate.service.envoy import rlqs, rls
from headgate.service.grpc_health import Health
from headgate.service.hardened_grpc import GrpcServer
from headgate.service.idle_connections import ActiveRequests
from headgate.service.settings import Address, Settings


class EnvoyServices:
    """Envoy's services on one limiter."""

    def __init__(
        self, limiter: AsyncRuleLimiter, settings: Settings, active: ActiveRequests, degradations: Degradations
    ) -> None:
        self._limiter, self._settings, self._active = limiter, settings, active
        with_headers, with_names = settings.envoy_headers == "on", settings.envoy_names == "on"
        self.rate_limits: rls.RateLimits = rls.RateLimits(
            limiter, with_headers=with_headers, with_names=with_names
        )
        self._health = Health((rls.SERVICE, rlqs.SERVICE), active, degradations)

    async def serve(self, address: Address) -> GrpcServer:
        """Starts to answer gRPC at the address."""
        quotas = rlqs.QuotaService(self._limiter, active=self._active)
        methods = {
            rls.PATH: rls.method(self.rate_limits),
            rlqs.PATH: rlqs.method(quotas),
            **self._health.methods(),
        }
        return await GrpcServer(self._settings, address, methods, self._active).start()

    def drain(self) -> None:
        """Makes health checks report that the worker serves no more."""
        self._health.drain()
