"""Limits a server of the official MCP package: per tool, user and session.

    limits = MCPServerRateLimitMiddleware(limits=[limit("10/minute", key=["tool", "user"], missing="one")])
    server = MCPServer("shop", middleware=[limits])         # or server.middleware.append(limits)

It sees every call on every transport: stdio, SSE, streamable HTTP. A refused call is answered with a JSON-RPC
error of the code -32029, whose data has `retryAfter` in seconds. The header fields are in the _meta of every
result, as "headgate/ratelimit" and "headgate/ratelimit-policy". mcp_calls lists the attributes; functions (user,
attributes, key, cost, exempt) receive an MCPCall. A tool reads the RequestRecord of its call by current_record().

Refunds see the end of a call as a status: 200, or 500 if it failed or its result says isError. A function that
decides about refunds receives the result, or None.

Await close() in the lifespan of the server. For header fields on HTTP responses, JSON-RPC batches and servers of
other packages, see mcp_asgi.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headgate.extras import require
from headgate.integrations.mcp_call_limiter import MCPCallLimiter, call_over_http
from headgate.integrations.mcp_calls import MCPCall, MCPLimit, current_record

require("headgate.integrations.mcp", "mcp", "mcp")

from mcp import MCPError  # noqa: E402
from mcp.server.context import HandlerResult, ServerRequestContext  # noqa: E402

__all__ = ["current_record", "limit", "MCPCall", "MCPServerRateLimitMiddleware"]

limit = MCPLimit


class MCPServerRateLimitMiddleware(MCPCallLimiter):
    """Limits the calls of a server by a rulebook, by limits in code, or both; LimitSettings lists the settings."""

    async def __call__(
        self,
        ctx: ServerRequestContext[Any, Any],
        call_next: Callable[[ServerRequestContext[Any, Any]], Awaitable[HandlerResult]],
    ) -> HandlerResult:
        if ctx.request_id is None:  # a notification
            return await call_next(ctx)
        # The session of the connection: a header could name any, and a stateless server has none.
        session = getattr(getattr(ctx.session, "_connection", None), "session_id", None)
        call = call_over_http(ctx.method, ctx.params or {}, session, ctx.request)
        result, fields = await self.limit_call(call, lambda: call_next(ctx), _has_failed, MCPError)
        if fields and isinstance(result, dict):
            result = {**result, "_meta": {**(result.get("_meta") or {}), **fields}}
        return result


def _has_failed(result: HandlerResult) -> bool:
    return isinstance(result, dict) and bool(result.get("isError"))
