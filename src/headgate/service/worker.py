"""One worker: a limiter, and the servers that ask it, in one event loop.

It starts in an order in which nobody is answered too early: the rulebook is read and the engine opened, then the
addresses are listened at. It stops in the other: it says that it is not ready, listens no more, lets calls under
way end for as long as `drain` says, and gives up what it holds.
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
from headgate.service import sample_rules
from headgate.service.admin import Admin
from headgate.service.app import App
from headgate.service.asgi import Application, Asgi
from headgate.service.check import Checker
from headgate.service.http_server import Http
from headgate.service.idle_connections import UnderWay
from headgate.service.receipt_tokens import Office
from headgate.service.settings import Settings
from headgate.service.supervisor import Sockets

if TYPE_CHECKING:
    from headgate.service.envoy.services import EnvoyServices

_log = logging.getLogger("headgate.service")


def _envoy(limiter: AsyncRuleLimiter, settings: Settings, under_way: UnderWay) -> EnvoyServices | None:
    """Returns what answers Envoy; None without the extra `envoy`."""
    if missing(*ENVOY_MODULES):
        return None
    from headgate.service.envoy.services import EnvoyServices

    return EnvoyServices(limiter, settings, under_way)


async def work(settings: Settings, sockets: Sockets, ready: Callable[[], object]) -> None:
    """Answer until told to stop."""
    limiter = AsyncRuleLimiter(settings.rules or sample_rules.BOOK, settings.engine, prefix=settings.prefix)
    under_way = UnderWay()
    envoy = _envoy(limiter, settings, under_way)
    limits = None if envoy is None else envoy.limits
    app = App(Checker(limiter, Office(settings.secret), settings.batch), limits, settings)
    admin = Admin(limiter, settings, settings.admin_token)
    servers: list[Any] = []
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def http(listening: socket.socket, application: Application) -> Http:
        return Http(settings, listening, Asgi(application, under_way), app.left.set, under_way)

    try:
        if envoy is not None and settings.grpc is not None:
            servers.append(await envoy.serve(settings.grpc))
        if sockets.http is not None:
            servers.append(await http(sockets.http, app).start())
        if sockets.admin is not None:
            servers.append(await http(sockets.admin, admin).start())
        ready()
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait([stopped, *(server.ended for server in servers)], return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            raise RuntimeError("A server ended by itself.")
        app.draining = True
        if envoy is not None:
            envoy.drain()
        _log.info("stopping: calls under way may take %g s", settings.drain)
    finally:
        await asyncio.gather(*(server.stop() for server in servers))
        await admin.close()
        await limiter.close()
