"""MCP servers of the official package and of FastMCP: limits per tool, user and session, on every transport."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from mcp import MCPError, StdioServerParameters

from headgate import ManualClock
from headgate.errors import InvalidRule, InvalidSetting
from headgate.integrations.mcp import MCPCall, MCPServerRateLimitMiddleware, current_record, limit
from tests.integrations.example_server import environment
from tests.integrations.mcp_servers import fast, official, outcomes, talk
from tests.integrations.server_harness import serve
from tests.servers import RedisServer

ADD = ("add", {"a": 1, "b": 2})
ANSWER = ("answer", {"question": "why"})
FAIL: tuple[str, dict[str, Any]] = ("fail", {})
Make = Callable[..., Any]

both = pytest.mark.parametrize("make", [official, fast])


def words(results: list[Any]) -> list[str]:
    return ["refused" if isinstance(each, MCPError) else each for each in results]


@both
def test_each_tool_counts_by_itself(make: Make) -> None:
    server = make(limits=[limit("2/hour", key="tool")], clock=ManualClock())

    async def story(client: Any) -> None:
        await client.list_tools()
        results = await outcomes(client, [ADD, ADD, ADD, ANSWER, ADD])
        assert words(results) == ["3", "3", "refused", "WHY", "refused"]
        refusal = results[2]
        assert refusal.message == "Too many requests. Try again in 1800 seconds."
        assert refusal.error.data == {
            "retryAfter": 1800.0,
            "violatedPolicies": ["app"],
            "headgate/ratelimit": '"app";r=0;t=1800',
            "headgate/ratelimit-policy": '"app";q=2;w=3600',
            "headgate/retry-after": "1800",
        }

    talk(server, story)


@both
def test_the_fields_are_in_the_meta_of_results(make: Make) -> None:
    server = make(limits=[limit("2/hour", key="tool")], clock=ManualClock())

    async def story(client: Any) -> None:
        result = await client.call_tool(*ADD)
        assert result.meta["headgate/ratelimit"] == '"app";r=1;t=1800'
        assert result.meta["headgate/ratelimit-policy"] == '"app";q=2;w=3600'

    talk(server, story)


@both
def test_calls_count_and_lists_only_where_a_limit_names_them(make: Make) -> None:
    limits = [limit("3/hour", key=None), limit("2/hour", key=None, when={"method": "*/list"}, name="lists")]
    server = make(limits=limits, clock=ManualClock())

    async def story(client: Any) -> None:
        await client.read_resource("shop://items")
        await client.get_prompt("greet")
        await client.list_prompts()
        await client.list_resources()
        with pytest.raises(MCPError, match="Too many requests"):
            await client.list_resource_templates() if make is fast else await client.list_prompts(cursor="next")
        assert words(await outcomes(client, [FAIL, ADD])) == ["error", "refused"]

    talk(server, story)


@both
def test_a_rulebook_sees_method_tool_and_path(make: Make) -> None:
    rules = {
        "attributes": ["tool", "session"],
        "rules": [
            {"name": "answer", "when": {"tool": "answer"}, "limit": "1/hour", "refuse": {"body": "Ask later."}},
            {"name": "reads", "when": {"path": "/resources/read/*"}, "limit": "1/hour"},
            {"name": "prompts", "when": {"method": "prompts/get"}, "limit": "1/hour"},
        ],
    }
    server = make(rules=rules, clock=ManualClock())

    async def story(client: Any) -> None:
        results = await outcomes(client, [ANSWER, ANSWER, ADD, ADD])
        assert words(results) == ["WHY", "refused", "3", "3"]
        assert results[1].message == "Ask later."
        await client.read_resource("shop://items")
        await client.get_prompt("greet")
        with pytest.raises(MCPError, match="Too many requests"):
            await client.read_resource("shop://items")
        with pytest.raises(MCPError, match="Too many requests"):
            await client.get_prompt("greet")

    talk(server, story)


@both
def test_functions_receive_the_call(make: Make) -> None:
    seen: list[MCPCall] = []

    async def user(call: MCPCall) -> str:
        seen.append(call)
        return str(call.arguments.get("question", "nobody"))

    limits = [
        limit("1/hour", key=["tool", "user"], missing="deny", name="users"),
        limit("5/hour", key=lambda call: call.tool, cost=lambda call: len(call.arguments), name="arguments"),
    ]
    server = make(limits=limits, user=user, attributes=lambda call: {"plan": "pro"}, clock=ManualClock())

    async def story(client: Any) -> None:
        calls = [("answer", {"question": question}) for question in ("a", "b", "a")]
        assert words(await outcomes(client, [*calls, ADD, FAIL])) == ["A", "B", "refused", "3", "error"]

    talk(server, story)
    assert (seen[0].method, seen[0].tool, seen[0].session, seen[0].request) == ("tools/call", "answer", None, None)


@both
def test_costs_are_settled_and_failures_refunded(make: Make) -> None:
    limits = [
        limit("20/hour", cost=10, key="tool", when={"tool": "answer"}, name="tokens"),
        limit("2/hour", key=None, refund="2xx", when={"tool": "*l"}, name="failures"),
    ]
    server = make(limits=limits, clock=ManualClock())

    async def story(client: Any) -> None:
        await client.call_tool(*ANSWER)
        result = await client.call_tool(*ANSWER)
        assert result.meta["headgate/ratelimit"].startswith('"tokens";r=7;'), "3 are settled, 10 are charged"
        assert words(await outcomes(client, [FAIL, FAIL, FAIL])) == ["error", "error", "refused"]
        with pytest.raises(InvalidSetting):
            current_record()

    talk(server, story)


@both
def test_slots_and_outages(make: Make) -> None:
    server = make(limits=[limit("1 slots", key=None)])
    talk(server, lambda client: _assert_words(client, [ADD, FAIL, ADD, ADD], ["3", "error", "3", "3"]))
    server = make(engine="redis://127.0.0.1:1", limits=[limit("1/hour", key=None)])

    async def story(client: Any) -> None:
        with pytest.raises(MCPError) as failed:
            await client.call_tool(*ADD)
        assert (failed.value.code, failed.value.error.data) == (-32603, {"retryAfter": 1})

    talk(server, story)
    server = make(engine="redis://127.0.0.1:1?fallback=allow", limits=[limit("1/hour", key=None)])
    talk(server, lambda client: _assert_words(client, [ADD, ADD], ["3", "3"]))


async def _assert_words(client: Any, calls: Any, expected: list[str]) -> None:
    assert words(await outcomes(client, calls)) == expected


@both
def test_exempt_tools_and_shadow_limits_pass(make: Make) -> None:
    limits = [limit("1/hour", key=None), limit("1/hour", key=None, mode="shadow", name="shadow")]
    server = make(limits=limits, exempt=["/tools/call/add"])
    expected = ["3", "3", "WHY", "refused", "3"]
    talk(server, lambda client: _assert_words(client, [ADD, ADD, ANSWER, ANSWER, ADD], expected))


@pytest.mark.parametrize("kind", ["official", "fast"])
def test_servers_over_stdio_share_a_limit_through_redis(kind: str, redis_server: RedisServer) -> None:
    redis_server.flush()
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tests.integrations.mcp_servers", kind, redis_server.url],
        env=environment(redis_server.url),
    )
    talk(command, lambda client: _assert_words(client, [ADD], ["3"]))
    talk(command, lambda client: _assert_words(client, [ADD, ADD, ANSWER], ["3", "refused", "WHY"]))


def http_app(server: Any, **options: Any) -> Any:
    return server.http_app(**options) if hasattr(server, "http_app") else server.streamable_http_app(**options)


@both
@pytest.mark.parametrize("stateless", [False, True])
def test_servers_over_http_know_address_and_session(make: Make, stateless: bool) -> None:
    calls: list[MCPCall] = []

    def note(call: MCPCall) -> str:
        calls.append(call)
        return "everybody"

    limits = [
        limit("2/hour", key="session", when={"method": "tools/call"}, name="sessions"),
        limit("3/hour", key="address", when={"method": "tools/call"}, name="addresses"),
        limit("100/hour", key=note, name="all"),
    ]
    app = http_app(make(limits=limits, clock=ManualClock()), stateless_http=stateless)
    with serve(app) as url:
        first = talk(f"{url}/mcp", lambda client: outcomes(client, [ADD, ADD, ADD]))
        assert words(first) == ["3", "3", "refused"]
        second = talk(f"{url}/mcp", lambda client: outcomes(client, [ADD, ADD]))
    tool_calls = [call for call in calls if call.tool]
    assert {call.address for call in calls} == {"127.0.0.1"}
    assert ("user-agent" in dict(tool_calls[0].headers)) or (b"user-agent" in dict(tool_calls[0].headers))
    sessions = {call.session for call in tool_calls}
    if sessions == {None}:  # a stateless server, or a revision of the protocol without sessions
        assert words(second) == ["refused", "refused"], "who has no session is counted together"
    else:
        assert not stateless
        assert words(second) == ["3", "refused"]


def test_mistakes_are_found_at_start() -> None:
    with pytest.raises(InvalidRule, match=r"test_mcp\.py:\d+: .*nobody supplies the attribute plan"):
        MCPServerRateLimitMiddleware(limits=[limit("1/hour", key="plan", missing="one")])
    with pytest.raises(InvalidRule, match="can be missing"):
        limit("1/hour", key=["tool", "user"])
    with pytest.raises(InvalidSetting, match="Did you mean limits="):
        MCPServerRateLimitMiddleware(limit=["1/hour"])  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match="exempt= is a list"):
        MCPServerRateLimitMiddleware(exempt="/tools/list")
