"""The servers that a worker runs: granian for HTTP, grpc for Envoy, both in its event loop.

granian is given a socket that listens already, because all workers accept from one. grpc takes none: each worker
listens by itself, and the kernel deals out connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings, HTTP2Settings
from granian.server.embed import Server

from headgate.service import grpcs
from headgate.service.settings import Address, Settings
from headgate.service.silence import UnderWay, let_go

BACKLOG = 1024  # connections that wait to be accepted
_HEADERS = 64 * 1024  # bytes of header fields that are read
_HEADER_MS = 10_000  # in which they must have come
_STREAMS = 1000
_PING_S, _PONG_S = 20, 10  # an HTTP/2 peer is pinged so often, and is gone if it does not answer within
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
            http1_settings=HTTP1Settings(header_read_timeout=_HEADER_MS, max_buffer_size=_HEADERS + 8192),
            http2_settings=HTTP2Settings(
                max_concurrent_streams=_STREAMS,
                max_headers_size=_HEADERS,
                keep_alive_interval=_PING_S * 1000,
                keep_alive_timeout=_PONG_S,
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


class Grpc:
    """gRPC."""

    def __init__(
        self, settings: Settings, address: Address, methods: Mapping[str, Any], under_way: UnderWay | None = None
    ) -> None:
        self._drain = settings.drain
        self._port = address.port if address.path is None else None
        self._under_way = under_way or UnderWay()
        self._server = grpcs.server(
            methods,
            [
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", settings.body),
                ("grpc.max_concurrent_streams", _STREAMS),
                ("grpc.max_metadata_size", 16 * 1024),
                ("grpc.max_allowed_incoming_connections", connections()),
                ("grpc.server_handshake_timeout_ms", _HEADER_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", _PING_S * 1000),
                ("grpc.http2.ping_timeout_ms", _PONG_S * 1000),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ],
        )
        if settings.tls_cert is not None and settings.tls_key is not None:
            pair = settings.tls_key.read_bytes(), settings.tls_cert.read_bytes()
            authorities = None if settings.tls_client_ca is None else settings.tls_client_ca.read_bytes()
            credentials = grpc.ssl_server_credentials([pair], authorities, authorities is not None)
            self._server.add_secure_port(str(address), credentials)
        else:
            self._server.add_insecure_port(str(address))

    async def start(self) -> Grpc:
        await self._server.start()
        self._watch = asyncio.ensure_future(let_go(self._port, connections(), self._under_way))
        self.ended: Any = asyncio.ensure_future(self._server.wait_for_termination())
        return self

    async def stop(self) -> None:
        self._watch.cancel()
        await self._server.stop(self._drain)
        await self.ended
