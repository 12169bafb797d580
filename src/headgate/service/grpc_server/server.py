"""Accepts connections for gRPC, closes idle ones, and drains.

All workers accept from one socket, which the supervisor has opened. A worker accepts one connection at a time,
so those who are busy get fewer. As many are open as descriptors allow (max_connections); then the rest wait to
be accepted, and idle connections are closed: those without a call for a while, whatever else they send.

    more than half of what is allowed    those idle for IDLE_S
    all of it                            those idle for FULL_IDLE_S, a quarter at a time, longest first

A client that does not read what it asked for is not read from either, and is disconnected after SLOW_READER_S.

Laws (tests/service/test_faults_under_load.py, tests/service/grpc_server/test_server.py): idle clients keep
other clients out for no longer than a few seconds; a client with a running call is never disconnected for being
idle; when the server stops, running calls end first.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from headgate.service.grpc_server.connection import ConnectionContext, Http2Connection
from headgate.service.grpc_server.methods import Method
from headgate.service.grpc_server.refused_calls import RefusedCall
from headgate.service.grpc_server.request_heads import RequestHead, RequestHeads
from headgate.service.grpc_server.streaming_calls import StreamingCall
from headgate.service.grpc_server.unary_calls import UnaryCall
from headgate.service.http_server import max_connections
from headgate.service.idle_connections import FULL_IDLE_S, IDLE_S
from headgate.service.settings import Settings

SLOW_READER_S = 20.0
TLS_HANDSHAKE_S = 10.0
_TICK_S = 0.5
_CLOSE_S = 2.0  # for the last bytes of a connection that has ended
_NO_DESCRIPTOR_S = 0.5
_ALPN = "h2"
_TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # HTTP/2 forbids most others
_log = logging.getLogger("headgate.service")


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Returns how the server proves itself, or None without TLS."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # HTTP/2 forbids it
    context.set_ciphers(_TLS_1_2_CIPHERS)
    context.set_alpn_protocols([_ALPN])
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    if settings.tls_client_ca is not None:
        context.load_verify_locations(settings.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def call_type(head: RequestHead) -> type[UnaryCall | StreamingCall | RefusedCall]:
    if head.method is None:
        return RefusedCall
    return UnaryCall if head.method.streaming is None else StreamingCall


class GrpcServer:
    """A gRPC server at a socket that listens already. `methods` are by full names: /package.Service/Method."""

    def __init__(self, settings: Settings, listener: socket.socket, methods: Mapping[str, Method]) -> None:
        self._drain, self._listener = settings.drain, listener
        self._tls = tls_context(settings)
        self._max_message_bytes = settings.body
        self._heads = RequestHeads(methods)
        self._max_connections = max_connections()
        self._protocols: set[_GrpcProtocol] = set()
        self._accepting: set[asyncio.Task[None]] = set()
        self._reading = self._stopping = False
        self._retry: asyncio.TimerHandle | None = None

    async def start(self) -> GrpcServer:
        self._loop = asyncio.get_running_loop()
        self._context = ConnectionContext(self._heads, call_type, self._max_message_bytes, self._loop)
        self._listener.setblocking(False)
        self.completion: Any = self._loop.create_future()
        self._ticker = self._loop.call_later(_TICK_S, self._tick)
        self._accept_or_wait()
        return self

    async def stop(self) -> None:
        """Stops accepting, and lets running calls end within `drain`."""
        self._stopping = True
        self._accept_or_wait()
        for protocol in list(self._protocols):
            protocol.leave()
        ends_at = self._loop.time() + self._drain
        while self._protocols and self._loop.time() < ends_at:
            await asyncio.wait(
                [protocol.ended for protocol in self._protocols], timeout=ends_at - self._loop.time()
            )
        if self._protocols:
            _log.warning("gRPC calls were still running after %g s and are cut off", self._drain)
        for protocol in list(self._protocols):
            protocol.cut_off()
        if self._protocols:
            await asyncio.wait([protocol.ended for protocol in self._protocols], timeout=_CLOSE_S)
        self._ticker.cancel()
        for task in list(self._accepting):
            task.cancel()
        for protocol in list(self._protocols):
            protocol.abort()
        self._listener.close()
        if not self.completion.done():
            self.completion.set_result(None)

    # Connections.

    def _accept_or_wait(self) -> None:
        """Accepts as long as there is room."""
        room = len(self._protocols) + len(self._accepting) < self._max_connections
        wanted = room and not self._stopping and self._retry is None
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._loop.add_reader(self._listener, self._accept)
            else:
                self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor is left
            self._retry = self._loop.call_later(_NO_DESCRIPTOR_S, self._accept_again)
            self._accept_or_wait()
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection))
        self._accepting.add(task)
        task.add_done_callback(self._opened)
        self._accept_or_wait()

    def _accept_again(self) -> None:
        self._retry = None
        self._accept_or_wait()

    async def _open(self, connection: socket.socket) -> None:
        timeout = None if self._tls is None else TLS_HANDSHAKE_S
        try:
            await self._loop.connect_accepted_socket(
                lambda: _GrpcProtocol(self), connection, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except (OSError, TimeoutError):  # it is not TLS, or not trusted, or has gone
            connection.close()

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._accepting.discard(task)
        self._accept_or_wait()

    def begin(self, protocol: _GrpcProtocol) -> Http2Connection:
        self._protocols.add(protocol)
        return Http2Connection(self._context, self._loop.time(), protocol.flush_soon)

    def end(self, protocol: _GrpcProtocol) -> None:
        self._protocols.discard(protocol)
        self._accept_or_wait()

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def uses_tls(self) -> bool:
        return self._tls is not None

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(_TICK_S, self._tick)
        now = self._loop.time()
        for protocol in list(self._protocols):
            protocol.tick(now)
        self._close_idle(now)

    def _close_idle(self, now: float) -> None:
        used = len(self._protocols) + len(self._accepting)
        if used <= self._max_connections // 2:
            return
        full = used >= self._max_connections
        max_idle_s = FULL_IDLE_S if full else IDLE_S
        idle = sorted(
            (protocol for protocol in self._protocols if now - protocol.idle_since(now) >= max_idle_s),
            key=lambda protocol: protocol.idle_since(now),
        )
        for protocol in idle[: max(1, self._max_connections // 4)] if full else idle:
            if full:
                protocol.abort()
            else:  # a call that is on its way is answered
                protocol.leave()


class _GrpcProtocol(asyncio.Protocol):
    """One connection: a socket and the state machine."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._flushing = False
        self._closing_since: float | None = None
        self._paused_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._transport = cast("asyncio.Transport", transport)
        self._connection = self._server.begin(self)
        if self._server.uses_tls:
            tls = transport.get_extra_info("ssl_object")
            if tls.selected_alpn_protocol() != _ALPN:
                self.abort()
                return
        if self._server.is_stopping:
            self.leave()
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._connection.receive(data, self._loop.time())
        self._flush()

    def eof_received(self) -> bool:
        """Nobody ends only one side of a connection of HTTP/2: calls that run have lost their client."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.lost()
        self._server.end(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def pause_writing(self) -> None:
        """The peer does not read. So it is not read from, and its answers cannot pile up."""
        self._paused_since = self._loop.time()
        with suppress(RuntimeError):
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused_since = None
        if not self._transport.is_closing():
            with suppress(RuntimeError):
                self._transport.resume_reading()

    def flush_soon(self) -> None:
        """Writes at the end of this turn of the loop what all streams have to send."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        connection = self._connection
        output = connection.take_output()
        if output and not self._transport.is_closing():
            self._transport.write(output)
        if connection.closed and self._closing_since is None:
            self._closing_since = self._loop.time()
            self._transport.close()

    def tick(self, now: float) -> None:
        if self._closing_since is not None:
            if now - self._closing_since > _CLOSE_S:
                self.abort()
        elif self._paused_since is not None:
            if now - self._paused_since > SLOW_READER_S:
                self.abort()
        else:
            self._connection.tick(now)
            self._flush()

    def idle_since(self, now: float) -> float:
        """Returns when it had a call last: now if one runs."""
        return self._connection.called_at if self._connection.is_idle else now

    def leave(self) -> None:
        self._connection.leave(self._loop.time())
        self._flush()

    def cut_off(self) -> None:
        self._connection.cut_off()
        self._flush()

    def abort(self) -> None:
        self._transport.abort()
