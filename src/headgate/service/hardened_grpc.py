"""A gRPC server that no method name can crash.

grpcio 1.85 decodes the method of every call to an unregistered method as UTF-8, in the loop that accepts calls:
one invalid byte from any client ends the server, and every running call. So our methods are registered, and a
loop of our own accepts their calls; all other calls get UNIMPLEMENTED, and their names are never decoded. This
loop is as fast as grpc's own.

grpc also logs a line or a whole traceback for many malformed requests, so any client could fill the disk. That log
is switched off (here, and by GRPC_VERBOSITY in supervisor.py); failures that matter to us are raised.

This module uses private parts of grpcio. If a release no longer has them, it uses grpc's own server unchanged, and
logs a warning. tests/service/test_grpcio_defect.py fails when grpcio no longer has the defect: then delete this.

Laws (tests/service/test_faults_under_load.py): a method name ends at most its own call; nothing a client sends
is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server as aio

from headgate.service.http_server import (
    HEADER_TIMEOUT_MS,
    MAX_STREAMS,
    PING_INTERVAL_S,
    PING_TIMEOUT_S,
    max_connections,
)
from headgate.service.idle_connections import ActiveRequests, close_idle_connections
from headgate.service.settings import Address, Settings

_HANDLE_RPC_ARGUMENTS = (
    "method_name",
    "method_resolver",
    "interceptors",
    "rpc_state",
    "loop",
    "concurrency_exceeded",
)
_cygrpc: Any = cygrpc
_log = logging.getLogger("headgate.service")
logging.getLogger("grpc._cython.cygrpc").addFilter(
    lambda record: not record.getMessage().startswith("Invalid enc")
)


def create_server(
    methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]], options: Sequence[tuple[str, Any]]
) -> Any:
    """Returns a grpc.aio.Server with these methods, given by their full names: /package.Service/Method."""
    if not _has_known_internals():
        _log.warning("grpcio %s is not known: a call with a malformed method may end its server", grpc.__version__)
        server: Any = grpc.aio.server(options=list(options))
        for name, handler in methods.items():
            _, service, method = name.split("/")
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        return server
    return _Server(methods, options)


def _has_known_internals() -> bool:
    """Returns whether this grpcio accepts calls as described above."""
    code = getattr(getattr(_cygrpc, "_handle_rpc", None), "__code__", None)
    return (
        code is not None
        and code.co_varnames[: len(_HANDLE_RPC_ARGUMENTS)] == _HANDLE_RPC_ARGUMENTS
        and hasattr(_cygrpc.AioServer, "_make_request_call_future")
    )


class _AcceptingServer(_cygrpc.AioServer):  # type: ignore[misc]
    """Accepts calls, method by method."""

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Task[None]:
        # grpc expects a call as the result. There is none: the task ends with grpc's own error when the server is
        # shut down, and grpc handles that.
        return asyncio.get_running_loop().create_task(self._accept(method))

    async def _accept(self, method: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        name = "" if method is None else method.decode()
        resolver = _cygrpc._MethodResolver([], {} if method is None else {name: self.methods[name]})
        while True:
            state = await (self._request_call() if method is None else self._request_registered_call(method))
            call = _cygrpc._handle_rpc(name, resolver, (), state, loop, False)
            task = loop.create_task(_cygrpc._schedule_rpc_coro(call, state, loop, name))
            self.tasks.add(task)  # the event loop keeps no task alive
            task.add_done_callback(self.tasks.discard)


class _Server(aio.Server):
    """grpc's own server around the one that accepts calls."""

    def __init__(
        self, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]], options: Sequence[tuple[str, Any]]
    ) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _AcceptingServer(self._loop, None, (), (), tuple(options), None)
        self._server.methods, self._server.tasks = dict(methods), set()
        self._server.add_registered_method_handlers(dict(methods))


class GrpcServer:
    """The gRPC server. It opens its own socket in each worker, and the kernel distributes connections."""

    def __init__(
        self,
        settings: Settings,
        address: Address,
        methods: Mapping[str, Any],
        active: ActiveRequests | None = None,
    ) -> None:
        self._drain = settings.drain
        self._port = address.port if address.path is None else None
        self._active = active or ActiveRequests()
        self._server = create_server(
            methods,
            [
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", settings.body),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.max_metadata_size", 16 * 1024),
                ("grpc.max_allowed_incoming_connections", max_connections()),
                ("grpc.server_handshake_timeout_ms", HEADER_TIMEOUT_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", PING_INTERVAL_S * 1000),
                ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_S * 1000),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ],
        )
        if settings.tls_cert is not None and settings.tls_key is not None:
            key_and_chain = settings.tls_key.read_bytes(), settings.tls_cert.read_bytes()
            authorities = None if settings.tls_client_ca is None else settings.tls_client_ca.read_bytes()
            credentials = grpc.ssl_server_credentials([key_and_chain], authorities, authorities is not None)
            self._server.add_secure_port(str(address), credentials)
        else:
            self._server.add_insecure_port(str(address))

    async def start(self) -> GrpcServer:
        await self._server.start()
        self._idle_closer = asyncio.ensure_future(
            close_idle_connections(self._port, max_connections(), self._active)
        )
        self.completion: Any = asyncio.ensure_future(self._server.wait_for_termination())
        return self

    async def stop(self) -> None:
        self._idle_closer.cancel()
        await self._server.stop(self._drain)
        await self.completion
