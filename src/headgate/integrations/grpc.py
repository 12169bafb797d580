"""Limits a gRPC server: interceptors for grpc.server and for grpc.aio.server.

    limits = RateLimitInterceptor(engine="redis://localhost:6379/0", limits=[limit("100/minute")])
    server = grpc.server(ThreadPoolExecutor(), interceptors=[limits])

    limits = AsyncRateLimitInterceptor(rules="rules.yaml")
    server = grpc.aio.server(interceptors=[limits])

All four kinds of calls are decided once, when they begin; slots are held until the last response. A call is a
request of HTTP/2, and has its attributes: the path is /package.Service/Method, metadata are header fields, the
address is the peer's. `param.service` and `param.method` are the parts of the path. Functions (user, attributes,
key, cost, exempt) receive an RpcCall. A handler reads the RequestRecord of its call by current_record().

A refusal is RESOURCE_EXHAUSTED, with google.rpc.RetryInfo and QuotaFailure in grpc-status-details-bin. A rule that
refuses with another status, such as 403, has the code that belongs to it. An engine that does not answer is
UNAVAILABLE. The header fields are trailing metadata of every call, also of those that fail.

Refunds see the code of a call as the HTTP status that belongs to it: refund="2xx" gives back what succeeded. A
function that decides about refunds receives the grpc.StatusCode.

Close an interceptor when its server has stopped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import wraps
from typing import Any, NoReturn, Unpack

from headgate.enforcement.open_rulebook import Rules
from headgate.engines.port import AsyncEngine, Engine
from headgate.extras import require
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.grpc_calls import AsyncCall, RpcCall, SyncCall, ThreadCall, code_name, current_record
from headgate.integrations.request_flows import RequestFlows
from headgate.integrations.request_limits import AsyncRequestLimits, LimitSettings, RequestLimits
from headgate.integrations.unreachable_limits import RouteInfo

require("headgate.integrations.grpc", "grpc", "grpc")

import grpc  # noqa: E402
import grpc.aio  # noqa: E402

__all__ = ["AsyncRateLimitInterceptor", "current_record", "limit", "RateLimitInterceptor", "RpcCall"]

limit = CodeLimit

_WRONG_SERVER = "grpc.server needs a RateLimitInterceptor: an AsyncRateLimitInterceptor is for grpc.aio.server."
_log = logging.getLogger("headgate")

_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class RateLimitInterceptor(grpc.ServerInterceptor):
    """Limits a server of threads by a rulebook, by limits in code, or both; LimitSettings lists the settings."""

    def __init__(
        self,
        rules: Rules | None = None,
        engine: str | Engine = "memory://",
        **settings: Unpack[LimitSettings],
    ) -> None:
        self.limits: RequestLimits = RequestLimits(rules, engine, **settings)
        _check(self.limits)

    def close(self) -> None:
        """Closes the engine."""
        self.limits.close()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the handler of a call, which decides first."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        wrap = self._streaming if handler.response_streaming else self._unary
        return _replace(handler, lambda behavior: wrap(behavior, handler_call_details, handler.request_streaming))

    def _unary(self, behavior: Any, details: grpc.HandlerCallDetails, streams: bool) -> Any:
        @wraps(behavior)
        def decide_then_call(request: Any, context: grpc.ServicerContext) -> Any:
            call = SyncCall(self.limits, details, None if streams else request, context)
            with call:
                response = behavior(request, context)
                call.count(response)
            return response

        return decide_then_call

    def _streaming(self, behavior: Any, details: grpc.HandlerCallDetails, streams: bool) -> Any:
        if getattr(behavior, "experimental_non_blocking", False):
            return self._non_blocking(behavior, details, streams)

        @wraps(behavior)
        def decide_then_iterate(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            call = SyncCall(self.limits, details, None if streams else request, context)
            with call:
                for response in behavior(request, context):
                    call.count(response)
                    yield response

        return decide_then_iterate

    def _non_blocking(self, behavior: Any, details: grpc.HandlerCallDetails, streams: bool) -> Any:
        """Returns a handler of grpcio's experimental kind, which passes responses to a function."""

        @wraps(behavior)
        def decide_then_start(request: Any, context: grpc.ServicerContext, send: Any) -> Any:
            call = SyncCall(self.limits, details, None if streams else request, context)
            call.__enter__()
            if not context.add_callback(lambda: call.finish(code_name(context, None))):
                call.finish("CANCELLED")
            return behavior(request, context, send)

        return decide_then_start


