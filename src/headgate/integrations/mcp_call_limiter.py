"""Limits calls of MCP one at a time, after a package has read them: what mcp and fastmcp share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, Unpack

from headgate.enforcement.open_rulebook import Rules
from headgate.engines.port import AsyncEngine
from headgate.integrations.mcp_calls import MCPCall, MCPLimits, handling, meta, refusal_error
from headgate.integrations.request_limits import LimitSettings

Result = TypeVar("Result")


class MCPCallLimiter:
    """Limits the calls of a server by a rulebook, by limits in code, or both; LimitSettings lists the settings."""

    def __init__(
        self,
        rules: Rules | None = None,
        engine: str | AsyncEngine = "memory://",
        **settings: Unpack[LimitSettings],
    ) -> None:
        self.limits: MCPLimits = MCPLimits(rules, engine, **settings)

    async def close(self) -> None:
        """Closes the engine."""
        await self.limits.close()

    async def limit_call(
        self,
        call: MCPCall,
        handle: Callable[[], Awaitable[Result]],
        has_failed: Callable[[Result], bool],
        make_error: Callable[[int, str, dict[str, Any]], Exception],
    ) -> tuple[Result, dict[str, str]]:
        """Decides a call and handles it; returns its result, and the header fields for the result's _meta.

        `has_failed` reads from the result whether the call failed. A refused call raises what `make_error` makes
        of the code, the message and the data of the JSON-RPC error.
        """
        record = self.limits.begin_calls([call])
        if await self.limits.decide(record, self.limits.app_limits) is not None:
            raise make_error(*refusal_error(record))
        status: int = 500
        result: Result | None = None
        try:
            with handling(record):
                result = await handle()
            status = 500 if has_failed(result) else 200
        finally:
            await self.limits.finish(record, status, result)
        return result, meta(record)


def call_over_http(method: str, params: Any, session: str | None, request: Any) -> MCPCall:
    """Describes a call, with the fields and the address of its Starlette request; None over another transport."""
    client = getattr(request, "client", None)
    headers = request.headers.raw if request is not None else ()
    return MCPCall(method, params, session, request, headers, client[0] if client else None)
