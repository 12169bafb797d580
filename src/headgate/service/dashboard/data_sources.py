"""DashboardSources: where pages read counts, records, versions, changes and nodes."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import CorruptState, EngineUnavailable, HeadgateError
from headgate.operations.audit_trail import MAX_ENTRIES, AuditEntry, AuditTrail
from headgate.service.admin.find_handlers import AdminHandlers
from headgate.service.admin.schema import RulebookInfo, VersionInfo
from headgate.service.dashboard.engine_availability import EngineAvailability
from headgate.service.dashboard.live_counts import LiveCounts, Row
from headgate.service.node_reports import NodeReport, NodeReports
from headgate.service.settings import Settings
from headgate.telemetry.counts import Counts
from headgate.telemetry.decision_record import Record
from headgate.telemetry.memory_records import MemoryRecordsStore
from headgate.telemetry.recent_records import KEPT_S, RecentRecordsReader
from headgate.telemetry.shared_counts import CountsWriterState, SharedCounts

_NODES_S: Final = 2.0  # between two looks at the nodes


class NodeRow(NamedTuple):
    """A process or gateway, as the overview shows it."""

    name: str
    kind: str  # service, nginx or program
    version: str | None
    latency_ms: float | None
    degraded: str
    age_s: float


class DashboardSources:
    """Reads what pages show."""

    def __init__(
        self,
        limiter: AsyncRuleLimiter,
        settings: Settings,
        handlers: AdminHandlers,
        counts: Counts,
        nodes: NodeReports,
        memory_records: MemoryRecordsStore | None,
    ) -> None:
        self._limiter, self._settings, self._counts, self._nodes = limiter, settings, counts, nodes
        self._is_remote = not settings.engine.startswith("memory:")
        self.lag_s: int = int(self._is_remote)  # how late counts are
        self._shared: SharedCounts | None = None
        self._records: RecentRecordsReader | None = None
        self._memory_records = memory_records
        self.trail: AuditTrail = handlers.audit_trail
        self._rules: Any = handlers.rule_handlers
        self.availability: EngineAvailability = EngineAvailability(handlers.remote_engine())
        self.live: LiveCounts = LiveCounts(self.shared_counts, self.state)
        self._nodes_read: tuple[float, list[NodeRow]] = float("-inf"), []

    @property
    def can_publish(self) -> bool:
        return bool(self._rules.can_publish)

    def counts(self) -> Counts | SharedCounts:
        """Returns the reader of counts: of all processes, or of this one while the server does not answer."""
        return self._counts if self.availability.problem else self.shared_counts()

    def shared_counts(self) -> Counts | SharedCounts:
        """Returns the reader of the counts of all processes; of this one with memory://."""
        if not self._is_remote:
            return self._counts
        if self._shared is None:
            self._shared = SharedCounts(self._settings.engine, prefix=self._settings.prefix)
        return self._shared

    def records(self, **wanted: Any) -> list[Record]:
        """Returns recent records; none if this service keeps none. It blocks."""
        self.availability.check()
        if self._records is None:
            if self._memory_records is not None:
                self._records = RecentRecordsReader(self._memory_records)
            elif self._is_remote:
                self._records = RecentRecordsReader(self._settings.engine, prefix=self._settings.prefix)
            else:
                return []
        return self._records.records(**wanted)

    def packed_records(self) -> tuple[list[bytes] | None, tuple[str, str]]:
        """Returns the recent records of this process as they are stored, or None and the engine that has them."""
        engine = self._settings.engine, self._settings.prefix
        if self._memory_records is None:
            return (None if self._is_remote else []), engine
        now_s = int(time.time())
        return self._memory_records.read(range(now_s + 1, now_s - KEPT_S, -1), ["r", "p"]), engine

    def state(self) -> dict[str, Any]:
        """Returns what the live stream says beside counts."""
        return {"version": self._limiter.rulebook.version}

    async def versions(self) -> list[VersionInfo]:
        """Returns the published versions that are kept, the newest first; none if rules are not published."""
        if not self.can_publish:
            return []
        try:
            self.availability.check()
            history = await self._rules.history(None)
        except EngineUnavailable as error:
            self.availability.note(error)
            return []
        except CorruptState:
            return []
        kept: list[VersionInfo] = history.versions
        return kept

    def followed(self) -> RulebookInfo:
        """Returns the rulebook that this process follows, without asking the server."""
        followed: RulebookInfo = self._rules.followed()
        return followed

    async def rows(self) -> dict[str, list[Row]]:
        """Returns the counts of the last minute by rule; those read last while the server does not answer."""
        if self.availability.problem:
            return self.live.last_rows()
        return await self.live.rows()

    async def marks(self) -> list[dict[str, Any]]:
        """Returns the changes of the rulebook, to be marked on charts."""
        return [
            {"at": each.at, "version": each.version, "author": each.author, "note": each.note}
            for each in await self.versions()
        ]

    async def nodes(self) -> list[NodeRow]:
        """Returns services, gateways and programs that decided calls lately."""
        read_at, rows = self._nodes_read
        if time.monotonic() - read_at < _NODES_S:
            return rows
        try:
            self.availability.check()
            reports = {each.name: each for each in await self._nodes.reports()}
            writers = await asyncio.to_thread(self._writers)
        except HeadgateError:
            reports, writers = {}, {}
        report = self._nodes.make_report()
        reports.setdefault(report.name, report)
        rows = [_node_row(each, writers.pop(each.name, None)) for each in reports.values()]
        rows += [
            NodeRow(
                each.name,
                "nginx" if each.name.startswith("nginx@") else "program",
                each.version,
                None,
                "",
                each.age_s,
            )
            for each in writers.values()
            if each.age_s < 600
        ]
        rows.sort(key=lambda row: (not row.degraded, row.age_s > 10, row.kind, row.name))
        self._nodes_read = time.monotonic(), rows
        return rows

    def _writers(self) -> dict[str, CountsWriterState]:
        reader = self.counts()
        if not isinstance(reader, SharedCounts):
            return {}
        return {each.name: each for each in reversed(reader.writers())}

    async def changes(self) -> list[AuditEntry]:
        """Returns the latest changes, the newest first."""
        self.availability.check()
        return await self.trail.latest(MAX_ENTRIES)

    async def close(self) -> None:
        await self.live.close()
        if self._shared is not None:
            self._shared.close()
        if self._records is not None:
            self._records.close()


def _node_row(report: NodeReport, writer: CountsWriterState | None) -> NodeRow:
    age_s = max(0.0, time.time() - report.at_s)
    if writer is not None:
        age_s = min(age_s, writer.age_s)
    return NodeRow(report.name, "service", report.version, report.latency_ms, report.degraded, age_s)
