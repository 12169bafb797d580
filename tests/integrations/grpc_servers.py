"""Runs gRPC servers of both kinds, and calls them as clients do: four methods, one of each kind of call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc.error_details_pb2 import QuotaFailure, RetryInfo  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from headgate.integrations.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor, current_record

SERVICE = "shop.v1.Orders"
KINDS = {"One": "unary_unary", "Many": "unary_stream", "Gather": "stream_unary", "Talk": "stream_stream"}
READ, WRITE = StringValue.FromString, StringValue.SerializeToString


class SyncOrderHandlers:
    """Handlers of a server of threads; the text of a request says how to end the call."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.leave = threading.Event()

    def One(self, request: StringValue, context: Any) -> StringValue:  # noqa: N802
        if request.value == "settle":
            current_record().settle(7)
        elif request.value == "trailing":
            context.set_trailing_metadata((("own", "1"),))
        elif request.value == "missing":
            context.set_code(grpc.StatusCode.NOT_FOUND)
        elif request.value == "initial":
            context.send_initial_metadata((("own", "1"),))
        elif request.value == "abort":
            context.set_trailing_metadata((("own", "1"),))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        elif request.value == "fail":
            raise RuntimeError("broken")
        elif request.value == "wait":
            self.entered.release()
            self.leave.wait(30)
        return StringValue(value=f"one {request.value}")

    def Many(self, request: StringValue, context: Any) -> Iterator[StringValue]:  # noqa: N802
        for number in range(3):
            yield StringValue(value=str(number))
            if request.value == "abort":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        while request.value == "endless":
            yield StringValue(value="more")

    def Gather(self, requests: Iterator[StringValue], context: Any) -> StringValue:  # noqa: N802
        return StringValue(value=" ".join(request.value for request in requests))

    def Talk(self, requests: Iterator[StringValue], context: Any) -> Iterator[StringValue]:  # noqa: N802
        yield from requests


class AsyncOrderHandlers:
    """The same handlers for a server of grpc.aio."""

    async def One(self, request: StringValue, context: Any) -> StringValue:  # noqa: N802
        assert isinstance(context, grpc.aio.ServicerContext)
        if request.value == "abort":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no", (("own", "1"),))
        elif request.value == "initial":
            await context.send_initial_metadata((("own", "1"),))
        elif request.value == "wait":
            await asyncio.sleep(30)
        else:
            return SyncOrderHandlers().One(request, context)
        return StringValue(value=f"one {request.value}")

    async def Many(self, request: StringValue, context: Any) -> AsyncIterator[StringValue]:  # noqa: N802
        for number in range(3):
            yield StringValue(value=str(number))
            if request.value == "abort":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        while request.value == "endless":
            yield StringValue(value="more")

    async def Gather(self, requests: AsyncIterator[StringValue], context: Any) -> StringValue:  # noqa: N802
        return StringValue(value=" ".join([request.value async for request in requests]))

    async def Talk(self, requests: AsyncIterator[StringValue], context: Any) -> None:  # noqa: N802
        async for request in requests:
            await context.write(request)


def handlers(orders: Any) -> grpc.GenericRpcHandler:
    """Returns the handlers of a service."""
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            name: getattr(grpc, f"{kind}_rpc_method_handler")(getattr(orders, name), READ, WRITE)
            for name, kind in KINDS.items()
        },
    )


class OrdersClient:
    """A client of the service."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.One, self.Many, self.Gather, self.Talk = (
            getattr(channel, kind)(f"/{SERVICE}/{name}", WRITE, READ) for name, kind in KINDS.items()
        )

    def one(self, text: str = "", **metadata: str) -> tuple[str, dict[str, Any]]:
        """Calls One; returns its code, and its trailing metadata."""
        return finished(self.One.with_call, StringValue(value=text), metadata)

    def every_kind(self) -> list[tuple[str, dict[str, Any]]]:
        """Makes one call of each kind; returns their codes and trailing metadata."""
        requests = [StringValue(value="a"), StringValue(value="b")]
        ended = []
        for method, request in ((self.Many, requests[0]), (self.Talk, iter(requests))):
            stream = method(request, timeout=30)
            try:
                assert [each.value for each in stream] in (["0", "1", "2"], ["a", "b"])
                ended.append(("OK", dict(stream.trailing_metadata())))
            except grpc.RpcError:
                ended.append((stream.code().name, dict(stream.trailing_metadata())))
        return [self.one(), ended[0], finished(self.Gather.with_call, iter(requests), {}), ended[1]]


def finished(call: Any, request: Any, metadata: dict[str, str]) -> tuple[str, dict[str, Any]]:
    pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    try:
        _, done = call(request, metadata=pairs, timeout=30)
    except grpc.RpcError as error:
        raised: Any = error
        return raised.code().name, dict(raised.trailing_metadata())
    return done.code().name, dict(done.trailing_metadata())


def details(error: Any) -> tuple[RetryInfo, QuotaFailure]:
    """Reads the details of a refusal by Google's own messages."""
    status = rpc_status.from_call(error)
    assert status is not None
    retry, quota = RetryInfo(), QuotaFailure()
    for detail in status.details:
        detail.Unpack(retry) or detail.Unpack(quota)
    return retry, quota


@contextmanager
def serve_sync(
    interceptor: RateLimitInterceptor, orders: Any = None, address: str = "127.0.0.1:0", inner: Any = ()
) -> Iterator[OrdersClient]:
    """Serves the handlers by threads; yields a client."""
    server = grpc.server(ThreadPoolExecutor(8), interceptors=[interceptor, *inner])
    server.add_generic_rpc_handlers((handlers(orders or SyncOrderHandlers()),))
    port = server.add_insecure_port(address)
    server.start()
    target = address if address.startswith("unix") else f"127.0.0.1:{port}"
    try:
        with grpc.insecure_channel(target) as channel:
            yield OrdersClient(channel)
    finally:
        server.stop(None).wait()
        interceptor.close()


@contextmanager
def serve_async(
    make_interceptor: Callable[[], AsyncRateLimitInterceptor], orders: Any = None
) -> Iterator[OrdersClient]:
    """Serves the handlers by grpc.aio, in a loop of its own thread; yields a client."""
    started, ports = threading.Event(), []
    stopping: list[Callable[[], Any]] = []

    async def run() -> None:
        interceptor = make_interceptor()
        server = grpc.aio.server(ThreadPoolExecutor(4), interceptors=[interceptor])
        server.add_generic_rpc_handlers((handlers(orders or AsyncOrderHandlers()),))
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        stopping.append(lambda: loop.call_soon_threadsafe(stop.set))
        started.set()
        await stop.wait()
        await server.stop(None)
        await interceptor.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert started.wait(30), "the server did not start"
    try:
        with grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
            yield OrdersClient(channel)
    finally:
        stopping[0]()
        thread.join()
