"""Puts together all that answers Envoy: the rate limit and quota services, health checks, and their gRPC server.

Needs the extra `envoy`. The worker imports this file only where that is installed.
"""

from __future__ import annotations

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.service.envoy import rlqs, rls
from headgate.service.grpc_health import Health
from headgate.service.grpc_server import Grpc
from headgate.service.idle_connections import ActiveRequests
from headgate.service.settings import Address, Settings


class EnvoyServices:
    """Envoy's services on one limiter."""

    def __init__(self, limiter: AsyncRuleLimiter, settings: Settings, under_way: ActiveRequests) -> None:
        self._limiter, self._settings, self._under_way = limiter, settings, under_way
        fields, names = settings.envoy_headers == "on", settings.envoy_names == "on"
        self.limits: rls.RateLimits = rls.RateLimits(limiter, fields=fields, names=names)
        self._health = Health((rls.SERVICE, rlqs.SERVICE), under_way)

    async def serve(self, address: Address) -> Grpc:
        """Starts to answer gRPC at the address."""
        quotas = rlqs.QuotaService(self._limiter, under_way=self._under_way)
        methods = {rls.PATH: rls.method(self.limits), rlqs.PATH: rlqs.method(quotas), **self._health.methods()}
        return await Grpc(self._settings, address, methods, self._under_way).start()

    def drain(self) -> None:
        """Tells health checks that the worker serves no more."""
        self._health.drain()
