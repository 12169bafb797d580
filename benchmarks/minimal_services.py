"""The servers that the service is measured by.

The empty application runs on the service's own HTTP server, with its settings, the empty servicer on grpcio's
asyncio server; what they answer is nothing. Two others decide as the service does: limits on grpcio, and limits on
the least of a gRPC server (minimal_grpc_server.py). A process is as Python makes it, or `tuned` as the service's.
"""

import sys
from typing import Any

import grpc
import uvloop

from benchmarks import minimal_grpc_server
from benchmarks.service_rules import BOOK
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.observer import Observer
from headgate.service.asgi import Receive, Send
from headgate.service.envoy.messages import RateLimitRequest, RateLimitResponse
from headgate.service.envoy.rls import METHOD, SERVICE, RateLimits
from headgate.service.http_server import Granian
from headgate.service.metrics import WorkerMetrics
from headgate.service.settings import Settings, address
from headgate.service.supervisor import open_listener, run_server_loop
from headgate.telemetry.counts import Counts
from headgate.telemetry.recent_records import RecentRecords


async def empty(scope: Any, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def reading(scope: Any, receive: Receive, send: Send) -> None:
    await receive()
    await empty(scope, receive, send)


async def should_rate_limit(request: Any, context: Any) -> Any:
    for descriptor in request.descriptors:
        for entry in descriptor.entries:
            _ = entry.key, entry.value
    return RateLimitResponse(overall_code=1)


def open_limits(engine: str) -> RateLimits:
    """Envoy's rate limits, with the observers of the service."""
    in_redis = not engine.startswith("memory:")
    observers: list[Observer] = [WorkerMetrics(Counts(shared_at=engine if in_redis else None)).observer]
    if in_redis:
        observers.append(RecentRecords(engine))
    return RateLimits(AsyncRuleLimiter(BOOK, engine, observers=observers))


async def main(kind: str, where: str, engine: str = "memory://") -> None:
    place = address(where)
    assert place is not None
    if kind == "limits-minimal":
        await minimal_grpc_server.serve(open_limits(engine).should_rate_limit, where)
    elif kind in ("http", "reading"):
        await Granian(empty if kind == "http" else reading, open_listener(place), Settings()).serve()
    else:
        method: Any = grpc.unary_unary_rpc_method_handler(
            should_rate_limit, RateLimitRequest.FromString, lambda response: response.SerializeToString()
        )
        if kind == "limits-grpc":
            limits = open_limits(engine)

            async def answer(request: bytes, context: Any) -> bytes:
                return await limits.should_rate_limit(request)

            method = grpc.unary_unary_rpc_method_handler(answer)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
        server.add_insecure_port(where)
        await server.start()
        await server.wait_for_termination()


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    if kind.startswith("tuned-"):
        run_server_loop(main(kind.removeprefix("tuned-"), *arguments))
    else:
        uvloop.run(main(kind, *arguments))
