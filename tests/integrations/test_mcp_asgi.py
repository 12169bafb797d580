"""MCP over HTTP by the ASGI middleware: every call of a JSON-RPC batch counts, and no body hides a call."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastmcp import FastMCP
from mcp.server.mcpserver import MCPServer
from starlette.middleware import Middleware

from headgate import ManualClock
from headgate.errors import InvalidSetting
from headgate.integrations.mcp_asgi import MCPCall, MCPRateLimitMiddleware, current_record, limit
from tests.integrations.mcp_servers import add_tools, outcomes, talk
from tests.integrations.server_harness import limit_fields, serve, serve_to_client
from tests.servers import RedisServer

ADD = ("add", {"a": 1, "b": 2})


async def batches(scope: Any, receive: Any, send: Any) -> None:
    """A server that answers JSON-RPC batches, as revision 2025-03-26 of the protocol has them."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    document = json.loads(body) if b"json" in dict(scope["headers"]).get(b"content-type", b"") else None
    messages = document if isinstance(document, list) else [document]
    if b"settle" in body:
        current_record().settle(5)
    answers = [{"id": each.get("id"), "result": "fine"} for each in messages if isinstance(each, dict)]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(answers).encode()})


def call(tool: str, number: int | None = 1, method: str = "tools/call") -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "method": method, "params": {"name": tool, "arguments": {}}}
    return message if number is None else {**message, "id": number}


def refused(response: httpx.Response) -> bool:
    answers = response.json() if response.content else []
    first = answers[0] if isinstance(answers, list) and answers else answers
    return isinstance(first, dict) and "error" in first


def test_every_call_of_a_batch_counts_and_all_pass_or_none() -> None:
    app = MCPRateLimitMiddleware(batches, limits=[limit("5/hour", key="tool")], clock=ManualClock())
    with serve_to_client(app) as client:
        passed = client.post("/mcp", json=[call("a", number) for number in range(3)])
        assert len(passed.json()) == 3
        assert passed.headers["ratelimit"] == '"app";r=2;t=2160'
        answer = client.post("/mcp", json=[call("b", 7), *(call("a", number) for number in range(3))])
        assert (answer.status_code, answer.headers["retry-after"]) == (200, "720")
        assert [each["id"] for each in answer.json()] == [7, 0, 1, 2]
        assert {each["error"]["code"] for each in answer.json()} == {-32029}
        assert answer.json()[0]["error"]["data"]["retryAfter"] == 720.0
        untouched = client.post("/mcp", json=[call("b", number) for number in range(5)])
        assert not refused(untouched), "a refused batch has charged nothing"
        mixed = client.post("/mcp", json=[call("c", 1), {"id": 4, "result": {}}, call("", 2, "ping"), "noise"])
        assert mixed.headers["ratelimit"] == '"app";r=4;t=720', "responses, pings and noise are no calls"
        never = client.post("/mcp", json=[call("d", number) for number in range(6)])
        assert "retryAfter" not in never.json()[0]["error"]["data"], "no wait helps"
        assert "retry-after" not in never.headers


def test_slots_costs_and_shadow_limits_of_a_batch() -> None:
    slots = MCPRateLimitMiddleware(batches, limits=[limit("2 slots", key=None)])
    with serve_to_client(slots) as client:
        replies = [client.post("/", json=[call("a")] * number) for number in (2, 2, 3, 2)]
        assert [refused(reply) for reply in replies] == [False, False, True, False], "each call holds a slot"
    costs = [
        limit("20/hour", key=None, cost=lambda each: len(each.tool or ""), name="letters"),
        limit("1/hour", key=None, mode="shadow", name="shadow"),
    ]
    app = MCPRateLimitMiddleware(batches, limits=costs, clock=ManualClock())
    with serve_to_client(app) as client:
        reply = client.post("/", json=[call("abc"), call("abcdefg")])
        assert reply.headers["ratelimit"] == '"letters";r=10;t=1800'
        client.post("/", json=[call("settle")])
        assert client.post("/", json=call("a")).headers["ratelimit"].startswith('"letters";r=4;')


def test_a_single_call_is_answered_with_an_error_of_json_rpc() -> None:
    app = MCPRateLimitMiddleware(batches, limits=["1/hour"], status=429, clock=ManualClock())
    with serve_to_client(app) as client:
        assert client.post("/mcp", json=call("a")).status_code == 200
        answer = client.post("/mcp", json=call("a", 9))
        assert (answer.status_code, answer.headers["content-type"]) == (429, "application/json")
        assert (answer.json()["jsonrpc"], answer.json()["id"], answer.json()["error"]["code"]) == (
            "2.0",
            9,
            -32029,
        )
        assert limit_fields(answer) == {
            "ratelimit": '"app";r=0;t=3600', "ratelimit-policy": '"app";q=1;w=3600', "retry-after": "3600",
        }  # fmt: skip
        silent = client.post("/mcp", json=call("a", None))
        assert (silent.status_code, silent.content) == (202, b""), "it is counted, though it asks for no answer"
        assert client.get("/mcp").status_code == 200
        assert "ratelimit" not in client.get("/mcp").headers


