"""Runs granian, the HTTP server, in a worker's event loop. grpc_server has the one for gRPC.

granian gets a socket that listens already, because all workers accept from one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable
from typing import Any

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings, HTTP2Settings
from granian.server.embed import Server

from headgate.service.idle_connections import ActiveRequests, close_idle_connections
from headgate.service.settings import Settings

BACKLOG = 1024  # connections waiting to be accepted
_MAX_HEADER_BYTES = 64 * 1024
HEADER_TIMEOUT_MS = 10_000  # for all header fields
MAX_STREAMS = 1000
PING_INTERVAL_S, PING_TIMEOUT_S = 20, 10  # HTTP/2 keepalive
_RESERVED_DESCRIPTORS = 64  # not for connections
_MIN_CONNECTIONS, _MAX_CONNECTIONS = 8, 2**20
_LAST_RESPONSES_S = 1.0  # for responses to calls that were cut off
_log = logging.getLogger("headgate.service")


def max_connections() -> int:
    """Returns how many connections each server may have: a third of the descriptors.

    granian spins when no descriptor is left, so it must accept no more before that, and clients wait. (Its
    backpressure counts idle connections too.)
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else soft
    return min(_MAX_CONNECTIONS, max(_MIN_CONNECTIONS, (descriptors - _RESERVED_DESCRIPTORS) // 3))


class Granian(Server):
    """granian's server with a socket that listens already."""

    _shd: Any

    def __init__(self, application: Any, listener: socket.socket, settings: Settings) -> None:
        super().__init__(
            application,
            interface=Interfaces.ASGINL,
            http=HTTPModes.auto,
            websockets=False,
            backlog=BACKLOG,
            backpressure=max_connections(),
            http1_settings=HTTP1Settings(
                header_read_timeout=HEADER_TIMEOUT_MS, max_buffer_size=_MAX_HEADER_BYTES + 8192
            ),
            http2_settings=HTTP2Settings(
                max_concurrent_streams=MAX_STREAMS,
                max_headers_size=_MAX_HEADER_BYTES,
                keep_alive_interval=PING_INTERVAL_S * 1000,
                keep_alive_timeout=PING_TIMEOUT_S,
            ),
            log_enabled=False,
            ssl_cert=settings.tls_cert,
            ssl_key=settings.tls_key,
            ssl_ca=settings.tls_client_ca,
            ssl_client_verify=settings.tls_client_ca is not None,
        )
        self._listener = listener

    def _init_shared_socket(self) -> None:
        # granian closes the descriptor that it gets.
        holder: Any = SocketHolder
        self._shd = holder(os.dup(self._listener.fileno()), self._listener.family == socket.AF_UNIX, BACKLOG)


class HttpServer:
    """The HTTP server. `on_timeout` is called when calls are still running at the end of `drain`."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        application: Any,
        on_timeout: Callable[[], object],
        active: ActiveRequests,
    ) -> None:
        self._drain, self._on_timeout = settings.drain, on_timeout
        self._server: Any = Granian(application, listener, settings)
        self._port = None if listener.family == socket.AF_UNIX else listener.getsockname()[1]
        self._active = active

    async def start(self) -> HttpServer:
        self._idle_closer = asyncio.ensure_future(
            close_idle_connections(self._port, max_connections(), self._active)
        )
        self.completion: Any = asyncio.ensure_future(self._server.serve())
        await asyncio.sleep(0)  # now it listens, or has failed
        if self.completion.done():
            await self.completion
        return self

    async def stop(self) -> None:
        self._idle_closer.cancel()
        self._server.stop()
        if not await self._wait_ended(self._drain):
            _log.warning("HTTP calls were still running after %g s and are cut off", self._drain)
            self._on_timeout()
            if not await self._wait_ended(_LAST_RESPONSES_S):
                self.completion.cancel()

    async def _wait_ended(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self.completion], timeout=seconds)
        return bool(done)
