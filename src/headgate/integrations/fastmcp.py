"""Limits a FastMCP server: per tool, user and session.

    mcp = FastMCP("shop")
    tools = limit("10/minute", key=["tool", "user"], missing="one")
    mcp.add_middleware(FastMCPRateLimitMiddleware(limits=[tools]))

It sees every call on every transport: stdio, SSE, streamable HTTP, and clients in memory. A refused call is
answered with a JSON-RPC error of the code -32029, whose data has `retryAfter` in seconds. The header fields are in
the meta of every tool result, as "headgate/ratelimit" and "headgate/ratelimit-policy". mcp_calls lists the
attributes; functions (user, attributes, key, cost, exempt) receive an MCPCall. A tool reads the RequestRecord of
its call by current_record().

Refunds see the end of a call as a status: 200, or 500 if it failed. A function that decides about refunds receives
the result, or None.

Await close() in the lifespan of the server. For header fields on HTTP responses, and for JSON-RPC batches, see
mcp_asgi.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.extras import require
from headgate.integrations.mcp_call_limiter import MCPCallLimiter, call_over_http
from headgate.integrations.mcp_calls import MCPCall, MCPLimit, current_record

require("headgate.integrations.fastmcp", "fastmcp", "fastmcp")

from fastmcp.server.dependencies import get_http_request  # noqa: E402
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext  # noqa: E402
from fastmcp.tools.base import ToolResult  # noqa: E402
from mcp import MCPError  # noqa: E402

__all__ = ["current_record", "limit", "MCPCall", "FastMCPRateLimitMiddleware"]

limit = MCPLimit


class FastMCPRateLimitMiddleware(MCPCallLimiter, Middleware):
    """Limits the calls of a server by a rulebook, by limits in code, or both; LimitSettings lists the settings."""

    async def __call__(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        if context.type != "request" or context.method is None:
            return await call_next(context)
        call = _call(context.method, context)
        result, fields = await self.limit_call(call, lambda: call_next(context), _has_failed, MCPError)
        if fields and isinstance(result, ToolResult):
            result.meta = {**(result.meta or {}), **fields}
        return result


def _call(method: str, context: MiddlewareContext[Any]) -> MCPCall:
    message = context.message
    params = getattr(message, "params", message)  # of a request, or they are the message itself
    if not isinstance(params, Mapping):
        params = params.model_dump(by_alias=True) if hasattr(params, "model_dump") else {}
    try:
        request: Any = get_http_request()
    except RuntimeError:
        request = None
    return call_over_http(method, params, _session(context), request)


def _has_failed(result: Any) -> bool:
    return bool(getattr(result, "is_error", False))


def _session(context: MiddlewareContext[Any]) -> str | None:
    """Returns the session of the connection. (FastMCP's own changes with each request of a stateless server.)"""
    try:
        session: Any = context.fastmcp_context.session if context.fastmcp_context is not None else None
    except RuntimeError:
        return None
    found = getattr(getattr(session, "_connection", None), "session_id", None)
    return None if found is None else str(found)
