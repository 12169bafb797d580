"""The empty application and the empty servicer that the service is measured by.

The application runs on the service's own HTTP server, with its settings, the servicer on grpcio's asyncio server;
what they answer is nothing. A process is as Python makes it, or `tuned` as the service's are.
"""

import sys
from typing import Any

import grpc
import uvloop

from headgate.service.asgi import Receive, Send
from headgate.service.envoy.messages import RateLimitRequest, RateLimitResponse
from headgate.service.envoy.rls import METHOD, SERVICE
from headgate.service.http_server import Granian
from headgate.service.settings import Settings, address
from headgate.service.supervisor import open_listener, run_server_loop


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


async def main(kind: str, where: str) -> None:
    place = address(where)
    assert place is not None
    if kind in ("http", "reading"):
        await Granian(empty if kind == "http" else reading, open_listener(place), Settings()).serve()
    else:
        method: Any = grpc.unary_unary_rpc_method_handler(
            should_rate_limit, RateLimitRequest.FromString, lambda response: response.SerializeToString()
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
        server.add_insecure_port(where)
        await server.start()
        await server.wait_for_termination()


if __name__ == "__main__":
    kind, where = sys.argv[1:]
    if kind.startswith("tuned-"):
        run_server_loop(main(kind.removeprefix("tuned-"), where))
    else:
        uvloop.run(main(kind, where))
