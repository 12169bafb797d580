"""A shop over gRPC, with limits per client, method and user. Messages are bytes: it needs no generated code.

    pip install 'headgate[grpc]'
    python examples/grpc_server.py 50051          # threads
    python examples/grpc_server.py 50051 aio      # asyncio

Without ENGINE it counts in memory, which is right for one process. For several, ENGINE=redis://localhost:6379/0.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

from headgate.integrations.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor, RpcCall, limit


def user_of(call: RpcCall) -> str | None:
    """Returns the user's name; a real server verifies a token."""
    user = dict(call.metadata).get("x-user")
    return user if isinstance(user, str) else None


SETTINGS: dict[str, Any] = {
    "engine": os.environ.get("ENGINE", "memory://"),
    "limits": [
        limit("100/minute"),  # all calls of one client
        limit("3/minute", when={"path": "/shop.Orders/Order"}, key="user", missing="deny", name="orders"),
        limit("2 slots", when={"path": "/shop.Orders/Watch"}, key=None, name="watchers"),
    ],
    "user": user_of,
    "exempt": ["/grpc.health.v1.Health/*"],
    "trusted_proxies": ["10.0.0.0/8"],
}


def handlers(orders: Any) -> Any:
    """Returns the handlers of the service; a real server has them from its generated code."""
    methods: dict[str, Any] = {
        "Order": grpc.unary_unary_rpc_method_handler(orders.order),
        "Watch": grpc.unary_stream_rpc_method_handler(orders.watch),
    }
    return grpc.method_handlers_generic_handler("shop.Orders", methods)


class ShopOrders:
    def order(self, item: bytes, context: grpc.ServicerContext) -> bytes:
        return b"ordered " + item

    def watch(self, item: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from (item + b" is packed", item + b" is sent")


class AsyncShopOrders:
    async def order(self, item: bytes, context: Any) -> bytes:
        return b"ordered " + item

    async def watch(self, item: bytes, context: Any) -> AsyncIterator[bytes]:
        for state in (b"packed", b"sent"):
            yield item + b" is " + state


def serve(address: str) -> None:
    limits = RateLimitInterceptor(**SETTINGS)
    server = grpc.server(ThreadPoolExecutor(16), interceptors=[limits])
    server.add_generic_rpc_handlers((handlers(ShopOrders()),))
    server.add_insecure_port(address)
    server.start()
    server.wait_for_termination()
    limits.close()


async def serve_aio(address: str) -> None:
    limits = AsyncRateLimitInterceptor(**SETTINGS)
    server = grpc.aio.server(interceptors=[limits])
    server.add_generic_rpc_handlers((handlers(AsyncShopOrders()),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()
    await limits.close()


if __name__ == "__main__":
    port, *style = sys.argv[1:]
    if style == ["aio"]:
        asyncio.run(serve_aio(f"127.0.0.1:{port}"))
    else:
        serve(f"127.0.0.1:{port}")
