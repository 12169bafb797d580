"""One worker: a limiter and the servers in front of it, in one event loop.

It starts in an order in which no request is answered too early: it loads the rulebook and opens the engine, then
it listens. It stops in reverse: it reports that it is not ready, stops listening, lets running calls end within
`drain`, and gives up what it holds.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.extras import ENVOY_MODULES, missing
from headgate.observer import Observer
from headgate.service import sample_rules
from headgate.service.app import App
from headgate.service.asgi import Application, Asgi
from headgate.service.check import Checker
from headgate.service.dashboard.site import AdminSite
from headgate.service.degradations import Degradations, EngineFailures
from headgate.service.http_server import HttpServer
from headgate.service.idle_connections import ActiveRequests
from headgate.service.metrics import WorkerMetrics
from headgate.service.receipt_tokens import ReceiptSigner
from headgate.service.settings import Settings
from headgate.service.supervisor import Sockets
from headgate.telemetry.counts import Counts
from headgate.telemetry.memory_records import MemoryRecordsStore
from headgate.telemetry.recent_records import RecentRecords

if TYPE_CHECKING:
    from headgate.service.envoy.services import EnvoyServices

_log = logging.getLogger("headgate.service")


def _envoy_services(
    limiter: AsyncRuleLimiter, settings: Settings, degradations: Degradations
) -> EnvoyServices | None:
    """Returns Envoy's services; None without the extra `envoy`."""
    if missing(*ENVOY_MODULES):
        return None
    from headgate.service.envoy.services import EnvoyServices

    return EnvoyServices(limiter, settings, degradations)


MAX_COUNTED_RULES = 1000  # by their names; the server keeps as many


def counts_of(settings: Settings) -> Counts:
    """Returns the counts of this worker, shared with all others through the engine's server."""
    shared_at = None if settings.engine.startswith("memory:") else settings.engine
    return Counts(shared_at=shared_at, prefix=settings.prefix, max_rules=MAX_COUNTED_RULES)


async def work(settings: Settings, sockets: Sockets, ready: Callable[[], object]) -> None:
    """Serves until a signal stops it."""
    counts = counts_of(settings)
    metrics = WorkerMetrics(counts)
    observers: list[Observer] = [metrics.observer, *settings.open_observers()]
    memory_records: MemoryRecordsStore | None = None
    if not settings.engine.startswith("memory:"):
        observers.append(EngineFailures())
    elif settings.recent_records == "on" and settings.admin is not None:
        memory_records = MemoryRecordsStore()
        observers.append(RecentRecords(memory_records, salt=settings.decision_log_salt or None))
    limiter = AsyncRuleLimiter(
        settings.rules or sample_rules.SAMPLE_RULEBOOK,
        settings.engine,
        prefix=settings.prefix,
        observers=observers,
    )
    active = ActiveRequests()
    degradations = Degradations(limiter, observers, settings.workers)
    envoy = _envoy_services(limiter, settings, degradations)
    rate_limits = None if envoy is None else envoy.rate_limits
    checker = Checker(limiter, ReceiptSigner(settings.secret), settings.batch, settings.finish_within)
    app = App(checker, rate_limits, settings, degradations, metrics)
    site = AdminSite(limiter, settings, counts, memory_records)
    servers: list[Any] = []
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)

    def http(listener: socket.socket, application: Application) -> HttpServer:
        return HttpServer(settings, listener, Asgi(application, active), app.shutdown_timed_out.set, active)

    try:
        if envoy is not None and sockets.grpc is not None:
            servers.append(await envoy.serve(sockets.grpc))
        if sockets.http is not None:
            servers.append(await http(sockets.http, app).start())
        if sockets.admin is not None:
            servers.append(await http(sockets.admin, site).start())
            site.start()
        degradations.start()
        ready()
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait(
            [stopped, *(server.completion for server in servers)], return_when=asyncio.FIRST_COMPLETED
        )
        if not stop.is_set():
            raise RuntimeError("A server ended by itself.")
        app.draining = True
        if envoy is not None:
            envoy.drain()
        _log.info("stopping: running calls may take %g s", settings.drain)
    finally:
        await site.end_streams()
        await asyncio.gather(*(server.stop() for server in servers))
        await site.close()
        await degradations.close()
        await limiter.close()
