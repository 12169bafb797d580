"""One worker: a limiter, and the servers that ask it, in one event loop.

It starts in an order in which nobody is answered too early: the rulebook is read and the engine opened, then the
addresses are listened at. It stops in the other: it says that it is not ready, listens no more, lets calls under
way end for as long as `drain` says, and gives up what it holds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import grpc
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings, HTTP2Settings
from granian.server.embed import Server

from headgate.ruled.limiter import AsyncRuledLimiter
from headgate.service import sample
from headgate.service.app import App
from headgate.service.asgi import Asgi
from headgate.service.check import Checker
from headgate.service.envoy import rlqs, rls
from headgate.service.receipts import Office
from headgate.service.run import Sockets
from headgate.service.settings import Address, Settings

_HEADERS = 64 * 1024  # bytes of header fields that are read
_HEADER_MS = 10_000  # in which they must have come
_STREAMS = 1000
_LAST = 1.0  # seconds for those who were left to be told
_BACKLOG = 1024
_log = logging.getLogger("headgate.service")


async def work(settings: Settings, secret: str, sockets: Sockets, ready: Callable[[], object]) -> None:
    """Answer until told to stop."""
    limiter = AsyncRuledLimiter(settings.rules or sample.BOOK, settings.engine, prefix=settings.prefix)
    limits = rls.RateLimits(limiter)
    app = App(Checker(limiter, Office(secret), settings.batch), limits, settings)
    servers: list[Any] = []
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        if settings.grpc is not None:
            handlers = rls.handler(limits), rlqs.handler(rlqs.Quotas(limiter))
            servers.append(await _Grpc(settings, settings.grpc, handlers).start())
        if sockets.http is not None:
            servers.append(await _Http(settings, sockets.http, app).start())
        ready()
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait([stopped, *(server.ended for server in servers)], return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            raise RuntimeError("A server ended by itself.")
        _log.info("stopping: calls under way may take %g s", settings.drain)
    finally:
        await asyncio.gather(*(server.stop() for server in servers))
        await limiter.close()


class _Granian(Server):
    """granian, with a socket that listens already."""

    listening: socket.socket
    _shd: Any

    def _init_shared_socket(self) -> None:
        # granian closes what it is given.
        holder: Any = SocketHolder
        self._shd = holder(os.dup(self.listening.fileno()), self.listening.family == socket.AF_UNIX, _BACKLOG)


class _Http:
    """granian, in this loop."""

    def __init__(self, settings: Settings, listening: socket.socket, app: App) -> None:
        secure = settings.tls_cert is not None
        self._app, self._drain = app, settings.drain
        self._server: Any = _Granian(
            Asgi(app),
            interface=Interfaces.ASGINL,
            http=HTTPModes.auto,
            websockets=False,
            backlog=_BACKLOG,
            backpressure=4 * _BACKLOG,
            http1_settings=HTTP1Settings(header_read_timeout=_HEADER_MS, max_buffer_size=_HEADERS + 8192),
            http2_settings=HTTP2Settings(max_concurrent_streams=_STREAMS, max_headers_size=_HEADERS),
            log_enabled=False,
            ssl_cert=settings.tls_cert,
            ssl_key=settings.tls_key,
            ssl_ca=settings.tls_client_ca,
            ssl_client_verify=secure and settings.tls_client_ca is not None,
        )
        self._server.listening = listening

    async def start(self) -> _Http:
        self.ended = asyncio.ensure_future(self._server.serve())
        await asyncio.sleep(0)  # it listens, or has failed
        if self.ended.done():
            await self.ended
        return self

    async def stop(self) -> None:
        self._app.draining = True
        self._server.stop()
        if not await self._over(self._drain):
            _log.warning("HTTP calls were still under way after %g s and are left", self._drain)
            self._app.left.set()
            if not await self._over(_LAST):
                self.ended.cancel()

    async def _over(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self.ended], timeout=seconds)
        return bool(done)


class _Grpc:
    """grpc, in this loop."""

    def __init__(self, settings: Settings, address: Address, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        self._drain = settings.drain
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", settings.body),
                ("grpc.max_concurrent_streams", _STREAMS),
                ("grpc.max_metadata_size", 16 * 1024),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ]
        )
        self._server.add_generic_rpc_handlers(handlers)
        if settings.tls_cert is not None and settings.tls_key is not None:
            pair = settings.tls_key.read_bytes(), settings.tls_cert.read_bytes()
            authorities = None if settings.tls_client_ca is None else settings.tls_client_ca.read_bytes()
            credentials = grpc.ssl_server_credentials([pair], authorities, authorities is not None)
            self._server.add_secure_port(str(address), credentials)
        else:
            self._server.add_insecure_port(str(address))

    async def start(self) -> _Grpc:
        await self._server.start()
        self.ended = asyncio.ensure_future(self._server.wait_for_termination())
        return self

    async def stop(self) -> None:
        await self._server.stop(self._drain)
        await self.ended
