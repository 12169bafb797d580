"""examples/mcp_server.py and examples/fastmcp_server.py over stdio and HTTP, on memory and on Redis."""

import subprocess
import sys
from typing import Any

import httpx
import pytest
from mcp import MCPError, StdioServerParameters

from tests.integrations.example_server import START_TIMEOUT_S, engine_url, environment
from tests.integrations.mcp_servers import outcomes, talk
from tests.repo_rules.repository import ROOT
from tests.servers.redis_server import free_port
from tests.servers.wait_until import until


async def story(client: Any) -> None:
    results = await outcomes(client, [*[("price", {"item": 21})] * 4, ("answer", {"question": "why not"})])
    assert results[:3] == ["42"] * 3
    assert isinstance(results[3], MCPError)
    assert results[3].error.data["violatedPolicies"] == ["tools"]
    assert 0 < results[3].error.data["retryAfter"] <= 20
    assert results[4] == "42"
    result = await client.call_tool("answer", {"question": "and again"})
    assert '"tokens";r=898;' in result.meta["headgate/ratelimit"], "2 are settled, 100 are charged"


@pytest.mark.parametrize("case", ["mcp_server memory", "fastmcp_server redis"])
def test_the_mcp_examples_limit_over_stdio(case: str, request: pytest.FixtureRequest) -> None:
    example, engine = case.split()
    env = environment(engine_url(engine, request))
    talk(StdioServerParameters(command=sys.executable, args=[f"examples/{example}.py"], env=env, cwd=ROOT), story)


@pytest.mark.parametrize("case", ["mcp_server redis", "fastmcp_server memory"])
def test_the_mcp_examples_limit_over_http(case: str, request: pytest.FixtureRequest) -> None:
    example, engine = case.split()
    port = str(free_port())
    words = [sys.executable, "-m", "uvicorn", f"examples.{example}:app", "--port", port, "--log-level", "critical"]
    process = subprocess.Popen(words, env=environment(engine_url(engine, request)), cwd=ROOT)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            until(lambda: _not_ready(client, process), START_TIMEOUT_S)
            talk(f"http://127.0.0.1:{port}/mcp", story)
            if example == "fastmcp_server":
                call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "price"}}
                answer = client.post("/mcp", json=[call] * 60)
                assert {each["error"]["code"] for each in answer.json()} == {-32029}
                assert answer.headers["ratelimit-policy"] == '"addresses";q=60;w=60'
    finally:
        process.terminate()
        process.wait()


def _not_ready(client: httpx.Client, process: "subprocess.Popen[bytes]") -> str | None:
    assert process.poll() is None, f"the server ended with {process.returncode}"
    try:
        client.get("/nowhere")
        return None
    except httpx.TransportError:
        return "the server does not listen"