class AsyncRateLimitInterceptor(grpc.aio.ServerInterceptor):
    """Limits a server of grpc.aio by a rulebook, by limits in code, or both; LimitSettings lists the settings.

    Handlers may be coroutines, async generators, or functions, which grpc.aio runs in threads.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        engine: str | AsyncEngine = "memory://",
        **settings: Unpack[LimitSettings],
    ) -> None:
        self.limits: AsyncRequestLimits = AsyncRequestLimits(rules, engine, **settings)
        _check(self.limits)

    async def close(self) -> None:
        """Closes the engine."""
        await self.limits.close()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the handler of a call, which decides first."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a server of threads, which runs no coroutine: its clients would wait forever
            _log.error("headgate: %s", _WRONG_SERVER)
            return grpc.unary_unary_rpc_method_handler(_abort_wrong_server)
        return self._intercept(continuation, handler_call_details)

    async def _intercept(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        task = asyncio.current_task()  # of this call

        def wrap(behavior: Any) -> Any:
            arguments = behavior, handler_call_details, handler.request_streaming
            if inspect.iscoroutinefunction(behavior):
                return self._coroutine(*arguments)
            if inspect.isasyncgenfunction(behavior):
                return self._generator(*arguments)
            wrap_function = self._function_of_stream if handler.response_streaming else self._function
            return wrap_function(*arguments, task)

        return _replace(handler, wrap)

    def _coroutine(self, behavior: Any, details: grpc.HandlerCallDetails, streams: bool) -> Any:
        @wraps(behavior)
        async def decide_then_await(request: Any, context: Any) -> Any:
            call = AsyncCall(self.limits, details, None if streams else request, context)
            async with call:
                response = await behavior(request, call.context)
                if response is not None:
                    call.count(response)
            return response

        return decide_then_await

    def _generator(self, behavior: Any, details: grpc.HandlerCallDetails, streams: bool) -> Any:
        @wraps(behavior)
        async def decide_then_iterate(request: Any, context: Any) -> AsyncIterator[Any]:
            call = AsyncCall(self.limits, details, None if streams else request, context)
            async with call:
                # A generator whose client has gone is not closed by grpc.aio, but when it is collected.
                context.add_done_callback(lambda _: call.finish_soon())
                async for response in behavior(request, call.context):
                    call.count(response)
                    yield response

        return decide_then_iterate

    def _function(self, behavior: Any, details: grpc.HandlerCallDetails, streams: bool, task: Any) -> Any:
        @wraps(behavior)
        def decide_then_call(request: Any, context: Any) -> Any:
            call = ThreadCall(self.limits, details, None if streams else request, context, task)
            if not call.begin():
                return None
            with call:
                response = behavior(request, call.context)
                call.count(response)
            return response

        return decide_then_call

    def _function_of_stream(
        self, behavior: Any, details: grpc.HandlerCallDetails, streams: bool, task: Any
    ) -> Any:
        @wraps(behavior)
        def decide_then_iterate(request: Any, context: Any) -> Iterator[Any]:
            call = ThreadCall(self.limits, details, None if streams else request, context, task)
            if not call.begin():
                return
            with call:
                for response in behavior(request, call.context):
                    call.count(response)
                    yield response

        return decide_then_iterate


def _check(limits: RequestFlows[Any]) -> None:
    """Raises InvalidRule for limits in code that can never match."""
    code_limits = [bound.limit for bound in limits.app_limits]
    limits.check_code_limits([RouteInfo("/{service}/{method}", ("POST",), code_limits)])


def _abort_wrong_server(request: object, context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.INTERNAL, _WRONG_SERVER)
    raise AssertionError("abort raises")


def _replace(handler: grpc.RpcMethodHandler[Any, Any], wrap: Callable[[Any], Any]) -> Any:
    """Returns a handler with another behavior of the same kind."""
    kind = _KINDS[2 * handler.request_streaming + handler.response_streaming]
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(wrap(getattr(handler, kind)), handler.request_deserializer, handler.response_serializer)
