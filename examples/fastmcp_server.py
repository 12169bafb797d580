"""A FastMCP server, with limits per tool, user and session; over HTTP the header fields, and batches, as well.

    pip install 'headgate[fastmcp]'
    python examples/fastmcp_server.py                                    # stdio
    uvicorn examples.fastmcp_server:app                                  # HTTP, at http://localhost:8000/mcp

Without ENGINE it counts in memory, which is right for one process. For several, ENGINE=redis://localhost:6379/0.
"""

import os

from fastmcp import FastMCP

from headgate.integrations.fastmcp import FastMCPRateLimitMiddleware, current_record, limit
from headgate.integrations.mcp_asgi import MCPRateLimitMiddleware

ENGINE = os.environ.get("ENGINE", "memory://")

server: FastMCP[None] = FastMCP("shop")
server.add_middleware(
    FastMCPRateLimitMiddleware(
        engine=ENGINE,
        limits=[
            limit("3/minute", key=["tool", "user"], missing="one", name="tools"),  # each tool by itself
            limit("1000/hour", key=None, cost=100, when={"tool": "answer"}, name="tokens"),  # an estimate
        ],
    )
)


@server.tool
def price(item: int) -> int:
    """Returns the price of an item."""
    return 2 * item


@server.tool
def answer(question: str) -> str:
    """Answers a question."""
    current_record().settle(len(question.split()), rule="tokens")  # what it really cost
    return "42"


# The outer limit counts every call of an address, also in a batch, and puts the fields on HTTP responses.
app = MCPRateLimitMiddleware(server.http_app(), engine=ENGINE, limits=[limit("60/minute", name="addresses")])

if __name__ == "__main__":
    server.run()
