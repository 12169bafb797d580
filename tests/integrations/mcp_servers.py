"""MCP servers of the official package and of FastMCP, with the same tools, for their own clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from fastmcp import Client as FastMCPClient
from fastmcp import FastMCP
from mcp import Client, MCPError
from mcp.server.mcpserver import MCPServer

from headgate.integrations import fastmcp as fastmcp_limits
from headgate.integrations import mcp as mcp_limits

Calls = list[tuple[str, dict[str, Any]]]


def add_tools(server: Any) -> Any:
    """Adds tools, a resource and a prompt to a server of either package."""

    def add(a: int, b: int) -> int:
        return a + b

    async def answer(question: str) -> str:
        record = mcp_limits.current_record()
        if record.states_cost:
            record.settle(len(question))
        return question.upper()

    def fail() -> str:
        raise RuntimeError("broken")

    def items() -> str:
        return "apple"

    def greet() -> str:
        return "Hello"

    for tool in (add, answer, fail):
        server.tool()(tool)
    server.resource("shop://items")(items)
    server.prompt()(greet)
    return server


def official(**settings: Any) -> Any:
    """Returns a server of the official package."""
    middleware = mcp_limits.MCPServerRateLimitMiddleware(settings.pop("rules", None), **settings)
    return add_tools(MCPServer("shop", middleware=[middleware]))


def fast(**settings: Any) -> Any:
    """Returns a server of FastMCP."""
    server: FastMCP[Any] = FastMCP("shop")
    server.add_middleware(fastmcp_limits.FastMCPRateLimitMiddleware(settings.pop("rules", None), **settings))
    return add_tools(server)


def client_of(target: Any) -> Any:
    """Returns the client of the package that a server belongs to; the official one for URLs and transports."""
    return FastMCPClient(target) if isinstance(target, FastMCP) else Client(target)


async def outcomes(client: Any, calls: Calls) -> list[Any]:
    """Calls tools; returns a text or "error" for each, and the refusals as errors."""
    return [await outcome(client.call_tool(tool, arguments)) for tool, arguments in calls]


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        result = await call
    except MCPError as error:
        return error if error.code == -32029 else "error"
    except Exception as error:
        if type(error).__name__ != "ToolError":
            raise
        return "error"
    return "error" if getattr(result, "is_error", False) else result.content[0].text


def talk(target: Any, story: Callable[[Any], Awaitable[Any]]) -> Any:
    """Connects a client, and lets it follow a story."""

    async def run() -> Any:
        async with client_of(target) as client:
            return await story(client)

    return asyncio.run(run())


if __name__ == "__main__":
    kind, engine = sys.argv[1:]
    settings: dict[str, Any] = {"engine": engine, "limits": [mcp_limits.limit("2/hour", key="tool")]}
    (official if kind == "official" else fast)(**settings).run()