@pytest.mark.parametrize(
    "body",
    [
        b'{"method": "ping", "method": "tools/call", "id": 1}',
        b'\xef\xbb\xbf{"method": "tools/call", "id": 1}',
        b'{"method": "t\\u006fols/call", "id": 1}',
        b'  [ {"method": "ping"}, {"method": "tools/call", "id": 1} ]',
        b'{"method": "tools/call", "id": 1, "params": [1]}',
        b'{"method": "tools/call", "id": 1, "params": {"name": "../../ping"}}',
        b'{"method": "tools/call", "id": 1, "params": {"name": ["ping"]}}',
        b'{"method": "resources/read", "id": 1, "params": {"uri": "x:///../../../../ping"}}',
    ],
)
def test_no_body_hides_a_call(body: bytes) -> None:
    app = MCPRateLimitMiddleware(batches, limits=[limit("1/hour", key=None)], clock=ManualClock())
    with serve_to_client(app) as client:
        fields = {"Content-Type": "application/json"}
        client.post("/mcp", content=body, headers=fields)
        assert client.post("/mcp", json=call("a")).headers["retry-after"] == "3600"


def test_bodies_that_cannot_be_read_do_not_pass() -> None:
    app = MCPRateLimitMiddleware(batches, limits=["1/hour"], max_body_bytes=100_000)
    with serve_to_client(app) as client:
        fields = {"Content-Type": "application/json; charset=utf-8"}
        for body in (b"{", b"[" * 50_000, b"\xff\xfe{"):
            answer = client.post("/mcp", content=body, headers=fields)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32700)
        assert client.post("/mcp", content=b"x" * 100_001, headers=fields).status_code == 413
        chunks = client.post("/mcp", content=iter([b"x" * 60_000] * 3), headers=fields)
        assert chunks.status_code == 413
        many = json.dumps([{"method": "ping"}] * 1001)
        assert client.post("/mcp", content=many, headers=fields).json()["error"]["message"] == (
            "A batch has at most 1000 calls."
        )
        form = client.post("/token", data={"grant": "refresh"})
        assert (form.status_code, limit_fields(form)) == (200, {}), "other requests pass as they are"


def test_sessions_users_and_proxies() -> None:
    async def user(each: MCPCall) -> str | None:
        return dict(each.request["headers"]).get(b"x-user", b"").decode() or None

    limits = [
        limit("2/hour", key="session", name="sessions"),
        limit("3/hour", key=["tool", "user"], missing="deny", name="users"),
        limit("100/hour", key="address", name="addresses"),
    ]
    app = MCPRateLimitMiddleware(batches, limits=limits, user=user, trusted_proxies=["127.0.0.1"])
    with serve_to_client(app) as client:

        def passes(session: str, user: str = "ann", query: str = "", **fields: str) -> bool:
            sent = {"Mcp-Session-Id": session, "X-User": user, **fields}
            sent = {name.replace("_", "-"): value for name, value in sent.items() if value}
            return not refused(client.post(f"/mcp{query}", json=call("a"), headers=sent))

        assert [passes(session) for session in "xxxyy"] == [True, True, False, True, False]
        assert passes("z", "bob")
        assert not passes("z", "")
        assert passes("", "cid", "?session_id=s")
        modern = {"Mcp_Protocol_Version": "2026-07-28"}
        invented = [passes(session, f"user {session}", **modern) for session in "abc"]
        assert invented == [True, True, False], "a revision without sessions counts all together"


def test_the_official_client_sees_refusals_of_both_servers() -> None:
    official = add_tools(MCPServer("shop")).streamable_http_app()
    limited = MCPRateLimitMiddleware(official, limits=[limit("2/hour", key="tool")])
    inside: FastMCP[Any] = add_tools(FastMCP("shop"))
    middleware = Middleware(MCPRateLimitMiddleware, limits=[limit("2/hour", key="tool")])
    for app in (limited, inside.http_app(middleware=[middleware])):
        with serve(app) as url:
            results = talk(f"{url}/mcp", lambda client: outcomes(client, [ADD, ADD, ADD]))
            assert results[:2] == ["3", "3"]
            assert (results[2].code, results[2].error.data["violatedPolicies"]) == (-32029, ["app"])


def test_the_official_client_reads_a_429_as_well() -> None:
    official = add_tools(MCPServer("shop")).streamable_http_app(json_response=True)
    with serve(MCPRateLimitMiddleware(official, limits=[limit("1/hour", key="tool")], status=429)) as url:
        results = talk(f"{url}/mcp", lambda client: outcomes(client, [ADD, ADD]))
        assert results[0] == "3"
        assert results[1].code == -32029


def test_two_processes_share_a_limit_through_redis(redis_server: RedisServer) -> None:
    redis_server.flush()
    settings: dict[str, Any] = {"engine": redis_server.url, "limits": [limit("3/hour; 10/day", key="tool")]}
    first, second = (MCPRateLimitMiddleware(batches, **settings) for _ in range(2))
    with serve_to_client(first) as here, serve_to_client(second) as there:
        replies = [
            client.post("/", json=[call("a")] * size) for client, size in ((here, 2), (there, 2), (there, 1))
        ]
        assert [refused(reply) for reply in replies] == [False, True, False]
    assert first.limits._limiter is None, "the engine is closed with the lifespan"


def test_an_outage_is_an_error_and_mistakes_are_found_at_start() -> None:
    app = MCPRateLimitMiddleware(batches, engine="redis://127.0.0.1:1", limits=["1/hour"])
    with serve_to_client(app) as client:
        answer = client.post("/", json=call("a"))
        assert (answer.status_code, answer.headers["retry-after"]) == (200, "1")
        assert answer.json()["error"]["data"] == {"retryAfter": 1}
    with pytest.raises(InvalidSetting, match="status= is 200 or 429, not 500"):
        MCPRateLimitMiddleware(batches, status=500)
    with pytest.raises(InvalidSetting, match="max_body_bytes= is a whole number of at least 1, not '4MB'"):
        MCPRateLimitMiddleware(batches, max_body_bytes="4MB")  # type: ignore[arg-type]
