"""The HTTP server that a worker runs in its event loop: granian. The one for Envoy's gRPC is in grpcs.py.

granian is given a socket that listens already, because all workers accept from one.
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

from headgate.service.idle_connections import UnderWay, let_go
from headgate.service.settings import Settings

BACKLOG = 1024  # connections that wait to be accepted
_HEADERS = 64 * 1024  # bytes of header fields that are read
HEADER_MS = 10_000  # in which they must have come
MAX_STREAMS = 1000
PING_S, PONG_S = 20, 10  # an HTTP/2 peer is pinged so often, and is gone if it does not answer within
_OURS = 64  # descriptors that are for nobody's connections
_FEW, _MOST = 8, 2**20
_LAST = 1.0  # seconds for those who were left to be told
_log = logging.getLogger("headgate.service")


def connections() -> int:
    """How many each server may have: a third of the descriptors. granian spins when it finds none left, so it must
    not come to that: it accepts no more, and clients wait. (Its backpressure counts idle ones too.)"""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if soft == resource.RLIM_INFINITY else soft
    return min(_MOST, max(_FEW, (most - _OURS) // 3))


class Granian(Server):
    """granian, with a socket that listens already."""

    _shd: Any

    def __init__(self, application: Any, listening: socket.socket, settings: Settings) -> None:
        super().__init__(
            application,
            interface=Interfaces.ASGINL,
            http=HTTPModes.auto,
            websockets=False,
            backlog=BACKLOG,
            backpressure=connections(),
            http1_settings=HTTP1Settings(header_read_timeout=HEADER_MS, max_buffer_size=_HEADERS + 8192),
            http2_settings=HTTP2Settings(
                max_concurrent_streams=MAX_STREAMS,
                max_headers_size=_HEADERS,
                keep_alive_interval=PING_S * 1000,
                keep_alive_timeout=PONG_S,
            ),
            log_enabled=False,
            ssl_cert=settings.tls_cert,
            ssl_key=settings.tls_key,
            ssl_ca=settings.tls_client_ca,
            ssl_client_verify=settings.tls_client_ca is not None,
        )
        self._listening = listening

    def _init_shared_socket(self) -> None:
        # granian closes what it is given.
        holder: Any = SocketHolder
        self._shd = holder(os.dup(self._listening.fileno()), self._listening.family == socket.AF_UNIX, BACKLOG)


class Http:
    """HTTP. `leave` is called when there is no more time for calls that still wait."""

    def __init__(
        self,
        settings: Settings,
        listening: socket.socket,
        application: Any,
        leave: Callable[[], object],
        under_way: UnderWay,
    ) -> None:
        self._drain, self._leave = settings.drain, leave
        self._server: Any = Granian(application, listening, settings)
        self._port = None if listening.family == socket.AF_UNIX else listening.getsockname()[1]
        self._under_way = under_way

    async def start(self) -> Http:
        self._watch = asyncio.ensure_future(let_go(self._port, connections(), self._under_way))
        self.ended: Any = asyncio.ensure_future(self._server.serve())
        await asyncio.sleep(0)  # it listens, or has failed
        if self.ended.done():
            await self.ended
        return self

    async def stop(self) -> None:
        self._watch.cancel()
        self._server.stop()
        if not await self._over(self._drain):
            _log.warning("HTTP calls were still under way after %g s and are left", self._drain)
            self._leave()
            if not await self._over(_LAST):
                self.ended.cancel()

    async def _over(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self.ended], timeout=seconds)
        return bool(done)
