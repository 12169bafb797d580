"""AdminSite: the admin API and the dashboard as one application, at one address."""

from __future__ import annotations

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.service.admin import Admin
from headgate.service.asgi import Handler, Request, Response
from headgate.service.dashboard.app import Dashboard
from headgate.service.dashboard.data_sources import DashboardSources
from headgate.service.node_reports import NodeReports
from headgate.service.settings import Settings
from headgate.service.staged_enforcement import MemoryPlanStore, StagedEnforcement
from headgate.telemetry.counts import Counts
from headgate.telemetry.memory_records import MemoryRecordsStore


class AdminSite:
    """Passes requests to the dashboard or to the admin API, by their path."""

    def __init__(
        self,
        limiter: AsyncRuleLimiter,
        settings: Settings,
        counts: Counts,
        memory_records: MemoryRecordsStore | None = None,
    ) -> None:
        self.admin: Admin = Admin(limiter, settings, settings.admin_token, counts)
        self.nodes: NodeReports = NodeReports(limiter, self.admin.handlers.node_table())
        handlers = self.admin.handlers
        sources = DashboardSources(limiter, settings, handlers, counts, self.nodes, memory_records)
        self.staged: StagedEnforcement = StagedEnforcement(
            handlers, handlers.plan_store() or MemoryPlanStore(), sources.counts
        )
        self._watches_stages = settings.http is not None or settings.grpc is not None  # it is a service
        self.dashboard: Dashboard = Dashboard(limiter, settings, self.admin, sources, self.staged)

    def route(self, request: Request) -> tuple[int | None, Handler]:
        if self.dashboard.serves(request.path):
            return self.dashboard.route(request)
        return self.admin.route(request)

    def error_response(self, request: Request, error: Exception) -> Response:
        if self.dashboard.serves(request.path):
            return self.dashboard.error_response(request, error)
        return self.admin.error_response(request, error)

    def start(self) -> None:
        """Begins to report the state of this worker, and to advance staged enforcement."""
        self.nodes.start()
        if self._watches_stages:
            self.staged.run()

    async def end_streams(self) -> None:
        """Ends live streams, so that the server can stop."""
        await self.dashboard.close()

    async def close(self) -> None:
        """Closes all connections."""
        await self.dashboard.close()
        await self.staged.close()
        await self.nodes.close()
        await self.admin.close()
