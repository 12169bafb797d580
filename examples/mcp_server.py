"""An MCP server of the official package, with limits per tool, user and session.

    pip install 'headgate[mcp]'
    python examples/mcp_server.py                                        # stdio
    uvicorn examples.mcp_server:app                                      # HTTP, at http://localhost:8000/mcp

Without ENGINE it counts in memory, which is right for one process. For several, ENGINE=redis://localhost:6379/0.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.mcpserver import MCPServer

from headgate.integrations.mcp import MCPServerRateLimitMiddleware, current_record, limit

limits = MCPServerRateLimitMiddleware(
    engine=os.environ.get("ENGINE", "memory://"),
    limits=[
        limit("60/minute", key="session"),  # all calls of one session
        limit("3/minute", key=["tool", "user"], missing="one", name="tools"),  # each tool by itself
        limit("1000/hour", key=None, cost=100, when={"tool": "answer"}, name="tokens"),  # an estimate
    ],
)


@asynccontextmanager
async def lifespan(server: MCPServer) -> AsyncIterator[dict[str, Any]]:
    yield {}
    await limits.close()


server = MCPServer("shop", middleware=[limits], lifespan=lifespan)


@server.tool()
def price(item: int) -> int:
    """Returns the price of an item."""
    return 2 * item


@server.tool()
def answer(question: str) -> str:
    """Answers a question."""
    current_record().settle(len(question.split()), rule="tokens")  # what it really cost
    return "42"


app = server.streamable_http_app()

if __name__ == "__main__":
    server.run()
