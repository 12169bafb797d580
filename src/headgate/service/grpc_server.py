"""grpc's server, which nobody can end by a name.

grpcio 1.85 reads the method of every call that is none of the registered ones as UTF-8, in the loop that accepts
calls: one byte that is none ends the server, and every call under way, for anybody who can connect. So our
methods are registered, their calls are accepted here, and all others get UNIMPLEMENTED without a look at their
names. It is as quick as grpc's own loop.

grpc also writes a line or a whole trace to the log for much that is malformed. Then whoever can connect fills the
disk, so it is told to be silent (here, and by GRPC_VERBOSITY in run.py): what it cannot do for us it raises.

What is used of grpcio is private to it. Where a release has it no more, its server is taken as it is, and so that
this is not silent, that is logged.

Laws (tests/service/test_faults.py): no name of a method ends more than its own call; nothing sent is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server as aio

from headgate.service.http_server import HEADER_MS, MAX_STREAMS, PING_S, PONG_S, connections
from headgate.service.idle_connections import UnderWay, let_go
from headgate.service.settings import Address, Settings

_ARGUMENTS = ("method_name", "method_resolver", "interceptors", "rpc_state", "loop", "concurrency_exceeded")
_private: Any = cygrpc
_log = logging.getLogger("headgate.service")
logging.getLogger("grpc._cython.cygrpc").addFilter(
    lambda record: not record.getMessage().startswith("Invalid enc")
)


def server(methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]], options: Sequence[tuple[str, Any]]) -> Any:
    """A grpc.aio.Server of these methods; their names are whole, as /package.Service/Method."""
    if not _known():
        _log.warning("grpcio %s is not known: a call with a malformed method may end its server", grpc.__version__)
        made: Any = grpc.aio.server(options=list(options))
        for name, handler in methods.items():
            _, service, method = name.split("/")
            made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        return made
    return _Server(methods, options)


def _known() -> bool:
    """Whether this grpcio accepts calls as is described above."""
    code = getattr(getattr(_private, "_handle_rpc", None), "__code__", None)
    return (
        code is not None
        and code.co_varnames[: len(_ARGUMENTS)] == _ARGUMENTS
        and hasattr(_private.AioServer, "_make_request_call_future")
    )


class _Accepting(_private.AioServer):  # type: ignore[misc]
    """Accepts calls, method by method."""

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Task[None]:
        # grpc takes what this results in for a call. It has no result: it ends with grpc's own error when the
        # server is shut down, and grpc knows what to do then.
        return asyncio.get_running_loop().create_task(self._accept(method))

    async def _accept(self, method: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        name = "" if method is None else method.decode()
        resolver = _private._MethodResolver([], {} if method is None else {name: self.methods[name]})
        while True:
            state = await (self._request_call() if method is None else self._request_registered_call(method))
            call = _private._handle_rpc(name, resolver, (), state, loop, False)
            task = loop.create_task(_private._schedule_rpc_coro(call, state, loop, name))
            self.under_way.add(task)  # a loop keeps no task alive
            task.add_done_callback(self.under_way.discard)


class _Server(aio.Server):
    """grpc's own, around what accepts calls."""

    def __init__(
        self, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]], options: Sequence[tuple[str, Any]]
    ) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Accepting(self._loop, None, (), (), tuple(options), None)
        self._server.methods, self._server.under_way = dict(methods), set()
        self._server.add_registered_method_handlers(dict(methods))


class Grpc:
    """gRPC. It takes no socket: each worker listens by itself, and the kernel deals out connections."""

    def __init__(
        self, settings: Settings, address: Address, methods: Mapping[str, Any], under_way: UnderWay | None = None
    ) -> None:
        self._drain = settings.drain
        self._port = address.port if address.path is None else None
        self._under_way = under_way or UnderWay()
        self._server = server(
            methods,
            [
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", settings.body),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.max_metadata_size", 16 * 1024),
                ("grpc.max_allowed_incoming_connections", connections()),
                ("grpc.server_handshake_timeout_ms", HEADER_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", PING_S * 1000),
                ("grpc.http2.ping_timeout_ms", PONG_S * 1000),
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
