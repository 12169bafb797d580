"""Reports of the services that share an engine: version, degraded state, and how fast Redis answers them.

Each worker writes its own every REPORT_S seconds into one hash on the engine's server, and by how long that takes
it knows how fast the server answers. A report that is older than FORGET_S is deleted by whoever sees it.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

import headgate
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import CorruptState, EngineUnavailable
from headgate.telemetry.decision_record import process_name

REPORT_S: Final = 2.0
FORGET_S: Final = 3600.0


class NodeReport(NamedTuple):
    """The state of one worker of a service."""

    name: str
    at_s: float
    version: str
    degraded: str  # what does not work, as a sentence; empty: nothing
    latency_ms: float | None  # of the last request to the engine's server


class NodeReports:
    """Writes the report of this worker, and reads those of all. `table` is None with memory://."""

    def __init__(self, limiter: AsyncRuleLimiter, table: Any) -> None:
        self._limiter, self._table = limiter, table
        self._name = process_name()
        self._latency_ms: float | None = None
        self._problem = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to report."""
        if self._table is not None:
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(REPORT_S)

    async def report(self) -> None:
        """Writes the report of this worker once."""
        began = time.perf_counter()
        try:
            await self._table.write(self._name, json.dumps(self.make_report()[1:]))
        except (EngineUnavailable, CorruptState) as error:
            self._latency_ms, self._problem = None, str(error)
        else:
            self._latency_ms, self._problem = 1000 * (time.perf_counter() - began), ""

    def make_report(self) -> NodeReport:
        """Returns the report of this worker."""
        engine = self._limiter.engine
        shards = [f"{engine.describe_shard(name)}: {state}" for name, state in engine.degraded_shards()]
        degraded = "; ".join(shards) or self._problem
        return NodeReport(self._name, time.time(), headgate.__version__, degraded, self._latency_ms)

    async def reports(self) -> list[NodeReport]:
        """Returns the reports of all workers."""
        if self._table is None:
            return [self.make_report()]
        reports = []
        for name, packed in (await self._table.read()).items():
            report = NodeReport(name, *json.loads(packed))
            if time.time() - report.at_s > FORGET_S:
                await self._table.delete(name)
            else:
                reports.append(report)
        return reports

    async def close(self) -> None:
        """Stops reporting, and deletes the report of this worker."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        with suppress(EngineUnavailable, CorruptState):
            await self._table.delete(self._name)
