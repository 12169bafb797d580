"""Finds the handlers that routes.py names, in RuleHandlers, CounterHandlers, StatsHandlers and AdminHandlers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

import headgate
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.operations.audit_trail import AuditTrail, MemoryAuditTrail, RedisAuditTrail
from headgate.service.admin import schema
from headgate.service.admin.audit_log import ChangeLog
from headgate.service.admin.counter_handlers import CounterHandlers
from headgate.service.admin.request import AdminRequest
from headgate.service.admin.rulebook_handlers import SAMPLE, RuleHandlers
from headgate.service.admin.stats_handlers import StatsHandlers
from headgate.service.admin.unlayered_engines import UnlayeredEngines
from headgate.service.settings import Settings
from headgate.telemetry.counts import Counts

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine
    from headgate.engines.redis.node_table import NodeTable
    from headgate.engines.redis.staged_plan import RedisPlanStore

Handler = Callable[[AdminRequest], Awaitable[msgspec.Struct]]


class AdminHandlers:
    """All handlers of the admin API; its own is the worker's status."""

    def __init__(self, limiter: AsyncRuleLimiter, settings: Settings, counts: Counts) -> None:
        self._limiter, self._settings = limiter, settings
        self._clients = UnlayeredEngines(limiter, settings)
        self.audit_trail: AuditTrail = (
            RedisAuditTrail(self._clients.engine) if self._clients.is_remote else MemoryAuditTrail()
        )
        changes = ChangeLog(self.audit_trail)
        self.counter_handlers: CounterHandlers = CounterHandlers(limiter, self._clients, changes)
        self._stats_handlers = StatsHandlers(counts, settings, self._clients.is_remote)
        self.rule_handlers: RuleHandlers = RuleHandlers(limiter, settings, self._clients, changes)
        self._handlers = (
            self.rule_handlers,
            self.counter_handlers,
            self._stats_handlers,
            self,
        )
        self._started_at = time.monotonic()

    def handler(self, name: str) -> Handler:
        """Returns the handler of this name."""
        handler: Handler = next(getattr(owner, name) for owner in self._handlers if hasattr(owner, name))
        return handler

    async def status(self, request: AdminRequest) -> schema.WorkerStatus:
        limiter, engine = self._limiter, self._limiter.engine
        watcher = limiter.watcher
        version = None if watcher is None else watcher.current_text
        return schema.WorkerStatus(
            version=headgate.__version__,
            pid=os.getpid(),
            uptime=time.monotonic() - self._started_at,
            engine=re.sub(r"(password=)[^&]*", r"\1", self._settings.engine_without_password),
            rules=len(limiter.rulebook),
            source=SAMPLE if watcher is None else watcher.source.name,
            rulebook_version=None if version is None else version.version,
            source_away=watcher is not None and watcher.source_unavailable,
            refused_changes=limiter.refused_changes,
            refused_why=None if watcher is None else watcher.error,
            degraded=[schema.DegradedShard(str(name), state) for name, state in engine.degraded_shards()],
            degraded_decisions=engine.degraded_count,
        )

    def remote_engine(self) -> AsyncRedisEngine | None:
        """Returns the engine without layers; None with memory://."""
        return self._clients.engine if self._clients.is_remote else None

    def node_table(self) -> NodeTable | None:
        """Returns where services report their state; None with memory://."""
        if not self._clients.is_remote:
            return None
        from headgate.engines.redis.node_table import NodeTable

        return NodeTable(self._clients.engine)

    def plan_store(self) -> RedisPlanStore | None:
        """Returns where a staged enforcement is kept; None with memory://."""
        if not self._clients.is_remote:
            return None
        from headgate.engines.redis.staged_plan import RedisPlanStore

        return RedisPlanStore(self._clients.engine)

    async def close(self) -> None:
        self.counter_handlers.stop_scan()
        self._stats_handlers.close()
        await self._clients.close()
